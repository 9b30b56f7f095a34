"""Every module of kernels, so that `jit.warm` finds them: import this before the first fork."""

from __future__ import annotations

from shm.kernels import dispatch, encode, fetch, record, ring, scan

MODULES = (dispatch, encode, fetch, record, ring, scan)
