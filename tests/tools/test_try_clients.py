"""The tool that runs other packages' modules with cuevo, on a module in their manner."""

import sys
from dataclasses import replace
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest

if find_spec("torch") is None:
    pytest.skip("torch is absent", allow_module_level=True)

from torch import nn

import cuevo.torch
import try_clients

STUBS = ("cuequivariance_torch", "primitives", "triangle")


class Attention(nn.Module):
    """Triangle attention, with an import of a kernel where it is asked for."""

    def __init__(self, channels: int, head_dim: int, heads: int, starting: bool) -> None:
        super().__init__()
        self.heads, self.starting = heads, starting
        self.qkv = nn.Linear(channels, 3 * heads * head_dim, bias=False)
        self.linear = nn.Linear(channels, heads, bias=False)
        self.out = nn.Linear(heads * head_dim, channels)

    def forward(self, pair: Any, mask: Any, use_kernels: bool) -> Any:
        if not self.starting:
            pair, mask = pair.transpose(1, 2), mask.transpose(1, 2)
        q, k, v = (
            x.unflatten(-1, (self.heads, -1)).transpose(2, 3) for x in self.qkv(pair).chunk(3, -1)
        )
        bias, mask = self.linear(pair).permute(0, 3, 1, 2)[:, None], mask[:, :, None, None].bool()
        if use_kernels:
            from cuequivariance_torch.primitives.triangle import triangle_attention

            out = triangle_attention(q, k, v, bias, mask=mask, scale=q.shape[-1] ** -0.5)
        else:
            scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5 + bias
            out = scores.masked_fill(~mask, -1e9).softmax(-1) @ v
        out = self.out(out.transpose(2, 3).flatten(3))
        return out if self.starting else out.transpose(1, 2)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> None:
    """`Attention` is the only client; what the tool imports it with goes away again."""
    for end in range(len(STUBS)):
        name = ".".join(STUBS[: end + 1])
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    package: Any = ModuleType("a_client")
    package.Attention = Attention
    monkeypatch.setitem(sys.modules, "a_client", package)
    paths = ({"use_kernels": False}, {"use_kernels": True})
    made = try_clients.Client("a_client.Attention", "cuequivariance", *paths, (1,))
    monkeypatch.setattr(try_clients, "CLIENTS", {"a_client": made})
    monkeypatch.setenv("LAYERNORM_TYPE", "")
    monkeypatch.setattr(sys, "argv", ["try_clients", "--clients", "a_client", "--lengths", "9"])


@pytest.mark.kernel
@pytest.mark.usefixtures("client")
def test_errors_of_both_nodes_and_types_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert try_clients.main() == 0
    _, *lines, last = capsys.readouterr().out.splitlines()
    assert [line.split()[1:4] for line in lines] == [
        ["9", node, inputs] for node in ("starting", "ending") for inputs in ("float32", "autocast")
    ]
    assert 0.1 < float(last.split()[4]) < 1.0


@pytest.mark.kernel
@pytest.mark.usefixtures("client")
def test_a_kernel_that_is_wrong_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    path, right = try_clients.KERNELS["cuequivariance"]

    def wrong(*args: Any, **options: Any) -> Any:
        return 1.01 * right(*args, **options)

    monkeypatch.setitem(try_clients.KERNELS, "cuequivariance", (path, wrong))
    assert try_clients.main() == 1


@pytest.mark.unit
@pytest.mark.usefixtures("client")
def test_a_path_that_takes_no_kernel_is_found() -> None:
    made = try_clients.CLIENTS["a_client"]
    without = replace(made, with_kernel=made.own)
    with pytest.raises(AssertionError, match="0 calls of the kernel"):
        try_clients.errors(without, 5, True, False, "cpu")


@pytest.mark.unit
def test_what_takes_the_place_of_a_kernel_is_there() -> None:
    names = {path.rpartition(".")[2] for path, _ in try_clients.KERNELS.values()}
    assert names <= set(cuevo.torch.__all__)
