"""The sweep of backward problems: dealt as in `attention_sweep`, with dout, the gradients that are
asked for, their types and their layouts.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from itertools import combinations

import numpy as np
from helpers import attention_sweep as forward
from helpers.attention_cases import Case
from helpers.attention_sweep import Deck
from helpers.backward_cases import DOUT_LAYOUTS, GRAD_LAYOUTS, GRADS, VALUES, BackwardCase

SIZE = 280
HEAD_DIMS = (*range(8, 129, 8), *(8, 16, 24, 32, 48, 64) * 2)
LENGTHS = (
    *(1, 2, 3, 5, 7, 8, 9, 13, 15, 16, 17, 23, 31, 32, 33, 37, 40, 47, 48, 61, 63, 64, 65),
    *(71, 80, 95, 96, 97, 101, 113, 120, 127, 128, 129, 139, 144, 149, 150),
)
SCALES = (None, None, None, None, None, 1.0, 4.0, 0.1, -0.3, -1.0, 0.0, 1e-4, 1e-20, -1e-25)
ORDINARY_SCALES = (None, None, None, 0.1, -0.3)
"""For values that are extreme themselves."""
EXTREME = ("large scores", "huge pair bias", "small", "tiny dout", "large dout", "large v")
SUBSETS = (
    tuple(subset for size in range(1, len(GRADS)) for subset in combinations(GRADS, size))
    + (GRADS,) * 20
)
OUTER = (*forward.OUTER, (1, 8, 2), (1, 17, 1), (2, 6, 3), (1, 33, 1))
"""B, N, H: rows too that the gradient of the pair bias is summed over in several parts."""
MOST_SCORES = 90_000
"""B N H Lq Lk."""


def sweep(
    size: int = SIZE,
    seed: int = 2026,
    *,
    lengths: Sequence[int] = LENGTHS,
    outer_extents: Sequence[tuple[int, int, int]] = OUTER,
    most_scores: int = MOST_SCORES,
) -> Iterator[BackwardCase]:
    """`size` cases; what can be given is what is dealt."""
    rng = np.random.default_rng((seed, 1))
    scales, ordinary = Deck(SCALES, rng), Deck(ORDINARY_SCALES, rng)
    dout_layouts, grad_layouts = Deck(DOUT_LAYOUTS, rng), Deck(GRAD_LAYOUTS, rng)
    bias_dtypes = Deck((None, None, "float32"), rng)
    # One deck for each set of gradients that there can be, so that every subset is one of arrays.
    subsets = defaultdict(lambda: Deck(SUBSETS, rng))
    for case in forward.sweep(
        size,
        seed,
        head_dims=HEAD_DIMS,
        lengths=lengths,
        kinds_of_values=VALUES,
        outer_extents=outer_extents,
        most_scores=most_scores,
    ):
        case = replace(case, scale=(ordinary if case.values in EXTREME else scales).deal())
        if case.values == "one key by mask" and case.mask_layout == "broadcast all":
            case = replace(case, mask_layout="packed")
        dout_layout = dout_layouts.deal()
        if case.values == "far mask, padded rows":
            layout = "padded" if case.mask_layout.startswith("broadcast") else case.mask_layout
            case = replace(case, rows=max(case.rows, 2), mask_layout=layout)
        if case.values in ("nan dout", "far mask, padded rows"):
            dout_layout = "heads first" if dout_layout.startswith("broadcast") else dout_layout
        made = BackwardCase(
            **{field.name: getattr(case, field.name) for field in fields(Case)},
            dout_layout=dout_layout,
            bias_grad_dtype=bias_dtypes.deal(),
            grad_layout=grad_layouts.deal(),
        )
        asked = replace(made, grads=subsets[made.gradients].deal())
        yield asked if asked.gradients else made


CASES = tuple(sweep())


def name(case: BackwardCase) -> str:
    """A test's name: the seed tells the cases apart, the rest is for the reader."""
    grads = "all" if case.grads == GRADS else "+".join(case.grads)
    return f"{forward.name(case)}-{case.dout_layout}-{grads}".replace(" ", "_")
