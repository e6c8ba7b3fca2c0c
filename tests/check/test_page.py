"""The page of `cuevo inspect`: its numbers are those of the assembler and the CPU executor, its
links land on the right lines, and a browser opens it without an error.
"""

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.small_instances import INSTANCES, configured

from cuevo.architectures import architecture
from cuevo.check import check_launch
from cuevo.check.page import Subject, content, difference, page
from cuevo.cli import main
from cuevo.cli.arguments.files import make_arguments
from cuevo.executors.own.texts import read_kernel
from cuevo.kernels import registry
from cuevo.ops.roofline.units import clocks, units
from cuevo.sim import Profile
from cuevo.toolchain.assembler import Cubin, assemble
from cuevo.toolchain.sass import Listing, disassemble
from cuevo.toolchain.template import RenderedKernel, render

ROOT = Path(__file__).parents[2]
SOFTMAX = "examples/row_softmax/row_softmax.ptx"
VALUES = {"dtype": "f16", "block_n": 32, "stages": 2, "access": 16, "exact": True}
ARGUMENTS = [
    *("a=f16[70,96]", "b=f16[96,24]", "bias=f32[24]", "y=f32[70,24]=0"),
    *("m=70", "n=24", "k=96"),
]
SHARED = 12288


class Made:
    """An example with macros of the package's, inspected with counts."""

    def __init__(self) -> None:
        self.kernel: RenderedKernel = read_kernel(ROOT / SOFTMAX, values=VALUES)
        self.cubin: Cubin = assemble(self.kernel, "sm_80")
        self.listing: Listing = disassemble(self.cubin)
        given = make_arguments(ARGUMENTS, self.kernel, seed=0)
        report = check_launch(self.kernel, (2,), (128,), given, SHARED, "sm_80")
        assert report.profile is not None
        self.profile: Profile = report.profile
        subject = Subject(self.kernel, self.cubin, 128, SHARED, self.profile, "the launch")
        self.content: dict[str, Any] = content(subject)
        self.rows: dict[str, list[dict[str, Any]]] = self.content["panes"]


@pytest.fixture(scope="module")
def made() -> Made:
    return Made()


def lines(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that are no heads of folds and no labels."""
    return [row for row in rows if "k" not in row]


# -- Numbers ---------------------------------------------------------------------------------------


@pytest.mark.kernel
def test_the_numbers_are_those_of_the_assembler(made: Made) -> None:
    taken, facts = made.cubin.resources, made.content["facts"]
    assert facts["registers"] == [f"{taken.registers} a thread"]
    assert facts["spills"] == [f"{taken.spill_stores} bytes stored, {taken.spill_loads} loaded"]
    assert facts["shared memory"][0].startswith(f"{SHARED + taken.static_shared:,} bytes")
    assert len(lines(made.rows["machine"])) == len(made.listing.instructions)
    instructions = made.listing.instructions
    # Of no line are functions of the assembler's own.
    assert all(name.startswith("__cuda") for name in made.listing.called)
    of_text = [each for each in instructions if each.line]
    for pane, those in (("text", of_text), ("machine", instructions)):
        of_pipes = Counter(each.pipe for each in those)
        shown: Counter[str] = Counter()
        for row in lines(made.rows[pane]):
            shown.update(dict(row.get("p", ())))
        assert shown == of_pipes, pane
    (whole,) = (x for x in made.content["ledgers"] if x["part"] == "kernel by pipe")
    assert whole["totals"] == [of_pipes.total()]
    assert whole["counts"] == {pipe: [count] for pipe, count in of_pipes.items()}
    (bound,) = (x for x in made.content["ledgers"] if x["part"] == "clocks")
    rates, taken = units(architecture("sm_80")), Counter[str]()
    for each in made.listing.main_loop():
        taken.update({pipe: round(100 * x) for pipe, x in clocks(each, rates).items()})
    assert bound["counts"] == {pipe: [x / 100] for pipe, x in taken.items()}
    assert bound["totals"] == [max(taken.values()) / 100]
    assert bound["title"].endswith(f"bound by {taken.most_common(1)[0][0]}")


@pytest.mark.kernel
def test_the_counts_are_those_of_the_executor(made: Made) -> None:
    rows = {row["n"]: row for row in lines(made.rows["text"])}
    for use in made.profile.instructions:
        assert rows[use.line].get("x", 0) == use.executions
    banks = {use.line: [use.wavefronts, use.ideal] for use in made.profile.banks}
    assert {n: row["b"] for n, row in rows.items() if "b" in row} == banks != {}
    sectors = {use.line: [use.sectors, use.ideal] for use in made.profile.sectors}
    assert {n: row["s"] for n, row in rows.items() if "s" in row} == sectors != {}
    file, by_line = "", {}
    for row in made.rows["source"]:
        if row.get("k") == "file":
            file = row["t"]
        elif "x" in row:
            by_line[f"{file}:{row['n']}"] = row["x"]
    told = {place: count for place, count in made.profile.by_line().items() if count}
    assert {Path(place).name: count for place, count in by_line.items()} == {
        Path(place).name: count for place, count in told.items()
    }


@pytest.mark.kernel
def test_a_macro_counts_what_is_below_it(made: Made) -> None:
    rows = made.rows["text"]
    heads = [(i, row) for i, row in enumerate(rows) if row.get("k") == "fold"]
    assert heads
    for i, head in heads:
        inside = lines(rows[i + 1 : head["e"]])
        assert inside and all(row["d"] > head["d"] for row in inside)
        total: Counter[str] = Counter()
        for row in inside:
            total.update(dict(row.get("p", ())))
        assert dict(head.get("p", ())) == total
        assert head.get("x", 0) == max(row.get("x", 0) for row in inside)
        assert "${" in made.rows["source"][head["o"]]["t"]


@pytest.mark.unit
def test_a_command_that_inspects(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    plain, path = "examples/plain_softmax/softmax.ptx", tmp_path / "page.html"
    assert main(["inspect", plain, "--arch", "90", "-o", str(path)]) == 0
    assert "counts: none: give --args" in capsys.readouterr().out
    text = path.read_text(encoding="utf-8")
    assert "http" not in text and "sm_90" in text
    assert main(["inspect", "attention_backward", "--problem", "1,8,2,64,32"]) == 2
    assert "give --launch N" in capsys.readouterr().err


# -- Two kernels -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compared(made: Made) -> tuple[dict[str, Any], dict[str, Any]]:
    """The example with another number of stages, and the page of the two."""
    kernel = read_kernel(ROOT / SOFTMAX, values={**VALUES, "stages": 3})
    other = content(Subject(kernel, assemble(kernel, "sm_80"), 128, SHARED))
    return other, difference(other, made.content)


@pytest.mark.kernel
def test_two_texts_side_by_side(
    made: Made, compared: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    other, shown = compared
    before, after = shown["panes"]["before"], shown["panes"]["after"]
    for rows, whole in ((before, other), (after, made.content)):
        told = [(row["n"], row["t"]) for row in lines(rows) if row.get("g") != "none"]
        assert told == [(row["n"], row["t"]) for row in lines(whole["panes"]["text"])]
    kinds = {(x.get("g"), y.get("g")) for x, y in zip(before, after, strict=True)}
    assert (None, None) in kinds and kinds & {("gone", "new"), ("gone", "none"), ("none", "new")}
    for old, new in zip(before, after, strict=True):
        if (old.get("g"), new.get("g"), old.get("k")) == (None, None, None):
            assert old["t"] == new["t"]
            assert ("p" in old.get("v", ())) == (old.get("p") != new.get("p"))
    assert shown["facts"]["registers"] == [
        *other["facts"]["registers"],
        *made.content["facts"]["registers"],
    ]
    (whole,) = (x for x in shown["ledgers"] if x["part"] == "kernel by pipe")
    assert [sum(each) for each in zip(*whole["counts"].values(), strict=True)] == whole["totals"]


@pytest.mark.unit
def test_a_command_that_compares(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = ROOT / "examples/plain_softmax/softmax.ptx"
    path, out = tmp_path / "softmax.ptx", tmp_path / "page.html"
    shutil.copy(source, path)
    edited = path.read_text("utf-8").replace("ex2.approx.f32", "ex2.approx.ftz.f32")
    command = ["inspect", str(path), "-o", str(out), "--diff"]
    assert main([*command, "nothing"]) == 2
    assert "no settings, no PTX file, and no commit" in capsys.readouterr().err
    assert main([*command, "a=1", str(source)]) == 2
    if shutil.which("git"):
        git = ["git", "-c", "user.name=n", "-c", "user.email=e", "-C", str(tmp_path)]
        for words in (["init", "-q"], ["add", "softmax.ptx"], ["commit", "-q", "-m", "first"]):
            subprocess.run([*git, *words], check=True)
        path.write_text(edited, "utf-8")
        assert main([*command, "HEAD"]) == 0
    path.write_text(edited, "utf-8")
    assert main([*command, str(source)]) == 0
    page_of_two = out.read_text("utf-8")
    assert "ex2.approx.ftz.f32" in page_of_two and "ex2.approx.f32" in page_of_two
    assert '"g": "gone"' in page_of_two and '"g": "new"' in page_of_two


# -- In a browser ----------------------------------------------------------------------------------


class Opened:
    """A page in a browser, which has no network, and what the browser complains of."""

    def __init__(self, browser: Any, folder: Path) -> None:
        self.tab = browser.new_page(viewport={"width": 1280, "height": 800})
        self.complaints: list[str] = []
        self.tab.on("console", lambda message: self.complaints.append(message.text))
        self.tab.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.tab.route(re.compile("^http"), lambda route: self.complaints.append(route.request.url))
        self.folder = folder

    def show(self, shown: dict[str, Any]) -> Any:
        path = self.folder / f"{shown['name']}.html"
        path.write_text(page(shown), encoding="utf-8")
        self.tab.goto(path.as_uri())
        return self.tab

    def marked(self, pane: str) -> list[int]:
        """The rows in view that are linked to the one that is pointed at."""
        found = self.tab.eval_on_selector_all(
            f"#{pane} .row.linked", "rows => rows.map(row => Number(row.dataset.row))"
        )
        return sorted(found)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    program = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
    if program is None:
        pytest.skip("no browser: neither chromium nor google-chrome is on PATH")
    with pytest.importorskip("playwright.sync_api").sync_playwright() as driver:
        # A sandbox is not to be had by root, nor in most containers; the pages are our own.
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield Opened(browser, tmp_path_factory.mktemp("pages"))
        browser.close()


def place(tab: Any, pane: str, row: int) -> Any:
    """A row, scrolled into view."""
    tab.evaluate("([pane, row]) => panes.find((each) => each.name === pane).show(row)", [pane, row])
    return tab.locator(f"#{pane} .row[data-row='{row}']")


@pytest.mark.kernel
def test_links_land_on_the_right_lines(opened: Opened, made: Made) -> None:
    tab, rows = opened.show(made.content), made.rows
    sources = {
        i: row["t"]
        for i, row in enumerate(rows["source"])
        if "ex2.approx" in row["t"] and "p" in row
    }
    (source,) = sources
    texts = [i for i, row in enumerate(rows["text"]) if row.get("o") == source and "k" not in row]
    machine = [i for i, row in enumerate(rows["machine"]) if row.get("o") in texts]
    assert texts and machine and any("MUFU.EX2" in rows["machine"][i]["t"] for i in machine)

    def seen(expected: list[int], pane: str) -> None:
        marked = opened.marked(pane)
        assert marked and set(marked) <= set(expected) and min(marked) == min(expected), pane

    place(tab, "source", source).locator(".text").click(position={"x": 30, "y": 5})
    assert opened.marked("source") == [source]
    seen(texts, "text")
    seen(machine, "machine")
    # The way back, by hovering.
    tab.keyboard.press("Escape")
    assert opened.marked("source") == []
    place(tab, "source", source)
    place(tab, "text", texts[0])
    place(tab, "machine", machine[0]).hover()
    assert opened.marked("machine") == [i for i in machine if rows["machine"][i]["o"] == texts[0]]
    assert opened.marked("text") == [rows["machine"][machine[0]]["o"]]
    assert opened.marked("source") == [source]
    assert opened.complaints == []


@pytest.mark.kernel
def test_a_browser_shows_the_counts(opened: Opened, made: Made) -> None:
    tab, rows = opened.show(made.content), made.rows
    most = max(lines(rows["text"]), key=lambda row: row.get("x", 0))
    row = rows["text"].index(most)
    shown = place(tab, "text", row)
    assert shown.locator(".cell.x").inner_text() == str(most["x"])
    assert shown.locator(".cell.p").inner_text() == str(sum(n for _, n in most["p"]))
    assert shown.locator(".cell.l").inner_text() == str(most["l"])
    hot = next(i for i, each in enumerate(rows["machine"]) if each.get("o") == row)
    assert place(tab, "machine", hot).locator(".cell.n.hot").count() == 1
    told = tab.locator("[data-fact='registers'] td").inner_text()
    assert told == f"{made.cubin.resources.registers} a thread"
    pipes = made.content["ledgers"][0]["counts"]
    table = tab.locator("[data-part='main loop by pipe'] tr").all_inner_texts()
    assert [each.split() for each in table[:-1]] == [
        [*name.split(), f"{count:,}"] for name, (count,) in pipes.items()
    ]
    assert opened.complaints == []


@pytest.mark.kernel
def test_search_and_folds(opened: Opened, made: Made) -> None:
    tab, rows = opened.show(made.content), made.rows
    tab.keyboard.press("/")
    tab.keyboard.type("ldmatrix")
    found = sum("ldmatrix" in row["t"].lower() for pane in rows.values() for row in pane)
    assert tab.locator("#matches").inner_text() == f"{found} rows"
    tab.keyboard.press("Enter")
    assert tab.locator("#matches").inner_text() == f"1 of {found}"
    assert "ldmatrix" in tab.locator(".row.pinned").inner_text()
    tab.keyboard.press("Escape")
    count = "() => panes[1].visible.length"
    closed = opened.tab.locator("#fold")
    closed.click()
    top = [row for row in rows["text"] if row["d"] == 0]
    assert tab.evaluate(count) == len(top) < len(rows["text"])
    closed.click()
    assert tab.evaluate(count) == len(rows["text"])
    head = next(i for i, row in enumerate(rows["text"]) if row.get("k") == "fold")
    place(tab, "text", head).locator(".toggle").click()
    assert tab.evaluate(count) == len(rows["text"]) - (rows["text"][head]["e"] - head - 1)
    ground = "() => getComputedStyle(document.body).backgroundColor"
    light = tab.evaluate(ground)
    tab.locator("#theme").click()
    assert tab.evaluate(ground) != light
    tab.locator("button[data-pane='source']").click()
    assert not tab.locator("#source").is_visible()
    assert opened.complaints == []


@pytest.mark.kernel
def test_two_texts_are_scrolled_and_folded_together(
    opened: Opened, compared: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    _, shown = compared
    tab, (before, after) = opened.show(shown), shown["panes"].values()
    assert tab.locator(".row.new").count() + tab.locator(".row.none").count() > 0
    closed = sum(row.get("e", 0) and row["e"] - i - 1 for i, row in enumerate(before))
    counts = "() => panes.map((each) => each.visible.length)"
    assert tab.evaluate(counts) == [len(before) - closed] * 2
    head = next(i for i, row in enumerate(after) if row.get("k") == "fold")
    place(tab, "after", head).locator(".toggle").click()
    opened_rows = after[head]["e"] - head - 1
    assert tab.evaluate(counts) == [len(before) - closed + opened_rows] * 2
    tops = "() => panes.map((each) => each.node.scrollTop)"
    tab.evaluate("() => { panes[1].node.scrollTop = 360; }")
    tab.wait_for_function("() => panes[0].node.scrollTop === 360")
    assert tab.evaluate(tops) == [360, 360]
    place(tab, "after", head + 1).locator(".text").click(position={"x": 30, "y": 5})
    assert opened.marked("before") == opened.marked("after") == [head + 1]
    assert opened.complaints == []


@pytest.mark.unit
def test_a_page_of_every_kernel_opens(opened: Opened) -> None:
    of_kernels = dict(reversed(INSTANCES))
    assert set(of_kernels) == set(registry())
    for name, settings in of_kernels.items():
        module, config, arch = configured(name, settings)
        cubin = assemble(kernel := render(name, module.values(config)), max(arch, "sm_75"))
        tab = opened.show(content(Subject(kernel, cubin, config.threads, config.shared_bytes)))
        for pane in ("source", "text", "machine"):
            assert tab.locator(f"#{pane} .row").count() > 20, (name, pane)
        assert opened.complaints == [], name
