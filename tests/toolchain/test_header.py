"""cuevo.toolchain.header: what is read from a header agrees with what a C compiler makes of it."""

import ctypes
import re
import shutil
import struct
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cuevo.errors import CuevoError
from cuevo.toolchain.header import HEADER_NAME, Struct, load_header, parse_header
from cuevo.toolchain.paths import ptx_directory
from cuevo.toolchain.template import kernel_names

pytestmark = pytest.mark.unit

TYPES = [f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32, 64)] + [
    "float",
    "double",
]

EXAMPLE = """\
/* Two structs, // with every kind of member
   and of comment. */
#ifndef EXAMPLE_H
#define EXAMPLE_H
#define LONG_LINE \\
    int64_t
#include <stdint.h>
#ifdef __cplusplus
extern "C" {
#endif
typedef struct scale_params {
    const void *input; // [n], /* fp32
    uint8_t flag;
    int64_t stride;    /* bytes */
    float factors[3];
    void *outputs[2];
    uint16_t last;
} scale_params;

struct shift_params { float *data; int32_t by; };

void scale_sm80(const scale_params params);
void shift_sm80(const struct shift_params params);
#ifdef __cplusplus
}
#endif
#endif
"""


def every_type_in_many_orders() -> str:
    """Structs whose members of all types follow each other in various orders, for all paddings."""
    members = [*(f"{kind} {{}}" for kind in TYPES), "void *{}", "uint8_t {}[3]", "double {}[2]"]
    structs = []
    for step in (1, 3, 5, 7):
        order = [members[index * step % len(members)] for index in range(len(members))]
        body = "".join(f"    {text.format(f'x{index}')};\n" for index, text in enumerate(order))
        structs.append(f"struct order{step} {{\n{body}}};\n")
    return "#include <stdint.h>\n" + "".join(structs)


def compare_with_c(header: Path, structs: dict[str, Struct], spelling: dict[str, str]) -> None:
    """Have the C compiler check each size and offset: all are right, and a wrong one is refused."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("no C compiler (cc, gcc, clang) on the PATH to compare the header with")
    claims = []
    for name, found in structs.items():
        kind = spelling[name]
        claims.append(f"sizeof({kind}) == {found.size}")
        claims.append(f"_Alignof({kind}) == {found.alignment}")
        for field in found.fields:
            claims.append(f"offsetof({kind}, {field.name}) == {field.offset}")
            claims.append(f"sizeof((({kind} *)0)->{field.name}) == {field.size}")

    def compiles(claims: list[str]) -> subprocess.CompletedProcess[str]:
        source = f'#include <stddef.h>\n#include "{header}"\n' + "".join(
            f'_Static_assert({claim}, "{claim}");\n' for claim in claims
        )
        command = [compiler, "-std=c11", "-Wall", "-Werror", "-fsyntax-only", "-xc", "-"]
        return subprocess.run(command, input=source, text=True, capture_output=True, check=False)

    result = compiles(claims)
    assert result.returncode == 0, result.stderr
    assert compiles([claims[0].replace("==", "!=")]).returncode != 0


def c_names(header: str, structs: dict[str, Struct]) -> dict[str, str]:
    typedefs = set(re.findall(r"}\s*(\w+)\s*;", header))
    return {name: name if name in typedefs else f"struct {name}" for name in structs}


def test_the_package_header_agrees_with_the_c_compiler() -> None:
    path = ptx_directory() / HEADER_NAME
    structs = dict(load_header().structs)
    assert structs
    compare_with_c(path, structs, c_names(path.read_text(), structs))


def test_the_package_header_declares_every_kernel_and_no_other() -> None:
    assert set(load_header().kernels) == set(kernel_names())


@pytest.mark.parametrize("text", [EXAMPLE, every_type_in_many_orders()], ids=["example", "orders"])
def test_sizes_and_offsets_agree_with_the_c_compiler(text: str, tmp_path: Path) -> None:
    path = tmp_path / "test.h"
    path.write_text(text)
    structs = dict(load_header(path).structs)
    assert len(structs) > 1
    compare_with_c(path, structs, c_names(text, structs))


def test_kernels_have_the_struct_of_their_prototype() -> None:
    header = parse_header(EXAMPLE)
    assert set(header.structs) == {"scale_params", "shift_params"}
    assert header.kernels["scale_sm80"] is header.structs["scale_params"]
    assert header.kernels["shift_sm80"] is header.structs["shift_params"]


def test_attributes_are_offsets() -> None:
    params = parse_header(EXAMPLE).kernels["scale_sm80"]
    assert (params.input, params.flag, params.stride, params.factors) == (0, 8, 16, 24)
    assert params.offset("outputs") == params.outputs == 40
    assert params.size == 64
    assert params.alignment == 8
    with pytest.raises(AttributeError, match="has no field 'outptus'; its fields are input, flag"):
        params.outptus  # noqa: B018
    with pytest.raises(ValueError, match="has no field 'outptus'"):
        params.offset("outptus")


@pytest.mark.parametrize("text", [EXAMPLE, every_type_in_many_orders()], ids=["example", "orders"])
def test_the_pack_format_fills_the_struct(text: str) -> None:
    for params in parse_header(text).structs.values():
        values: list[int] = []
        block = params.ctype()
        for number, field in enumerate(params.fields, 1):
            if issubclass(field.ctype, ctypes.Array):
                for index in range(field.ctype._length_):
                    getattr(block, field.name)[index] = number + index
                    values.append(number + index)
            else:
                setattr(block, field.name, number)
                values.append(number)
        packed = bytearray(params.size)
        struct.pack_into(params.pack_format, packed, 0, *values)
        assert bytes(packed) == bytes(block)


ADDRESSES = """
struct maps {
    const void *q; uint8_t _Alignas(64) q_map[128]; float *out; uint8_t flags[3];
    int32_t count; void *late;
};
struct numbers { int32_t count; void *late; };
"""


def test_addresses_are_the_pointers_and_tensor_maps_in_front() -> None:
    structs = parse_header(ADDRESSES).structs
    params = structs["maps"]
    assert params.address_fields == ("q", "q_map", "out", "flags")
    assert params.addresses.format == "@P56x128sP3s"
    tensor_map = bytes(range(128))
    values = {"q": 1, "q_map": tensor_map, "out": 2, "flags": b"abc", "count": 3, "late": 4}
    front = params.addresses.pack(1, tensor_map, 2, b"abc")
    assert front == params.pack(values)[: params.addresses.size]
    assert structs["numbers"].address_fields == ()
    assert structs["numbers"].addresses.size == 0


@pytest.mark.parametrize("kernel", kernel_names())
def test_every_kernel_begins_with_the_addresses_of_its_arrays(kernel: str) -> None:
    params = load_header().kernels[kernel]
    count = len(params.address_fields)
    assert count > 1
    assert params.addresses.size == params.fields[count].offset
    assert not any(field.ctype is ctypes.c_void_p for field in params.fields[count:])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("struct a {\n int x;\n};", "ptx/cuevo.h:2: a.x: the type must be a pointer, int8_t"),
        ("struct a { unsigned long x; };", "a.x: the type must be"),
        ("struct a { float x[N]; };", "with a literal length"),
        ("struct a { float x[0]; };", "with a literal length"),
        ("struct a { float x[2][2]; };", "with a literal length"),
        ("struct b { float y; };\nstruct a { struct b x; };", "ptx/cuevo.h:2: a.x: the type must"),
        ("struct a { uint32_t x : 3; };", "a.x: bit-fields are not supported"),
        ("struct a { float size; };", "a.size: the name is taken"),
        ("\n/* two\nlines */\nstruct a { float x };", "ptx/cuevo.h:4:"),
        ("int x;", "only structs, their typedefs and kernel prototypes"),
        ("void f(float x);", "the parameter of kernel f is no known struct"),
        ("void f(const struct a x);", "the parameter of kernel f is no known struct"),
        ("void f(void);", "the parameter of kernel f"),
        ("struct a { float x; };\nint f(const struct a x);", "kernel f must return void"),
        ("struct a { float x; };\nvoid f(const struct a *x);", "is no known struct"),
        ("struct a { float x; };\nvoid f(struct a x, struct a y);", "take one struct by value"),
    ],
)
def test_what_is_no_parameter_block_is_refused(text: str, message: str) -> None:
    with pytest.raises(CuevoError, match=r"^ptx/cuevo\.h:") as caught:
        parse_header(text)
    assert message in str(caught.value)


def test_a_changed_header_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "cuevo.h"
    path.write_text("struct a { float x; };")
    first = load_header(path)
    assert load_header(path) is first
    path.write_text("struct a { float x, y; };")
    assert [field.name for field in load_header(path).structs["a"].fields] == ["x", "y"]


def test_a_missing_header_is_named(tmp_path: Path) -> None:
    with pytest.raises(CuevoError, match=r"nothing\.h"):
        load_header(tmp_path / "nothing.h")


SEVERAL = (
    "struct several { void *x; int32_t n; float s; int8_t c[3]; uint16_t _Alignas(16) q[2]; };"
)


def test_a_struct_is_packed_as_a_compiler_lays_it_out() -> None:
    several = parse_header(SEVERAL).structs["several"]
    values = {"x": 1 << 40, "n": np.int32(-5), "s": 0.5, "c": [1, -2, 3], "q": np.array([7, 65535])}
    block = several.ctype.from_buffer_copy(several.pack(values))
    assert (block.x, block.n, block.s) == (1 << 40, -5, 0.5)
    assert ([*block.c], [*block.q]) == ([1, -2, 3], [7, 65535])


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("n", 2.5, TypeError, "n: expected int32_t; got 2.5"),
        ("n", None, TypeError, "n: expected int32_t; got None"),
        ("n", 2**31, ValueError, "n: expected int32_t; got 2147483648, which is out of range"),
        ("s", "1", TypeError, "s: expected float; got '1'"),
        ("x", "here", TypeError, "x: expected an address; got 'here'"),
        ("c", 5, TypeError, "c: expected 3 of int8_t; got 5"),
        ("c", [1, 2], ValueError, "c: expected 3 of int8_t; got 2"),
        ("c", [1, 2, 300], ValueError, "c: expected int8_t; got 300, which is out of range"),
        ("q", np.zeros(2), TypeError, "q: expected uint16_t; got np.float64.*"),
    ],
)
def test_a_member_that_does_not_fit_is_named(
    name: str, value: object, error: type[Exception], message: str
) -> None:
    several = parse_header(SEVERAL).structs["several"]
    values: dict[str, Any] = {"x": 1, "n": 1, "s": 1.0, "c": [1, 2, 3], "q": [1, 2]}
    with pytest.raises(error, match=f"^struct several: {message}$"):
        several.pack({**values, name: value})
