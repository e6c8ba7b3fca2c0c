"""PTX of the kernels of `sources`, as nvcc writes it: compiled once, and stored.

python tests/sim/compiled/texts.py      compiles them again; needs nvcc 13.0
"""

import io
import shutil
import subprocess
import sys
import tarfile
import tempfile
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
STORED = HERE / "texts.tar.xz"
MODES = {"O3": ["-O3"], "lineinfo": ["-O3", "-lineinfo"], "debug": ["-G"]}
"""Options of the compiler."""
ARCHITECTURES = {"clusters": "sm_90"}
"""Sources that are for another architecture than sm_80."""


def architecture(source: str) -> str:
    return ARCHITECTURES.get(source, "sm_80")


@cache
def stored() -> dict[str, str]:
    """Texts by their names, ``sorts.debug``."""
    with tarfile.open(STORED) as archive:
        members = [each for each in archive if each.isfile()]
        found = {each.name: archive.extractfile(each) for each in members}
        return {name: file.read().decode() for name, file in found.items() if file is not None}


def compiled(source: Path, mode: str) -> bytes:
    # Debug data name the folder: one that says nothing.
    folder = Path(tempfile.gettempdir()) / "kernels"
    folder.mkdir(exist_ok=True)
    made = folder / "made.ptx"
    shutil.copy(source, folder)
    target = [f"-arch={architecture(source.stem)}", "-std=c++17", "-w", "-ptx"]
    command = ["nvcc", *target, *MODES[mode], "-o", str(made), source.name]
    subprocess.run(command, cwd=folder, check=True)
    return made.read_bytes()


def main() -> None:
    with tarfile.open(STORED, "w:xz") as archive:
        for source in sorted((HERE / "sources").glob("*.cu")):
            for mode in MODES:
                text = compiled(source, mode)
                entry = tarfile.TarInfo(f"{source.stem}.{mode}")
                entry.size = len(text)
                archive.addfile(entry, io.BytesIO(text))
                print(entry.name, len(text))


if __name__ == "__main__":
    sys.exit(main())
