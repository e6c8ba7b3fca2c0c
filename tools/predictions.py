"""Predicted times (`cuevo roofline`) beside those that docs/measurements has records of.

    python3 tools/predictions.py                    a table, Markdown
    python3 tools/predictions.py --counts FILE      also write what was counted, for the tests

Records are those of `bench.py` and `bench_gemm.py`, on an H200, with the configurations that they
were made with. No GPU is needed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from cuevo.cli.arguments.settings import read_values
from cuevo.cli.tune import call_of_words
from cuevo.executors import architecture_of
from cuevo.executors.assembling import assembling
from cuevo.kernels import (
    evoformer_backward_sm80,
    evoformer_forward_sm80,
    evoformer_forward_sm90a,
    gemm_sm80,
)
from cuevo.ops.roofline.counts import Counts, count
from cuevo.ops.roofline.model import predict
from cuevo.ops.tuning.calls import Call
from report import print_rows, progress

RECORDS = Path(__file__).resolve().parents[1] / "docs" / "measurements"
FORWARD = {
    "2026-11-21-h200-forward": evoformer_forward_sm80,
    "2026-11-24-h200-forward-hopper": evoformer_forward_sm90a,
}
BACKWARD = "2026-11-23-h200-backward"
PRODUCTS = "2026-11-21-h200-gemm"


class Case(NamedTuple):
    """A call that was measured."""

    words: str
    """As in a workload file."""
    config: Any
    milliseconds: float

    @property
    def call(self) -> Call:
        return call_of_words(self.words.split())


def cases() -> Iterator[Case]:
    """What the records have."""
    for name, module in FORWARD.items():
        for record in _record(name)["workloads"]:
            for result in record["results"]:
                if result["contender"] != "cuevo" or not result["milliseconds"]:
                    continue
                named = result["configuration"].split()[0]
                if "=" not in named and named != module.NAME:  # a tuned choice
                    continue
                biases = {"both": " --mask own --pair own", "pair": " --pair own", "none": ""}
                words = f"attention 1,{record['workload']}{biases[result['biases']]}"
                config = _config(module, result["configuration"])
                yield Case(words, config, result["milliseconds"]["median"])
    for record in _record(BACKWARD)["workloads"]:
        for result in record["results"]:
            if result["contender"] == "cuevo" and result["gradients"] == "both":
                words = f"attention_backward 1,{record['workload']} --mask own --pair own"
                config = _sides(result["configuration"])
                yield Case(words, config, result["milliseconds"]["median"])
    for part in _record(PRODUCTS)["sizes"]:
        for row in part["rows"]:
            if row["contender"] == "cuBLAS":
                continue
            size = tuple(row["size"])
            config = None
            if row["contender"] == "gemm_sm80":
                problem = gemm_sm80.Problem(1, *size, dtype="bf16", out_dtype="bf16")
                config = gemm_sm80.choose(problem, architecture_of(assembling("sm_90")))
            words = f"gemm {','.join(map(str, size))}"
            yield Case(words, config, row["milliseconds"]["median"])


def _record(name: str) -> Any:
    return json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))


def _config(module: Any, words: str) -> Any:
    """A configuration as `bench.py` writes it."""
    settings = dict(word.split("=") for word in words.split() if "=" in word)
    known = {field.name for field in fields(module.Config)}
    values = read_values(module.Config, {x: y for x, y in settings.items() if x in known})
    return replace(module.Config(head_dim=values["head_dim"]), **values)


def _sides(words: str) -> dict[str, dict[str, Any]]:
    """The same of both sides of a backward pass."""
    sides: dict[str, dict[str, str]] = {"keys": {}, "queries": {}}
    for name, _, value in (word.partition("=") for word in words.split()):
        side, _, field = name.partition(".")
        sides[side][field] = value
    kind = evoformer_backward_sm80.Config
    return {side: read_values(kind, settings) for side, settings in sides.items()}


def main(argv: Sequence[str] | None = None) -> int:
    assert __doc__ is not None
    summary, _, details = __doc__.partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=details, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--counts", type=Path, metavar="FILE", help="where to write counts to")
    arguments = parser.parse_args(argv)
    place = assembling("sm_90")
    counts: dict[str, Any] = {}
    rows = []
    for case in cases():
        call = case.call
        plan = call.operation.plan_on_device(call.arrays, call.options, place, case.config)

        def counted(launch: Any, problem: Any, arch: str, case: Case = case) -> Counts:
            found = count(launch, problem, arch)
            counts[key_of(case, launch)] = [found.fixed, found.each]
            return found

        predicted = predict(plan, architecture_of(place), counted)
        milliseconds = 1e3 * predicted.seconds
        kernels = " ".join(dict.fromkeys(each.launch.name for each in predicted.bounds))
        times = f"{case.milliseconds:.4g}", f"{milliseconds:.4g}"
        rows.append((case.words, kernels, *times, f"{milliseconds / case.milliseconds - 1:+.1%}"))
        progress(case.words)
    progress("")
    print_rows(("call", "kernels", "measured ms", "predicted ms", "off by"), rows, words=2)
    if arguments.counts:
        write_counts(arguments.counts, counts)
    return 0


def key_of(case: Case, launch: Any) -> str:
    """What tells the launches of all cases apart."""
    side = getattr(launch.config, "side", "")
    return f"{case.words}: {launch.name} {side} {getattr(launch.config, 'm_tiles', '')}".strip()


def write_counts(path: Path, counts: dict[str, Any]) -> None:
    """Write counts, equal ones once, and of which launches each are."""
    lines: dict[str, list[str]] = {}
    for key, each in counts.items():
        lines.setdefault(json.dumps(each), []).append(key)
    rows = (f'{{"of": {json.dumps(keys)},\n "counts": {each}}}' for each, keys in lines.items())
    path.write_text("[\n" + ",\n".join(rows) + "\n]\n", encoding="utf-8")


def read_counts(path: Path) -> dict[str, Counts]:
    """What `write_counts` has written, by launch."""
    found = json.loads(path.read_text(encoding="utf-8"))
    return {key: Counts(*each["counts"]) for each in found for key in each["of"]}


if __name__ == "__main__":
    sys.exit(main())
