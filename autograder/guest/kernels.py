"""Launches a learner's Triton kernel on plain data, and watches what it does with memory.

In Triton's interpreter every load and store passes through here before it touches memory: one that
leaves the tensors it was given is stopped and named, and what is moved is counted. A compiled
kernel (in the learner's own notebook, where there is a GPU) is launched and not watched.

What is launched must be Triton's own kind of function. All the same this runs in the learner's
process: code that patches Triton, this module or :mod:`autograder.guest.meter` forges what is
counted, and can compute in Python what a kernel should have. A check of counts, or of whether a
kernel was launched, finds mistakes and no cheats; values are judged in another process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autograder.guest import no_triton
from autograder.guest.interpreter import quick

# Triton reads it when it is imported, and torch imports Triton when it pleases: so this must be
# known before. What is there already was set by a notebook, or by who starts a process.
os.environ.setdefault("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")

# Numbers on either side of a tensor's copy: what a kernel reads there is in no tensor.
_GUARD = 1 << 14


class OutOfBounds(Exception):
    """A kernel loaded or stored outside the tensors it was given.

    Attributes:
        access: ``load`` or ``store``.
        argument: the parameter whose tensor is nearest.
    """

    def __init__(self, access: str, argument: str) -> None:
        super().__init__(f"a {access} outside the tensor of {argument}")
        self.access, self.argument = access, argument


class Watch:
    """While active, counts what Triton's interpreter does, and stops what leaves ``regions``.

    Args:
        regions: name, first byte and the byte behind the last of what may be touched; None where
            anything may be.

    Attributes:
        loaded: numbers that were loaded; what a mask leaves out does not count.
        stored: numbers that were stored or added atomically.
        dots: multiplications in ``tl.dot``.
    """

    def __init__(self, regions: Sequence[tuple[str, int, int]] | None = None) -> None:
        self.regions = regions
        self.loaded = self.stored = self.dots = 0
        self._patched: list[tuple[str, Any]] = []
        self._builder: Any = None

    def __enter__(self) -> Watch:
        """Put this between the interpreter and memory."""
        interpreter = sys.modules["triton.runtime.interpreter"]
        self._builder = interpreter.interpreter_builder
        self._patch("create_masked_load", self._load)
        self._patch("create_masked_store", self._store)
        self._patch("create_atomic_rmw", self._atomic)
        self._patch("create_dot", self._dot)
        return self

    def __exit__(self, *exc: object) -> None:
        """Take it away."""
        for name, before in reversed(self._patched):
            setattr(self._builder, name, before)
        self._patched.clear()

    def _patch(self, name: str, before: Callable[..., None]) -> None:
        original = getattr(self._builder, name)

        def watched(*args: Any, **kwargs: Any) -> Any:
            before(*args)
            return original(*args, **kwargs)

        self._patched.append((name, original))
        setattr(self._builder, name, watched)

    def _load(self, pointers: Any, mask: Any, *others: Any) -> None:
        self.loaded += self._moved("load", pointers, mask)

    def _store(self, pointers: Any, value: Any, mask: Any, *others: Any) -> None:
        self.stored += self._moved("store", pointers, mask)

    def _atomic(self, operation: Any, pointers: Any, value: Any, mask: Any, *others: Any) -> None:
        self.stored += self._moved("store", pointers, mask)

    def _dot(self, a: Any, b: Any, *others: Any) -> None:
        self.dots += int(a.data.size) * int(b.data.shape[-1])

    def _moved(self, access: str, pointers: Any, mask: Any) -> int:
        addresses = pointers.data[np.broadcast_to(mask.data, pointers.data.shape)]
        if self.regions is not None and addresses.size:
            size = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
            low, high = int(addresses.min()), int(addresses.max()) + size
            if any(first <= low and high <= end for _name, first, end in self.regions):
                return int(addresses.size)
            inside = np.zeros(addresses.shape, dtype=bool)
            for _name, first, end in self.regions:
                inside |= (addresses >= first) & (addresses + size <= end)
            if not inside.all():
                raise OutOfBounds(access, self._nearest(int(addresses[~inside][0])))
        return int(addresses.size)

    def _nearest(self, address: int) -> str:
        assert self.regions is not None
        return min(
            self.regions, key=lambda region: max(region[1] - address, address - region[2] + 1)
        )[0]


def launcher() -> Callable[..., dict[str, Any]]:
    """The function that launches kernels; see :func:`launch`."""
    return launch


def launch(
    kernel: Any, grid: Sequence[int], arguments: Sequence[Any], constants: dict[str, Any]
) -> dict[str, Any]:
    """Launch a kernel once.

    Args:
        kernel: decorated with ``triton.jit``.
        grid: programs along each axis.
        arguments: tensors and numbers, in the order of the kernel's parameters.
        constants: what the kernel takes as ``tl.constexpr``.

    Returns:
        ``tensors``, as they are after the launch (none, where it was stopped); ``outside``, access
        and parameter of what left the tensors, or empty; ``missing``, whether there is no Triton
        to launch it with.
    """
    if isinstance(kernel, no_triton.Kernel):
        return {"missing": True, "outside": [], "tensors": []}
    if "raise NotImplementedError" in getattr(kernel, "src", ""):  # a GPU compiles no stub
        raise NotImplementedError
    if not _is_tritons(kernel):
        raise TypeError("this is no Triton kernel: the line @triton.jit above its def is missing")
    if not (_interpreted(kernel) or torch.cuda.is_available()):
        raise RuntimeError(
            "Triton was loaded before TRITON_INTERPRET was set: restart the kernel, and run the "
            "set-up cell first"
        )
    names = list(kernel.arg_names)
    interpreted = _interpreted(kernel)
    device = "cpu" if interpreted else "cuda"
    copies = [_guarded(item, device) if isinstance(item, Tensor) else item for item in arguments]
    outside: list[str] = []
    if interpreted:
        regions = [
            (name, item.data_ptr(), item.data_ptr() + item.numel() * item.element_size())
            for name, item in zip(names, copies, strict=False)
            if isinstance(item, Tensor)
        ]
        try:
            with Watch(regions), quick(), np.errstate(all="ignore"):
                kernel[tuple(grid)](*copies, **constants)
        except Exception as error:
            # the interpreter wraps what the kernel raised
            cause = error.__cause__ or error
            if not isinstance(cause, OutOfBounds):
                raise cause from None
            outside = [cause.access, cause.argument]
    else:
        kernel[tuple(grid)](*copies, **constants)
    tensors = [] if outside else [item.cpu() for item in copies if isinstance(item, Tensor)]
    return {"missing": False, "outside": outside, "tensors": tensors}


def _is_tritons(kernel: Any) -> bool:
    """Whether ``triton.jit`` made this, for the interpreter or the compiler: no look-alike."""
    made = (
        ("triton.runtime.interpreter", "InterpretedFunction"),
        ("triton.runtime.jit", "JITFunction"),
    )
    return any(
        type(kernel) is getattr(sys.modules.get(module), name, None) for module, name in made
    )


def _interpreted(kernel: Any) -> bool:
    """Whether the interpreter runs this kernel, and Triton's own functions that it calls."""
    library = sys.modules["triton.language.standard"]
    return hasattr(kernel, "rewrite") and hasattr(library.max, "rewrite")


def _guarded(tensor: Tensor, device: str) -> Tensor:
    """A copy in the middle of memory of its own: on a GPU, what leaves it breaks nothing else."""
    around = torch.zeros(tensor.numel() + 2 * _GUARD, dtype=tensor.dtype, device=device)
    copy = around[_GUARD : _GUARD + tensor.numel()].view(tensor.shape)
    return copy.copy_(tensor)
