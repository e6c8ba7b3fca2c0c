"""Kernels of the user's own on the command line: a PTX file in place of a kernel's name."""

from __future__ import annotations

import argparse
import ast
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cuevo.cli.arguments.settings import split_settings
from cuevo.cli.arguments.usage import UsageError, natural

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from cuevo.toolchain.template import RenderedKernel


def add_file_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--entry", metavar="NAME", help="entry point of a file that has several")
    add(
        "--directory",
        action="append",
        metavar="FOLDER",
        help="where a template's imports are, beside its own folder; may be given several times",
    )
    add(
        "--header",
        metavar="FILE",
        help="C header that declares the struct which the kernel of a file takes (default: the "
        "cuevo.h that a template sees)",
    )


def add_block_options(parser: argparse.ArgumentParser) -> None:
    """The options that say what a threadblock of a file's kernel is."""
    parser.add_argument(
        "--threads",
        type=size,
        metavar="X[,Y[,Z]]",
        help="of a block, for the kernel of a file (default: what it declares)",
    )
    parser.add_argument(
        "--shared",
        type=natural,
        metavar="BYTES",
        help="dynamic shared memory of a block, for the kernel of a file (0)",
    )


def add_launch_options(parser: argparse.ArgumentParser) -> None:
    """The options that say how the kernel of a file is launched."""
    add_block_options(parser)
    parser.add_argument(
        "--grid",
        type=size,
        metavar="X[,Y[,Z]]",
        help="threadblocks, for the kernel of a file (1)",
    )
    parser.add_argument(
        "--args",
        nargs="+",
        metavar="WORD",
        help="what the kernel of a file is launched with, a word for each parameter: 1000, 0.5, "
        "f32[64,1000] for an array of random numbers, f32[64,1000]=0 for one of zeros; for each "
        "member of a struct that a header declares, NAME=WORD, where [1,2,3] is a member's array",
    )


_OF_FILES = ("entry", "directory", "header", "threads", "grid", "shared", "args")


def is_file(arguments: argparse.Namespace) -> bool:
    """Whether the command line names a file for a kernel; UsageError where it names none, and has
    an option that only files have.
    """
    if arguments.kernel.endswith(".ptx") or os.sep in arguments.kernel:
        return True
    given = [name for name in _OF_FILES if getattr(arguments, name, None) is not None]
    if given:
        raise UsageError(
            f"--{given[0]} is for a PTX file, which {arguments.kernel!r} does not name."
        )
    return False


def read_file(arguments: argparse.Namespace) -> RenderedKernel:
    """The kernel of the file that the command line names, with its settings."""
    from cuevo.executors.own.kernel import with_struct
    from cuevo.executors.own.texts import read_kernel

    rendered = read_kernel(
        Path(arguments.kernel),
        entry=arguments.entry,
        values=read_values(arguments.settings),
        directories=arguments.directory or (),
    )
    return with_struct(rendered, Path(arguments.header)) if arguments.header else rendered


def read_values(settings: Sequence[str]) -> dict[str, Any]:
    """Settings of what nobody has declared the types of, each as what it looks like."""
    return {name: _value(text) for name, text in split_settings(settings).items()}


def _value(text: str) -> Any:
    """A setting's text as the number, the truth value or the word that it is."""
    try:
        return ast.literal_eval({"true": "True", "false": "False", "none": "None"}.get(text, text))
    except (ValueError, SyntaxError):
        return text


_ARRAY = re.compile(r"(?P<dtype>\w+)\[(?P<shape>\d+(?:,\d+)*)\](?:=(?P<fill>.+))?")
_DTYPES = {
    **{f"s{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64",
}  # fmt: skip
"""NumPy's names of the types of elements."""


def make_argument(word: str, rng: np.random.Generator) -> Any:
    """An argument of a launch: ``f32[64,1000]`` is an array of normal numbers (of small ones, for
    integers), ``f32[64]=0`` one of zeros, ``[1,2,3]`` the numbers of an array in a struct, anything
    else a number. Arrays begin where a device would begin them.
    """
    import ml_dtypes
    import numpy as np

    match = _ARRAY.fullmatch(word)
    if match is None:
        value = _value(word)
        if isinstance(value, list) and all(isinstance(each, int | float) for each in value):
            return value
        if not isinstance(value, int | float):
            raise UsageError(
                "an argument is a number or an array such as f32[64,1000] or f32[64]=0, not "
                f"{word!r}."
            )
        return value
    if match["dtype"] not in _DTYPES:
        raise UsageError(f"{word}: the types of elements are {', '.join(_DTYPES)}.")
    name = _DTYPES[match["dtype"]]
    dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
    shape = tuple(map(int, match["shape"].split(",")))
    fill = None if match["fill"] is None else _value(match["fill"])
    if not isinstance(fill, int | float | None):
        raise UsageError(f"{word}: an array is filled with a number, not {match['fill']!r}.")
    try:
        if fill is not None:
            return _as_on_device(np.full(shape, fill, dtype))
        if dtype.kind in "iu":
            return _as_on_device(rng.integers(0, 100, shape).astype(dtype))
        return _as_on_device(rng.standard_normal(shape).astype(dtype))
    except (MemoryError, OverflowError, ValueError) as error:
        raise UsageError(f"{word}: there is no such array: {error}") from error


def _as_on_device(array: NDArray[Any]) -> NDArray[Any]:
    """A copy that begins at a multiple of 256 bytes, as memory of a device does."""
    from cuevo.ops.given_memory import host_workspace

    placed = host_workspace(None, array.nbytes).view(array.dtype).reshape(array.shape)
    placed[...] = array
    return placed


def threads_of(arguments: argparse.Namespace, rendered: RenderedKernel) -> tuple[int, ...]:
    """Threads of a block of a file's kernel: what the command line says, or else the text; () where
    neither does. ValueError for what the kernel cannot be launched with.
    """
    from cuevo.architectures import check_block
    from cuevo.executors.own.signature import declared_blocks

    required, maximum = declared_blocks(rendered.text, rendered.name)
    if not arguments.threads:
        return required or maximum or ()
    x, y, z = (*arguments.threads, 1, 1)[:3]
    check_block(f"{rendered.name}()", (x, y, z), required, maximum)
    return x, y, z


def size(text: str) -> tuple[int, ...]:
    """``3``, ``3,1`` or ``3,1,2``: threadblocks or threads."""
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*){0,2}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no size; write X, X,Y or X,Y,Z")
    return tuple(map(int, text.split(",")))


def make_arguments(words: Sequence[str] | None, rendered: RenderedKernel, seed: int) -> list[Any]:
    """The arguments of a launch; UsageError where there is not one for each parameter, or for each
    member of the struct that is the one parameter.
    """
    import numpy as np

    from cuevo.executors.own import Kernel

    rng, given = np.random.default_rng(seed), words or ()
    kernel = Kernel(rendered)
    if kernel.members is not None:
        named = split_settings(given)
        fields = [field.name for field in kernel.members.fields]
        if sorted(named) != sorted(fields):
            example = " ".join(f"{name}=WORD" for name in fields)
            raise UsageError(
                f"{rendered.name} takes struct {kernel.members.name}: give --args {example}; got "
                f"{' '.join(given) or 'none'}."
            )
        return [{name: make_argument(word, rng) for name, word in named.items()}]
    if len(given) != len(kernel.parameters):
        listed = ", ".join(map(str, kernel.parameters)) or "nothing"
        raise UsageError(
            f"{rendered.name} takes {listed}: give --args with {len(kernel.parameters)} words, "
            f"such as f32[64,1000] or 1000; got {len(given)}."
        )
    return [make_argument(word, rng) for word in given]
