"""Triangle attention of Boltz and Protenix with cuevo in the place of the kernel that they import,
beside their own path without a kernel: the result and every gradient.

    pip install --no-deps --target clients boltz==2.2.1 protenix==2.0.0 einops optree scipy
    PYTHONPATH=clients python tools/try_clients.py
    PYTHONPATH=clients python tools/try_clients.py --device cuda --lengths 384 385 769

It needs torch. Weights and pair representation are random, those of layer norms around the 1 and 0
that they begin with, and residues at the end are padding, as in a batch of several lengths. Errors,
by norm and relative, are those beside their own path in float32; under autocast, the error of that
path is printed too. Exits 1 where an error is above its limit, and above that of their own path.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

CHANNELS, HEAD_DIM, HEADS = 128, 32, 4
"""Those of either model."""
PADDING = 3
FORWARD, GRADIENT = 5e-3, 2e-2
"""Limits of the errors."""


class Counted:
    """A function that counts its calls."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.calls = 0

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.calls += 1
        return self.function(*args, **options)


def replace(path: str, function: Callable[..., Any]) -> Counted:
    """Put `function` where a program imports `path` from, module and name."""
    names = path.split(".")
    for end in range(1, len(names)):
        module = ".".join(names[:end])
        sys.modules[module] = ModuleType(module)
    counted = Counted(function)
    setattr(sys.modules[".".join(names[:-1])], names[-1], counted)
    return counted


def drop_in(name: str) -> Callable[..., Any]:
    """That function of cuevo.torch, which is imported when it is called."""
    return lambda *args, **options: getattr(import_module("cuevo.torch"), name)(*args, **options)


KERNELS = {
    "cuequivariance": (
        "cuequivariance_torch.primitives.triangle.triangle_attention",
        drop_in("triangle_attention"),
    ),
    "deepspeed": (
        "deepspeed.ops.deepspeed4science.DS4Sci_EvoformerAttention",
        drop_in("DS4Sci_EvoformerAttention"),
    ),
}
"""What is imported, and what cuevo has for it."""


@dataclass(frozen=True)
class Client:
    """A module of another package, and how it is told to use a kernel."""

    path: str
    kernel: str
    own: dict[str, Any]
    """Options of its forward that choose its path without a kernel."""
    with_kernel: dict[str, Any]
    batch: tuple[int, ...]
    """Axes of a pair representation in front of those of residues."""
    fewest: int = 1
    """Shorter sequences it never gives to a kernel."""

    @property
    def module(self) -> Callable[..., nn.Module]:
        path, _, name = self.path.rpartition(".")
        found: Callable[..., nn.Module] = getattr(import_module(path), name)
        return found


def _protenix(kernel: str) -> Client:
    path = "protenix.model.triangular.triangular.TriangleAttention"
    own, other = ({"triangle_attention": name} for name in ("torch", kernel))
    return Client(path, kernel, own, other, (), fewest=17)


CLIENTS = {
    "boltz": Client(
        "boltz.model.layers.triangular_attention.attention.TriangleAttention",
        "cuequivariance",
        {"use_kernels": False},
        {"use_kernels": True},
        (1,),
    ),
    "protenix-deepspeed": _protenix("deepspeed"),
    "protenix-cuequivariance": _protenix("cuequivariance"),
}


def run(module: nn.Module, pair: Any, mask: Any, dout: Any, **options: Any) -> dict[str, Any]:
    """The result, and the gradients of the pair representation and of every weight."""
    module.zero_grad()
    pair = pair.detach().requires_grad_()
    out = module(pair, mask, **options)
    out.backward(dout.to(out.dtype))
    gradients = {name: x.grad for name, x in module.named_parameters()}
    return {"result": out.detach(), "pair": pair.grad, **gradients}


def errors(
    client: Client, length: int, starting: bool, half: bool, device: str
) -> tuple[dict[str, float], dict[str, float]]:
    """The error of the result and of every gradient, with cuevo and without a kernel."""
    import torch
    from torch import nn

    torch.manual_seed(length)
    kernel = replace(*KERNELS[client.kernel])
    module = client.module(CHANNELS, HEAD_DIM, HEADS, starting=starting)
    for name, weight in module.named_parameters():
        mean = 1.0 if name.endswith("norm.weight") else 0.0
        nn.init.normal_(weight, mean=mean, std=weight.shape[-1] ** -0.5)
    module.to(device)
    shape = (*client.batch, length, length)
    pair = torch.randn(*shape, CHANNELS).to(device)
    present = torch.arange(length) < length - PADDING
    mask = (present[:, None] & present).expand(shape).float().to(device)
    dout = torch.randn(*shape, CHANNELS).to(device) * mask[..., None]
    exact = run(module, pair, mask, dout, **client.own)
    with torch.autocast(device, torch.bfloat16) if half else nullcontext():
        own = run(module, pair, mask, dout, **client.own) if half else exact
        assert not kernel.calls, "their own path called the kernel"
        found = run(module, pair, mask, dout, **client.with_kernel)
    assert kernel.calls == 1, f"{kernel.calls} calls of the kernel"
    return relative(found, exact), relative(own, exact)


def relative(found: dict[str, Any], exact: dict[str, Any]) -> dict[str, float]:
    """The relative error by norm of each tensor."""
    wide = {name: x.double() for name, x in exact.items()}
    return {name: float((found[name].double() - x).norm() / x.norm()) for name, x in wide.items()}


def trials(clients: list[str], lengths: list[int]) -> Iterator[tuple[str, int, bool, bool]]:
    for client in clients:
        for length in lengths:
            if length >= CLIENTS[client].fewest:
                for starting in (True, False):
                    for half in (False, True):
                        yield client, length, starting, half


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=list(CLIENTS))
    parser.add_argument("--lengths", nargs="+", type=int, default=[16, 17, 33, 40])
    parser.add_argument("--device", default="cpu", help="of torch")
    options = parser.parse_args()
    os.environ["LAYERNORM_TYPE"] = "torch"  # Protenix compiles the other one with nvcc
    worst = 0.0
    print(f"{'client':23} {'L':>4} node     inputs    result   own      gradient own")
    for client, length, starting, half in trials(options.clients, options.lengths):
        found, own = errors(CLIENTS[client], length, starting, half, options.device)
        shares = {
            name: error / max(FORWARD if name == "result" else GRADIENT, own[name])
            for name, error in found.items()
        }
        worst = max(worst, *shares.values())
        name = max(found.keys() - {"result"}, key=lambda name: found[name])
        print(
            f"{client:23} {length:4} {'starting' if starting else 'ending  '} "
            f"{'autocast' if half else 'float32 '}  {found['result']:.1e}  {own['result']:.1e}  "
            f"{found[name]:.1e}  {own[name]:.1e}  {name}",
            flush=True,
        )
    print(f"the largest error is {worst:.2f} of its limit ({FORWARD:g}; gradients {GRADIENT:g})")
    return int(not worst <= 1.0)


if __name__ == "__main__":
    sys.exit(main())
