"""Kernels of the user's own: read from a file or a text, and called with arrays.

`texts` makes a `RenderedKernel` of plain PTX or of a template, `signature` reads the parameters of
its entry point, `arguments` packs those of a call, and `kernel` has `load` and what it gives.
"""

from cuevo.executors.own.kernel import Kernel, Launch, load

__all__ = ["Kernel", "Launch", "load"]
