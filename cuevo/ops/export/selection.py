"""What an exported folder is for, and which configurations it has."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from types import ModuleType
from typing import Any

from cuevo.architectures import Architecture, architecture, check_exists
from cuevo.kernels import evoformer_backward_sm80
from cuevo.kernels.evoformer_forward_sm80 import MINIMUM_ARCH

__all__ = ["BIASES", "OPERATIONS", "Narrowed", "Selection", "narrowed"]

OPERATIONS = ("forward", "backward")
BIASES = ("none", "own", "f32", "bool")
"""Types of biases: "own" is that of q."""


@dataclass(frozen=True)
class Selection:
    """The problems that a folder serves; names are those of `cuevo.kernels.forward.Problem`."""

    operations: tuple[str, ...]
    """Of `OPERATIONS`."""
    head_dims: tuple[int, ...]
    dtypes: tuple[str, ...]
    architectures: tuple[str, ...]
    """The names that the assembler has for them, such as "sm_80" and "sm_90a"."""
    masks: tuple[str, ...] = ("none", "own")
    """Types of mask_bias, of `BIASES`."""
    pairs: tuple[str, ...] = ("none", "own")
    """Types of pair_bias, of `BIASES`, but bool."""

    def __post_init__(self) -> None:
        for name in self.architectures:
            check_exists(name)
        for head_dim in self.head_dims:
            if head_dim % 8 or not 8 <= head_dim <= 128:
                raise ValueError(f"head dims are multiples of 8 from 8 to 128; got {head_dim}")
        for name, legal in (
            ("operations", OPERATIONS),
            ("dtypes", ("f16", "bf16")),
            ("masks", BIASES),
            ("pairs", BIASES[:-1]),
        ):
            given = getattr(self, name)
            if unknown := [each for each in given if each not in legal] or not given:
                raise ValueError(f"{name}: expected some of {', '.join(legal)}; got {unknown}")
        numbers = [each.number for each in self.limits]
        if len({*numbers}) != len(numbers) or not numbers or min(numbers) < MINIMUM_ARCH:
            raise ValueError(
                f"architectures: expected one or more, each once, from sm_{MINIMUM_ARCH} on"
            )

    @property
    def limits(self) -> tuple[Architecture, ...]:
        """The architectures, from the lowest up."""
        return tuple(sorted(map(architecture, self.architectures), key=lambda each: each.number))

    def kinds(self, operation: str = "") -> Iterator[tuple[Architecture, int, str, str, str]]:
        """Architecture, head dim, and types of q, mask and pair bias of the problems served, by
        that operation.
        """
        if operation and operation not in self.operations:
            return
        for arch, head_dim, dtype, mask, pair in product(
            self.limits, self.head_dims, self.dtypes, self.masks, self.pairs
        ):
            own = {"own": dtype}
            yield arch, head_dim, dtype, own.get(mask, mask), own.get(pair, pair)


def narrowed(config: Any) -> Any:
    """The instance that a folder has in the place of `config`: one for any lengths, with a mask or
    bounds. The others gain little and would be several times as many. Backward, which has many
    already, has none with a short last tile.
    """
    if isinstance(config, evoformer_backward_sm80.Config):
        return replace(config, full_tiles=False, mask=True, short_stationary=0, short_rows=0)
    mask = "bounds" if config.mask == "none" else config.mask
    return replace(config, full_tiles=False, mask=mask)


class Narrowed:
    """A variant of an operation that has the configurations of folders alone; see
    `cuevo.ops.dispatch.KernelVariant`.
    """

    def __init__(self, kernel: ModuleType) -> None:
        self._kernel = kernel

    def __getattr__(self, name: str) -> Any:
        return getattr(self._kernel, name)

    def candidates(self, problem: Any) -> Iterator[tuple[Any, float]]:
        """Configurations that may serve `problem`, with the speed of their tiling."""
        for config, speed in self._kernel.candidates(problem):
            yield narrowed(config), speed

    def choose(self, problem: Any, arch: Architecture) -> Any:
        """The configuration that serves `problem`."""
        return narrowed(self._kernel.choose(problem, arch, self.candidates(problem)))

    def adapt(self, config: Any, problem: Any) -> Any:
        """`config`, fitted to `problem`."""
        return narrowed(self._kernel.adapt(config, problem))
