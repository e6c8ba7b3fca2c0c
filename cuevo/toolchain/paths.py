"""Where the package's own files lie."""

from functools import cache
from pathlib import Path

from cuevo.errors import CuevoError


@cache
def ptx_directory() -> Path:
    """The directory of the kernels: ``cuevo/_ptx`` of an installed wheel, ``ptx`` of a checkout."""
    package = Path(__file__).resolve().parents[1]
    # The wheel's directory first: `ptx` beside an installed package could be anybody's.
    for directory in (package / "_ptx", package.parent / "ptx"):
        if directory.is_dir():
            return directory
    raise CuevoError(
        f"the kernel files are missing: neither {package / '_ptx'} nor {package.parent / 'ptx'} "
        "is a directory; install cuevo again or run it from a complete checkout"
    )
