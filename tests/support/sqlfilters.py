"""Filters evaluated both ways: by the reference, and by the kernel's program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from gantrymq.shm.kernels import sql92
from gantrymq.shm.opcodes import ASK, ERROR, FALSE, TRUE, UNKNOWN
from gantrymq.shm.properties import encode_properties
from gantrymq.shm.sql92.dialect import Dialect
from gantrymq.shm.sql92.evaluate import FilterFailed, evaluate
from gantrymq.shm.sql92.parser import parse
from gantrymq.shm.sql92.program import compile_program
from gantrymq.shm.sql92.tree import Node

WORDS = {TRUE: "true", FALSE: "false", UNKNOWN: "null", ERROR: "error", ASK: "ask"}


def by_reference(node: Node, properties: Mapping[str, str], dialect: Dialect) -> str:
    """true, false, null or error."""
    try:
        return {True: "true", False: "false", None: "null"}[evaluate(node, properties, dialect)]
    except FilterFailed:
        return "error"


def by_program(
    node: Node, messages: Sequence[Mapping[str, str] | bytes], dialect: Dialect
) -> list[str]:
    """For each message's properties (or their bytes): true, false, null, error or ask."""
    program = compile_program(node, dialect)
    stored = [m if isinstance(m, bytes) else encode_properties(m) for m in messages]
    offsets = np.cumsum([0, *(len(data) for data in stored)], dtype=np.int64)
    memory = np.frombuffer(b"".join(stored) + bytes(8), np.uint8)
    results = np.zeros(len(stored), np.int64)
    scratch = np.full(sql92.SCRATCH_WORDS, -7, np.int64)
    sql92.run_rows(program.words, program.pool, memory, offsets, scratch, results)
    return [WORDS[result] for result in results.tolist()]


def answer(text: str, properties: Mapping[str, str], dialect: Dialect = Dialect.SQL) -> str:
    """What a text says of a message: the program's answer if it has one, and both are the same."""
    node = parse(text, dialect)
    said = by_reference(node, properties, dialect)
    (ran,) = by_program(node, [properties], dialect)
    assert ran in (said, "ask"), f"{text!r} of {properties}: program {ran}, reference {said}"
    return said
