"""Calls, requests, frames and words, random and extreme, by the million, beside honest clients.

`python -m tests.extremes requests --count 1000000 --seed 7` plays one kind against a broker of its
own. It fails if an agent ended, if an honest client was not served or its messages are not exactly
there, or if `store verify` finds anything.
"""
