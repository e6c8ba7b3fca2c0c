"""A kernel whose parameter block is known but for its addresses: constants of the text, and
parameters that are one address each.

A host that launches kernels with the addresses of its buffers alone has no parameter block to give.
The instructions stay as they are; what they load comes from another constant bank than parameters
are in, in the same time.
"""

import re
from collections.abc import Sequence

from cuevo.errors import CuevoError
from cuevo.toolchain.structs import POINTER, Member, lay_out
from cuevo.toolchain.template import RenderedKernel

__all__ = ["bind"]

_BLOCK = "params"
_ENTRY = re.compile(rf"\.entry\s+\w+\((\.param\s+\.align\s+(\d+)\s+\.b8\s+{_BLOCK}\[\d+\])\)")
_LOAD = re.compile(rf"\bld\.param(\.[\w.]+\s+[^\[;]+)\[{_BLOCK}\+(\d+)\]")
_OTHER_USE = re.compile(rf"^(?!\s*//).*\b{_BLOCK}\b(?!\+\d+\])", re.MULTILINE)


def bind(kernel: RenderedKernel, constants: bytes, addresses: Sequence[str]) -> RenderedKernel:
    """`kernel` with an entry that takes the addresses of the fields `addresses`, in that order.

    constants : what follows the address fields in the parameter block.
    addresses : a name that is no field's is a parameter that nobody reads; an address field that is
        not among them is null.

    Raises CuevoError for a kernel that does more with its parameter block than load from it.
    """
    struct, text = kernel.params, kernel.text
    entry = _ENTRY.search(text)
    if entry is None:
        raise CuevoError(f"{kernel.file}: {kernel.name} does not take the one block {_BLOCK}")
    names = {
        field.offset: f"param_{field.name}" for field in struct.fields if field.name in addresses
    }

    def load(found: re.Match[str]) -> str:
        rest, offset = found[1], int(found[2])
        if offset in names:
            return f"ld.param{rest}[{names[offset]}]"
        return f"ld.const{rest}[{_BLOCK}+{offset}]"

    block = bytes(struct.size - len(constants)) + constants
    words = ", ".join(f"{word:#x}" for word in memoryview(block).cast("I"))
    declared = f".const .align {entry[2]} .b32 {_BLOCK}[{len(block) // 4}] = {{{words}}};"
    parameters = ", ".join(f".param .u64 param_{name}" for name in addresses)
    before, body = text[: entry.start(1)], text[entry.end(1) :]
    if _OTHER_USE.search(body := _LOAD.sub(load, body)):
        raise CuevoError(f"{kernel.file}: {kernel.name} needs {_BLOCK} for more than its fields")
    head, begin, line = before.rpartition("\n")
    text = f"{head}\n{declared}{begin}{line}{parameters}{body}"
    at = head.count("\n") + 1
    lines = (*kernel.lines[:at], None, *kernel.lines[at:])
    members = [Member(name, POINTER, 0, 1) for name in addresses]
    return RenderedKernel(kernel.name, text, lines, kernel.values, lay_out(kernel.name, members))
