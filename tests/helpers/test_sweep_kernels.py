"""The count of the kernels that sweeps load."""

from types import SimpleNamespace

import pytest
from helpers import sweep_kernels
from helpers.executors import shared

from cuevo.toolchain.lineinfo import SourceLine

pytestmark = pytest.mark.unit


def kernel(text: str) -> SimpleNamespace:
    return SimpleNamespace(
        name="k", text=text, describe=lambda: "k", origin=lambda line: SourceLine("k.ptx", line)
    )


def test_kernels_are_recorded_and_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    place = shared("sm_80")
    text = ".version 7.0\n.target sm_80\n.address_size 64\n.visible .entry k() { ret; }\n"
    texts = [text, text + "// another\n"]
    loaded: dict[str, list[str]] = {}
    with sweep_kernels.recorded(loaded):
        for each in (*texts, text):
            place.load(kernel(each))
    place.load(kernel(text))
    assert [len(digests) for digests in loaded.values()] == [3]
    found = sweep_kernels.counts([loaded, loaded, {"other": ["x"]}])
    assert found == {"k": 2, "other": 1}
    monkeypatch.setattr(sweep_kernels, "LEAST", {"k": 3, "other": 1, "third": 1})
    assert sweep_kernels.missing(found) == [
        "k: 2 kernels in the sweeps, where there were 3",
        "third: 0 kernels in the sweeps, where there were 1",
    ]
