"""The core: layouts of shared memory and of the store, atomics, kernels and handles over bytes.

It imports none of the other packages and never reads a clock, a setting or the environment, apart
from its edge modules: arena, board, bell, storage, clock, marks and jit.
"""
