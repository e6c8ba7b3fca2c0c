"""A drawing of kernels under their roofs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cuevo.layouts.drawing import write_figure
from cuevo.ops.roofline.units import PIPES

__all__ = ["plot_roofs"]

_COLOURS = dict(
    zip(
        PIPES,
        ("#444444", "#1f6fb2", "#c44e52", "#55a868", "#8172b2", "#ccb974"),
        strict=True,
    )
)
_SHOWN = 2.2
"""Roofs over the highest of the bounding ones that are shown."""

Row = tuple[Mapping[str, Any], Mapping[str, Any]]
"""A call, and one of its kernels."""


def plot_roofs(calls: Sequence[Mapping[str, Any]], title: str, path: Path) -> None:
    """Draw the kernels of calls, as `cuevo roofline --json` reports them: for each a bar, its
    predicted rate; a line for what each pipe would allow, a thick one for the bounding pipe; a dot
    for what was measured of a call of one kernel.

    Raises ValueError for a file name of another ending than .svg or .png, and ModuleNotFoundError
    without matplotlib.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    kinds: dict[str, list[Row]] = {}
    for call in calls:
        for each in call["kernels"]:
            kinds.setdefault(each["counted"], []).append((call, each))
    counts = [len(rows) for rows in kinds.values()] or [1]
    figure = Figure(figsize=(9, 1.6 + 0.44 * sum(counts)), layout="constrained")
    axes = figure.subplots(len(counts), squeeze=False, height_ratios=[max(x, 3) for x in counts])
    for (kind, rows), axis in zip(kinds.items(), axes[:, 0], strict=False):
        _draw(axis, rows)
        axis.set_xlabel(f"{kind} a clock of a multiprocessor")
    handles = [Line2D([], [], color=_COLOURS[pipe], label=pipe) for pipe in PIPES]
    handles.append(Line2D([], [], color="black", marker="o", linestyle="", label="measured"))
    figure.legend(handles=handles, ncols=len(handles), fontsize=8, loc="outside lower center")
    figure.suptitle(f"{title}: predicted rates, and the roofs of pipes")
    write_figure(figure, path)


def _draw(axis: Any, rows: Sequence[Row]) -> None:
    labels = []
    farthest = max(_SHOWN * each["roof"] for _, each in rows)
    for y, (call, each) in enumerate(rows):
        labels.append(f"{call['call']}\n{each['kernel']}")
        axis.barh(y, each["rate"], height=0.5, color="#9db7d1")
        for pipe, share in each["shares"].items():
            if share > 0 and each["rate"] / share <= farthest:
                roof = each["rate"] / share
                width = 2.5 if pipe == each["bound_by"] else 1.2
                axis.plot([roof, roof], [y - 0.38, y + 0.38], color=_COLOURS[pipe], lw=width)
        if call["measured_ms"] is not None and len(call["kernels"]) == 1:
            rate = each["rate"] * call["predicted_ms"] / call["measured_ms"]
            axis.plot(rate, y, "o", color="black", ms=5)
    axis.set_yticks(range(len(labels)), labels, fontsize=7)
    axis.invert_yaxis()
    axis.set_xlim(0, farthest)
