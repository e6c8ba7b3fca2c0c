"""PTX of the kernels beside, as Triton and Numba write it: compiled once, and stored.

python tests/sim/compiled/from_python/texts.py      compiles them again; needs triton, numba-cuda
"""

import io
import shutil
import sys
import tarfile
import tempfile
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
STORED = HERE / "texts.tar.xz"


@cache
def stored() -> dict[str, str]:
    """Texts by their names: ``flash.sm_80``, ``flash.sm_90a``, ``softmax.sm_80``."""
    with tarfile.open(STORED) as archive:
        files = {each.name: archive.extractfile(each) for each in archive}
        return {name: file.read().decode() for name, file in files.items() if file is not None}


def of_triton(capability: int) -> str:
    import flash
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = {**dict.fromkeys(("q", "k", "v", "out"), "*fp16"), "scale": "fp32"}
    types |= {"rows": "i32", "keys": "i32", "TILE": "constexpr", "DEPTH": "constexpr"}
    aligned = {(place,): [["tt.divisibility", 16]] for place in range(4)}
    source = ASTSource(flash.flash_forward, types, {"TILE": 64, "DEPTH": 64}, aligned)
    options = {"num_warps": 4, "num_stages": 2}
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    print("shared memory:", made.metadata.shared)
    library = str(Path(triton.__file__).parents[1])
    return str(made.asm["ptx"]).replace(library, "")


def of_numba() -> str:
    import softmax
    from numba import cuda, float32, int32, void

    matrix = float32[:, ::1]
    return str(cuda.compile_ptx(softmax.softmax_rows, void(matrix, matrix, int32), cc=(8, 0))[0])


def main() -> None:
    # Texts name the folder of their source: one that says nothing.
    folder = Path(tempfile.gettempdir()) / "kernels"
    folder.mkdir(exist_ok=True)
    for name in ("flash.py", "softmax.py"):
        shutil.copy(HERE / name, folder)
    sys.path[0] = str(folder)
    made = {
        "flash.sm_80": of_triton(80),
        "flash.sm_90a": of_triton(90),
        "softmax.sm_80": of_numba(),
    }
    with tarfile.open(STORED, "w:xz") as archive:
        for name, text in made.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
            print(name, len(text))


if __name__ == "__main__":
    main()
