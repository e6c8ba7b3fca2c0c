"""The listings of README.md and docs/ run from top to bottom, links lead somewhere, and tables and
pictures say what the code says.
"""

import re
import runpy
import shlex
from dataclasses import fields
from pathlib import Path
from xml.etree import ElementTree

import ml_dtypes
import numpy as np
import pytest

from cuevo import layouts, reference
from cuevo.arrays import view
from cuevo.cli import main
from cuevo.cli.arguments.settings import configuration, split_settings
from cuevo.kernels import evoformer_forward_sm80
from cuevo.layouts import drawing
from cuevo.layouts.catalogue import find_picture
from cuevo.layouts.pictures import Picture
from cuevo.ops.tuning import recording, tuned
from cuevo.sim import SimExecutor
from cuevo.toolchain.template import render

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LISTING = re.compile(r"^```python(?P<kind>[^\n]*)\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def listings(page: Path, *kinds: str) -> str:
    """The program that a page's listings of the given kinds make, each at its own line number."""
    text = page.read_text(encoding="utf-8")
    program = ""
    for match in LISTING.finditer(text):
        if match["kind"].strip() in kinds:
            program += "\n" * (text.count("\n", 0, match.start("code")) - program.count("\n"))
            program += match["code"]
    return program


def run(page: Path, *kinds: str) -> dict[str, object]:
    namespace: dict[str, object] = {"__name__": page.stem}
    exec(compile(listings(page, *kinds), str(page), "exec"), namespace)
    return namespace


WITH_LISTINGS = [page for page in PAGES if listings(page, "")]


@pytest.mark.kernel
@pytest.mark.parametrize("page", WITH_LISTINGS, ids=lambda page: page.name)
def test_the_listings_run(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    run(page, "")


@pytest.mark.kernel
@pytest.mark.parametrize("framework", ["torch", "jax"])
def test_readme_examples_for_frameworks_run(framework, capsys):
    pytest.importorskip(framework)
    assert f"from cuevo.{framework} import" in listings(ROOT / "README.md", framework)
    run(ROOT / "README.md", framework)
    assert "1, 1, 2, 48, 48" in capsys.readouterr().out


@pytest.mark.kernel
def test_readme_example_prints_a_small_error(capsys):
    run(ROOT / "README.md", "")
    assert 0.0 < float(capsys.readouterr().out) < 1e-2


@pytest.mark.gpu
@pytest.mark.parametrize("page", ["driver-level.md", "workbench.md"])
def test_the_listings_for_a_gpu_run(page, monkeypatch):
    if page == "workbench.md":
        pytest.importorskip("torch")
    monkeypatch.chdir(ROOT)
    run(ROOT / "docs" / page, "", "gpu")


HOSTS = {
    "cuda.core": "cuda.core",
    "cupy": "cupy",
    "numba": "numba_cuda",
    "warp": "warp",
    "torch": "torch",
}
"""Kinds of listings of docs/hosts.md, and the modules that they need."""


@pytest.mark.gpu
@pytest.mark.parametrize("host", [*HOSTS])
def test_listings_for_other_libraries_run(host):
    pytest.importorskip(HOSTS[host])
    run(ROOT / "docs/hosts.md", "", host)


@pytest.mark.kernel
@pytest.mark.parametrize("host", ["torch", "warp"])
def test_listings_for_other_libraries_run_without_a_gpu(host):
    pytest.importorskip(HOSTS[host])
    run(ROOT / "docs/hosts.md", "", host)


@pytest.mark.unit
def test_listings_for_other_libraries_are_programs():
    page = ROOT / "docs/hosts.md"
    kinds = {match["kind"].strip() for match in LISTING.finditer(page.read_text("utf-8"))}
    assert kinds == {"", *HOSTS}
    for host in HOSTS:
        compile(listings(page, "", host), f"{page}, {host}", "exec")


@pytest.mark.unit
def test_the_pages_with_listings_are_found():
    assert {page.name for page in WITH_LISTINGS} >= {
        "README.md",
        "blocks.md",
        "cpu-executor.md",
        "driver-level.md",
        "ptx-style.md",
        "workbench.md",
    }
    assert "driver_executor(0)" in listings(ROOT / "docs" / "driver-level.md", "gpu")


@pytest.mark.unit
def test_links_lead_to_files():
    words = {page: re.sub(r"(?ms)^```.*?^```$", "", page.read_text("utf-8")) for page in PAGES}
    missing = [
        f"{page.relative_to(ROOT)}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", words[page])
        if "://" not in target and not (page.parent / target).exists()
    ]
    assert not missing


@pytest.mark.unit
def test_files_that_are_named_exist():
    missing = []
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        named = re.findall(r"`((?:ptx|cuevo|tools|docs|tests|examples)/[\w./-]+)`", text)
        blocks_named = re.findall(r"`(\w+\.ptx)`", text)
        missing += [f"{page.name}: {name}" for name in named if not (ROOT / name).exists()]
        missing += [
            f"{page.name}: {name}" for name in blocks_named if not (LIBRARY / name).exists()
        ]
    assert not missing


# -- Building blocks -------------------------------------------------------------------------------

LIBRARY = ROOT / "ptx" / "lib"
BLOCKS = ROOT / "docs" / "blocks.md"
SIBLINGS = {"mma_multistage": "mma_pipelined", "warp_iterator": "warp_iterator_sm70"}
"""Files whose operations another architecture has, too."""


def macros(name: str) -> dict[str, str]:
    """Arguments of each macro of ``ptx/lib/<name>.ptx``, as they are written."""
    text = (LIBRARY / f"{name}.ptx").read_text(encoding="utf-8")
    return dict(re.findall(r"^//% macro (\w+)\(([^)]*)\)", text, re.MULTILINE))


def operations() -> dict[str, dict[str, str]]:
    """By file, the arguments of each operation of the page's tables; ``...`` is replaced by what
    the table of its arguments says.
    """
    found: dict[str, dict[str, str]] = {}
    text = BLOCKS.read_text(encoding="utf-8")
    for part in re.split(r"(?=perations of\s`ptx/lib/)|^## ", text, flags=re.MULTILINE):
        file = re.match(r"perations of\s`ptx/lib/(\w+)\.ptx`", part)
        if not file:
            continue
        cells = re.findall(r"^\| (`\w+\(.*?) \|", part, re.MULTILINE)
        named = [call for cell in cells for call in re.findall(r"`(\w+)\((.*?)\)`", cell)]
        found[file[1]] = {
            name: arguments.replace("...", ", ".join(arguments_of(part, name)))
            for name, arguments in named
        }
    return found


def arguments_of(part: str, operation: str) -> list[str]:
    """First column of the table of an operation's arguments."""
    table = re.search(rf"^\| arguments of `{operation}` \|.*\n((?:\|.*\n)+)", part, re.MULTILINE)
    return [] if table is None else re.findall(r"`(\w+)`", first_cells(table[1]))


def first_cells(table: str) -> str:
    return "\n".join(row.split("|")[1] for row in table.splitlines())


@pytest.mark.unit
def test_the_tables_have_the_operations_of_the_macros() -> None:
    listed = operations()
    assert set(listed) == {"mma_multistage", "warp_iterator", "accumulator", "output_tile"}
    for file, calls in listed.items():
        there = macros(file)
        assert len(calls) >= 3
        for name, arguments in calls.items():
            # A table of arguments has no defaults.
            without_defaults = re.sub(r"=[^,]*", "", there[name])
            assert arguments in (there[name], without_defaults), f"{file}.{name}"


@pytest.mark.unit
def test_siblings_have_the_same_operations() -> None:
    for file, sibling in SIBLINGS.items():
        here, there = macros(file), macros(sibling)
        shared = [name for name in operations()[file] if name in there]
        assert len(shared) >= 3
        assert [name for name in shared if here[name] != there[name]] == []


@pytest.mark.unit
@pytest.mark.parametrize("kind", [layouts.Operand, layouts.ThreadblockMma, layouts.OutputTile])
def test_the_tables_have_every_field(kind: type) -> None:
    rows = re.findall(r"^\| (`.*?) \|", BLOCKS.read_text(encoding="utf-8"), re.MULTILINE)
    named = {word.rpartition(".")[2] for row in rows for word in re.findall(r"`([\w.]+)`", row)}
    of_parts = {"name", "a", "b"} if kind is not layouts.OutputTile else set()
    assert {field.name for field in fields(kind)} - named - of_parts == set()


# -- Commands and pictures -------------------------------------------------------------------------

PICTURES = sorted((ROOT / "docs" / "pictures").glob("*"))
MOST_BYTES = 100_000
SVG = "{http://www.w3.org/2000/svg}"


def commands(kind: str = "") -> list[str]:
    """The cuevo commands of the pages' listings of that kind: "gpu", or of none."""
    others = ("driver-level.md", "kernels-of-blocks.md", "workbench.md")
    pages = (BLOCKS, *map(BLOCKS.with_name, others))
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    found = re.findall(rf"^```sh ?{kind}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = [line for listing in found for line in re.split(" && |\n", listing)]
    return [line.strip() for line in lines if line.startswith("cuevo ")]


@pytest.mark.unit
@pytest.mark.parametrize("command", commands())
def test_the_commands_run(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    words = shlex.split(command)[1:]
    if "--output" in words:
        at = words.index("--output") + 1
        words[at] = str(tmp_path / Path(words[at]).name)
    assert main(words) == 0


@pytest.mark.kernel
def test_the_struct_without_python_is_all_that_its_configuration_reads() -> None:
    """Any lengths, and no pointers but those of the listing."""
    text = BLOCKS.with_name("driver-level.md").read_text(encoding="utf-8")
    section = text.partition("## Without Python")[2]
    settings = split_settings(re.findall(r"--set (\S+)", section))
    config = configuration(evoformer_forward_sm80.Config, settings)
    rng = np.random.default_rng(0)
    q, k, v = (
        rng.standard_normal((1, 2, length, 2, config.head_dim)).astype(ml_dtypes.bfloat16)
        for length in (37, 45, 45)
    )
    arrays = {"q": q, "k": k, "v": v, "out": np.zeros_like(q)}
    views = {name: view(x) for name, x in arrays.items()}
    kernel = render(evoformer_forward_sm80.NAME, evoformer_forward_sm80.values(config))
    fields = evoformer_forward_sm80.parameters(config, **views, scale=0.2)
    named = re.findall(r"\.(\w+) = \1\b", section)
    assert named == [name for name in kernel.params.address_fields if fields[name]]
    problem = evoformer_forward_sm80.Problem(1, 2, 2, 37, 45, config.head_dim, "bf16")
    shape = (config.grid(problem), (config.threads, 1, 1), config.shared_bytes)
    block, buffers = kernel.params.pack(fields), list(views.values())
    SimExecutor("sm_90").load(kernel).launch(*shape, block, buffers=buffers)
    expected, _ = reference.attention(q, k, v, scale=0.2)
    assert np.abs(arrays["out"].astype(float) - expected).max() < 0.02


@pytest.mark.gpu
@pytest.mark.whole_device
def test_the_commands_for_a_gpu_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUEVO_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv(recording.ENVIRONMENT, str(tmp_path / "calls.jsonl"))
    monkeypatch.delenv(tuned.ENVIRONMENT)
    monkeypatch.chdir(ROOT)
    runpy.run_path("examples/front_ends/numpy_arrays.py", run_name="__main__")
    monkeypatch.chdir(tmp_path)
    for command in commands("gpu"):
        assert main(shlex.split(command)[1:]) == 0


def texts(path: Path) -> list[str]:
    """The letters of a picture, piece by piece."""
    found = ("".join(text.itertext()) for text in ElementTree.parse(path).iter(f"{SVG}text"))
    return [" ".join(text.split()) for text in found]


def cells(path: Path) -> dict[tuple[int, int], str]:
    """Row and column to letters, of the groups ``cell-ROW-COLUMN`` of a picture."""
    found = {}
    for group in ElementTree.parse(path).iter(f"{SVG}g"):
        if place := re.fullmatch(r"cell-(\d+)-(\d+)", group.get("id", "")):
            found[int(place[1]), int(place[2])] = "".join(group.itertext()).strip()
    return found


def layout_picture(name: str) -> Picture:
    found = find_picture(name)
    assert found is not None
    return found


@pytest.mark.unit
def test_pictures_are_shown_and_small() -> None:
    pages = [page.read_text(encoding="utf-8") for page in PAGES]
    for path in PICTURES:
        assert any(f"](pictures/{path.name})" in page for page in pages), path
        assert path.stat().st_size < MOST_BYTES, path
        assert path.suffix == ".png" or texts(path), path


@pytest.mark.unit
def test_drawn_pictures_are_what_the_command_draws(tmp_path: Path) -> None:
    drawn = re.findall(r"cuevo layout (\S+) --output docs/pictures/(\S+)", "\n".join(commands()))
    assert drawn
    for name, file in drawn:
        drawing.save(layout_picture(name), tmp_path / file)
        kept = ROOT / "docs" / "pictures" / file
        assert cells(kept).keys() == cells(tmp_path / file).keys()
        assert texts(kept) == texts(tmp_path / file)


@pytest.mark.unit
def test_the_picture_of_accumulators_is_the_layout() -> None:
    expected = {
        (cell.row, cell.column): cell.caption.replace("\n", " ")
        for cell in layout_picture("m16n8.f32").cells
    }
    assert cells(ROOT / "docs" / "pictures" / "accumulator-m16n8.svg") == expected


@pytest.mark.unit
def test_the_picture_of_an_output_tile_is_its_thread_map() -> None:
    tile = layouts.OutputTile("y", threads=32, columns=32, rows=8, element_bytes=4, width=4)
    expected = {}
    for thread in range(tile.threads):
        row, column = divmod(thread, tile.row_threads)
        for offset in tile.row_offsets:
            expected[row + offset, column] = f"T{thread}"
    assert cells(ROOT / "docs" / "pictures" / "output-tile.svg") == expected
