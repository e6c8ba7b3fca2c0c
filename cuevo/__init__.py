"""Evoformer attention and matrix products from handwritten PTX, launched with cuda-python, checked
on a CPU executor.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cuevo.arrays import array_from_pointer
    from cuevo.executors.own import load
    from cuevo.ops.backward import attention_backward, attention_backward_workspace
    from cuevo.ops.forward import attention, attention_workspace
    from cuevo.ops.product import gemm

__all__ = [
    "array_from_pointer",
    "attention",
    "attention_backward",
    "attention_backward_workspace",
    "attention_workspace",
    "gemm",
    "load",
]

__version__ = "0.1.0"

_HOMES = {
    "array_from_pointer": "cuevo.arrays",
    "attention": "cuevo.ops.forward",
    "attention_backward": "cuevo.ops.backward",
    "attention_backward_workspace": "cuevo.ops.backward",
    "attention_workspace": "cuevo.ops.forward",
    "gemm": "cuevo.ops.product",
    "load": "cuevo.executors.own",
}
"""Where each of these is."""

_MODULES = (
    *("architectures", "arrays", "cuda", "errors", "executors"),
    *("kernels", "layouts", "ops", "sim", "toolchain"),
)
"""Such as need no import of their own."""


def __getattr__(name: str) -> Any:
    """A function or module, imported when it is first asked for: NumPy and cuda-python take some
    tenths of a second, which who only imports cuevo need not wait for, nor for what only others of
    its functions need.
    """
    if name in _MODULES:
        return import_module(f"cuevo.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
