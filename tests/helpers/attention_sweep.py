"""The sweep of attention problems: seeded, the same on every machine, with enough of everything.

Each property is drawn from a deck, which is shuffled and dealt to its end before it is shuffled
again: no luck is needed for a layout, a length or a head dim to come up, and any two may meet.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

import numpy as np
from helpers.attention_cases import LAYOUTS, MASK_LAYOUTS, PAIR_LAYOUTS, SINGLE, VALUES, Case

SIZE = 240
LENGTHS = (
    *(1, 2, 3, 5, 7, 8, 13, 15, 16, 17, 23, 31, 32, 33, 37, 47, 48, 61, 63, 64, 65),
    *(71, 80, 96, 97, 101, 113, 127, 128, 129, 139, 149, 160, 167, 191, 192, 193, 197, 199, 200),
)
SCALES = (None, None, None, None, None, None, 1.0, 0.1, -0.3, 0.0, 1e-4, 1e-20, -1e-25)
OUTER = (
    (1, 1, 1),
    (1, 2, 1),
    (1, 3, 2),
    (2, 1, 2),
    (1, 5, 1),
    (2, 2, 1),
    (1, 4, 1),
    (3, 1, 1),
    (1, 1, 3),
)
"""B, N, H."""
ARCHS = ("sm_80", "sm_90", "sm_80", "sm_86", "sm_90")
MOST_SCORES = 60_000
"""B N H Lq Lk: what keeps a case below a second on the CPU executor."""

T = TypeVar("T")


class Deck(Generic[T]):
    """Cards dealt in random order, all of them before any comes again."""

    def __init__(self, cards: Sequence[T], rng: np.random.Generator) -> None:
        self._cards = cards
        self._rng = rng
        self._left: list[int] = []

    def deal(self) -> T:
        if not self._left:
            self._left = self._rng.permutation(len(self._cards)).tolist()
        return self._cards[self._left.pop()]


def sweep(
    size: int = SIZE,
    seed: int = 2025,
    *,
    head_dims: Sequence[int] = tuple(range(8, 129, 8)),
    lengths: Sequence[int] = LENGTHS,
    scales: Sequence[float | None] = SCALES,
    kinds_of_values: Sequence[str] = VALUES,
    outer_extents: Sequence[tuple[int, int, int]] = OUTER,
    most_scores: int = MOST_SCORES,
) -> Iterator[Case]:
    """`size` cases; what can be given is what is dealt."""
    rng = np.random.default_rng(seed)
    kinds = Deck([(dtype, head_dim) for head_dim in head_dims for dtype in ("bf16", "f16")], rng)
    extents, factors, outer = Deck(lengths, rng), Deck(scales, rng), Deck(outer_extents, rng)
    values, layouts, archs = Deck(kinds_of_values, rng), Deck(LAYOUTS, rng), Deck(ARCHS, rng)
    mask_layouts, pair_layouts = Deck(MASK_LAYOUTS, rng), Deck(PAIR_LAYOUTS, rng)
    biases = Deck(
        [(m, p) for m in ("none", "own", "f32", "bool") for p in ("none", "own", "f32")], rng
    )
    floats, any_mask = Deck(("own", "f32"), rng), Deck(("own", "f32", "bool"), rng)
    shapes = Deck((None, 0, 1, 2, 3, 4, 5, 6), rng)
    for index in range(size):
        dtype, head_dim = kinds.deal()
        kind = values.deal()
        mask, pair = biases.deal()
        needs_floats = kind.startswith("far mask") or kind in ("offset", "nan mask")
        if needs_floats and mask in ("none", "bool"):
            mask = floats.deal()
        elif "mask" in kind and mask == "none":
            mask = any_mask.deal()
        elif "pair" in kind:
            pair = floats.deal() if pair == "none" else pair
        layout, mask_layout, pair_layout = layouts.deal(), mask_layouts.deal(), pair_layouts.deal()
        queries, keys = extents.deal(), extents.deal()
        if "leading" in kind:
            # More than a tile of keys that are out, and keys that are not, each with its own value.
            keys = 104 + keys // 2
            mask_layout = "padded"
            pair_layout = "packed"
        if kind.startswith("far mask") and mask_layout == "broadcast all":
            mask_layout = "broadcast N"
        if kind.startswith("nan"):
            # Some rows of the result without NaN: several of everything, and no broadcast.
            queries, keys = max(queries, 2), max(keys, 2)
            layout = "heads first" if layout.startswith("broadcast") else layout
            mask_layout = "keys first" if mask_layout.startswith("broadcast") else mask_layout
            pair_layout = "queries first" if pair_layout.startswith("broadcast") else pair_layout
        if layout == "fused" and index % 2:
            keys = queries
        batch, rows, heads = outer.deal()
        if kind in ("nan k", "nan mask"):
            rows = 2
        while batch * rows * heads * queries * keys > most_scores and max(batch, rows, heads) > 1:
            if kind in ("nan k", "nan mask") and batch == heads == 1:
                break
            batch, rows, heads = (
                (1, rows, heads) if batch > 1 else (1, rows, 1) if heads > 1 else (1, rows - 1, 1)
            )
        yield _with_single_biases(
            Case(
                dtype=dtype,
                head_dim=head_dim,
                queries=queries,
                keys=keys,
                batch=batch,
                rows=rows,
                heads=heads,
                mask=dtype if mask == "own" else mask,
                pair=dtype if pair == "own" else pair,
                layout=layout,
                mask_layout=mask_layout,
                pair_layout=pair_layout,
                values=kind,
                offset=1e3 if index % 2 else -1e3,
                scale=factors.deal(),
                arch=archs.deal(),
                shape=shapes.deal(),
                seed=index,
            )
        )


def _with_single_biases(case: Case) -> Case:
    """The case with one bias for all batches, or rows, where it has a packed one; values that are
    for some of these stay as they are.
    """
    if case.values.startswith("nan") or case.values in ("dead by mask", "far mask, padded rows"):
        return case
    several = {axis for axis, extent in enumerate((case.batch, case.rows)) if extent > 1}
    fitting = [layout for layout, axes in SINGLE.items() if several.issuperset(axes)]
    if case.mask_layout == "packed" and fitting and case.seed % 3:
        case = replace(case, mask_layout=fitting[case.seed % len(fitting)])
    if case.pair_layout == "packed" and "one B" in fitting:
        case = replace(case, pair_layout="one B")
    return case


CASES = tuple(sweep())


# -- For the variants below sm_80 ------------------------------------------------------------------

WHOLE = os.environ.get("CUEVO_WHOLE_SWEEPS", "") == "1"
"""Whether the CPU executor gets all cases of a sweep: a run of the tests takes a sample of them."""
TRAITS = (
    *("head_dim", "values", "layout", "mask", "pair", "mask_layout", "pair_layout", "scale"),
    *("shape", "batch", "rows", "heads"),
)
C = TypeVar("C", bound=Case)


def in_half_precision(case: C) -> C:
    """The case with fp16 where it has bf16."""
    types = {key: getattr(case, key).replace("bf16", "f16") for key in ("dtype", "mask", "pair")}
    return replace(case, **types)


def covering(found: Sequence[C], arch: str, names: Sequence[str] = TRAITS) -> Iterator[C]:
    """Some of the cases, such that whatever one of them has is there; layouts of biases that a case
    has not do not count. All of them if `WHOLE`.
    """

    def traits(case: C) -> set[tuple[str, object]]:
        absent = {f"{bias}_layout" for bias in ("mask", "pair") if getattr(case, bias) == "none"}
        return {(trait, getattr(case, trait)) for trait in names if trait not in absent}

    missing = set().union(*map(traits, found))
    for case in found:
        if WHOLE or traits(case) & missing:
            missing -= traits(case)
            yield replace(case, arch=arch)


def name(case: Case) -> str:
    """A test's name: the seed tells the cases apart, the rest is for the reader."""
    return (
        f"{case.seed}-{case.dtype}-D{case.head_dim}-{case.queries}x{case.keys}-"
        f"mask_{case.mask}-pair_{case.pair}-{case.values}-{case.layout}".replace(" ", "_")
    )
