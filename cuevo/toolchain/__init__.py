"""From a template in ``ptx/`` to machine code, without a GPU or a driver.

`template` renders, and `source_map` remembers where every line was written; `header` reads
``cuevo.h``; `assemble` makes a cubin and reports its resources; `cache` keeps cubins on disk.
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
