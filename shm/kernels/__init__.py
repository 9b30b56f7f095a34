"""Jitted functions over arrays and numbers, one module per thing they work on.

A kernel returns a count or a negative code, allocates nothing and raises nothing.
"""
