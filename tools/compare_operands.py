"""Mutated operands, told apart by the CPU executor as the assembler does.

    python tools/compare_operands.py                         five thousand
    python tools/compare_operands.py --seed 7 --count 20000  twenty thousand others

Each statement is one of the table of forms with an operand changed: another register, a number, an
address, nothing. Prints those that one of the two takes and the other refuses, and how many there
were; exits 1 if there are any. Needs ``ptxas`` 13.0 on the path, and some 4 ms for a statement.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from sim.instructions.mutants import disagreements, mutants


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=5000)
    options = parser.parse_args(arguments)
    if shutil.which("ptxas") is None:
        parser.error("there is no ptxas on the path")
    found = 0
    listed = list(mutants(options.seed, options.count))
    for mutant, theirs, ours in disagreements(listed):
        found += 1
        print(mutant.text)
        print(f"    ptxas:    {theirs or 'takes it'}\n    executor: {ours or 'takes it'}")
    lax = sum(mutant.is_lax for mutant in listed)
    print(f"{options.count} statements, {lax} of them where ptxas is no measure: {found} differ")
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
