"""cuevo.load: kernels of anybody's, on the CPU executor; and on a GPU where there is one."""

import ctypes
import doctest
import importlib.util
import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sim.compiled import texts

import cuevo
from cuevo.arrays import copy_to_host, view
from cuevo.cuda import LEGACY_DEFAULT
from cuevo.errors import CuevoError, SimulatorError, TemplateError
from cuevo.executors import DriverExecutor
from cuevo.executors.own import Kernel
from cuevo.executors.own import kernel as own_kernel
from cuevo.executors.own.arguments import pack
from cuevo.executors.own.signature import declared_blocks, entry_points, parameter_block
from cuevo.executors.own.texts import read_kernel
from cuevo.sim import SimExecutor
from cuevo.sim.text.parse import parse
from cuevo.toolchain.assembler import assemble

unit, kernel, gpu = pytest.mark.unit, pytest.mark.kernel, pytest.mark.gpu

HEAD = ".version 7.8\n.target sm_80\n.address_size 64\n"
# out[i] = a[i] * scale + shift for the elements of one block.
SCALE = """
.visible .entry scale(
    .param .u64 .ptr .global .align 4 a, .param .u64 out, .param .f32 factor, .param .u32 count,
    .param .align 4 .b8 shift[8])
{
    .reg .u64 from, to, offset;
    .reg .u32 i, n;
    .reg .f32 x, by, more;
    .reg .pred beyond;
    mov.u32 i, %tid.x;
    ld.param.u32 n, [count];
    setp.ge.u32 beyond, i, n;
    @beyond ret;
    mul.wide.u32 offset, i, 4;
    ld.param.u64 from, [a];
    ld.param.u64 to, [out];
    add.u64 from, from, offset;
    add.u64 to, to, offset;
    ld.global.f32 x, [from];
    ld.param.f32 by, [factor];
    ld.param.f32 more, [shift+4];
    fma.rn.f32 x, x, by, more;
    st.global.f32 [to], x;
    ret;
}
"""
TEXT = HEAD + SCALE
SHIFT = struct.pack("<If", 0, 2.0)
HEADER = """
typedef struct shift_of { uint32_t unused; float shift; } shift_of;
void shifted(const shift_of params);
"""


# -- Signatures ------------------------------------------------------------------------------------


@unit
def test_parameters_are_read_as_they_are_declared() -> None:
    (found,) = entry_points(TEXT).values()
    assert [*map(str, found)] == [
        ".u64 a",
        ".u64 out",
        ".f32 factor",
        ".u32 count",
        ".b8 shift[8]",
    ]
    block = parameter_block("scale", found)
    assert [(x.name, x.offset, x.size) for x in block.fields] == [
        ("a", 0, 8),
        ("out", 8, 8),
        ("factor", 16, 4),
        ("count", 20, 4),
        ("shift", 24, 8),
    ]
    assert block.size == 32


@unit
def test_a_block_has_the_gaps_of_alignments_and_ends_with_its_last_parameter() -> None:
    text = ".entry k(.param .u8 a, .param .align 16 .b8 b[4], .param .b64 c, .param .f16 d)"
    (found,) = entry_points(text).values()
    block = parameter_block("k", found)
    assert [x.offset for x in block.fields] == [0, 16, 24, 32]
    assert block.size == 34


@unit
def test_every_entry_is_found_and_nothing_else() -> None:
    text = """
    // .entry commented(.param .u32 x)
    /* .entry also(.param .u32 x) */
    .func (.param .b32 r) helper(.param .b32 x);
    .visible .entry _Z1fPf(
        .param .u64 _Z1fPf_param_0 // a pointer, they say
    )
    .maxntid 32, 4, 1
    { ret; }
    .entry none() { ret; }
    .entry bare { ret; }
    """
    found = entry_points(text)
    assert {name: len(parameters) for name, parameters in found.items()} == {
        "_Z1fPf": 1,
        "none": 0,
        "bare": 0,
    }
    assert declared_blocks(text, "_Z1fPf") == (None, (32, 4, 1))
    assert declared_blocks(text, "none") == (None, None)


@unit
@pytest.mark.parametrize("name", ["control.O3", "clusters.debug", "matrices.lineinfo"])
def test_what_a_compiler_declares_is_what_the_cpu_executor_reads(name: str) -> None:
    text = texts.stored()[name]
    found = entry_points(text, name)
    assert len(found) >= 3
    for entry in [*found][::4]:
        read = parse(text, entry).functions[entry].parameters.values()
        block = parameter_block(entry, found[entry])
        assert [(x.name, x.size) for x in block.fields] == [(x.name, x.size) for x in read]


@unit
def test_a_parameter_that_no_launch_can_be_given() -> None:
    with pytest.raises(CuevoError, match=r"^f\.ptx:3: '\.param \.texref picture' is no parameter"):
        entry_points(".entry k(\n.param .u32 n,\n.param .texref picture)", "f.ptx")


# -- Arguments -------------------------------------------------------------------------------------


def packed(declared: str, *arguments: object) -> bytes:
    (parameters,) = entry_points(f".entry k({declared})").values()
    block = parameter_block("k", parameters)
    return bytes(pack(parameters, block, arguments, lambda x, name: view(x, name=name))[0])


@unit
@pytest.mark.parametrize(
    ("kind", "value", "form", "expected"),
    [
        ("u32", 7, "I", 7),
        ("u32", -1, "i", -1),
        ("s32", 2**32 - 1, "i", -1),
        ("s64", -(2**63), "q", -(2**63)),
        ("u64", 2**64 - 1, "Q", 2**64 - 1),
        ("u16", np.int16(-2), "h", -2),
        ("u8", True, "B", 1),
        ("f32", 0.5, "f", 0.5),
        ("f32", 3, "f", 3.0),
        ("f32", np.float64(0.25), "f", 0.25),
        ("f64", np.float32(0.25), "d", 0.25),
        ("f16", 1.5, "e", 1.5),
        ("b16", np.float16(1.5), "e", 1.5),
        ("b32", np.float32(1.5), "f", 1.5),
    ],
)
def test_numbers(kind: str, value: object, form: str, expected: float) -> None:
    assert struct.unpack(f"<{form}", packed(f".param .{kind} x", value)) == (expected,)


class Pair(ctypes.Structure):
    _fields_ = (("unused", ctypes.c_uint32), ("shift", ctypes.c_float))


@unit
def test_structs_by_value() -> None:
    record = np.array([(3, 0.5)], [("unused", "u4"), ("shift", "f4")])[0]
    content = struct.pack("<If", 3, 0.5)
    for given in (content, bytearray(content), memoryview(content), Pair(3, 0.5), record):
        assert packed(".param .align 4 .b8 x[8]", given) == content


@unit
def test_the_address_of_an_array() -> None:
    x = np.zeros(3, np.int8)[1:]
    (address,) = struct.unpack("<Q", packed(".param .u64 x", x))
    assert address == x.__array_interface__["data"][0]


@unit
@pytest.mark.parametrize(
    ("declared", "arguments", "error", "words"),
    [
        (".param .u64 x", (), TypeError, r"k takes 1 arguments \(\.u64 x\); got 0"),
        ("", (1,), TypeError, r"k takes 0 arguments \(none\); got 1"),
        (".param .u32 n", (1.0,), TypeError, r"\.u32 n: expected an integer; got float"),
        (".param .u32 n", (np.float32(1),), TypeError, r"\.u32 n: .*got numpy\.float32"),
        (".param .u32 n", (np.ones((2, 3)),), TypeError, r"\.u32 n: .*ndarray of float64\[2, 3\]"),
        (".param .u32 n", (2**32,), ValueError, r"\.u32 n: 4294967296 is out of the range of 32"),
        (".param .s8 n", (-129,), ValueError, r"\.s8 n: -129 is out of the range of 8 bits"),
        (".param .u64 x", (1.5,), TypeError, r"\.u64 x: expected an array, or .*; got float"),
        (".param .u64 x", (None,), TypeError, r"\.u64 x: expected an array, or .*; got NoneType"),
        (".param .u64 x", ([1, 2],), TypeError, r"\.u64 x: expected a NumPy.*got builtins\.list"),
        (".param .f32 x", ("1",), TypeError, r"\.f32 x: expected a number; got str"),
        (".param .f32 x", (True,), TypeError, r"\.f32 x: expected a number; got bool"),
        (".param .f32 x", (1e39,), ValueError, r"\.f32 x: 1e\+39 is out of the type's range"),
        (".param .b32 x", (np.float16(1),), TypeError, r"\.b32 x: expected a value of 4 bytes"),
        (".param .b8 x[8]", (b"1234",), ValueError, r"\.b8 x\[8\]: expected 8 bytes; got 4"),
        (
            ".param .b8 x[8]",
            (7,),
            TypeError,
            r"\.b8 x\[8\]: expected 8 bytes, or a ctypes.*got int",
        ),
        (".param .b8 x[8]", ({"a": 1},), TypeError, r"load the kernel with header="),
    ],
)
def test_what_does_not_fit_is_refused_by_name(
    declared: str, arguments: tuple[object, ...], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        packed(declared, *arguments)


# -- Loading ---------------------------------------------------------------------------------------


@unit
def test_a_text_with_several_entries_asks_which() -> None:
    other = SCALE.replace("scale", "other")
    with pytest.raises(ValueError, match="entry: text has several; name one of scale, other"):
        cuevo.load(TEXT + other)
    assert cuevo.load(TEXT + other, "other").name == "other"
    with pytest.raises(ValueError, match="there is no 'third' in text; there are: scale, other"):
        cuevo.load(TEXT + other, "third")


@unit
def test_a_text_without_an_entry() -> None:
    with pytest.raises(CuevoError, match=r"text: the text has no \.entry"):
        cuevo.load(HEAD)


@unit
def test_plain_ptx_takes_no_values() -> None:
    with pytest.raises(ValueError, match="text is plain PTX, which takes none; got n, m"):
        cuevo.load(TEXT, values={"n": 1, "m": 2})


@unit
def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.ptx"):
        cuevo.load(tmp_path / "none.ptx")


@unit
@pytest.mark.parametrize(
    "shape", [1, (1,), (1, 2, 3), (0, 32), (1, (1, 2, 3, 4)), (1, "x"), (1.5, 1)]
)
def test_what_is_no_grid_and_block(shape: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"scale\[grid, block\]|positive integers"):
        cuevo.load(TEXT)[shape]


@unit
def test_faults_of_an_assembler_name_the_author_s_file(tmp_path: Path) -> None:
    path = tmp_path / "wrong.ptx"
    path.write_text(TEXT.replace("mul.wide.u32", "mul.wider.u32"), encoding="utf-8")
    line = TEXT[: TEXT.index("mul.wide")].count("\n") + 1
    with pytest.raises(CuevoError, match=rf"^{path}:{line}: "):
        assemble(read_kernel(path), "sm_80", cache=None)


@kernel
def test_the_source_lines_that_a_compiler_stated_stay() -> None:
    stated = TEXT.replace("    mov.u32 i", "    .loc 1 7 1\n    mov.u32 i") + '.file 1 "a.cu"\n'
    rendered = read_kernel(stated)
    assert rendered.located.text == stated
    assert assemble(rendered, "sm_80", cache=None).resources.registers > 0
    out = np.zeros(7, np.float32)
    with pytest.raises(SimulatorError, match=r"^a\.cu:7: .* past the end of out"):
        cuevo.load(stated)[1, 8](np.ones(8, np.float32), out, 1.0, 8, SHIFT)


# -- Calls -----------------------------------------------------------------------------------------


@kernel
def test_arrays_in_host_memory_are_worked_on_in_place() -> None:
    a = np.arange(40, dtype=np.float32)
    out = np.zeros_like(a)
    scale = cuevo.load(TEXT)
    assert repr(scale) == "scale(.u64 a, .u64 out, .f32 factor, .u32 count, .b8 shift[8])"
    scale[1, 64](a, out, 0.5, 39, SHIFT)
    np.testing.assert_array_equal(out[:39], a[:39] / 2 + 2)
    assert out[39] == 0


@kernel
@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_arrays_of_frameworks(framework: str) -> None:
    out = np.zeros(8, np.float32)
    if framework == "torch":
        a = pytest.importorskip("torch").ones(8)
    else:
        a = pytest.importorskip("jax.numpy").ones(8)
    cuevo.load(TEXT)[1, 8](a, out, 0.5, 8, SHIFT)
    np.testing.assert_array_equal(out, 2.5)


@kernel
def test_a_readonly_array_is_not_written() -> None:
    out = np.zeros(8, np.float32)
    out.flags.writeable = False
    with pytest.raises(SimulatorError, match="out"):
        cuevo.load(TEXT)[1, 8](np.ones(8, np.float32), out, 1.0, 8, SHIFT)


@kernel
def test_a_fault_names_file_line_and_parameter(tmp_path: Path) -> None:
    path = tmp_path / "scale.ptx"
    path.write_text(TEXT, encoding="utf-8")
    a, out = np.ones(8, np.float32), np.zeros(7, np.float32)
    line = TEXT[: TEXT.index("st.global")].count("\n") + 1
    # The same text under two names: each is told by its own.
    for source, file in ((TEXT, "text"), (path, path)):
        with pytest.raises(SimulatorError, match=rf"^{file}:{line}: .* past the end of out"):
            cuevo.load(source)[1, 8](a, out, 1.0, 8, SHIFT)


@kernel
def test_nothing_is_launched_where_an_argument_does_not_fit() -> None:
    out = np.zeros(8, np.float32)
    with pytest.raises(TypeError, match=r"\.u32 count: expected an integer; got float"):
        cuevo.load(TEXT)[1, 8](np.ones(8, np.float32), out, 1.0, 8.0, SHIFT)
    assert not out.any()


@kernel
def test_the_architecture_is_the_target_s_unless_it_is_told() -> None:
    later = TEXT.replace("sm_80", "sm_90")
    call = np.ones(8, np.float32), np.zeros(8, np.float32), 1.0, 8, SHIFT
    for device in (None, "sim", "sim:sm_100", SimExecutor("sm_90")):
        cuevo.load(later, device=device)[1, 8](*call)
    with pytest.raises(SimulatorError, match="for sm_90; this is sm_80"):
        cuevo.load(later, device="sim:sm_80")[1, 8](*call)
    old = TEXT.replace("sm_80", "sm_52")
    cuevo.load(old)[1, 8](*call)


@unit
def test_host_memory_is_out_of_a_device_s_reach() -> None:
    place = DriverExecutor.__new__(DriverExecutor)
    place.name = "cuda:0"
    a = view(np.ones((2, 3), np.float32))
    with pytest.raises(ValueError, match=r"^\.u64 a: the array is in host memory, .* cuda:0 "):
        Kernel(read_kernel(TEXT), place).place({".u64 a": a})


@kernel
def test_a_kernel_without_parameters_and_a_stream_that_is_none() -> None:
    nothing = cuevo.load(HEAD + ".visible .entry nothing()\n{\n    ret;\n}\n")
    nothing[(2, 1), (8, 2, 2)]()
    with pytest.raises(TypeError, match="stream"):
        nothing[1, 1](stream="x")


@kernel
def test_the_example_of_the_docstring_runs() -> None:
    results = doctest.testmod(own_kernel)
    assert results.attempted >= 4 and not results.failed


# -- Structs and templates -------------------------------------------------------------------------


@kernel
def test_a_header_names_the_members_of_a_struct() -> None:
    text = HEAD + (
        ".extern .shared .b8 room[];\n"
        ".visible .entry shifted(.param .align 4 .b8 params[8])\n{\n    .reg .f32 x;\n"
        "    ld.param.f32 x, [params+4];\n    st.shared.f32 [room], x;\n    ret;\n}\n"
    )
    shifted = cuevo.load(text, header=HEADER, device=SimExecutor(profile=True))
    shifted[1, 1]({"unused": 1, "shift": 0.5}, shared=4)
    with pytest.raises(ValueError, match="struct shift_of: missing fields: shift; unknown: none"):
        shifted[1, 1]({"unused": 1}, shared=4)
    wrong = "^struct shift_of: unused: expected uint32_t; got 0.5$"
    with pytest.raises(TypeError, match=wrong):
        shifted[1, 1]({"unused": 0.5, "shift": 1}, shared=4)
    with pytest.raises(ValueError, match="header: it declares no kernel scale"):
        cuevo.load(TEXT, header=HEADER)
    with pytest.raises(CuevoError, match="does not take the header's struct shift_of, of 8 bytes"):
        cuevo.load(text.replace("params[8]", "params[12]"), header=HEADER)


COMPILED = Path(__file__).parents[2] / "examples" / "compiled_norm" / "norm.ptx"


@unit
def test_what_a_compiler_read_may_be_beside_the_text() -> None:
    kernel = read_kernel(COMPILED)
    assert kernel.path("/nowhere/norm.cu") == COMPILED.with_suffix(".cu")
    assert kernel.path("/nowhere/other.cu") is None
    assert read_kernel(COMPILED.read_text()).path("/nowhere/norm.cu") is None


@kernel
def test_a_fault_names_the_line_that_was_compiled() -> None:
    x, y = np.ones((2, 100), np.float32), np.zeros((2, 99), np.float32)
    with pytest.raises(SimulatorError) as fault:
        cuevo.load(COMPILED)[2, 64](x, y, 100, 1e-5, shared=400)
    (line,) = re.findall(r"norm\.cu:(\d+)", str(fault.value))
    source = COMPILED.with_suffix(".cu").read_text().splitlines()
    assert source[int(line) - 1].strip().startswith("y[")


EXAMPLE = Path(__file__).parents[2] / "examples" / "row_softmax" / "row_softmax.ptx"


@kernel
def test_a_template_with_a_header_beside_it() -> None:
    values = {"dtype": "f16", "block_n": 32, "stages": 2, "access": 16, "exact": True}
    row_softmax = cuevo.load(EXAMPLE, values=values)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float16) for shape in ((20, 32), (32, 24)))
    bias, y = np.zeros(24, np.float32), np.zeros((20, 24), np.float32)
    arrays = {"a": a, "b": b, "bias": bias, "y": y}
    row_softmax[1, 128]({**arrays, "m": 20, "n": 24, "k": 32}, shared=2 * 2 * 32 * (64 + 32))
    exact = np.exp(a.astype(np.float64) @ b)
    np.testing.assert_allclose(y, exact / exact.sum(axis=1, keepdims=True), rtol=1e-4)


@unit
def test_a_template_s_imports_come_from_other_folders(tmp_path: Path) -> None:
    macros = tmp_path / "macros"
    macros.mkdir()
    (macros / "double.ptx").write_text(
        "//% macro double(x)\nadd.f32 ${x}, ${x}, ${x};\n//% endmacro\n", encoding="utf-8"
    )
    path = tmp_path / "own.ptx"
    body = "    .reg .f32 x;\n    mov.f32 x, ${value};\n    ${ lib.double('x') }\n    ret;\n}\n"
    imports = '//% import "double.ptx" as lib\n'
    path.write_text(imports + HEAD + ".entry own()\n{\n" + body, encoding="utf-8")
    rendered = read_kernel(path, values={"value": "0f3F800000"}, directories=[macros])
    assert "    add.f32 x, x, x;\n" in rendered.text
    origins = [rendered.origin(n + 1) for n in range(rendered.text.count("\n"))]
    assert {x and x.file for x in origins} == {str(path), str(macros / "double.ptx")}
    with pytest.raises(TemplateError, match=rf"^{path}:1: there is no template 'double.ptx'"):
        read_kernel(path, values={"value": 1})
    with pytest.raises(TemplateError, match=rf"^{path}:\d+: 'value' is undefined"):
        read_kernel(path, directories=[macros])
    number = next(n for n, x in enumerate(origins, 1) if x and x.file == str(macros / "double.ptx"))
    called = imports.count("\n") + HEAD.count("\n") + 5
    assert [*map(str, rendered.callers(number))] == [f"{path}:{called}"]
    as_text = read_kernel(path.read_text(), values={"value": "0f3F800000"}, directories=[macros])
    assert (as_text.text, as_text.file) == (rendered.text, "text")
    with pytest.raises(TemplateError, match=r"^text:\d+: 'value' is undefined"):
        read_kernel(path.read_text(), directories=[macros])


# -- On a device -----------------------------------------------------------------------------------


@gpu
def test_a_call_on_a_device(executor: Any) -> None:
    a = executor.copy_to_device(view(np.arange(40, dtype=np.float32)))
    out = executor.copy_to_device(view(np.zeros(40, np.float32)))
    cuevo.load(TEXT)[1, 64](a, out, 0.5, 39, SHIFT)
    found = copy_to_host(out, LEGACY_DEFAULT)
    np.testing.assert_array_equal(found, [*(np.arange(39) / 2 + 2), 0])


@gpu
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not here")
def test_torch_s_tensors_on_its_current_stream(executor: Any) -> None:
    torch = pytest.importorskip("torch")
    with torch.cuda.stream(torch.cuda.Stream()):
        a = torch.arange(40, device="cuda", dtype=torch.float32)
        out = torch.zeros_like(a)
        cuevo.load(TEXT)[1, 64](a, out, 0.5, 40, SHIFT)
        torch.testing.assert_close(out, a / 2 + 2)
    with pytest.raises(ValueError, match=r"expected an array on cuda:0, where .* is; it is on c"):
        cuevo.load(TEXT)[1, 64](a, np.zeros(40, np.float32), 0.5, 40, SHIFT)


@gpu
@pytest.mark.parametrize(("threads", "shared"), [(64, 0), (128, 40_000), (1024, 0)])
def test_occupancy_is_the_driver_s(executor: Any, threads: int, shared: int) -> None:
    from cuevo.architectures import architecture

    loaded = executor.load(read_kernel(TEXT))
    held = architecture(executor.arch).occupancy(threads, loaded.registers, shared)
    assert held.blocks == loaded.resident_blocks(threads, shared)
