"""All cases of some parameters, and few of them in which every two values still meet."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import combinations, product
from math import prod
from typing import Any, TypeVar

import numpy as np

_Case = TypeVar("_Case")


def every(case: Callable[..., _Case], /, **values: Iterable[object]) -> Iterator[_Case]:
    """A case for each combination of the values of its fields."""
    for chosen in product(*values.values()):
        yield case(**dict(zip(values, chosen, strict=True)))


def some(case: Callable[..., _Case], share: float, /, **values: Sequence[object]) -> list[_Case]:
    """A share of those, chosen at random, always the same; no others are made."""
    sizes = [len(found) for found in values.values()]
    count = prod(sizes)
    chosen = np.random.default_rng(0).choice(count, round(share * count), replace=False)
    places = zip(*np.unravel_index(np.sort(chosen), sizes), strict=True)
    return [
        case(**{name: found[i] for (name, found), i in zip(values.items(), place, strict=True)})
        for place in places
    ]


def covering(
    cases: Sequence[_Case],
    *,
    together: int = 2,
    cost: Callable[[_Case], float] | None = None,
    seed: int = 0,
) -> list[_Case]:
    """A selection that has each combination of values of `together` fields that `cases` has.

    The cases are dataclasses. Greedy: each one taken adds as many new combinations as any could; of
    several such, the cheapest, or one that the seed chooses. The same cases give the same
    selection.
    """
    order = np.random.default_rng(seed).permutation(len(cases))
    if cost is not None:
        costs = np.array([cost(case) for case in cases])
        order = order[np.argsort(costs[order], kind="stable")]
    numbers = _combinations(cases, together)[order]
    missing = np.zeros(int(numbers.max()) + 1, bool)
    missing[numbers] = True
    taken: list[_Case] = []
    gains = np.full(len(cases), numbers.shape[1])
    while missing.any():
        # Gains only ever shrink: whoever's last count is below the best one found is not counted.
        best, gain = -1, 0
        for start in range(0, len(cases), _AT_ONCE):
            part = np.flatnonzero(gains[start : start + _AT_ONCE] > gain) + start
            if part.size:
                gains[part] = missing[numbers[part]].sum(axis=1)
                first = part[int(gains[part].argmax())]
                if gains[first] > gain:
                    best, gain = int(first), int(gains[first])
        missing[numbers[best]] = False
        taken.append(cases[order[best]])
    return taken


_AT_ONCE = 4096


def _combinations(cases: Sequence[Any], together: int) -> np.ndarray:
    """A number for each combination of `together` fields and their values; a row for each case."""
    names = [field.name for field in fields(cases[0])]
    columns, sizes = [], []
    for name in names:
        values: dict[Any, int] = {}
        columns.append([values.setdefault(getattr(case, name), len(values)) for case in cases])
        sizes.append(len(values))
    codes = np.array(columns)
    found, first = [], 0
    for chosen in combinations(range(len(names)), together):
        number = np.zeros(len(cases), np.int64)
        for i in chosen:
            number = number * sizes[i] + codes[i]
        found.append(number + first)
        first += int(np.prod([sizes[i] for i in chosen]))
    return np.stack(found, axis=1)
