"""Configurations that were measured to be the fastest, and how they are found.

`tuned` has the tables of them, which dispatch asks, `recording` the calls of an application: that
is what calls need. The rest finds what comes into a table: `calls` has the calls that are tuned,
`candidates` the configurations to try, `search` the way to the best of them, `places` arrays and
processes for that, `measure` the rules of timing, `events` the clock.
"""
