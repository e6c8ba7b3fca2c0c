"""What is imported when, in processes of their own: who waits for an import is the call that needs
it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import cuevo

FRAMEWORKS = {"torch", "jax"}
RENDERING = {"jinja2", "pycparser", "cuevo.toolchain.rendering", "cuevo.toolchain.header_parser"}
HEAVY = {"numpy", "ml_dtypes", "cuda", "importlib.metadata", "cuevo.ops", "cuevo.sim"}

FIRST_PLAN = """
import numpy as np
from cuevo.ops.forward import OPERATION
from cuevo.sim import SimExecutor

class Place(SimExecutor):
    spills, launch = False, None

    def load(self, kernel):
        print(kernel.digest, kernel.describe())
        return self

q = np.zeros((1, 1, 16, 1, 8), np.float16)
arrays = (q, q, q, None, None, None, None)
(launch,) = OPERATION.plan_on_device(arrays, (None, False, None), Place(), None).launches
print(launch.constants.hex())
"""


def run(program: str, cache: Path) -> tuple[str, set[str]]:
    """What a program prints, and the modules that its process has imported at its end."""
    text = f"import sys, cuevo\n{program}\nprint(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "CUEVO_CACHE_DIR": str(cache)},
        check=True,
        capture_output=True,
        text=True,
    )
    *printed, modules = result.stdout.splitlines()
    return "\n".join(printed), set(modules.split())


@pytest.mark.unit
def test_importing_cuevo_imports_nothing_heavy(tmp_path: Path) -> None:
    _, imported = run("", tmp_path)
    assert imported & (HEAVY | RENDERING | FRAMEWORKS) == set()


@pytest.mark.unit
def test_the_functions_need_neither_rendering_nor_the_cpu_executor(tmp_path: Path) -> None:
    _, imported = run("cuevo.attention, cuevo.gemm", tmp_path)
    assert imported & (RENDERING | FRAMEWORKS | {"cuevo.sim"}) == set()


@pytest.mark.unit
@pytest.mark.parametrize(
    ("function", "others"),
    [
        ("attention", {"cuevo.ops.backward", "cuevo.ops.product", "cuevo.kernels.gemm_sm80"}),
        ("gemm", {"cuevo.ops.backward", "cuevo.ops.forward"}),
        ("attention_backward", {"cuevo.ops.product", "cuevo.executors.own"}),
    ],
)
def test_a_function_imports_nothing_of_the_others(
    function: str, others: set[str], tmp_path: Path
) -> None:
    _, imported = run(f"cuevo.{function}", tmp_path)
    assert imported & others == set()


@pytest.mark.unit
def test_names_of_the_package() -> None:
    assert set(cuevo.__all__) == set(cuevo._HOMES)
    assert set(cuevo.__all__) <= set(dir(cuevo))
    assert cuevo.errors.CuevoError.__module__ == "cuevo.errors"
    with pytest.raises(AttributeError, match="module 'cuevo' has no attribute 'attentoin'"):
        cuevo.attentoin  # noqa: B018


@pytest.mark.unit
def test_modules_of_kernels_need_no_import_of_their_own(tmp_path: Path) -> None:
    _, imported = run("cuevo.kernels.evoformer_forward_sm90a.Config", tmp_path)
    assert {name for name in imported if name.startswith("cuevo.kernels.gemm")} == set()
    with pytest.raises(AttributeError, match=r"'cuevo\.kernels' has no attribute 'gemm_sm71'"):
        cuevo.kernels.gemm_sm71  # noqa: B018


@pytest.mark.unit
def test_a_first_call_renders_only_what_the_cache_does_not_have(tmp_path: Path) -> None:
    expected, imported = run(FIRST_PLAN, tmp_path)
    assert imported >= RENDERING
    printed, imported = run(FIRST_PLAN, tmp_path)
    assert printed == expected and imported & RENDERING == set()
    entries = sorted(tmp_path.rglob("*.bin"))
    contents = [entry.read_bytes() for entry in entries]
    assert len(entries) == 2  # the header, the kernel
    for entry, content in zip(entries, contents, strict=True):
        entry.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    printed, imported = run(FIRST_PLAN, tmp_path)
    assert printed == expected and imported >= RENDERING
    assert [entry.read_bytes() for entry in entries] == contents
