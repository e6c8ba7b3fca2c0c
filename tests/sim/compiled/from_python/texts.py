"""PTX of the kernels of `sources`, as Triton and Numba write it: compiled once, and stored.

python tests/sim/compiled/from_python/texts.py      compiles them again; needs triton, numba-cuda
"""

import io
import json
import os
import re
import shutil
import sys
import tarfile
import tempfile
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
STORED = HERE / "texts.tar.xz"
_LAUNCHES = "launches.json"


@dataclass(frozen=True)
class Launch:
    """What the compiler says of a text."""

    entry: str
    threads: int = 0
    """In a threadblock; 0 for any number."""
    shared: int = 0
    """Bytes of dynamic shared memory."""
    scratch: int = 0
    """Bytes of global memory that each threadblock has for itself, at a multiple of 128."""


@dataclass(frozen=True)
class InTriton:
    source: str
    types: str
    """Of the parameters before the constants; pointers and ``i32:16`` are multiples of 16."""
    constants: dict[str, int]
    warps: int = 4
    stages: int = 2
    architectures: tuple[int, ...] = (80, 90)


_TILES = {"M": 64, "N": 64, "K": 32}
_PRODUCT = "*fp16 *fp16 *fp16 i32 i32:16 i32:16"
_DESCRIPTORS = "tensordesc<fp16[64,32]> tensordesc<fp16[32,64]> tensordesc<fp16[64,64]> i32 i32 i32"
TRITON = {
    "flash_forward": InTriton(
        "flash", "*fp16 *fp16 *fp16 *fp16 fp32 i32 i32", {"TILE": 64, "DEPTH": 64}
    ),
    "flash_backward": InTriton(
        "flash",
        "*fp16 *fp16 *fp16 *fp16 *fp32 *fp32 *fp32 *fp16 *fp16 fp32 i32",
        {"TILE": 64, "DEPTH": 64},
    ),
    "add_vectors": InTriton("elements", "*fp32 *fp32 *fp32 i32", {"TILE": 256}),
    "drop": InTriton("elements", "*fp32 *fp32 i32 fp32 i32", {"TILE": 256}),
    "arc_sine": InTriton("elements", "*fp32 *fp32 i32", {"TILE": 256}),
    "add_dependent": InTriton(
        "elements", "*fp32 *fp32 *fp32 i32", {"TILE": 256}, architectures=(90,)
    ),
    "softmax": InTriton("rows", "*fp32 *fp32 i32 i32 i32 i32", {"WIDTH": 128, "STAGES": 2}),
    "normalize": InTriton("rows", "*fp32 " * 6 + "i32 fp32", {"TILE": 128}),
    "normalize_gradient": InTriton("rows", "*fp32 " * 8 + "*i32 i32", {"GROUPS": 3, "WIDTH": 256}),
    "add_groups": InTriton("rows", "*fp32 *fp32 i32 i32", {"ROWS": 8, "TILE": 64}),
    "sort_and_count": InTriton("rows", "*i32 " * 5, {"WIDTH": 128, "KINDS": 32}),
    "multiply": InTriton("products", _PRODUCT, {**_TILES, "GROUP": 2}, stages=3),
    "multiply_persistent": InTriton(
        "products", _PRODUCT + " i32", {**_TILES, "GROUP": 2}, stages=3
    ),
    "multiply_descriptors": InTriton(
        "products", _DESCRIPTORS + " i32", {**_TILES, "GROUP": 2}, stages=3, architectures=(90,)
    ),
    "multiply_specialized": InTriton(
        "products", _DESCRIPTORS + " i32", _TILES, stages=3, architectures=(90,)
    ),
    "multiply_made_descriptors": InTriton(
        "products", _PRODUCT + " i32", _TILES, stages=3, architectures=(90,)
    ),
    "multiply_many": InTriton("products", "*i64 *i64 *i64 *i32 i32 i32", _TILES),
}
NUMBA = {
    "softmax_rows": "float32[:,::1], float32[:,::1], int32",
    "sum_blocks": "float32[::1], float32[::1]",
    "multiply_tiles": "float32[:,::1], float32[:,::1], float32[:,::1]",
    "count_values": "int32[::1], int32[::1]",
    "pack_positive": "float32[::1], float32[::1], int32[::1]",
    "run_sums": "int64[::1], int64[::1]",
}
"""Types of the parameters."""


@cache
def stored() -> dict[str, str]:
    """Texts by their names: ``drop.sm_80``, ``drop.sm_90a``, ``sum_blocks.sm_80``."""
    with tarfile.open(STORED) as archive:
        files = {each.name: archive.extractfile(each) for each in archive}
        return {name: file.read().decode() for name, file in files.items() if file is not None}


@cache
def launches() -> dict[str, Launch]:
    """What the compilers say of each text."""
    return {name: Launch(**each) for name, each in json.loads(stored()[_LAUNCHES]).items()}


def of_triton(name: str, kernel: InTriton, capability: int) -> tuple[Launch, str]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    function = getattr(import_module(kernel.source), name)
    types = kernel.types.split()
    variable = [each for each in function.arg_names if each not in kernel.constants]
    signature: Any = dict.fromkeys(function.arg_names, "constexpr")
    signature |= {key: each.split(":")[0] for key, each in zip(variable, types, strict=True)}
    aligned = {
        (place,): [["tt.divisibility", 16]]
        for place, each in enumerate(types)
        if each[0] == "*" or each.endswith(":16")
    }
    source = ASTSource(function, signature, kernel.constants, aligned)
    options = {"num_warps": kernel.warps, "num_stages": kernel.stages}
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    about = made.metadata
    library = str(Path(triton.__file__).parents[1])
    text = str(made.asm["ptx"]).replace(library, "")
    launch = Launch(about.name, 32 * about.num_warps, about.shared, about.global_scratch_size)
    return launch, text


def of_numba(name: str, types: str) -> tuple[Launch, str]:
    import threads
    from numba import cuda

    text = str(cuda.compile_ptx(getattr(threads, name), f"void({types})", cc=(8, 0))[0])
    (entry,) = re.findall(r"\.entry (\w+)", text)
    return Launch(entry), text


def main() -> None:
    # Texts name the folder of their source: one that says nothing.
    folder = Path(tempfile.gettempdir()) / "kernels"
    folder.mkdir(exist_ok=True)
    # Nor one that has been kept from another run.
    os.environ["TRITON_CACHE_DIR"] = str(folder / "cache")
    for source in (HERE / "sources").glob("*.py"):
        shutil.copy(source, folder)
    sys.path[0] = str(folder)
    made = {f"{name}.sm_80": of_numba(name, types) for name, types in NUMBA.items()}
    for name, kernel in TRITON.items():
        for number in kernel.architectures:
            made[f"{name}.sm_{number}{'a' * (number >= 90)}"] = of_triton(name, kernel, number)
    texts = {name: text for name, (_, text) in made.items()}
    texts[_LAUNCHES] = json.dumps({name: asdict(launch) for name, (launch, _) in made.items()})
    with tarfile.open(STORED, "w:xz") as archive:
        for name, text in texts.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
            print(name, len(text))


if __name__ == "__main__":
    main()
