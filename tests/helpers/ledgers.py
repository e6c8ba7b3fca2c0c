"""Machine instructions, counted, to compare with the ledgers of the kernels."""

import re
import subprocess
from collections import Counter
from pathlib import Path

from cuevo.toolchain.sass import disassembler


def opcodes(cubin: bytes, directory: Path) -> Counter[str]:
    """Machine instructions by opcode, two words of it."""
    image = directory / "kernel.cubin"
    image.write_bytes(cubin)
    listing = subprocess.run(
        [disassembler(), "-c", "-ndf", str(image)], capture_output=True, text=True, check=True
    ).stdout
    found = re.findall(
        r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z0-9_]+(?:\.[A-Z0-9_]+)?)", listing
    )
    return Counter(found)
