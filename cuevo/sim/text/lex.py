"""PTX text to tokens."""

import re
from typing import NamedTuple

from cuevo.sim.faults import PtxError

LOCATION = r"""\.loc(?>(?:[ \t]+[0-9]+)+)(?![\w.])
    (?:[ \t]*,[ \t]*function_name[ \t]+[\w$]+(?:[ \t]*\+[ \t]*[0-9]+)?
       [ \t]*,[ \t]*inlined_at(?>(?:[ \t]+[0-9]+)+)(?![\w.]))?"""
"""A whole ``.loc``, that of an inlined function too; a verbose pattern."""

_TOKEN = re.compile(
    rf"""[ \t\r\f\v]* (?:
        (?P<newline> \n )
      | (?P<blank>   //[^\n]* )
      | (?P<comment> /\*.*?\*/ )
      | (?P<word>    [A-Za-z$%][\w$]*(?:(?:\.|::)\w+)* | _[\w$]+(?:(?:\.|::)\w+)* | _ )
      | (?P<mark>    << | >> | <= | >= | == | != | && | \|\| | [][(){{}}<>,;:|!@=+*/%&~^?-] )
      | (?P<location>  {LOCATION} )
      | (?P<directive> \.[A-Za-z_]\w* )
      | (?P<float>   0[fF][0-9A-Fa-f]{{8}}\b | 0[dD][0-9A-Fa-f]{{16}}\b
                   | [0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+ )
      | (?P<integer> 0[xX][0-9A-Fa-f]+U? | 0[bB][01]+U? | [0-9]+U? )
      | (?P<string>  "[^"\n]*" )
      | (?P<unknown> [^ \t\r\f\v] ) )""",
    re.X | re.S,
)


class Token(NamedTuple):
    kind: str
    """``word``, ``directive``, ``integer``, ``float``, ``string``, ``mark``, ``location`` (a whole
    ``.loc``), ``statement`` (a line that is an instruction, see `statements`), ``registers`` (one
    that declares them) or ``end``.
    """
    text: str
    line: int


def tokens(text: str) -> list[Token]:
    """The tokens of `text`, closed by one of kind ``end``."""
    found: list[Token] = []
    line, new = 1, tuple.__new__
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup
        assert kind is not None
        if kind == "newline":
            line += 1
        elif kind == "comment":
            line += match[kind].count("\n")
        elif kind == "unknown":
            position = match.start(kind)
            word, *_ = text[position : position + 12].split() or [text[position]]
            raise PtxError(line, f"cannot read {word!r}")
        elif kind != "blank":
            found.append(new(Token, (kind, match[kind], line)))  # half the time of Token(...)
    found.append(Token("end", "end of text", line))
    return found
