"""Counts what a call makes and moves, for checks that ask how an answer gets to its numbers.

It counts in the learner's own process. Code that patches this class forges what it says, so a check
of counts finds mistakes and no cheats; values are judged in another process, which nothing here
reaches.
"""

from __future__ import annotations

import sys
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from autograder.guest.kernels import Watch

# Matrix products, and the place of their left factor among the arguments.
_PRODUCTS = {"mm": 0, "bmm": 0, "mv": 0, "dot": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}


class Meter(TorchDispatchMode):
    """While active, counts tensors and matrix products of torch, loads and stores of Triton.

    Attributes:
        largest: elements of the largest floating-point tensor that was made.
        total: elements of all of them.
        flops: of matrix products, each multiplication and each addition as one.
        watch: what Triton's interpreter loaded, stored and multiplied.
    """

    def __init__(self) -> None:
        super().__init__()
        self.largest = self.total = self.flops = 0
        self.watch = Watch()

    def counts(self) -> dict[str, int]:
        """All counts, by name."""
        return {
            "largest": self.largest,
            "total": self.total,
            "flops": self.flops,
            "loaded": self.watch.loaded,
            "stored": self.watch.stored,
            "dots": self.watch.dots,
        }

    def __enter__(self) -> Any:
        """Begin to count."""
        # Who has not loaded Triton launches no kernel.
        if "triton.runtime.interpreter" in sys.modules:
            self.watch.__enter__()
        return super().__enter__()

    def __exit__(self, *exc: Any) -> None:
        """Count no longer."""
        super().__exit__(*exc)
        self.watch.__exit__(*exc)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Carry the operator out and count what it made."""
        result = func(*args, **(kwargs or {}))
        for item in (result,) if isinstance(result, Tensor) else tree_leaves(result):
            if isinstance(item, Tensor) and item.is_floating_point():
                self.largest = max(self.largest, item.numel())
                self.total += item.numel()
        place = _PRODUCTS.get(func._overloadpacket.__name__)
        if place is not None:
            self.flops += 2 * result.numel() * args[place].shape[-1]
        return result
