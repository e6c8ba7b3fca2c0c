"""PTX text to tokens."""

import re
from typing import NamedTuple

from cuevo.sim.faults import PtxError

_TOKEN = re.compile(
    r"""(?P<blank>   [ \t\r\f\v]+ | //[^\n]* )
      | (?P<newline> \n )
      | (?P<comment> /\*.*?\*/ )
      | (?P<string>  "[^"\n]*" )
      | (?P<float>   0[fF][0-9A-Fa-f]{8}\b | 0[dD][0-9A-Fa-f]{16}\b
                   | [0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+ )
      | (?P<integer> 0[xX][0-9A-Fa-f]+U? | 0[bB][01]+U? | [0-9]+U? )
      | (?P<word>    [A-Za-z$%][\w$]*(?:(?:\.|::)\w+)* | _[\w$]+(?:(?:\.|::)\w+)* | _ )
      | (?P<directive> \.[A-Za-z_]\w* )
      | (?P<mark>    << | >> | [][(){}<>,;:|!@=+*/%&~^-] )""",
    re.X | re.S,
)


class Token(NamedTuple):
    kind: str
    """``word``, ``directive``, ``integer``, ``float``, ``string``, ``mark`` or ``end``."""
    text: str
    line: int


def tokens(text: str) -> list[Token]:
    """The tokens of `text`, closed by one of kind ``end``."""
    found: list[Token] = []
    line, position = 1, 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise PtxError(line, f"cannot read {text[position : position + 12].split()[0]!r}")
        position = match.end()
        kind = match.lastgroup
        if kind == "newline":
            line += 1
        elif kind == "comment":
            line += match.group().count("\n")
        elif kind != "blank":
            assert kind is not None
            found.append(Token(kind, match.group(), line))
    found.append(Token("end", "end of text", line))
    return found
