"""examples/embedding: the programs in C and C++ compile, and their results are right: on the CPU
executor, which is handed what they launch, and on a device.
"""

import ctypes
import re
import shutil
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from helpers.c_planner import FLAGS, compiler, write_planner
from helpers.fat_binaries import need_fat_binaries

from cuevo.arrays import ArrayView
from cuevo.cuda import devices
from cuevo.ops.export.folder import write
from cuevo.ops.export.instances import Instance
from cuevo.ops.export.selection import Products, Selection
from cuevo.sim import SimExecutor
from cuevo.toolchain.header import load_header

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples/embedding"
SOURCES = ("cuevo_launch.c", "cuevo_kernels.c")
IN_C, IN_CPP = ("gcc", "-std=c11"), ("g++", "-std=c++17")
LANGUAGES = {
    "forward.c": IN_C,
    "gradients.cpp": IN_CPP,
    "linear.c": IN_C,
    "linear_gradients.cpp": IN_CPP,
}
SERVED = dict(
    operations=("forward", "backward", "gemm"),
    head_dims=(16,),
    dtypes=("bf16",),
    masks=("own",),
    pairs=("own",),
)
PRODUCTS = {
    "linear.c": Products(("nt",), ("own",), ("none",), ("result",)),
    "linear_gradients.cpp": Products(("nn", "tn"), ("own", "f32"), ("none",), ("none",)),
}
ALL_PRODUCTS = Products(("nn", "nt", "tn"), ("own", "f32"), ("none",), ("none", "result"))


@pytest.fixture(scope="module")
def headers() -> Path:
    """Where cuda.h is."""
    found = find_spec("nvidia")
    places = found.submodule_search_locations if found else None
    paths = [path for place in places or () for path in Path(place).glob("cu*/include/cuda.h")]
    if not paths:
        pytest.skip("no cuda.h: pip install nvidia-cuda-runtime")
    return paths[0].parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Instance]]:
    """A folder without kernels, and what kernels it should have."""
    path = tmp_path_factory.mktemp("attention")
    served = Selection(**SERVED, architectures=("sm_80",), products=ALL_PRODUCTS)
    return path, {str(path / each.file): each for each in write_planner(served, path)}


def build(
    command: Sequence[str], sources: Sequence[Path], target: Path, folder: Path, headers: Path
) -> Path:
    """Compile sources to one object file or program."""
    subprocess.run(
        [
            *(compiler(command[0]), *command[1:], *FLAGS, "-fPIC"),
            *(f'-DCUEVO_FOLDER="{folder}"', f"-I{folder / 'include'}", f"-isystem{headers}"),
            *(*map(str, sources), "-o", str(target)),
        ],
        check=True,
    )
    return target


@pytest.mark.unit
@pytest.mark.parametrize("example", [x for x in LANGUAGES if x.endswith(".c")])
def test_the_c_examples_are_programs_in_c_plus_plus_too(
    example: str, folder: tuple[Path, dict[str, Instance]], headers: Path, tmp_path: Path
) -> None:
    command = ("g++", "-xc++", "-std=c++17", "-fsyntax-only")
    build(command, [EXAMPLES / example], tmp_path / "example.o", folder[0], headers)


_PAGE = """
#include <cuevo_driver.h>
#include <math.h>

static CUmodule modules[9999];
static CUfunction functions[9999];

int main(void)
{
    enum { B = 1, H = 2, Lq = 37, Lk = 53, D = 16, M = 8, N = 8, K = 8 };
    const cuevo_array q = {0}, k = {0}, v = {0}, out = {0}, mask_bias = {0}, dout = {0};
    const cuevo_array dq = {0}, dk = {0}, dv = {0}, dmask_bias = {0}, dpair_bias = {0};
    const CUdeviceptr address = 0, workspace = 0;
    const CUdevice cu_device = 0;
    const CUstream stream = 0;
    const float *lse = 0;
    void *const x = 0, *const w = 0, *const y = 0;
"""


@pytest.mark.unit
def test_listings_of_the_page_compile(
    folder: tuple[Path, dict[str, Instance]], headers: Path, tmp_path: Path
) -> None:
    page = (ROOT / "docs/embedding-c.md").read_text(encoding="utf-8")
    describe, bias, *others = re.findall(r"^```c\n(.*?)^```$", page, re.M | re.S)
    describe = re.sub(r"^#include.*$", "", describe, flags=re.M)
    program = "".join((_PAGE, bias, describe, *others, "return 0;\n}\n"))
    (tmp_path / "page.c").write_text(program)
    command = ("gcc", "-std=c11", "-c")
    build(command, [tmp_path / "page.c"], tmp_path / "page.o", folder[0], headers)


_ON_LAUNCH = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.POINTER(ctypes.c_uint), ctypes.c_void_p)


@pytest.mark.kernel
@pytest.mark.parametrize("example", [*LANGUAGES])
def test_results_are_right_on_the_cpu_executor(
    example: str,
    folder: tuple[Path, dict[str, Instance]],
    headers: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    path, kernels = folder
    driver = ROOT / "tests/helpers/driver_on_cpu.c"
    objects = [
        build(("gcc", "-std=c11", "-c"), [source], tmp_path / f"{i}.o", path, headers)
        for i, source in enumerate((driver, *(path / "src" / name for name in SOURCES)))
    ]
    command = (*LANGUAGES[example], "-shared")
    program = build(
        command, [EXAMPLES / example, *objects, Path("-lm")], tmp_path / "example.so", path, headers
    )
    library, executor, failures = ctypes.CDLL(str(program)), SimExecutor("sm_80"), []
    memory = (ctypes.c_uint64 * 256).in_dll(library, "cuevo_test_memory")
    sizes = (ctypes.c_size_t * 256).in_dll(library, "cuevo_test_bytes")

    @_ON_LAUNCH
    def launch(file: bytes, shape: "ctypes._Pointer[ctypes.c_uint]", parameters: int) -> None:
        try:
            count = ctypes.c_uint.in_dll(library, "cuevo_test_allocations").value
            buffers = [
                ArrayView(at, (size,), (1,), np.dtype(np.uint8), "cpu", False, None)
                for at, size in zip(memory[:count], sizes[:count], strict=True)
            ]
            kernel = kernels[file.decode()]
            size = load_header().kernels[kernel.name].size
            executor.load(kernel.render()).launch(
                (shape[0], shape[1], shape[2]),
                (shape[3], shape[4], shape[5]),
                shape[6],
                ctypes.string_at(parameters, size),
                buffers=buffers,
            )
        except BaseException as error:  # which ctypes would only print
            failures.append(error)

    library.cuevo_test_begin(launch)
    status = library.main()
    assert failures == []
    assert status == 0, capfd.readouterr()
    ctypes.CDLL(None).fflush(None)
    assert "relative error" in capfd.readouterr().out


LARGE = "-DSIZES=N = 384, LQ = 315, LK = 293, H = 2, EACH = 29"
"""For `forward.c`: scores enough for the variant of sm_90a, whose last query tile is short."""


@pytest.mark.gpu
@pytest.mark.parametrize(
    "example, sizes",
    [*((each, ()) for each in LANGUAGES), pytest.param("forward.c", (LARGE,), id="large")],
)
def test_results_are_right_on_a_device(
    example: str, sizes: tuple[str, ...], headers: Path, tmp_path: Path
) -> None:
    need_fat_binaries()
    number = devices()[0].arch.removeprefix("sm_").rstrip("a")
    name = f"sm_{number}a" if number == "90" else f"sm_{number}"
    path = tmp_path / "attention"
    operations = ("gemm",) if example in PRODUCTS else ("forward", "backward")
    products = PRODUCTS.get(example, Products())
    served = {**SERVED, "operations": operations, "products": products}
    write(Selection(**served, architectures=(name,)), path)
    objects = [
        build(("gcc", "-std=c11", "-c"), [path / "src" / each], tmp_path / f"{i}.o", path, headers)
        for i, each in enumerate(SOURCES)
    ]
    sources = [EXAMPLES / example, *objects, Path("-l:libcuda.so.1"), Path("-lm")]
    language = (*LANGUAGES[example], *sizes)
    program = build(language, sources, tmp_path / "example", path, headers)
    checked = shutil.which("compute-sanitizer")
    command = [checked, "--error-exitcode=9", str(program)] if checked else [str(program)]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    launched = found.stdout.count("evoformer_forward_sm90a on ")
    assert launched == (2 if sizes and name == "sm_90a" else 0), found.stdout
