"""A drawing of what `cuevo tune` has measured: time by each field of the configurations."""

from collections.abc import Sequence
from dataclasses import fields
from math import ceil
from pathlib import Path
from typing import Any

from cuevo.layouts.drawing import write_figure
from cuevo.ops.tuning.search import Found, Trial

__all__ = ["plot_trials"]

_ACROSS = 4
_SHOWN = 2.0
"""Times over the best that are shown."""


def plot_trials(found: Found, bound: float | None, path: Path) -> None:
    """Draw the trials of a search: for each field that differs among them the time of each, a line
    through the best of each value, and across all `bound`, milliseconds that the busiest pipes take
    of the best, if that is known.

    Raises ValueError for a file name of another ending than .svg or .png, and ModuleNotFoundError
    without matplotlib.
    """
    from matplotlib.figure import Figure

    trials = [trial for trial in found.trials if trial.times]
    best = min(trials, key=_milliseconds)
    panels = [
        (index, name) for index in range(len(best.choices)) for name in _differing(trials, index)
    ]
    rows = ceil(max(len(panels), 1) / _ACROSS)
    figure = Figure(figsize=(2.6 * _ACROSS, 0.6 + 2.1 * rows), layout="constrained")
    axes = figure.subplots(rows, _ACROSS, squeeze=False).flat
    for (index, name), axis in zip(panels, axes, strict=False):
        _draw(axis, trials, best, index, name)
        if bound is not None:
            axis.axhline(bound, color="#c44e52", linestyle="--", linewidth=1)
        estimate = next((x for x in trials if x.choices == found.estimated), best)
        axis.axhline(_milliseconds(estimate), color="#55a868", linewidth=1)
    for axis in list(axes)[len(panels) :]:
        axis.axis("off")
    keys = "dashed: the bound of the best; " if bound is not None else ""
    figure.suptitle(f"{found.call.describe()}\nms by field; {keys}green: the estimate", fontsize=8)
    write_figure(figure, path)


def _milliseconds(trial: Trial) -> float:
    assert trial.times is not None
    return trial.times.median


def _differing(trials: Sequence[Trial], index: int) -> list[str]:
    """The fields that have several values among configurations that have them."""
    configs = [trial.choices[index][1] for trial in trials]
    names = dict.fromkeys(field.name for config in configs for field in fields(config))
    return [
        name
        for name in names
        if len({getattr(config, name) for config in configs if hasattr(config, name)}) > 1
    ]


def _draw(axis: Any, trials: Sequence[Trial], best: Trial, index: int, name: str) -> None:
    """Times by the values of a field, as far as they are near the best."""
    times: dict[Any, list[float]] = {}
    for trial in trials:
        config = trial.choices[index][1]
        if hasattr(config, name):
            times.setdefault(getattr(config, name), []).append(_milliseconds(trial))
    values = sorted(times)
    for x, value in enumerate(values):
        axis.plot([x] * len(times[value]), times[value], ".", color="#9db7d1", markersize=4)
    axis.plot(range(len(values)), [min(times[value]) for value in values], color="#1f6fb2")
    chosen = best.choices[index][1]
    if hasattr(chosen, name):
        axis.plot(values.index(getattr(chosen, name)), _milliseconds(best), "o", color="black")
    axis.set_xticks(range(len(values)), [str(value) for value in values], fontsize=7)
    axis.set_ylim(0, _SHOWN * _milliseconds(best))
    axis.tick_params(labelsize=7)
    side = getattr(chosen, "side", "")
    axis.set_title(f"{side}.{name}" if side else name, fontsize=8)
