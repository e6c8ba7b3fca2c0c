"""Machine instructions, counted, to compare with the ledgers of the kernels."""

import re
import shutil
import subprocess
import sysconfig
from collections import Counter
from pathlib import Path

NVDISASM = sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/**/bin/nvdisasm"))


def opcodes(cubin: bytes, directory: Path) -> Counter[str]:
    """Machine instructions by opcode, two words of it."""
    program = str(NVDISASM[0]) if NVDISASM else shutil.which("nvdisasm")
    assert program, "the test extra installs nvidia-cuda-nvdisasm"
    image = directory / "kernel.cubin"
    image.write_bytes(cubin)
    listing = subprocess.run(
        [program, "-c", str(image)], capture_output=True, text=True, check=True
    ).stdout
    found = re.findall(
        r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?([A-Z0-9_]+(?:\.[A-Z0-9_]+)?)", listing
    )
    return Counter(found)
