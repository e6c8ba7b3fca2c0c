"""tools/compare.py: two checkouts in one process, and what is said of their results."""

import shutil
import sys
from pathlib import Path

import pytest
from helpers.host_backend import HostBackend

import compare
import cuevo
from workloads import Workload

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this one, whose products are the negative of what they should be."""
    folder = tmp_path_factory.mktemp("other")
    # With what Python and Numba have compiled, but for files that another process is at work on.
    kept = (".py", ".pyc", ".nbi", ".nbc", ".ptx", ".h", ".txt")

    def others(parent: str, names: list[str]) -> set[str]:
        return {x for x in names if "." in x and not x.endswith(kept)}

    for name in ("cuevo", "ptx"):
        shutil.copytree(ROOT / name, folder / name, ignore=others)
    face = folder / "cuevo" / "__init__.py"
    negative = (
        "def gemm(a, b, **more):\n"
        "    from cuevo.ops.product import gemm as right\n"
        "    return right(a, b, alpha=-1, **more)\n"
    )
    face.write_text(face.read_text(encoding="utf-8") + negative, encoding="utf-8")
    return folder


@pytest.mark.unit
def test_two_packages_of_one_name(checkout: Path) -> None:
    attention = cuevo.attention
    before = {name for name in sys.modules if name.startswith("cuevo")}
    other = compare.Checkout(checkout).package
    assert Path(str(other.__file__)).parent == checkout / "cuevo"
    assert other.attention is not attention
    assert sys.modules["cuevo"] is cuevo
    assert {name for name in sys.modules if name.startswith("cuevo")} == before
    assert str(checkout) not in sys.path


@pytest.mark.unit
def test_modules_that_are_imported_late_stay_with_their_package(checkout: Path) -> None:
    other = compare.Checkout(checkout)
    late = "cuevo.roofline_of_nobody"
    with other.active():
        sys.modules[late] = other.package
    assert late not in sys.modules
    sys.modules["nobody_of_cuevo"] = cuevo
    try:
        with other.active():
            assert sys.modules[late] is other.package
            assert sys.modules["cuevo"] is other.package
    finally:
        del sys.modules["nobody_of_cuevo"]
    assert sys.modules["cuevo"] is cuevo
    assert late not in sys.modules


@pytest.mark.unit
def test_a_folder_that_holds_none(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no cuevo"):
        compare.Checkout(tmp_path)
    assert sys.modules["cuevo"] is cuevo


@pytest.mark.unit
@pytest.mark.parametrize(
    ("biases", "given"),
    [
        ("both", (True, True)),
        ("mask", (True, False)),
        ("pair", (False, True)),
        ("none", (False, False)),
    ],
)
def test_biases_that_attention_has(biases: str, given: tuple[bool, bool]) -> None:
    backend = HostBackend(tick=1.0)
    (calls,) = compare.forward_calls(biases, backend, [cuevo], Workload(1, 1, 16, 8))
    for call in calls:
        _, inputs, _ = call.args
        assert (inputs.mask_bias is not None, inputs.pair_bias is not None) == given


@pytest.mark.kernel
def test_a_difference_is_seen(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        compare, "open_backend", lambda **_: HostBackend(tick=100.0)
    )  # bursts are short
    monkeypatch.setattr(compare, "REPEATS", 1)
    monkeypatch.setattr(compare, "BURSTS", 1)
    monkeypatch.setattr(compare, "HOST_CALLS", 1)
    monkeypatch.setattr(compare, "INPUT_SETS", 1)
    monkeypatch.setattr(compare, "FORWARD", (Workload(1, 1, 16, 8),))
    monkeypatch.setattr(compare, "BACKWARD", ())
    monkeypatch.setattr(compare, "PRODUCTS", ((16, 16, 16),))
    assert compare.main([str(checkout)]) == 1
    forward, product = capsys.readouterr().out.splitlines()[-2:]
    assert "forward 1,1,16,8" in forward and forward.rstrip(" |").endswith("yes")
    assert "product 16,16,16" in product and product.rstrip(" |").endswith("NO")
    assert compare.main([str(checkout), "--backward", "1,2,16,8", "--backward", "1,1,9,8"]) == 0
    *_, first, second = capsys.readouterr().out.splitlines()
    assert "backward 1,2,16,8" in first and "backward 1,1,9,8" in second
    with pytest.raises(SystemExit):
        compare.main([str(checkout), "--forward", "L=17"])
    assert "no workload has L=17; there are 1,1,16,8" in capsys.readouterr().err
