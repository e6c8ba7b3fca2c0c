"""What is made of the files of ``ptx/`` before a wheel is put together:

    python -m cuevo.toolchain.compiled DIRECTORY

writes the code of the templates and what the header declares, which are ``cuevo/_compiled`` of an
installed package. To make both takes half a second of a first call, whose cache is empty, to read
them 30 ms. Each has the checksum of the text that it was made from, and is for no other.
"""

import sys
from pathlib import Path

from cuevo.toolchain.header import write_compiled
from cuevo.toolchain.rendering.codes import write_codes


def write(target: Path) -> None:
    """Write all of it to a directory; to be called before anything is rendered."""
    target.mkdir(parents=True, exist_ok=True)
    write_compiled(target)
    write_codes(target)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
