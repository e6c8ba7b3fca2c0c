"""Host half of ``ptx/attention_maps_sm90a.ptx``: the tensor maps of
`evoformer_forward_sm90a`, built on the device.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from cuevo.architectures import Architecture
from cuevo.cuda.tensor_map import BYTES, TensorMap

__all__ = [
    "ARCH",
    "MINIMUM_ARCH",
    "NAME",
    "SHAPE",
    "SUMMARY",
    "Config",
    "config_for",
    "parameters",
    "values",
    "violations",
]

NAME = "attention_maps_sm90a"
SUMMARY = "the tensor maps of evoformer_forward_sm90a, for hosts that do not know addresses"
MINIMUM_ARCH = 90
ARCH = "sm_90a"
"""tensormap.replace is of one architecture, not of later ones."""

SHAPE = (3, BYTES)
"""Of the maps: those of q, k and v."""


@dataclass(frozen=True)
class Config:
    """One instance of the kernel; every field is a name in its template."""

    head_dim: int
    dtype: str = "bf16"
    row_elements: int = 64
    """Elements of a row of a box, and of its swizzle: 16, 32 or 64, D at least."""
    block_queries: int = 128
    """Positions of a box of q."""
    block_keys: int = 32
    """The same of k and v."""

    @property
    def threads(self) -> int:
        """Threads of a block: a warp for each map."""
        return 32 * SHAPE[0]

    @property
    def shared_bytes(self) -> int:
        """Dynamic shared memory: the maps."""
        return SHAPE[0] * BYTES

    @property
    def grid(self) -> tuple[int, int, int]:
        """Threadblocks of a launch."""
        return (1, 1, 1)


def config_for(maps: Sequence[TensorMap]) -> Config:
    """The instance that builds the maps of q, k and v as `evoformer_forward_sm90a` asks for them,
    but that misses in L2 fetch what is asked for.
    """
    q, k, _ = maps
    return Config(q.extents[0], q.dtype, q.box[0], q.box[1], k.box[1])


def values(config: Config) -> dict[str, object]:
    """The names that the template sees."""
    return asdict(config)


def violations(config: Config, arch: Architecture) -> tuple[str, ...]:
    """Reasons why `config` cannot run on `arch`; empty if it can."""
    return tuple(_violations(config, arch))


def _violations(c: Config, arch: Architecture) -> Iterator[str]:
    if arch.name != ARCH:
        yield f"tensormap.replace needs {ARCH}; this is {arch.name}"
    if c.dtype not in ("f16", "bf16"):
        yield f"dtype must be f16 or bf16, not {c.dtype!r}"
    if c.row_elements not in (16, 32, 64):
        yield f"row_elements must be 16, 32 or 64, not {c.row_elements}"
    if c.head_dim % 8 or not 8 <= c.head_dim <= c.row_elements:
        yield f"head_dim must be a multiple of 8 from 8 to {c.row_elements}, not {c.head_dim}"
    for name in ("block_queries", "block_keys"):
        if not 1 <= getattr(c, name) <= 256:
            yield f"{name} must be 1 to 256, not {getattr(c, name)}"


def parameters(maps: Sequence[TensorMap], *, to: int) -> dict[str, int | tuple[int, ...]]:
    """The parameter block of a launch that writes the maps of q, k and v to address `to`, by field
    name.
    """
    q, k, v = maps
    return {
        "q": q.pointer,
        "k": k.pointer,
        "v": v.pointer,
        "maps": to,
        "q_strides": q.strides,
        "k_strides": k.strides,
        "v_strides": v.strides,
        "q_extents": q.extents[1:],
        "k_extents": k.extents[1:],
    }
