"""Passages: some statements that are recorded together, as one instruction is. They say what no
instruction shows that stands alone: which lanes a member mask joins, the carry flag between
additions and subtractions, what a register wider than the type gets, what a division by zero gives;
products of wmma from memory to memory, since which lane has which element differs among GPUs.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from sim.recordings.probes import Probe, Source


@dataclass(frozen=True)
class Passage(Probe):
    """Statements between registers; `opcode` is its name."""

    body: str = ""
    """The statements: {d[0]} stands for the first register of the results, {s[0]} for the first of
    the sources, and {each[1][2]} for the third register of the second.
    """

    @property
    def carries(self) -> tuple[bool, bool]:
        """Neither: a passage looks at its carry itself."""
        return False, False

    def text(self, results: list[str], sources: list[list[str]]) -> str:
        first = [names[0] for names in sources]
        return "{" + self.body.format(d=results, s=first, each=sources) + "}"


@cache
def passages(number: int = 90) -> tuple[Passage, ...]:
    """All that architecture `number` has."""
    found = (
        *(*_members(), *_arms(), *_carries(), *_wider()),
        *(*_divisions(), *_products()),
    )
    return tuple(each for each in found if each.target[0] <= number)


def _passage(name: str, results: str, sources: str, body: str, first: int = 80) -> Passage:
    """`results` and `sources` are types, with a role behind a colon, separated by spaces."""
    given = [Source(scalar, role=role) for scalar, _, role in map(_parted, sources.split())]
    made = tuple(Source(scalar) for scalar in results.split())
    return Passage(name, None, made, tuple(given), "passage", (first, ""), body)


def _parted(word: str) -> tuple[str, str, str]:
    return word.partition(":")


# -- Member masks ----------------------------------------------------------------------------------


def _members() -> Iterator[Passage]:
    """Warps whose lanes stand in groups: each lane names those of its own."""
    reductions = [f"{op}.{t}" for op in ("add", "min", "max") for t in ("u32", "s32")]
    for each in (*reductions, "and.b32", "or.b32", "xor.b32"):
        opcode, scalar = f"redux.sync.{each}", each.split(".")[1]
        body = f"{opcode} {{d[0]}}, {{s[0]}}, {{s[1]}};"
        yield _passage(f"{opcode} in groups", scalar, f"{scalar} b32:members", body)
    for mode in ("any", "all", "uni"):
        body = f"vote.sync.{mode}.pred {{d[0]}}, {{s[0]}}, {{s[1]}};"
        yield _passage(f"vote.sync.{mode}.pred in groups", "pred", "pred b32:members", body)
    ballot = "vote.sync.ballot.b32 {d[0]}, {s[0]}, {s[1]};"
    yield _passage("vote.sync.ballot.b32 in groups", "b32", "pred b32:members", ballot)
    # Values of a few bits: some are equal.
    for bits in (32, 64):
        few = f".reg .b{bits} x; and.b{bits} x, {{s[0]}}, 1;"
        head = f"{few} match.any.sync.b{bits} {{d[0]}}, x, {{s[1]}};"
        yield _passage(f"match.any.sync.b{bits} in groups", "b32", f"b{bits} b32:members", head, 70)
        head = f"{few} match.all.sync.b{bits} {{d[0]}}|{{d[1]}}, x, {{s[1]}};"
        yield _passage(
            f"match.all.sync.b{bits} in groups", "b32 pred", f"b{bits} b32:members", head, 70
        )
    lowest = ".reg .b32 x; neg.s32 x, {s[1]}; and.b32 x, x, {s[1]}; bfind.u32 x, x;"
    body = f"{lowest} shfl.sync.idx.b32 {{d[0]}}, {{s[0]}}, x, 31, {{s[1]}};"
    yield _passage("shfl.sync.idx.b32 in groups", "b32", "b32 b32:members", body)
    # Whoever is the leader, there is one.
    body = ".reg .pred p; elect.sync _|p, {s[0]}; vote.sync.ballot.b32 {d[0]}, p, {s[0]};"
    body += "popc.b32 {d[0]}, {d[0]};"
    yield _passage("elect.sync in groups", "b32", "b32:members", body, 90)


def _arms() -> Iterator[Passage]:
    """Odd lanes are in another arm of an if than even ones: those that name each other meet."""
    lowest = ".reg .b32 x; neg.s32 x, {s[1]}; and.b32 x, x, {s[1]}; bfind.u32 x, x;"
    few = ".reg .b32 x; and.b32 x, {s[0]}, 1;"
    exchanges = {
        "redux.sync.add.u32": ("", "u32", "{s[0]}, {s[1]}"),
        "vote.sync.ballot.b32": ("", "pred", "{s[0]}, {s[1]}"),
        "match.any.sync.b32": (few, "b32", "x, {s[1]}"),
        "shfl.sync.idx.b32": (lowest, "b32", "{s[0]}, x, 31, {s[1]}"),
    }
    for opcode, (before, scalar, sources) in exchanges.items():
        exchange = f"{opcode} {{d[0]}}, {sources};"
        # What follows differs, so that no assembler makes one exchange of the two.
        body = (
            f"{before} .reg .b32 odd; .reg .pred other; mov.u32 odd, %laneid; and.b32 odd, odd, 1;"
            f" setp.ne.u32 other, odd, 0; @other bra ARM; {exchange} add.u32 {{d[0]}}, {{d[0]}}, 7;"
            f" bra JOIN; ARM: {exchange} xor.b32 {{d[0]}}, {{d[0]}}, 0x5555; JOIN:"
        )
        yield _passage(f"{opcode} in two arms", "b32", f"{scalar} b32:members", body)


# -- The carry flag --------------------------------------------------------------------------------


def _carries() -> Iterator[Passage]:
    """Each that leaves a carry, before each that takes one and leaves another, which is added."""
    names = ("add", "sub", "mad.lo", "mad.hi")
    for bits, first, second in itertools.product((32, 64), names, names):
        head, _, part = second.partition(".")
        one, two = f"{first}.cc.u{bits}", f"{head}c{'.' * bool(part)}{part}.cc.u{bits}"
        body = f"{one} {{d[0]}}, {_terms(first, 'abc')}; {two} {{d[1]}}, {_terms(second, 'cab')};"
        body += f" addc.u{bits} {{d[2]}}, 0, 0;"
        three = f"u{bits} u{bits} u{bits}"
        yield _passage(f"{one}, {two}", three, three, body)


def _terms(name: str, order: str) -> str:
    """Two sources, or the three of mad, in that order."""
    places = ["abc".index(each) for each in order[: 3 if name.startswith("mad") else 2]]
    return ", ".join(f"{{s[{place}]}}" for place in places)


# -- Registers wider than the type -----------------------------------------------------------------


def _wider() -> Iterator[Passage]:
    room = ".local .align 8 .b8 room[8];"
    for scalar in ("f32", "b32", "u32", "s32", "b16", "u16", "s16", "b8", "u8", "s8"):
        size = scalar[1:]
        body = f"{room} st.local.b32 [room], {{s[0]}}; ld.local.{scalar} {{d[0]}}, [room];"
        yield _passage(f"ld.{scalar} to b64", "b64", "f32", body)
        body = f"{room} st.local.b32 [room], 0; st.local.{scalar} [room], {{s[0]}};"
        body += " ld.local.b32 {d[0]}, [room];"
        if scalar != "f32":
            yield _passage(f"st.{scalar} from b64", "b32", "b64", body)
        if int(size) < 32:
            body = f"{room} st.local.b32 [room], {{s[0]}}; ld.local.{scalar} {{d[0]}}, [room];"
            yield _passage(f"ld.{scalar} to b32", "b32", "f32", body)
    to = {
        "cvt.rn.f16.f32": ("f32", "b32 b64"),
        "cvt.f32.f16": ("f16", "b64"),
        "cvt.rn.f32.s32": ("s32", "b64"),
        "cvt.rn.f32.f64": ("f64", "b64"),
        "cvt.rni.f32.f32": ("f32", "b64"),
        "cvt.rzi.s32.f32": ("f32", "b64"),
        "cvt.rzi.u32.f32": ("f32", "b64"),
        "cvt.s8.s32": ("s32", "b16 b32 b64"),
        "cvt.u8.s32": ("s32", "b16 b32 b64"),
    }
    for opcode, (source, registers) in to.items():
        for register in registers.split():
            yield _passage(
                f"{opcode} to {register}", register, source, f"{opcode} {{d[0]}}, {{s[0]}};"
            )
    origin = {
        "cvt.f32.f16": ("f32", "b32 b64"),
        "cvt.f64.f32": ("f64", "b64"),
        "cvt.rn.f16.f32": ("f16", "b64"),
        "cvt.rn.f32.s16": ("f32", "b32 b64"),
        "cvt.s32.s8": ("s32", "b16 b32 b64"),
        "cvt.u32.u8": ("u32", "b16 b32 b64"),
    }
    for opcode, (result, registers) in origin.items():
        for register in registers.split():
            yield _passage(
                f"{opcode} from {register}", result, register, f"{opcode} {{d[0]}}, {{s[0]}};"
            )


# -- Division by zero ------------------------------------------------------------------------------


def _divisions() -> Iterator[Passage]:
    """By zero and one."""
    for op, sign, bits in itertools.product(("div", "rem"), "us", (16, 32, 64)):
        scalar = f"{sign}{bits}"
        body = f".reg .b{bits} x; and.b{bits} x, {{s[1]}}, 1; {op}.{scalar} {{d[0]}}, {{s[0]}}, x;"
        yield _passage(f"{op}.{scalar} by zero or one", scalar, f"{scalar} {scalar}", body)


# -- wmma ------------------------------------------------------------------------------------------

ROOM = ".shared .align 32 .b8 room[4096];"
"""A matrix of up to 256 words for each of the four warps of a threadblock."""
IN_MEMORY = "matrix.multiply in memory"
_SHAPES = ((16, 16, 16), (8, 32, 16), (32, 8, 16))


def _products() -> Iterator[Passage]:
    """Of each type in all shapes, and of the first shape with the layouts of A and B the other way
    round, and with what goes beyond the type.
    """
    types = {
        "f16": (("f32.f32", "f16.f16"), ("f32.f16", "f16.f32")),
        "bf16": (("f32.bf16.bf16.f32",), ()),
        "s8": (("s32.s8.s8.s32",), ("s32.s8.s8.s32.satfinite",)),
        "u8": (("s32.u8.u8.s32",), ("s32.u8.u8.s32.satfinite",)),
    }
    for element, (usual, more) in types.items():
        for shape, each in itertools.product(_SHAPES, usual):
            yield _product(shape, element, each, "row.col")
        for each in more:
            yield _product(_SHAPES[0], element, each, "row.col")
        yield _product(_SHAPES[0], element, usual[0], "col.row")
    for layouts in ("row.col", "col.row"):
        yield _product((16, 16, 8), "tf32", "f32.tf32.tf32.f32", layouts)
    for element, end in itertools.product(("s4", "u4"), ("", ".satfinite")):
        yield _product((8, 8, 32), element, f"s32.{element}.{element}.s32{end}", "row.col")
    for op in (".xor.popc", ".and.popc"):
        yield _product((8, 8, 128), "b1", "s32.b1.b1.s32", "row.col", op)


def _product(
    shape: tuple[int, int, int], element: str, types: str, layouts: str, op: str = ""
) -> Passage:
    (m, n, k), listed = shape, types.removesuffix(".satfinite").split(".")
    d, c = listed[0], listed[-1]
    name = f"m{m}n{n}k{k}"
    bits = int(element.lstrip("bftsu")) if element != "tf32" else 32
    words = {"a": m * k * bits // 1024, "b": k * n * bits // 1024}
    words |= {"c": m * n * int(c[1:]) // 1024, "d": m * n * int(d[1:]) // 1024}
    # Of f16 all fragments of A and B have eight registers, some elements being there twice.
    registers = words if element != "f16" else {**words, "a": 8, "b": 8}
    fragments = {x: ", ".join(f"{x}{i}" for i in range(count)) for x, count in registers.items()}
    lines = [
        ".reg .b32 at, base; shr.u32 base, t, 5; shl.b32 base, base, 10; mov.u32 at, room;",
        "add.u32 base, base, at; and.b32 at, t, 31; shl.b32 at, at, 2; add.u32 at, base, at;",
        f".reg .b32 {', '.join(fragments.values())};",
    ]
    places = zip("abc", (element, element, c), (*layouts.split("."), "row"), strict=True)
    for index, (x, scalar, layout) in enumerate(places):
        lines += [f"st.shared.b32 [at+{128 * r}], {{each[{index}][{r}]}};" for r in range(words[x])]
        load = f"wmma.load.{x}.sync.aligned.{layout}.{name}.shared.{scalar}"
        lines.append(f"bar.warp.sync -1; {load} {{{{{fragments[x]}}}}}, [base]; bar.warp.sync -1;")
    taken = ", ".join(f"{{{{{fragments[x]}}}}}" for x in "dabc")
    opcode = f"wmma.mma{op}.sync.aligned.{layouts}.{name}.{types}"
    store = f"wmma.store.d.sync.aligned.row.{name}.shared.{d}"
    lines.append(f"{opcode} {taken}; {store} [base], {{{{{fragments['d']}}}}}; bar.warp.sync -1;")
    lines += [f"ld.shared.b32 {{d[{r}]}}, [at+{128 * r}];" for r in range(words["d"])]
    lines.append("bar.warp.sync -1;")
    sources = tuple(
        Source("b32", words[x], f"product {x} {scalar}", vector=True)
        for x, scalar in zip("abc", (element, element, c), strict=True)
    )
    results = tuple(Source("b32") for _ in range(words["d"]))
    return Passage(opcode, None, results, sources, IN_MEMORY, (80, ""), " ".join(lines))
