"""The second layer of the policy: forbidden operators, where torch itself looks them up.

:class:`~autograder.guest.policy.Forbidding` sees calls that come from Python. This one replaces the
kernel in torch's dispatcher, below every alias, ``torch.ops`` and every module that wraps the
library's, and it stays where the learner's code leaves the mode, or runs in a thread that never
entered it. It is for the sandbox only: the operators are gone for the whole process. Every other
transform ends in one of the kernels that are replaced: ``torch.func``'s derivatives,
``torch.compile``, TorchScript, functions with a backward of their own.

Only whole families are replaced whose operators nothing else is built from, so that a right answer
never meets one by way of another function.
"""

from __future__ import annotations

import ctypes
import sys
import types
import warnings
from collections.abc import Iterable
from typing import Any, NoReturn

import torch
import torch.nn.attention.flex_attention  # so that it is there to be replaced

from autograder.guest.policy import ForbiddenCall

FAMILIES: dict[str, tuple[str, ...]] = {
    "scaled_dot_product_attention": (
        "scaled_dot_product_attention",
        "_scaled_dot_product_attention_math",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_native_multi_head_attention",
        "_transformer_encoder_layer_fwd",
    ),
    "layer_norm": ("layer_norm", "native_layer_norm"),
    "softmax": ("softmax.int", "_softmax"),
    "cross_entropy": ("cross_entropy_loss", "nll_loss_nd"),
}
"""Operators of aten that do what a forbidden function does, by its name."""
_KEYS = ("CPU", "CompositeImplicitAutograd", "FuncTorchBatched", "FuncTorchVmapMode")
"""Where torch looks for a kernel: that of plain tensors; that of every kind of tensor which has
none of its own (nested, sparse); and, before it comes to them, those of ``torch.func.vmap``, which
take the operator apart."""
_IN_PYTHON: dict[str, tuple[tuple[str, str], ...]] = {
    "scaled_dot_product_attention": (
        ("torch.nn.attention.flex_attention", "flex_attention"),
        ("torch._higher_order_ops.flex_attention", "math_attention"),
    )
}
"""What does the same without any of these operators, by module and name."""
FAMILIES["multi_head_attention_forward"] = FAMILIES["scaled_dot_product_attention"]


def forbid(names: Iterable[str]) -> list[str]:
    """Replace the operators of each name's family.

    Returns:
        The list to which the name of a forbidden call is added when it happens.
    """
    for name in sorted({name.rsplit(".", 1)[-1] for name in names}):
        _replace_kernels(FAMILIES.get(name, ()), _refusal(name))
        for module, own_name in (("torch.nn.functional", name), *_IN_PYTHON.get(name, ())):
            function = getattr(sys.modules.get(module), own_name, None)
            if isinstance(function, types.FunctionType):
                # Its code and not its name: whoever holds the function already, holds this one.
                function.__code__ = _refusing_code(name)
    return _seen


_seen: list[str] = []


def _replace_kernels(operators: Iterable[str], refuse: Any) -> None:
    for key in _KEYS:
        library = torch._C._dispatch_library("IMPL", "aten", key)
        with warnings.catch_warnings():
            # "overriding a previously registered kernel": on purpose
            warnings.simplefilter("ignore")
            for operator in operators:
                library.impl(operator, key, refuse)
        # The replacement lasts as long as the library object; with one reference too many and no
        # name for it, no code in this process can find it and let it go.
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(library))


def refused(name: str) -> NoReturn:
    """Note a forbidden call and refuse it."""
    _seen.append(name)
    raise ForbiddenCall(name)


def _refusal(name: str) -> Any:
    return lambda *args, **kwargs: refused(name)


def _refusing_code(name: str) -> types.CodeType:
    # runs with the globals of the function it replaces, so it imports what it needs
    source = (
        "def refuse(*args, **kwargs):\n"
        "    from autograder.guest.dispatcher import refused\n"
        f"    refused({name!r})\n"
    )
    namespace: dict[str, Any] = {}
    exec(source, namespace)  # noqa: S102 — a fixed text around a name of our own policy
    code: types.CodeType = namespace["refuse"].__code__
    return code
