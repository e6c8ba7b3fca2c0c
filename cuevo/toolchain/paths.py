"""Where the package's own files lie, and how files are read."""

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


def compiled_directory() -> Path:
    """What an installed wheel has for the files of ``ptx/``, made when it was built: see
    `cuevo.toolchain.compiled`. A checkout has no such directory.
    """
    return Path(__file__).resolve().parents[1] / "_compiled"


def read_text(path: Path) -> str:
    """The text of a file, less a byte order mark; CuevoError, with its name, if it is no UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise CuevoError(
            f"{path}: the file is no text in UTF-8: {error.reason} at byte {error.start}"
        ) from error
