"""The second layer of the policy: forbidden operators, where torch itself looks them up.

:class:`~autograder.guest.policy.Forbidding` sees calls that come from Python. This one replaces the
kernel in torch's dispatcher, below every alias, ``torch.ops`` and every module that wraps the
library's, and it stays where the learner's code leaves the mode, or runs in a thread that never
entered it. It is for the sandbox only: the operators are gone for the whole process. Every other
transform ends in one of the kernels that are replaced: ``torch.func``'s derivatives,
``torch.compile``, TorchScript, functions with a backward of their own.

Only whole families are replaced whose operators nothing else is built from, so that a right answer
never meets one by way of another function.

What this cannot hold: it is a policy inside the learner's own process. Code that writes into
torch's memory, that calls the library's C++ symbols past the dispatcher, or that brings a copy of
torch's own Python source along, is not stopped by it. Such code shows itself to whoever reads it.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import sys
import types
import warnings
from collections.abc import Iterable
from typing import Any, NoReturn

import torch
import torch.nn.attention.flex_attention  # so that it is there to be replaced

from autograder.guest.policy import ForbiddenCall

_ATTENTION = (
    "scaled_dot_product_attention",
    "_scaled_dot_product_attention_math",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_native_multi_head_attention",
    "_transformer_encoder_layer_fwd",
)
FAMILIES: dict[str, tuple[str, ...]] = {
    "scaled_dot_product_attention": _ATTENTION,
    "multi_head_attention_forward": _ATTENTION,
    "layer_norm": ("layer_norm", "native_layer_norm"),
    "rms_norm": ("rms_norm", "_fused_rms_norm"),
    "group_norm": ("group_norm", "native_group_norm"),
    "instance_norm": ("instance_norm",),
    "batch_norm": (
        "batch_norm",
        "native_batch_norm",
        "_batch_norm_impl_index",
        "_batch_norm_no_update",
        "_batch_norm_with_update",
        "_batch_norm_with_update_functional",
        "_native_batch_norm_legit",
        "_native_batch_norm_legit.no_stats",
        "_native_batch_norm_legit_functional",
        "_native_batch_norm_legit_no_training",
    ),
    "softmax": (
        "softmax.int",
        "_softmax",
        "_safe_softmax",
        "_masked_softmax",
        "_sparse_softmax",
        "special_softmax",
    ),
    "cross_entropy": (
        "cross_entropy_loss",
        "nll_loss_nd",
        "nll_loss",
        "nll_loss_forward",
        "nll_loss2d",
        "nll_loss2d_forward",
    ),
}
"""Operators of aten that do what a forbidden function does, by its name."""
_QUANTIZED: dict[str, tuple[str, ...]] = {
    "layer_norm": ("layer_norm",),
    "group_norm": ("group_norm",),
    "instance_norm": ("instance_norm",),
    "batch_norm": ("batch_norm", "batch_norm1d", "batch_norm2d", "batch_norm3d"),
}
"""The same of the namespace ``quantized``."""
_KEYS = (
    "BackendSelect",
    "CPU",
    "CompositeImplicitAutograd",
    "FuncTorchBatched",
    "FuncTorchVmapMode",
)
"""Where torch looks for a kernel: before it looks what kind of tensor it has (nested, sparse,
MKL-DNN's); that of plain tensors; that of operators which are built from others; and, before it
comes to them, those of ``torch.func.vmap``, which take the operator apart."""
_DECOMPOSITIONS = "torch._decomp.decompositions"
_LINEAR_CROSS_ENTROPY = "torch.nn.modules.linear_cross_entropy"
_IN_PYTHON: dict[str, tuple[tuple[str, str], ...]] = {
    "scaled_dot_product_attention": (
        ("torch.nn.attention.flex_attention", "flex_attention"),
        ("torch._higher_order_ops.flex_attention", "math_attention"),
        ("torch.onnx.ops._impl", "attention_23"),
        ("torch.ao.nn.quantizable.modules.activation", "MultiheadAttention._forward_impl"),
    ),
    "layer_norm": (("torch._refs", "native_layer_norm"), ("torch._refs", "_normalize")),
    "rms_norm": ((_DECOMPOSITIONS, "_fused_rms_norm"),),
    "group_norm": (("torch._refs", "native_group_norm"),),
    "batch_norm": ((_DECOMPOSITIONS, "native_batch_norm_helper"),),
    "softmax": (
        ("torch._refs", "softmax"),
        (_DECOMPOSITIONS, "_softmax"),
        (_DECOMPOSITIONS, "safe_softmax"),
    ),
    "cross_entropy": (
        ("torch._refs.nn.functional", "_nll_loss_nd"),
        (_DECOMPOSITIONS, "_nll_loss_forward"),
        ("torch.nn.functional", "linear_cross_entropy"),
        (_LINEAR_CROSS_ENTROPY, "_linear_cross_entropy_batch_chunked_accumulator"),
    ),
}
"""What does the same without any of these operators, by module and name: torch's references and
decompositions of them, and kernels that are written in Python."""


def forbid(names: Iterable[str]) -> list[str]:
    """Replace the operators of each name's family.

    Returns:
        The list to which the name of a forbidden call is added when it happens.
    """
    refusals: dict[str, Any] = {}
    quantized: dict[str, Any] = {}
    for name in sorted({name.rsplit(".", 1)[-1] for name in names}):
        refuse = _refusal(name)
        for operator in FAMILIES.get(name, ()):
            refusals.setdefault(operator, refuse)
        for operator in _QUANTIZED.get(name, ()):
            quantized.setdefault(operator, refuse)
        places = (("torch.nn.functional", name), *_IN_PYTHON.get(name, ()))
        found = [_found(module, own_name) for module, own_name in places]
        code = _refusing_code(name) if any(found) else None
        for item in found:
            # The function itself, below what wraps it, and its code and not its name: whoever holds
            # it already, holds this one.
            function = inspect.unwrap(getattr(item, "_init_fn", item)) if callable(item) else None
            if isinstance(function, types.FunctionType) and code is not None:
                function.__code__ = code
    with warnings.catch_warnings():
        # "overriding a previously registered kernel": on purpose
        warnings.simplefilter("ignore")
        for key in _KEYS:
            _replace_kernels("aten", key, refusals)
        _replace_kernels("quantized", "QuantizedCPU", quantized)
    return _seen


def _found(module: str, name: str) -> Any:
    """What stands under a dotted name in a module that is loaded, or None."""
    return functools.reduce(
        lambda holder, part: getattr(holder, part, None), name.split("."), sys.modules.get(module)
    )


_seen: list[str] = []
_POINTER = ctypes.sizeof(ctypes.c_void_p)


def _replace_kernels(namespace: str, key: str, refusals: dict[str, Any]) -> None:
    if not refusals:
        return
    library = torch._C._dispatch_library("IMPL", namespace, key)
    for operator, refuse in refusals.items():
        library.impl(operator, key, refuse)
    # The replacement lasts as long as the library object. It has one reference too many and no
    # name; and since a walk through Python's memory could know it by its type and let go of the
    # replacement, it is from now on an object like any other.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(library))
    ctypes.c_void_p.from_address(id(library) + object.__basicsize__ - _POINTER).value = id(object)


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
