"""Arguments of a call to the bytes of a parameter block, by the types of the parameters."""

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from cuevo.arrays import ArrayView
from cuevo.executors.own.signature import Parameter
from cuevo.toolchain.structs import Field, Struct

__all__ = ["pack"]

ReadArray = Callable[[object, str], ArrayView]
"""The view of an array, which messages call by the name; TypeError for what is none."""

_FLOATS = {"f16": "<e", "f32": "<f", "f64": "<d"}


def pack(
    parameters: Sequence[Parameter],
    block: Struct,
    arguments: Sequence[object],
    read: ReadArray,
    members: Struct | None = None,
) -> tuple[bytearray, dict[str, ArrayView]]:
    """The parameter block of a call, and the arrays that its pointers are of, each by what messages
    call it.

    parameters : those of the entry point; `block` says where each lies.
    members : of the one parameter that is a struct, for a call that gives a mapping.

    Raises TypeError and ValueError that name the parameter, its type and what was given.
    """
    if len(arguments) != len(parameters):
        listed = ", ".join(map(str, parameters)) or "none"
        raise TypeError(
            f"{block.name} takes {len(parameters)} arguments ({listed}); got {len(arguments)}"
        )
    packed, views = bytearray(block.size), dict[str, ArrayView]()
    for parameter, field, value in zip(parameters, block.fields, arguments, strict=True):
        if parameter.count:
            content = _bytes_of(parameter, field.size, value, members, read, views)
        else:
            content = _scalar(parameter, value, read, views)
        packed[field.offset : field.offset + field.size] = content
    return packed, views


def _scalar(
    parameter: Parameter, value: object, read: ReadArray, views: dict[str, ArrayView]
) -> bytes:
    size = parameter.bits // 8
    if isinstance(value, np.generic) and not isinstance(value, np.bool_ | np.integer):
        value = _unwrapped(parameter, value)
        if isinstance(value, bytes):
            return value
    if parameter.type in _FLOATS:
        return _float(parameter, value)
    if isinstance(value, bool | int | np.bool_ | np.integer):
        return _integer(parameter, int(value), size)
    if size == 8 and not isinstance(value, float | complex | str | bytes | None):
        view = views[str(parameter)] = read(value, str(parameter))
        return view.pointer.to_bytes(8, "little")
    takes = "an array, or an integer for an address" if size == 8 else "an integer"
    raise _wrong(parameter, takes, value)


def _unwrapped(parameter: Parameter, value: np.generic) -> object:
    """A NumPy float as Python's for a parameter of floats, as its bits for one of bits."""
    kind, size = value.dtype.kind, parameter.bits // 8
    if parameter.type in _FLOATS and kind == "f":
        return float(value)
    if parameter.type in (f"b{parameter.bits}", value.dtype.name.replace("bfloat", "bf")):
        if value.dtype.itemsize == size:
            return value.tobytes()
        raise _wrong(parameter, f"a value of {size} bytes", value)
    return value


def _float(parameter: Parameter, value: object) -> bytes:
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.integer):
        raise _wrong(parameter, "a number", value)
    try:
        return struct.pack(_FLOATS[parameter.type], value)
    except OverflowError:
        raise ValueError(f"{parameter}: {value!r} is out of the type's range") from None


def _integer(parameter: Parameter, value: int, size: int) -> bytes:
    # Compilers declare int and unsigned alike.
    if not -(1 << parameter.bits - 1) <= value < 1 << parameter.bits:
        raise ValueError(f"{parameter}: {value} is out of the range of {parameter.bits} bits")
    return (value % (1 << parameter.bits)).to_bytes(size, "little")


def _bytes_of(
    parameter: Parameter,
    size: int,
    value: object,
    members: Struct | None,
    read: ReadArray,
    views: dict[str, ArrayView],
) -> bytes:
    if isinstance(value, Mapping):
        if members is None:
            raise TypeError(
                f"{parameter}: a mapping needs the names of a struct's members: load the kernel "
                "with header="
            )
        return _struct(members, value, read, views)
    if isinstance(value, np.generic):
        content = value.tobytes()
    elif isinstance(value, bytes | bytearray | memoryview | ctypes.Structure | ctypes.Array):
        content = bytes(value)
    else:
        raise _wrong(parameter, f"{size} bytes, or a ctypes.Structure of that size", value)
    if len(content) != size:
        raise ValueError(f"{parameter}: expected {size} bytes; got {len(content)}")
    return content


def _struct(
    members: Struct, given: Mapping[Any, Any], read: ReadArray, views: dict[str, ArrayView]
) -> bytes:
    def plain(field: Field) -> Any:
        value = given[field.name]
        if field.ctype is ctypes.c_void_p and not isinstance(value, int):
            name = f"{members.name}.{field.name}"
            views[name] = read(value, name)
            return views[name].pointer
        return value

    values = {field.name: plain(field) for field in members.fields if field.name in given}
    return members.pack({**given, **values})


def _wrong(parameter: Parameter, expected: str, value: object) -> TypeError:
    kind = type(value)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    shape = getattr(value, "shape", None)
    dtype = getattr(value, "dtype", None)
    detail = f" of {dtype}{list(shape)}" if shape else ""
    return TypeError(f"{parameter}: expected {expected}; got {module}{kind.__qualname__}{detail}")
