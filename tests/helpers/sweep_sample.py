"""The cases of a sweep that a run of the tests takes on the CPU executor: whatever a case has, and
any values that come together of which kernels are made, one of them has. On a device, and with
CUEVO_WHOLE_SWEEPS=1, all cases are taken.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from helpers.attention_cases import Case
from helpers.attention_sweep import CASES as FORWARD
from helpers.attention_sweep import TRAITS, WHOLE
from helpers.backward_cases import BackwardCase
from helpers.backward_sweep import CASES as BACKWARD
from helpers.gemm_cases import GemmCase
from helpers.gemm_sweep import CASES as PRODUCTS

C = TypeVar("C")

ALONE = (*TRAITS, "queries", "keys", "arch")
TOGETHER = (
    *(("dtype", "head_dim"), ("dtype", "values"), ("dtype", "shape")),
    *(("head_dim", "shape"), ("head_dim", "mask"), ("head_dim", "pair")),
    *(("shape", "mask"), ("shape", "pair"), ("mask", "pair", "arch")),
    *(("mask", "mask_layout"), ("pair", "pair_layout"), ("layout", "arch")),
)
"""Fields of a problem of attention."""
OF_GRADIENTS = (
    *(("dout_layout",), ("grad_layout",), ("grads",), ("gradients",)),
    *(("mask", "bias_grad_dtype"), ("pair", "bias_grad_dtype")),
)
OF_PRODUCTS = (
    *((name,) for name in ("m", "n", "k", "batch", "alpha", "beta", "values", "scatter")),
    *((name,) for name in ("a_layout", "b_layout", "c_layout", "out_layout")),
    *(("dtype", "out_dtype"), ("dtype", "values"), ("dtype", "scatter"), ("c", "bias")),
    *(("a_order", "b_order", "trans_a", "trans_b"), ("a_order", "b_order", "dtype")),
    *(("out_dtype", "c"), ("out_dtype", "scatter"), ("scatter", "index_bytes")),
    *(("alpha", "beta"), ("dtype", "bias_of_inputs")),
)
TILE = ("block_m", "block_n", "block_k", "warp_m", "warp_n")


def needed(
    found: Sequence[C],
    traits: Callable[[C], Iterable[Hashable]],
    cost: Callable[[C], float],
) -> tuple[C, ...]:
    """The cases without those, the costliest first, all of whose traits others have."""
    if WHOLE:
        return tuple(found)
    of = [set(traits(case)) for case in found]
    counts = Counter(trait for each in of for trait in each)
    kept = set(range(len(found)))
    for index in sorted(kept, key=lambda index: cost(found[index]), reverse=True):
        if all(counts[trait] > 1 for trait in of[index]):
            kept.remove(index)
            counts.subtract(of[index])
    return tuple(found[index] for index in sorted(kept))


def values(case: Any, fields: Iterable[tuple[str, ...]]) -> Iterator[Hashable]:
    """What the case has in each of these sets of fields."""
    for names in fields:
        yield names, tuple(getattr(case, name) for name in names)


def of_attention(case: Case) -> Iterator[Hashable]:
    """Layouts of biases that a case has not do not count."""
    absent = {f"{bias}_layout" for bias in ("mask", "pair") if getattr(case, bias) == "none"}
    fields = (*((name,) for name in ALONE), *TOGETHER)
    yield from values(case, (names for names in fields if not absent.intersection(names)))


def of_gradients(case: BackwardCase) -> Iterator[Hashable]:
    yield from of_attention(case)
    yield from values(case, OF_GRADIENTS)


def of_product(case: GemmCase) -> Iterator[Hashable]:
    """Every setting, with every tile and all types that it comes with."""
    yield from values(case, OF_PRODUCTS)
    settings = dict(case.settings)
    tile = tuple(settings.get(name) for name in TILE)
    yield tile
    for name, value in settings.items():
        if name not in TILE:
            yield name, value, tile
            yield name, value, case.dtype, case.out_dtype


def scores(case: Case) -> int:
    return case.batch * case.rows * case.heads * case.queries * case.keys * case.head_dim


def products(case: GemmCase) -> int:
    return max(case.batch, 1) * case.m * case.n * case.k


FORWARD_ON_CPU = needed(FORWARD, of_attention, scores)
BACKWARD_ON_CPU = needed(BACKWARD, of_gradients, scores)
PRODUCTS_ON_CPU = needed(PRODUCTS, of_product, products)
