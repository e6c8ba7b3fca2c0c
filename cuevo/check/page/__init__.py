"""A kernel as a page: its template, its PTX text and its machine code side by side, with what the
assembler and the CPU executor know of each line.

The page is one file that needs no network; `page.html.j2` is its template, `page.js` shows the rows
that `rows` makes.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cuevo.architectures import architecture
from cuevo.check.page.difference import difference
from cuevo.check.page.rows import counts_of_lines, machine_rows, source_rows, text_rows
from cuevo.ops.roofline.units import clocks, units
from cuevo.sim import Profile
from cuevo.toolchain.assembler import Cubin
from cuevo.toolchain.sass import Listing, by_pipe, disassemble
from cuevo.toolchain.template import RenderedKernel

__all__ = ["Subject", "content", "difference", "page"]

_HERE = Path(__file__).parent


@dataclass(frozen=True)
class Subject:
    """A kernel as it is launched, and what is known of it."""

    kernel: RenderedKernel
    cubin: Cubin
    threads: int
    """Of a block; 0 where nobody has said."""
    shared_bytes: int
    """Dynamic shared memory of a block."""
    profile: Profile | None = None
    """Of launches of this text."""
    counted: str = ""
    """What the profile is of, or why there is none."""


def content(subject: Subject) -> dict[str, Any]:
    """All that the page shows: facts about the kernel and ledgers, each with one value (two where
    kernels are compared), and the rows of the panes.

    Raises CuevoError where there is no disassembler.
    """
    kernel, listing = subject.kernel, disassemble(subject.cubin)
    counts = counts_of_lines(kernel, listing, subject.profile)
    sources, places = source_rows(kernel, counts)
    texts, numbers = text_rows(kernel, counts, sources, places)
    return {
        "name": kernel.name,
        "instances": [kernel.describe()],
        "arch": subject.cubin.arch,
        "facts": {name: [value] for name, value in _facts(subject, listing).items()},
        "ledgers": [*_ledgers(listing, subject.profile)],
        "titles": {"source": "source", "text": "PTX", "machine": "SASS"},
        "panes": {
            "source": sources,
            "text": texts,
            "machine": machine_rows(kernel, listing, numbers),
        },
    }


def page(shown: dict[str, Any]) -> str:
    """The page of a `content`, as HTML."""
    # It takes a tenth of a second to import.
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    parts = {name: (_HERE / f"page.{name}").read_text(encoding="utf-8") for name in ("css", "js")}
    return environment.get_template("page.html.j2").render(**shown, **parts)


def _facts(subject: Subject, listing: Listing) -> dict[str, str]:
    """What the assembler and the limits of the architecture say."""
    taken = subject.cubin.resources
    shared = f"{taken.static_shared + subject.shared_bytes:,} bytes a block"
    facts = {
        "registers": f"{taken.registers} a thread",
        "spills": f"{taken.spill_stores} bytes stored, {taken.spill_loads} loaded",
        "shared memory": f"{shared}, {subject.shared_bytes:,} of them dynamic",
    }
    if subject.threads:
        held = architecture(subject.cubin.arch).occupancy(
            subject.threads, taken.registers, subject.shared_bytes + taken.static_shared
        )
        warps = f"{held.warps} of {held.most_warps} warps"
        facts |= {
            "threads": f"{subject.threads} a block",
            "occupancy": f"{held.blocks} blocks, {warps}",
            "limited by": held.limit,
        }
    if listing.called:
        facts["calls"] = ", ".join(listing.called)
    live = max((each.live["GPR"] for each in listing.instructions), default=0)
    return facts | {
        "most live": f"{live} registers",
        "assembler": subject.cubin.assembler,
        "counts": subject.counted,
    }


def _ledgers(listing: Listing, profile: Profile | None) -> Iterator[dict[str, Any]]:
    """Machine instructions by pipe and by opcode, of the main loop and of the kernel; of the main
    loop what bounds it, and what the CPU executor counted.
    """
    loop = listing.main_loop()
    if loop:
        title = f"main loop, {loop[0].address:04x} to {loop[-1].address:04x}"
        yield _ledger("main loop by pipe", title, by_pipe(loop))
    if taken := _clocks(listing):
        bound = next(iter(taken))
        title = f"clocks of an iteration: bound by {bound}"
        yield _ledger("clocks", title, taken, ("at the least", taken[bound]))
    yield _ledger("kernel by pipe", "kernel by pipe", by_pipe(listing.instructions))
    part, those = ("main loop", loop) if loop else ("kernel", listing.instructions)
    opcodes = dict(Counter(each.opcode for each in those).most_common())
    yield _ledger(f"{part} by opcode", f"{part} by opcode", opcodes)
    if profile and profile.main_loop:
        counts = {x: round(often, 3) for x, often in profile.main_loop.instructions.items()}
        yield _ledger("PTX", "PTX of an iteration", counts)


def _clocks(listing: Listing) -> dict[str, float]:
    """Clocks that a warp takes of each pipe of its SM sub-partition in an iteration of the main
    loop, most first; nothing where the rates of the architecture are not known.
    """
    try:
        rates = units(architecture(listing.arch))
    except ValueError:
        return {}
    taken: dict[str, float] = {}
    for each in listing.main_loop():
        for name, of_pipe in clocks(each, rates).items():
            taken[name] = taken.get(name, 0.0) + of_pipe
    return {name: round(taken[name], 1) for name in sorted(taken, key=lambda x: -taken[x])}


def _ledger(
    part: str, title: str, counts: Mapping[str, float], total: tuple[str, float] | None = None
) -> dict[str, Any]:
    last, value = total or ("all", sum(counts.values()))
    return {
        "part": part,
        "title": title,
        "last": last,
        "totals": [value],
        "counts": {name: [count] for name, count in counts.items()},
    }
