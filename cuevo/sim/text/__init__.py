"""PTX text to a `Module`: tokens (`lex`), statements remembered from other kernels (`statements`),
operands and scopes (`operands`), the parser (`parse`), its result (`syntax`), and static facts
about it (`call_graph`, `contraction`, `locations`).
"""
