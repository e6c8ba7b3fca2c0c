"""A kernel whose parameter block is known but for its addresses: numbers in its instructions, and
parameters that are one address each.

A host that launches kernels with the addresses of its buffers alone has no parameter block to give.
In a constant bank of the module the block would be far away when a launch begins, 0.7 us on an
H200: parameters come with the launch, and numbers with the instructions.
"""

import re
from collections.abc import Sequence
from struct import unpack_from

from cuevo.errors import CuevoError
from cuevo.toolchain.structs import POINTER, Member, lay_out
from cuevo.toolchain.template import RenderedKernel

__all__ = ["bind"]

_BLOCK = "params"
_ENTRY = re.compile(rf"\.entry\s+\w+\((\.param\s+\.align\s+(\d+)\s+\.b8\s+{_BLOCK}\[\d+\])\)")
_LOAD = re.compile(rf"\bld\.param(\.([bsuf])(32|64)\s+[^\[;]+,\s*)\[{_BLOCK}\+(\d+)\]")
_OTHER_USE = re.compile(rf"^(?!\s*//).*\b{_BLOCK}\b", re.MULTILINE)


def bind(kernel: RenderedKernel, constants: bytes, addresses: Sequence[str]) -> RenderedKernel:
    """`kernel` with an entry that takes the addresses of the fields `addresses`, in that order.

    constants : what follows the address fields in the parameter block.
    addresses : a name that is no field's is a parameter that nobody reads; an address field that is
        not among them is null.

    Raises CuevoError for a kernel that does more with its parameter block than load from it.
    """
    text = kernel.text
    entry = _ENTRY.search(text)
    if entry is None:
        raise CuevoError(f"{kernel.file}: {kernel.name} does not take the one block {_BLOCK}")
    struct = kernel.params
    names = {
        field.offset: f"param_{field.name}" for field in struct.fields if field.name in addresses
    }
    block = bytes(struct.size - len(constants)) + constants

    def load(found: re.Match[str]) -> str:
        rest, kind, bits, offset = found[1], found[2], found[3], int(found[4])
        if offset in names:
            return f"ld.param{rest}[{names[offset]}]"
        (number,) = unpack_from("<I" if bits == "32" else "<Q", block, offset)
        prefix = {"f32": "0f", "f64": "0d"}.get(kind + bits, "0x")
        return f"mov{rest}{prefix}{number:0{int(bits) // 4}X}"

    parameters = ", ".join(f".param .u64 param_{name}" for name in addresses)
    before, body = text[: entry.start(1)], text[entry.end(1) :]
    if _OTHER_USE.search(body := _LOAD.sub(load, body)):
        raise CuevoError(f"{kernel.file}: {kernel.name} needs {_BLOCK} for more than its fields")
    text = f"{before}{parameters}{body}"
    members = [Member(name, POINTER, 0, 1) for name in addresses]
    own = lay_out(kernel.name, members)
    return RenderedKernel(kernel.name, text, kernel.lines, kernel.values, own)
