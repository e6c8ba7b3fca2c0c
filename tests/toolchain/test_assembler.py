"""cuevo.toolchain.assembler: machine code and its report, complaints at lines of templates, the
cache.
"""

import multiprocessing
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from cuda.core import Linker

from cuevo.errors import AssemblerError
from cuevo.toolchain import assembler as module
from cuevo.toolchain.assembler import Cubin, Resources, assemble, begin_assembly
from cuevo.toolchain.cache import Cache
from cuevo.toolchain.template import RenderedKernel, render

pytestmark = pytest.mark.unit

KERNEL = """\
//% import "lib/a.ptx" as a
.version 7.0
.target sm_80
.address_size 64
.visible .entry k(.param .align 8 .b8 params[${p.size}])
{
    .reg .b64 out;
    .reg .b32 x;
    ld.param.u64 out, [params+${p.out}];
    mov.u32 x, 5;
    ${ a.store("out", "x", count) }
    ${ more }
    ret;
}
${ after }
"""

LIBRARY = """\
//% macro store(pointer, value, count)
//% for i in range(count)
    st.global.u32 [${pointer}+${4 * i}], ${value};
//% endfor
//% endmacro
"""

Build = Callable[..., RenderedKernel]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/a.ptx").write_text(LIBRARY)
    (tmp_path / "cuevo.h").write_text("struct s { void *out; };\nvoid k(const struct s params);\n")

    def make(text: str = KERNEL, **values: object) -> RenderedKernel:
        (tmp_path / "k.ptx").write_text(text)
        return render("k", {"count": 2, "more": "", "after": ""} | values, directory=tmp_path)

    return make


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_90", "sm_90a"])
def test_a_kernel_becomes_machine_code(build: Build, arch: str) -> None:
    cubin = assemble(build(), arch, cache=None)
    assert (cubin.name, cubin.arch) == ("k", arch)
    assert cubin.code[:4] == b"\x7fELF"
    assert cubin.assembler.startswith(("nvJitLink ", "driver "))
    assert "Compiling entry function 'k'" in cubin.log
    resources = cubin.resources
    assert 4 <= resources.registers <= 32
    assert resources.code_size >= 128
    assert resources.code_size % 16 == 0
    assert asdict(replace(resources, registers=0, code_size=0, constant=0)) == dict.fromkeys(
        asdict(resources), 0
    )


def test_line_information_names_the_templates(build: Build) -> None:
    code = assemble(build(), "sm_80", cache=None).code
    assert b".debug_line" in code
    assert b"k.ptx" in code
    assert b"a.ptx" in code


def test_assembling_twice_gives_the_same_code(build: Build) -> None:
    assert (
        assemble(build(), "sm_80", cache=None).code == assemble(build(), "sm_80", cache=None).code
    )


def test_shared_memory_and_barriers_are_reported(build: Build) -> None:
    more = "{\n.shared .b8 tile[4096];\nst.shared.u32 [tile], x;\nbar.sync 0;\nbar.sync 2;\n"
    more += "ld.shared.u32 x, [tile+64];\nst.global.u32 [out], x;\n}"
    resources = assemble(build(more=more), "sm_80", cache=None).resources
    assert resources.static_shared == 4096
    assert resources.barriers == 3


def test_local_memory_and_spills_are_reported(build: Build) -> None:
    """More values alive at a time than the registers that .maxnreg leaves."""
    loads = "".join(f"ld.volatile.global.u32 v{i}, [out+{4 * i}];\n" for i in range(64))
    stores = "".join(f"st.volatile.global.u32 [out+{4 * i}], v{63 - i};\n" for i in range(64))
    text = KERNEL.replace("\n{\n", "\n.maxnreg 24\n{\n", 1)
    spilled = assemble(
        build(text, more=f"{{\n.reg .b32 v<64>;\n{loads}{stores}}}"), "sm_80", cache=None
    ).resources
    assert spilled.registers <= 24
    assert spilled.spill_stores > 0
    assert spilled.spill_loads > 0
    assert spilled.stack > 0


SHARED = """{
.shared .b8 tile[4096];
.local .b8 own[64];
st.shared.u32 [tile], x;
bar.sync 0;
bar.sync 2;
ld.shared.u32 x, [tile+64];
.reg .b64 at;
mov.u64 at, own;
.reg .b64 more;
cvt.u64.u32 more, x;
add.u64 at, at, more;
st.local.u32 [at], x;
ld.local.u32 x, [at];
st.global.u32 [out], x;
}"""


@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_90", "sm_90a", "sm_100", "sm_120"])
@pytest.mark.parametrize("more", ["", SHARED], ids=["little", "much"])
def test_the_image_has_what_the_log_says(build: Build, arch: str, more: str) -> None:
    other = ".visible .entry other()\n{\n.shared .b8 memory[512];\n.reg .b32 x;\n"
    other += "ld.shared.u32 x, [memory];\nst.shared.u32 [memory+4], x;\nbar.sync 5;\nret;\n}"
    text = KERNEL.replace("sm_80", "sm_75")
    cubin = assemble(build(text, more=more, after=other), arch, cache=None)
    part = cubin.log.split("entry function 'k'")[1].split("entry function")[0]

    def told(pattern: str) -> int:
        return sum(map(int, re.findall(pattern, part)))

    found = cubin.resources
    assert found.registers == told(r"Used (\d+) registers")
    assert found.stack == told(r"(\d+) bytes stack frame") == (64 if more else 0)
    assert found.static_shared == told(r"(\d+) bytes smem") == (4096 if more else 0)
    assert found.barriers == told(r"used (\d+) barriers") == (3 if more else 0)
    if "cmem" in part:
        assert found.constant == told(r"(\d+) bytes cmem\[\d+\]")
    assert found.constant > 300
    assert (found.spill_stores, found.spill_loads) == (0, 0)


@pytest.mark.parametrize("log", ["", "info    : 0 bytes gmem"])
def test_a_log_that_says_nothing_is_enough(
    build: Build, log: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a driver's, which assembles where nvJitLink is absent."""
    link = module._link
    monkeypatch.setattr(module, "_link", lambda *arguments: (link(*arguments)[0], log))
    expected = replace(assemble(build(), "sm_80", cache=None), log="")
    monkeypatch.undo()
    assert expected == replace(assemble(build(), "sm_80", cache=None), log="")
    monkeypatch.setattr(module, "_link", lambda *arguments: (link(*arguments)[0], log))
    found = assemble(build(more=SHARED), "sm_80", cache=None).resources
    assert (found.stack, found.spill_stores, found.spill_loads) == (64, 64, 64)


def test_an_image_without_the_entry_point(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    link = module._link
    kernel = build()
    monkeypatch.setattr(module, "_link", lambda *arguments: link(kernel, *arguments[1:]))
    with pytest.raises(AssemblerError, match=r"^ptx/other.ptx: .* has no entry point other"):
        assemble(replace(kernel, name="other"), "sm_80", cache=None)


def test_code_size_grows_with_the_code(build: Build) -> None:
    small, large = (
        assemble(build(count=count), "sm_80", cache=None).resources.code_size for count in (2, 200)
    )
    assert large >= small + 190 * 16


def test_only_the_named_entry_is_reported(build: Build) -> None:
    more = ".visible .entry other()\n{\n.shared .b8 memory[512];\n.reg .b32 x;\n"
    more += "ld.shared.u32 x, [memory];\nst.shared.u32 [memory+4], x;\nbar.sync 0;\nret;\n}"
    cubin = assemble(build(after=more), "sm_80", cache=None)
    assert "'other'" in cubin.log
    assert cubin.resources.static_shared == cubin.resources.barriers == 0


# -- Complaints ------------------------------------------------------------------------------------


def complaints(kernel: RenderedKernel, arch: str = "sm_80") -> list[str]:
    with pytest.raises(AssemblerError) as caught:
        assemble(kernel, arch, cache=None)
    lines = str(caught.value).split("\n")
    assert lines.pop().startswith(f"in {kernel.describe()} for {arch}, by ")
    return lines


def test_every_complaint_is_told_once_at_its_own_line(build: Build) -> None:
    kernel = build(
        KERNEL.replace("mov.u32 x, 5", "mov.u32 yy, 5").replace('"x", count', '"zz", count'),
        more="mov.u32 x, ww;",
    )
    found = complaints(kernel)
    assert len(found) == len(set(found))
    assert "ptx/k.ptx:10: Unknown symbol 'yy'" in found
    assert "ptx/lib/a.ptx:3: Unknown symbol 'zz'" in found
    assert "ptx/k.ptx:12: Unknown symbol 'ww'" in found


def test_a_syntax_error(build: Build) -> None:
    assert complaints(build(KERNEL.replace("x, 5", "x ] 5"))) == [
        "ptx/k.ptx:10: Parsing error near ']': syntax error"
    ]


def test_a_complaint_without_a_line(build: Build) -> None:
    (found,) = complaints(build(more=".shared .b8 tile[70000];"))
    assert found.startswith("ptx/k.ptx: ")
    assert "too much shared data" in found


def test_an_instruction_of_a_later_architecture(build: Build) -> None:
    more = "wgmma.fence.sync.aligned;"
    found = complaints(build(KERNEL.replace("7.0", "8.0"), more=more))
    assert any(line.startswith("ptx/k.ptx:12: ") for line in found)


def test_an_architecture_below_the_target(build: Build) -> None:
    (found,) = complaints(build(), "sm_75")
    assert found.startswith("ptx/k.ptx: ")
    assert ".target" in found


@pytest.mark.parametrize("arch", ["sm_70", "sm_999"])
def test_an_architecture_that_the_assembler_does_not_know(build: Build, arch: str) -> None:
    (found,) = complaints(build(), arch)
    known = found.removeprefix(f"ptx/k.ptx: there is no assembler for {arch}; there is for ")
    for each in known.split(", "):
        if each != "sm_75":  # the text is for sm_80
            assert assemble(build(), each, cache=None).arch == each
    assert known.startswith("sm_75, sm_80, ")


@pytest.mark.parametrize("arch", ["80", "compute_80", "sm_8", "sm_90x", "sm_80 ", ""])
def test_what_is_no_architecture(build: Build, arch: str) -> None:
    with pytest.raises(ValueError, match=r"arch must be like 'sm_80' or 'sm_90a'; got"):
        assemble(build(), arch)


def test_a_kernel_without_its_entry_point(build: Build) -> None:
    with pytest.raises(AssemblerError, match=r"^ptx/k.ptx: .* entry point k; its log is"):
        assemble(build(KERNEL.replace(".entry k", ".entry kk")), "sm_80", cache=None)


# -- The cache -------------------------------------------------------------------------------------


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The architecture of each run of the assembler."""
    runs: list[str] = []
    link = module._link

    def counted(kernel: RenderedKernel, arch: str, *rest: Any) -> tuple[bytes, str]:
        runs.append(arch)
        return link(kernel, arch, *rest)

    monkeypatch.setattr(module, "_link", counted)
    return runs


def test_a_kernel_is_assembled_once(build: Build, links: list[str], tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    first = assemble(build(), "sm_80", cache=cache)
    assert assemble(build(), "sm_80", cache=cache) == first
    cache.forget()
    again = assemble(build(), "sm_80", cache=cache)
    assert again == first
    assert isinstance(again, Cubin)
    assert isinstance(again.resources, Resources)
    assert links == ["sm_80"]


def test_the_text_the_architecture_and_the_assembler_are_the_key(
    build: Build, links: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache(tmp_path / "cache")
    assemble(build(), "sm_80", cache=cache)
    assemble(build(), "sm_90", cache=cache)
    assemble(build(count=3), "sm_80", cache=cache)
    newer = replace(module._assembler(), identity="nvJitLink 99.0")
    monkeypatch.setattr(module, "_assembler", lambda: newer)
    assemble(build(), "sm_80", cache=cache)
    assert links == ["sm_80", "sm_90", "sm_80", "sm_80"]


def test_a_damaged_entry_is_assembled_anew(build: Build, links: list[str], tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    first = assemble(build(), "sm_80", cache=cache)
    cache.forget()
    (entry,) = (path for path in (tmp_path / "cache").rglob("*") if path.is_file())
    content = bytearray(entry.read_bytes())
    content[-100] ^= 0x10
    entry.write_bytes(content)
    assert assemble(build(), "sm_80", cache=cache).code == first.code
    cache.forget()
    assert assemble(build(), "sm_80", cache=cache).code == first.code
    assert links == ["sm_80"] * 2


def test_nothing_is_kept_of_a_failure(build: Build, links: list[str], tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    kernel = build(more="nonsense;")
    for _ in range(2):
        with pytest.raises(AssemblerError):
            assemble(kernel, "sm_80", cache=cache)
    assert links == ["sm_80"] * 2
    assert not (tmp_path / "cache").exists()


def test_the_default_cache_is_that_of_the_environment(
    build: Build, links: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUEVO_CACHE_DIR", str(tmp_path / "own"))
    kernel = build(count=7)
    first = assemble(kernel, "sm_80")
    assert assemble(kernel, "sm_80") == first
    assert links == ["sm_80"]
    assert any((tmp_path / "own").rglob("*.bin"))


# -- Beside other work -----------------------------------------------------------------------------


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUEVO_CACHE_DIR", str(tmp_path / "own"))


@pytest.mark.usefixtures("own_cache")
def test_kernels_that_have_begun_are_waited_for(build: Build, links: list[str]) -> None:
    kernels = [build(count=count) for count in (5, 6)]
    for kernel in (*kernels, kernels[0]):
        begin_assembly(kernel, "sm_80")
    found = [assemble(kernel, "sm_80") for kernel in kernels]
    assert links == ["sm_80"] * 2
    directly = [assemble(kernel, "sm_80", cache=None) for kernel in kernels]
    assert [cubin.code for cubin in found] == [cubin.code for cubin in directly]
    assert not module._begun


@pytest.mark.usefixtures("own_cache")
def test_what_the_cache_has_is_not_begun(build: Build, links: list[str]) -> None:
    assemble(build(), "sm_80")
    begin_assembly(build(), "sm_80")
    assert not module._begun
    assert links == ["sm_80"]


@pytest.mark.usefixtures("own_cache")
def test_a_complaint_comes_to_who_waits(build: Build) -> None:
    kernel = build(more="nonsense;")
    begin_assembly(kernel, "sm_80")
    for _ in range(2):
        with pytest.raises(AssemblerError, match=r"k\.ptx"):
            assemble(kernel, "sm_80")


@pytest.mark.usefixtures("own_cache")
def test_the_driver_assembles_where_its_context_is(
    build: Build, links: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    of_driver = replace(module._assembler(), is_driver=True)
    monkeypatch.setattr(module, "_assembler", lambda: of_driver)
    begin_assembly(build(), "sm_80")
    assert not module._begun
    assert links == []


@pytest.mark.usefixtures("own_cache")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_waits_for_no_thread_of_its_parent(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel, link, parent, leave = build(), module._link, os.getpid(), threading.Event()

    def link_later(*arguments: Any) -> tuple[bytes, str]:
        if os.getpid() == parent:
            assert leave.wait(60)
        return link(*arguments)

    monkeypatch.setattr(module, "_link", link_later)
    begin_assembly(kernel, "sm_80")
    child = multiprocessing.get_context("fork").Process(target=assemble, args=(kernel, "sm_80"))
    child.start()
    child.join(60)
    leave.set()
    assert child.exitcode == 0
    assert assemble(kernel, "sm_80").name == "k"


# -- The driver as the assembler -------------------------------------------------------------------

WITHOUT_NVJITLINK = """
import sys, warnings
from pathlib import Path
import cuda.core, cuevo.toolchain.assembler
from cuevo.toolchain.template import render
sys.modules["cuda.bindings.nvjitlink"] = None  # as if it were not installed
warnings.simplefilter("ignore")
kernel = render("k", {"count": 2, "more": sys.argv[3], "after": ""}, directory=Path(sys.argv[1]))
try:
    cubin = cuevo.toolchain.assembler.assemble(kernel, sys.argv[2], cache=None)
    print(cubin.assembler, cubin.resources.registers, cubin.code[:4])
except cuevo.errors.CuevoError as error:
    print(type(error).__name__, error)
"""


def run_without_nvjitlink(directory: Path, arch: str, more: str = "") -> str:
    command = [sys.executable, "-c", WITHOUT_NVJITLINK, str(directory), arch, more]
    result = subprocess.run(
        command, cwd=Path(__file__).parents[2], text=True, capture_output=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def driver_arch() -> str | None:
    """The architecture of the first device, or None where the driver finds none."""
    from cuda.core import Device

    try:
        return f"sm_{Device(0).arch}"
    except Exception:
        return None


def test_neither_nvjitlink_nor_a_driver(build: Build, tmp_path: Path) -> None:
    build()
    try:
        from cuda.bindings import driver

        driver.cuDriverGetVersion()
    except Exception:
        output = run_without_nvjitlink(tmp_path, "sm_80")
        assert output.startswith("DeviceUnavailable kernels cannot be assembled: looked for")
        assert "install the package nvidia-nvjitlink" in output
    else:
        pytest.skip("there is a CUDA driver here, so nothing is missing")


@pytest.mark.gpu
def test_the_driver_assembles_where_nvjitlink_is_absent(build: Build, tmp_path: Path) -> None:
    arch = driver_arch()
    if arch is None:
        pytest.skip("no CUDA device: the driver's own compiler needs one")
    build()
    assert run_without_nvjitlink(tmp_path, arch).startswith("driver ")
    refused = run_without_nvjitlink(tmp_path, arch, "mov.u32 x, ww;")
    assert refused.startswith("AssemblerError ptx/k.ptx:12: ")
    assert "Unknown symbol 'ww'" in refused


def test_nvjitlink_is_what_assembles_here() -> None:
    if Linker.which_backend() == "driver":
        pytest.skip("nvJitLink is not installed")
    assert not module._assembler().is_driver
