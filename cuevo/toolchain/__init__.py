"""From a template in ``ptx/`` to machine code, without a GPU or a driver.

`template` has rendered kernels, which `rendering` makes, remembering where every line was written;
`header` has the parameter structs of ``cuevo.h`` (`structs`), which `header_parser` reads; of both,
a wheel brings what `compiled` makes. `assemble` makes a cubin and reports its resources, `sass`
reads its machine code; `cache` keeps on disk what is made, under the digests of `sources`.
"""

from cuevo.toolchain.assembler import Cubin, assemble
from cuevo.toolchain.header import Struct, load_header
from cuevo.toolchain.template import RenderedKernel, SourceLine, kernel_names, render

__all__ = [
    "Cubin",
    "RenderedKernel",
    "SourceLine",
    "Struct",
    "assemble",
    "kernel_names",
    "load_header",
    "render",
]
