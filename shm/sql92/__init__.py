"""SQL92 filters: text -> tree -> program; the tree is also evaluated in Python, as the reference.

`tokens` and `parser` read a text (filtering.md 3.1, 3.2, 3.5), `tree` is what it says, `numbers`
and `evaluate` what it means (3.3, 3.4). Two dialects share all of it: `dialect` has the table of
what differs.
"""
