"""Two kernels on one page: their facts side by side, their PTX texts line by line."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any

from cuevo.check.page.rows import Row

__all__ = ["difference"]

_CONTEXT = 4
"""Equal lines that stay in view beside those that differ."""
_COUNTED = ("p", "l", "x", "b", "s")


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What the page shows of two contents: every value twice, and the rows of the two texts, as
    many of one as of the other.
    """
    names = dict.fromkeys(each["name"] for each in (before, after))
    archs = dict.fromkeys(each["arch"] for each in (before, after))
    left, right = _aligned(*([*_lines(each)] for each in (before, after)))
    return {
        "name": " and ".join(names),
        "instances": [*before["instances"], *after["instances"]],
        "arch": " and ".join(archs),
        "facts": _both(before["facts"], after["facts"], ""),
        "ledgers": [*_ledgers(before["ledgers"], after["ledgers"])],
        "titles": {"before": "before", "after": "after"},
        "panes": {"before": left, "after": right},
    }


def _both(
    before: Mapping[str, list[Any]], after: Mapping[str, list[Any]], nothing: object
) -> dict[str, list[Any]]:
    return {
        name: [*before.get(name, [nothing]), *after.get(name, [nothing])]
        for name in {**before, **after}
    }


def _ledgers(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    empty: dict[str, Any] = {"totals": [0], "counts": {}, "title": "nothing"}
    sides = [{each["part"]: each for each in side} for side in (before, after)]
    for part in {**sides[0], **sides[1]}:
        old, new = (side.get(part, empty) for side in sides)
        yield {
            "part": part,
            "title": old["title"] if old["title"] == new["title"] else part,
            "last": {**old, **new}["last"],
            "totals": old["totals"] + new["totals"],
            "counts": _both(old["counts"], new["counts"], 0),
        }


def _lines(shown: Mapping[str, Any]) -> Iterator[Row]:
    """The lines of the text, without the heads of macros and links to sources."""
    for row in shown["panes"]["text"]:
        if "k" not in row:
            yield {name: value for name, value in row.items() if name != "o"} | {"d": 0}


def _aligned(before: list[Row], after: list[Row]) -> tuple[list[Row], list[Row]]:
    """The rows of both sides: those with equal text, and all that stand between two such, side by
    side, and long runs of equal ones below the head of a closed fold.
    """
    left: list[Row] = []
    right: list[Row] = []
    matcher = SequenceMatcher(
        None, [row["t"] for row in before], [row["t"] for row in after], autojunk=False
    )
    for kind, i, i_end, j, j_end in matcher.get_opcodes():
        if kind == "equal":
            pairs = zip(before[i:i_end], after[j:j_end], strict=True)
            own, theirs = map(list, zip(*(_compared(*pair) for pair in pairs), strict=True))
            first, last = (i > 0) * _CONTEXT, len(own) - (i_end < len(before)) * _CONTEXT
            if last - first > _CONTEXT:
                head = {"k": "fold", "n": "", "t": f"{last - first:,} lines are the same", "d": 0}
                head |= {"c": True, "e": len(left) + last + 1}
                own.insert(first, head)
                theirs.insert(first, head)
            left += own
            right += theirs
        else:
            height = max(i_end - i, j_end - j)
            left += _padded([row | {"g": "gone"} for row in before[i:i_end]], height)
            right += _padded([row | {"g": "new"} for row in after[j:j_end]], height)
    return left, [row | {"o": number} for number, row in enumerate(right)]


def _compared(before: Row, after: Row) -> tuple[Row, Row]:
    """Two rows of equal text, with the names of the columns that they differ in."""
    differing = [name for name in _COUNTED if before.get(name) != after.get(name)]
    return (before | {"v": differing}, after | {"v": differing}) if differing else (before, after)


def _padded(rows: list[Row], height: int) -> list[Row]:
    return rows + [{"g": "none", "n": "", "t": "", "d": 0} for _ in range(height - len(rows))]
