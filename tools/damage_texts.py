"""Damaged PTX texts on the CPU executor, which may end in a result or in its own error alone.

    python tools/damage_texts.py                         twenty thousand: five minutes
    python tools/damage_texts.py --seed 7 --count 1000  a thousand others
    python tools/damage_texts.py --seed 7 --first 41 --count 1 --show  one, with its text

Text number i of a seed is the same on every machine. Prints what ends otherwise, or takes more than
--seconds, and the command that runs it again; exits 1 if anything does.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from sim.damages import damaged

_MOST_BYTES = 8 * 2**30


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="most for one text")
    parser.add_argument("--show", action="store_true", help="print each text")
    options = parser.parse_args(arguments)
    with _little_memory():
        return _run(options)


@contextmanager
def _little_memory() -> Iterator[None]:
    """A text that asks for more than there is fails in here, and not the machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_BYTES, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _run(options: argparse.Namespace) -> int:
    wrong = 0
    for number in range(options.first, options.first + options.count):
        each = damaged(random.Random(f"{options.seed} {number}"))
        if options.show:
            print(each.text)
        complaint, begun = "", time.monotonic()
        try:
            each.run()
        except Exception:
            complaint = traceback.format_exc(limit=-2)
        if not complaint and (took := time.monotonic() - begun) > options.seconds:
            complaint = f"takes {took:.0f} s"
        if complaint:
            wrong += 1
            print(
                f"python {' '.join(sys.argv[:1])} --seed {options.seed} --first {number} --count 1"
            )
            print(complaint)
    print(f"{options.count} texts, {wrong} of them wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
