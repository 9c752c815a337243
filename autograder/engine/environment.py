"""The environment of the processes that run learners' code."""

from __future__ import annotations

import os


def environment() -> dict[str, str]:
    """All that such a process inherits: nothing of the instructor's."""
    env = {
        "PATH": os.defpath,
        "LANG": "C.UTF-8",
        # the same order of sets for everyone
        "PYTHONHASHSEED": "0",
        # without a GPU, Triton's kernels run in its interpreter
        "TRITON_INTERPRET": "1",
        "MPLBACKEND": "agg",
    }
    # One thread: a fork keeps only the thread that forks.
    for library in ("OMP", "MKL", "OPENBLAS", "NUMEXPR"):
        env[f"{library}_NUM_THREADS"] = "1"
    # which kernels OpenBLAS takes on this processor; where Windows keeps itself
    for name in ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "SYSTEMROOT"):
        if name in os.environ:
            env[name] = os.environ[name]
    # else each thread reserves 64 MiB of addresses for itself, of which a sandbox has few
    env["MALLOC_ARENA_MAX"] = "1"
    return env
