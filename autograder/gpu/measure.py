"""Times and memory of every form of attention, for one device."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from autograder.gpu.contenders import NAMES, contender
from autograder.gpu.sizes import Blocks, Sizes

Chosen = dict[tuple[str, int, bool], Blocks]
"""Blocks by kind of pass (``forward``, ``backward``), width and causal."""

_WARM_UP, _LEAST, _MOST, _MILLISECONDS = 3, 5, 30, 60.0


def milliseconds(work: Callable[[], object], device: str) -> float:
    """Median time of several runs, after a few that warm up.

    On a GPU by events on its stream, one pair a run, so that the time of starting counts only
    where it is longer than the work.
    """
    for _ in range(_WARM_UP if device == "cuda" else 1):
        work()
    if device != "cuda":
        start = time.perf_counter()
        work()
        return 1000 * (time.perf_counter() - start)
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    once = 1000 * (time.perf_counter() - start)
    runs = min(_MOST, max(_LEAST, int(_MILLISECONDS / max(once, 1e-3))))
    marks = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(runs)]
    for begin, end in marks:
        begin.record()
        work()
        end.record()
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in marks)


def flops(B: int, H: int, T: int, d: int, *, causal: bool, kind: str) -> float:
    """FLOPs of a pass as they are usually counted: masked scores not, recomputed ones neither.

    Forward 4·B·H·T²·d, half of it with a causal mask; backward 2.5 times as many (Dao 2023,
    section 4.1).
    """
    forward = 4 * B * H * T * T * d * (0.5 if causal else 1.0)
    return forward * {"forward": 1.0, "backward": 2.5}[kind]


def inputs(
    sizes: Sizes, T: int, d: int, dtype: str, device: str, *, tokens: int | None = None
) -> list[Tensor]:
    """q, k, v and a gradient of the output, each (B, H, T, d) with B · T = tokens, H · d = D."""
    B, H = max(1, (tokens or sizes.tokens) // T), sizes.model_width // d
    noise = torch.Generator(device).manual_seed(0)
    kind = getattr(torch, dtype)
    return [torch.randn(B, H, T, d, generator=noise, device=device, dtype=kind) for _ in range(4)]


def attempt(work: Callable[[], float], device: str) -> tuple[float | None, str]:
    """A measurement, or None and in one line why there is none."""
    try:
        return work(), ""
    except torch.OutOfMemoryError:
        return None, "out of memory"
    except Exception as error:  # what Triton raises has many types, and one case is one case
        if not isinstance(error, RuntimeError) and not type(error).__module__.startswith("triton"):
            raise
        return None, (str(error).splitlines() or [type(error).__name__])[0][:120]
    finally:
        if device == "cuda":
            torch.cuda.empty_cache()


@dataclass(frozen=True)
class Case:
    """One form of attention on one set of inputs.

    Attributes:
        name: the form, one of ``NAMES``.
        kind: ``forward`` or ``backward``.
        tensors: q, k, v and a gradient of the output.
        blocks: for our kernels, forward and backward.
    """

    name: str
    kind: str
    tensors: list[Tensor]
    causal: bool
    blocks: tuple[Blocks, Blocks]

    def prepare(self) -> Callable[[], object]:
        """What is measured: a forward pass without gradients, or a backward pass by itself."""
        attend = contender(
            self.name,
            causal=self.causal,
            forward_blocks=self.blocks[0],
            backward_blocks=self.blocks[1],
        )
        q, k, v, upstream = self.tensors
        if self.kind == "forward":

            def forward() -> object:
                with torch.no_grad():
                    return attend(q, k, v)

            return forward
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        output = attend(*leaves)
        return lambda: torch.autograd.grad(output, leaves, upstream, retain_graph=True)

    def time(self, device: str) -> tuple[float | None, str]:
        """Milliseconds, or None and why."""
        return attempt(lambda: milliseconds(self.prepare(), device), device)

    def memory(self, device: str) -> tuple[float | None, str]:
        """Most bytes beyond the inputs, or None and why: only a GPU's allocator keeps account."""
        if device != "cuda":
            return None, "not counted on a CPU"
        return attempt(lambda: peak_bytes(self.prepare()), device)


def tune(sizes: Sizes, device: str, has_time: Callable[[], bool]) -> Chosen:
    """Choose the blocks of our kernels for each pass, width and causal: the fastest of a few."""
    chosen: Chosen = {}
    for d, causal in itertools.product(sizes.widths, (True, False)):
        tensors = inputs(sizes, sizes.tuned_at, d, sizes.dtypes[0], device)
        forward = chosen["forward", d, causal] = _fastest(
            [
                (blocks, Case("ours", "forward", tensors, causal, (blocks, blocks)))
                for blocks in sizes.forward_blocks
            ],
            device,
            has_time,
        )
        chosen["backward", d, causal] = _fastest(
            [
                (blocks, Case("ours", "backward", tensors, causal, (forward, blocks)))
                for blocks in sizes.backward_blocks
            ],
            device,
            has_time,
        )
    return chosen


def _fastest(
    choices: list[tuple[Blocks, Case]], device: str, has_time: Callable[[], bool]
) -> Blocks:
    """The blocks of the fastest case; the first ones where none ran."""
    taken = [
        (seconds, i)
        for i, (_blocks, case) in enumerate(choices)
        if has_time()
        for seconds, _why in [case.time(device)]
        if seconds is not None
    ]
    return choices[min(taken)[1] if taken else 0][0]


def times(
    sizes: Sizes, device: str, chosen: Chosen, has_time: Callable[[], bool]
) -> Iterator[dict[str, Any]]:
    """Time everything, until there is no time left.

    Yields:
        A row for each case: ``kind``, ``implementation``, ``dtype``, ``B``, ``H``, ``T``, ``d``,
        ``causal``, ``milliseconds`` and ``tflops`` (10¹² FLOPs a second), or None for both and in
        ``missing`` why.
    """
    for dtype, d, causal, T in itertools.product(
        sizes.dtypes, sizes.widths, (True, False), sizes.lengths
    ):
        if not has_time():
            return
        tensors = inputs(sizes, T, d, dtype, device)
        B, H = tensors[0].shape[:2]
        blocks = (chosen["forward", d, causal], chosen["backward", d, causal])
        for kind, name in itertools.product(("forward", "backward"), NAMES):
            taken, why = Case(name, kind, tensors, causal, blocks).time(device)
            work = flops(B, H, T, d, causal=causal, kind=kind)
            yield {
                "kind": kind,
                "implementation": name,
                "dtype": dtype,
                "B": B,
                "H": H,
                "T": T,
                "d": d,
                "causal": causal,
                "milliseconds": taken,
                "tflops": taken and work / taken / 1e9,
                "missing": why,
            }


def memory(sizes: Sizes, device: str, chosen: Chosen) -> Iterator[dict[str, Any]]:
    """Most bytes alive beyond the inputs in a forward pass, for one sequence of each length.

    Yields:
        A row for each length and form: ``implementation``, ``dtype``, ``H``, ``T``, ``d`` and
        ``bytes``, or None and in ``missing`` why.
    """
    d, dtype = sizes.widths[0], sizes.dtypes[0]
    blocks = (chosen["forward", d, False], chosen["backward", d, False])
    for T in sizes.lengths:
        tensors = inputs(sizes, T, d, dtype, device, tokens=T)
        for name in NAMES:
            taken, why = Case(name, "forward", tensors, False, blocks).memory(device)
            yield {
                "implementation": name,
                "dtype": dtype,
                "H": tensors[0].shape[1],
                "T": T,
                "d": d,
                "bytes": taken,
                "missing": why,
            }


def peak_bytes(work: Callable[[], object]) -> float:
    """Most bytes that the GPU's allocator held at once during ``work``, beyond those before."""
    work()  # workspaces that are made once do not count
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return float(torch.cuda.max_memory_allocated() - before)
