"""What a launch may take before it counts as one that never ends."""

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class Budget:
    instructions: int = 200_000_000
    """Instructions that the blocks which run together may take one after the other, each for all
    warps that stand there. Kernels take some thousands; this is minutes.
    """
    seconds: float = inf
    """Time of the whole launch."""

    def __post_init__(self) -> None:
        for name in ("instructions", "seconds"):
            if not getattr(self, name) > 0:
                raise ValueError(f"a budget of {getattr(self, name)} {name}; it must be positive")


DEFAULT = Budget()
