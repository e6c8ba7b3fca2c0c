"""`cuevo export`: a folder of kernels and a planner in C, for programs without Python."""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

from cuevo.cli.arguments.usage import EXIT_OK, Subparsers, UsageError, add_command

_DETAILS = """\
examples:
  cuevo export forward --head-dims 32 --architectures sm_80 -o attention
  cuevo export forward backward --head-dims 8,16,24,32,48,64 --masks none,own,bool \\
      --architectures sm_80,sm_90a,sm_100,sm_120 -o attention
  cuevo export gemm --orders nt --addends none --architectures sm_80,sm_90a -o linear

The folder has include/, src/ and kernels/, files for CMake and pkg-config, and manifest.json.
docs/embedding-c.md says how a program uses it. Needs the extra `export`: pip install
"cuevo[export]"; neither a GPU nor a driver.
"""

_OF_PRODUCTS = {
    "orders": "of a, then b: n for contiguous rows, t for columns; nn, nt, tn, tt (nn,nt,tn)",
    "results": "types of out: own (that of a), f32 (own)",
    "addends": "types of c: none, own, f32 (none,own)",
    "product-biases": "types of bias: none, result (that of out), own (none,result)",
    "scatters": "types of scatter: none, i32, i64 (none)",
    "alignments": "bytes that rows are aligned to: 16, and 2 for all others (16)",
}
"""Options of products, and their help; fields of `cuevo.ops.export.selection.Products`."""


def add_commands(subparsers: Subparsers) -> None:
    parser = add_command(
        subparsers,
        "export",
        "Write kernels, and the planner in C that launches them, for programs without Python.",
        _DETAILS,
        run,
    )
    add = parser.add_argument
    add("operations", nargs="+", metavar="OPERATION", help="forward, backward, gemm, or several")
    add("--head-dims", default=[], type=_numbers, metavar="D,...",
        help="of attention: 8,16, ... 128")  # fmt: skip
    add("--dtypes", default=["bf16"], type=_names, metavar="TYPE,...", help="bf16, f16 (bf16)")
    add(
        "--architectures",
        required=True,
        type=_names,
        metavar="SM,...",
        help="sm_80, sm_90a, sm_100, ...; devices that are newer than all compile at first use",
    )
    biases = "none, own (that of q), f32"
    add("--masks", default=["none", "own"], type=_names, metavar="TYPE,...",
        help=f"types of mask_bias: {biases}, bool (none,own)")  # fmt: skip
    add("--pairs", default=["none", "own"], type=_names, metavar="TYPE,...",
        help=f"types of pair_bias: {biases} (none,own)")  # fmt: skip
    of_products = parser.add_argument_group("products (gemm)")
    for option, known in _OF_PRODUCTS.items():
        kind = _numbers if option == "alignments" else _names
        of_products.add_argument(f"--{option}", type=kind, metavar="KIND,...", help=known)
    add("-o", "--output", required=True, type=Path, metavar="FOLDER", help="where to write it")
    add("--workers", type=_count, default=os.cpu_count() or 1, metavar="N",
        help="processes that assemble (one a core)")  # fmt: skip


def _names(text: str) -> list[str]:
    return text.split(",")


def _numbers(text: str) -> list[int]:
    try:
        return [int(each) for each in text.split(",")]
    except ValueError:
        message = f"{text!r} are no numbers; write 16 or 8,16,32"
        raise argparse.ArgumentTypeError(message) from None


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no count; write 1 or more")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    from cuevo.ops.export.folder import write
    from cuevo.ops.export.selection import Products, Selection

    try:
        given = {option: getattr(arguments, option.replace("-", "_")) for option in _OF_PRODUCTS}
        selection = Selection(
            tuple(arguments.operations),
            tuple(arguments.head_dims),
            tuple(arguments.dtypes),
            tuple(arguments.architectures),
            masks=tuple(arguments.masks),
            pairs=tuple(arguments.pairs),
            products=Products(
                **{
                    option.removeprefix("product-"): tuple(found)
                    for option, found in given.items()
                    if found is not None
                }
            ),
        )
    except ValueError as error:
        raise UsageError(str(error)) from error
    start = time.monotonic()
    written = write(selection, arguments.output, workers=arguments.workers, report=print)
    sizes = [path.stat().st_size for path in written]
    print(
        f"{arguments.output}: {len(sizes)} files, {sum(sizes) / 1e6:.1f} MB, "
        f"in {time.monotonic() - start:.0f} s"
    )
    return EXIT_OK
