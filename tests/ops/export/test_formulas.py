"""Functions of Python as functions of C: what they compute, and what cannot be traced."""

import ctypes
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.c_planner import FLAGS, compiler

from cuevo.ops.export.formulas import fields_function, number_function, values_function
from cuevo.ops.export.trace import Branch, Leaf, Raised, input_float, input_int, trace
from cuevo.toolchain.division import magic_fields
from cuevo.toolchain.header import parse_header

pytestmark = pytest.mark.unit

HEADER = """
typedef struct made_params { uint32_t heads_magic; uint32_t heads_shift; float scale; void *at; } made_params;
void made(const made_params params);
"""  # noqa: E501


def waves(blocks: Any, slots: Any) -> Any:
    """Integers, a root, a comparison that only min makes, and one that a condition makes."""
    whole, rest = divmod(blocks, slots)
    resident = max(1, min(4, slots // 3))
    last = (math.ceil(rest / slots) * resident) ** 0.5
    return (whole * resident + last) / 0.7 if blocks > slots else -abs(0.5 * last) - blocks % 7


def least(blocks: Any, slots: Any) -> Any:
    """Several cases divide by what another one says is 0; some are integers."""
    if slots == 0:
        return blocks * 0.5
    if slots > blocks:
        return slots
    return (blocks // slots) * (0.5 if blocks // slots > 1 else 1.0)


def fields(heads: Any, scale: Any, pointer: Any) -> dict[str, Any]:
    magnitude = abs(scale) if scale < 0 else 1.0 / scale
    return {**magic_fields(heads=heads), "scale": magnitude * math.e, "at": pointer}


def test_c_computes_what_python_does(tmp_path: Path) -> None:
    header = (Path(__file__).parents[3] / "cuevo/ops/export/folder_in_c/src/numbers.h").read_text()
    blocks, slots, heads = (input_int(name) for name in ("blocks", "slots", "heads"))
    struct = parse_header(HEADER).kernels["made"]
    text = [
        "#include <math.h>\n#include <stdint.h>\n" + header.replace("static inline", "static"),
        HEADER.partition("void made(")[0],
        "typedef enum { CUEVO_OK, CUEVO_TOO_LARGE } cuevo_status;",
        number_function("waves", "int64_t blocks, int64_t slots", lambda: waves(blocks, slots)),
        fields_function(
            "made",
            "int64_t heads, double scale, void *pointer",
            struct,
            lambda: fields(heads, input_float("scale"), input_int("pointer")),
        ),
        number_function("least", "int64_t blocks, int64_t slots", lambda: least(blocks, slots)),
        values_function("both", "int64_t blocks", lambda: (-blocks // 5, 1 << blocks)),
    ]
    source, library = tmp_path / "formulas.c", tmp_path / "formulas.so"
    seen = re.sub(r"^static (double|cuevo_status|void)", r"\1", "\n".join(text), flags=re.M)
    source.write_text(seen)
    flags = ("-std=c11", *FLAGS, "-Wno-unused-function", "-shared", "-fPIC")
    command = [compiler("gcc"), *flags, str(source), "-o", str(library), "-lm"]
    subprocess.run(command, check=True)
    made = ctypes.CDLL(str(library))
    made.waves.restype = made.least.restype = ctypes.c_double
    for many, few in ((1, 1), (7, 3), (1000, 7), (13, 400), (2**40 + 3, 132 * 4)):
        found = made.waves(ctypes.c_int64(many), ctypes.c_int64(few))
        assert found == waves(many, few), (many, few)
    for count, scale in ((1, 0.3), (3, -2.5), (2**31 - 1, 1e-3)):
        params = struct.ctype()
        at = ctypes.c_void_p(4096)
        arguments = (ctypes.c_int64(count), ctypes.c_double(scale), at)
        assert made.made(ctypes.byref(params), *arguments) == 0
        assert bytes(params) == struct.pack(fields(count, scale, 4096))
    for count in (0, -1, 2**31):
        arguments = (ctypes.c_int64(count), ctypes.c_double(1.0), None)
        assert made.made(ctypes.byref(params), *arguments) == 1
    assert made.least(ctypes.c_int64(7), ctypes.c_int64(0)) == 3.5
    assert made.least(ctypes.c_int64(7), ctypes.c_int64(3)) == 1
    assert made.least(ctypes.c_int64(7), ctypes.c_int64(9)) == 9
    pair = (ctypes.c_int64 * 2)()
    made.both(pair, ctypes.c_int64(41))
    assert [*pair] == [-41 // 5, 1 << 41]


def test_a_tree_has_a_leaf_for_every_answer() -> None:
    a, b = input_int("a"), input_int("b")

    def asked() -> str:
        if a < b:
            return "less"
        if a < b or a == b:
            raise ValueError("equal")
        return "more"

    tree = trace(asked)
    assert isinstance(tree, Branch)
    assert tree.true == Leaf("less")
    assert isinstance(tree.false, Branch)  # a < b is known there, and not asked again
    assert (tree.false.true, tree.false.false) == (Raised("equal"), Leaf("more"))


@pytest.mark.parametrize(
    "function",
    [
        lambda: range(input_int("a")),
        lambda: math.sqrt(input_float("a")),
        lambda: math.ceil(input_float("a") / 2),
        lambda: input_float("a") % 2,
        lambda: (1, 2)[input_int("a")],
        lambda: input_int("a") + "b",
    ],
)
def test_what_cannot_be_written_down_is_refused(function: Any) -> None:
    with pytest.raises(TypeError, match=r"not known while|is no number|ceil|must be real"):
        trace(function)


_SOURCES = """
from cuevo.ops.export.folder import planner
from cuevo.ops.export.instances import Instances
from cuevo.ops.export.selection import OPERATIONS, Selection
print(planner(Selection(OPERATIONS, (8,), ("bf16",), ("sm_80", "sm_90a")), Instances()))
"""


def test_sources_are_the_same_in_every_process() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", _SOURCES],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
        ).stdout
        for seed in "12"
    }
    assert len(found) == 1
