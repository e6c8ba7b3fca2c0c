"""The listings of README.md and docs/ run from top to bottom, and the links lead somewhere."""

import re
from pathlib import Path

import pytest

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
def test_the_listings_run(page):
    run(page, "")


@pytest.mark.kernel
def test_readme_example_prints_a_small_error(capsys):
    run(ROOT / "README.md", "")
    assert 0.0 < float(capsys.readouterr().out) < 1e-2


@pytest.mark.gpu
def test_the_listings_for_a_gpu_run():
    run(ROOT / "docs" / "driver-level.md", "", "gpu")


@pytest.mark.unit
def test_the_pages_with_listings_are_found():
    assert {page.name for page in WITH_LISTINGS} >= {"README.md", "driver-level.md"}
    assert "driver_executor(0)" in listings(ROOT / "docs" / "driver-level.md", "gpu")


@pytest.mark.unit
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files(page):
    targets = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8"))
    missing = [
        target for target in targets if "://" not in target and not (page.parent / target).exists()
    ]
    assert not missing


@pytest.mark.unit
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_that_are_named_exist(page):
    named = re.findall(
        r"`((?:ptx|cuevo|tools|docs|tests)/[\w./-]+)`", page.read_text(encoding="utf-8")
    )
    assert [name for name in named if not (ROOT / name).exists()] == []
