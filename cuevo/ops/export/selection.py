"""What an exported folder is for, and which configurations it has."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from types import ModuleType
from typing import Any

from cuevo.architectures import Architecture, architecture, check_exists
from cuevo.kernels import evoformer_backward_sm80, gemm_mma
from cuevo.kernels.evoformer_forward_sm80 import MINIMUM_ARCH
from cuevo.kernels.gemm_config import SIZES

__all__ = [
    "BIASES",
    "OPERATIONS",
    "Narrowed",
    "Products",
    "Selection",
    "narrowed",
    "narrowed_product",
]

OPERATIONS = ("forward", "backward", "gemm")
BIASES = ("none", "own", "f32", "bool")
"""Types of biases: "own" is that of q."""
_MANY = 2**20
"""Rows and columns of a product that may have any tiling,"""
_DEEP = 128
"""and its k: two stages, which may be split in two."""


def _check(given: Sequence[Any], legal: Sequence[Any], name: str) -> None:
    if unknown := [each for each in given if each not in legal] or not given:
        listed = ", ".join(map(str, legal))
        raise ValueError(f"{name}: expected some of {listed}; got {unknown or 'none'}")


@dataclass(frozen=True)
class Products:
    """The matrix products that a folder serves; "own" is the type of a and b."""

    orders: tuple[str, ...] = ("nn", "nt", "tn")
    """Of a, then b: "n" for contiguous rows, "t" for contiguous columns."""
    results: tuple[str, ...] = ("own",)
    """Types of out."""
    addends: tuple[str, ...] = ("none", "own")
    """Types of c."""
    biases: tuple[str, ...] = ("none", "result")
    """Types of bias: that of the result, or "own" beside one of f32."""
    scatters: tuple[str, ...] = ("none",)
    """Types of scatter."""
    alignments: tuple[int, ...] = (16,)
    """Bytes: 16 serves rows of a, b, c and out that begin, those of c and out also end, at
    multiples of 16 bytes, 2 all others. See `narrowed_product`.
    """

    def __post_init__(self) -> None:
        _check(self.orders, ("nn", "nt", "tn", "tt"), "orders")
        _check(self.results, ("own", "f32"), "results")
        _check(self.addends, ("none", "own", "f32"), "addends")
        _check(self.biases, ("none", "result", "own"), "product biases")
        _check(self.scatters, ("none", "i32", "i64"), "scatters")
        _check(self.alignments, (16, 2), "alignments")

    def problems(self, dtype: str) -> Iterator[gemm_mma.Problem]:
        """A large problem of every kind that is served, for a and b of that type."""
        kinds = product(
            *(self.orders, self.results, self.addends, self.biases, self.scatters),
            *(self.alignments,) * 2,
        )
        for order, result, addend, bias, scatter, of_inputs, of_outputs in kinds:
            out_dtype = dtype if result == "own" else result
            wide = bias == "own" and out_dtype == "f32"
            if bias == "own" and not wide and "result" in self.biases:
                continue  # It is that type.
            problem = gemm_mma.Problem(
                *(1, _MANY, _MANY, _DEEP, dtype, out_dtype),
                a_columns=order[0] == "t",
                b_columns=order[1] == "t",
                c=dtype if addend == "own" else addend,
                bias=bias != "none",
                bias_of_inputs=wide,
                scatter=scatter != "none",
                index_bytes=4 if scatter == "i32" else 8,
            )
            yield _aligned(problem, of_inputs, of_outputs)


def _aligned(problem: gemm_mma.Problem, of_inputs: int, of_outputs: int) -> gemm_mma.Problem:
    c, out = (max(of_outputs, SIZES.get(x, 0)) for x in (problem.c, problem.out_dtype))
    return replace(
        problem,
        a_alignment=of_inputs,
        b_alignment=of_inputs,
        c_alignment=16 if problem.c == "none" else c,
        d_alignment=out,
    )


def narrowed_product(problem: gemm_mma.Problem, alignments: Sequence[int]) -> gemm_mma.Problem:
    """`problem` with the alignments that a folder has kernels for: of a and b the same one, and of
    c and out.
    """
    sizes = [SIZES[x] for x in (problem.c, problem.out_dtype) if x != "none"]
    ends_whole = not any(problem.n * size % 16 for size in sizes)
    inputs = min(problem.a_alignment, problem.b_alignment)
    outputs = min(problem.c_alignment, problem.d_alignment) if ends_whole else 2
    most = max(alignments)
    return _aligned(problem, most if inputs == 16 else 2, most if outputs == 16 else 2)


@dataclass(frozen=True)
class Selection:
    """The problems that a folder serves; names are those of `cuevo.kernels.forward.Problem`."""

    operations: tuple[str, ...]
    """Of `OPERATIONS`."""
    head_dims: tuple[int, ...]
    """Those of attention."""
    dtypes: tuple[str, ...]
    architectures: tuple[str, ...]
    """The names that the assembler has for them, such as "sm_80" and "sm_90a"."""
    masks: tuple[str, ...] = ("none", "own")
    """Types of mask_bias, of `BIASES`."""
    pairs: tuple[str, ...] = ("none", "own")
    """Types of pair_bias, of `BIASES`, but bool."""
    products: Products = field(default_factory=Products)

    def __post_init__(self) -> None:
        for name in self.architectures:
            check_exists(name)
        if not self.head_dims and {*self.operations} != {"gemm"}:
            raise ValueError("head dims: attention needs one or more")
        for head_dim in self.head_dims:
            if head_dim % 8 or not 8 <= head_dim <= 128:
                raise ValueError(f"head dims are multiples of 8 from 8 to 128; got {head_dim}")
        for name, legal in (
            ("operations", OPERATIONS),
            ("dtypes", ("f16", "bf16")),
            ("masks", BIASES),
            ("pairs", BIASES[:-1]),
        ):
            _check(getattr(self, name), legal, name)
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

    def product_kinds(self) -> Iterator[tuple[Architecture, gemm_mma.Problem]]:
        """Architecture, and a large problem, of each kind of product that is served."""
        if "gemm" in self.operations:
            for arch, dtype in product(self.limits, self.dtypes):
                for problem in self.products.problems(dtype):
                    yield arch, problem


def narrowed(config: Any) -> Any:
    """The instance that a folder has in the place of `config`: one that serves more, as all of them
    would be too many. Attention is for any lengths, with a mask or bounds; backward, which has many
    already, without a short last tile. Products tell whole tiles from others as they run.
    """
    if isinstance(config, gemm_mma.Config):
        return replace(config, clear="zfill", max_k=0)
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
        found = narrowed(self._kernel.choose(problem, arch, self.candidates(problem)))
        is_short = getattr(found, "short_queries", 0) > 0
        return self.with_short_tile(found, problem, arch) if is_short else found

    def with_short_tile(self, config: Any, problem: Any, arch: Architecture) -> Any:
        """`config` of the forward pass with a short last tile, which in a folder has half of the
        queries of the others, if no more of `problem` are left for it.
        """
        whole, half = replace(config, short_queries=0, short_rows=0), config.block_queries // 2
        rest = problem.queries % config.block_queries
        if not 0 < rest <= half:
            return whole
        filled = replace(problem, queries=problem.queries - rest + half)
        return self._kernel.with_short_tile(whole, filled, arch)

    def adapt(self, config: Any, problem: Any) -> Any:
        """`config`, fitted to `problem`."""
        return narrowed(self._kernel.adapt(config, problem))
