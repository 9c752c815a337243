"""How much a learner's code may use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """What one sandbox may use. Time is the processor's: a busy machine costs nobody points.

    Attributes:
        startup_seconds: for the cells that stand before the answer.
        request_seconds: for one request of a check.
        total_seconds: for everything that a sandbox does, background threads included.
        wall_factor: the backstop: real time may be so many times longer.
        memory: bytes of address space beyond what the warm process has.
        scratch_megabytes: size of the private file system (a multiple of 1 MB).
        file_bytes: size of one file.
        open_files: descriptors.
        threads: threads, the main one included.
        reply_bytes: length of one reply.
        asks: calls of judge's functions by the learner's code, over the whole link.
        ask_elements: elements of the tensors of one such call, the product of its integers too.
        ask_reach: elements that may come of it, see :func:`autograder.guest.plain.reach`.
        ask_seconds: the trusted process's own time for such calls, over the whole link.
    """

    startup_seconds: float = 20.0
    request_seconds: float = 5.0
    total_seconds: float = 120.0
    wall_factor: float = 10.0
    memory: int = 2 * 2**30
    scratch_megabytes: int = 32
    file_bytes: int = 16 * 2**20
    open_files: int = 64
    threads: int = 32
    reply_bytes: int = 65 * 2**20
    asks: int = 2_000
    ask_elements: int = 2**16
    ask_reach: int = 2**22
    ask_seconds: float = 20.0
