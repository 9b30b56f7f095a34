"""Every module of kernels, so that `jit.warm` finds them: import this before the first fork."""

from __future__ import annotations

from shm.kernels import blocks, complete, dispatch, drain, fetch, message, record, ring, scan

MODULES = (blocks, complete, dispatch, drain, fetch, message, record, ring, scan)
