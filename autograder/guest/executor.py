"""Carries out, next to the learner's code, the few things that a check may ask of an answer.

One :class:`Executor` holds one answer (a function or a class). It takes a request and gives a
reply, both plain data (:mod:`autograder.guest.plain`). It gives no verdict: it has nothing to
judge with. The same executor serves the learner's own kernel and the sandbox at grading.

Requests (``op`` and its fields):

``call``
    ``object`` (0 is the answer itself, other numbers were given out as :class:`Opaque`),
    ``method`` (a name, or None for the object itself), ``args``, ``kwargs``; optional: ``seed``
    (set before the call), ``wrt`` (positions and names of the arguments whose gradients are wanted;
    ``"parameters"`` adds those of the object), ``cotangent`` (a tensor for the differentiated
    output; by default ones), ``of`` (which item of a tuple is differentiated), ``echo`` (return the
    arguments as they are after the call), ``meter`` (return what :mod:`autograder.guest.meter`
    counted).
``parameters`` / ``shapes``
    a module's parameters by name; their shapes as text, such as ``(3, 4)``.
``state`` / ``load`` / ``train``
    a module's ``state_dict``, loading into it (fields ``state`` and ``strict``), its mode (``on``).
``fixture``
    an object of :mod:`autograder.guest.fixtures`, by ``name`` and ``args``.
``attribute``
    the plain value of attribute ``name``.

Any of them may be ``fresh``: the first request of a check, which knows of no object but the answer
itself, so that those of the checks before it are let go.

A reply is ``{"value": ...}`` with ``grads``, ``args``, ``meter`` where they were asked for, or
``{"error": type name, "text": ..., "line": ..., "unanswered": bool}``. ``forbidden`` lists what was
called against the exercise's policy.
"""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from autograder.guest.fixtures import FIXTURES
from autograder.guest.meter import Meter
from autograder.guest.plain import Callback, NotPlain, Opaque, to_plain
from autograder.guest.policy import Forbidding

MAX_ERROR_TEXT = 400

Ask = Callable[[dict[str, Any]], dict[str, Any]]
"""How a callback reaches the judge: plain data out, plain data back."""


class Executor:
    """Holds a learner's answer and carries out requests on it.

    Args:
        answer: the function or class the learner wrote.
        forbid: bare names of torch functions that the exercise forbids.
        ask: how calls of a :class:`Callback` reach the judge.
        quiet: drop what the learner's code prints meanwhile.
    """

    def __init__(
        self, answer: Any, *, forbid: Iterable[str] = (), ask: Ask | None = None, quiet: bool = True
    ) -> None:
        self._objects: list[Any] = [answer]
        self._forbid = tuple(forbid)
        self._ask = ask
        self._quiet = quiet
        self._watched: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carry out one request; every failure of the learner's code becomes a reply."""
        if request.get("fresh"):
            del self._objects[1:]
        policy = Forbidding(self._forbid)
        # around the learner's code alone: each call into torch that it sees costs time
        self._watched = policy if self._forbid else contextlib.nullcontext()
        before = sys.stdout, sys.stderr
        if self._quiet:
            sys.stdout = sys.stderr = io.StringIO()
        try:
            operation = getattr(self, f"_do_{request['op']}")
            if request["op"] == "call":
                reply: dict[str, Any] = operation(request)
            else:
                with self._watched:
                    reply = operation(request)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit and GeneratorExit are answers' errors as well
            reply = _describe(error)
        finally:
            sys.stdout, sys.stderr = before
        if policy.seen:
            reply["forbidden"] = sorted(set(policy.seen))
        return reply

    # Each _do_<op> is one operation of the module's docstring.

    def _do_call(self, request: dict[str, Any]) -> dict[str, Any]:
        target = self._objects[request["object"]]
        if request.get("method"):
            with self._watched:
                target = getattr(target, request["method"])
        args = [self._unwrap(item) for item in request.get("args", ())]
        kwargs = {key: self._unwrap(item) for key, item in request.get("kwargs", {}).items()}
        wrt = request.get("wrt")
        inputs = self._require_gradients(args, kwargs, wrt)
        if request.get("seed") is not None:
            torch.default_generator.manual_seed(request["seed"])
        meter = Meter() if request.get("meter") else contextlib.nullcontext()
        reply: dict[str, Any] = {}
        with self._watched:
            with meter:
                value = target(*args, **kwargs)
            if wrt is not None:
                reply["grads"] = self._gradients(request, value, inputs)
            if not _is_plain(value):
                reply["value"] = self._wrap(value)
        if "value" not in reply:
            reply["value"] = self._wrap(value)
        if request.get("echo"):
            reply["args"] = [to_plain(item, self._keep) for item in args]
        if isinstance(meter, Meter):
            reply["meter"] = meter.counts()
        return reply

    def _do_state(self, request: dict[str, Any]) -> dict[str, Any]:
        module = self._module(request)
        return {"value": to_plain(dict(module.state_dict()))}

    def _do_parameters(self, request: dict[str, Any]) -> dict[str, Any]:
        module = self._module(request)
        return {"value": to_plain(dict(module.named_parameters()))}

    def _do_shapes(self, request: dict[str, Any]) -> dict[str, Any]:
        module = self._module(request)
        return {"value": {str(n): str(tuple(p.shape)) for n, p in module.named_parameters()}}

    def _do_load(self, request: dict[str, Any]) -> dict[str, Any]:
        module, state, strict = self._module(request), request["state"], request.get("strict", True)
        if not _load_at_once(module, state, strict):
            module.load_state_dict(self._unwrap(state), strict=strict)
        return {"value": None}

    def _do_train(self, request: dict[str, Any]) -> dict[str, Any]:
        self._module(request).train(request["on"])
        return {"value": None}

    def _do_attribute(self, request: dict[str, Any]) -> dict[str, Any]:
        return {"value": self._wrap(getattr(self._objects[request["object"]], request["name"]))}

    def _do_fixture(self, request: dict[str, Any]) -> dict[str, Any]:
        # the same object each time: what it holds is part of a trace
        torch.default_generator.manual_seed(0)
        return {"value": self._wrap(FIXTURES[request["name"]](*request.get("args", ())))}

    def _module(self, request: dict[str, Any]) -> nn.Module:
        module = self._objects[request["object"]]
        if not isinstance(module, nn.Module):
            raise TypeError(f"expected an nn.Module, found {type(module).__name__}")
        return module

    def _require_gradients(
        self, args: list[Any], kwargs: dict[str, Any], wrt: Any
    ) -> dict[str, Tensor]:
        """Make leaves of the arguments named in ``wrt``; the result is keyed by their names."""
        inputs: dict[str, Tensor] = {}
        for key in wrt or ():
            if key == "parameters":
                continue
            holder: Any = kwargs if isinstance(key, str) else args
            holder[key] = holder[key].detach().clone().requires_grad_()
            inputs[str(key)] = holder[key]
        return inputs

    def _gradients(
        self, request: dict[str, Any], value: Any, inputs: dict[str, Tensor]
    ) -> dict[str, Any]:
        of = request.get("of")
        output = value if of is None else value[of]
        leaves = dict(inputs)
        if "parameters" in request["wrt"]:
            leaves |= dict(self._objects[request["object"]].named_parameters())
        cotangent = request.get("cotangent")
        cotangent = torch.ones_like(output) if cotangent is None else cotangent
        found: tuple[Any, ...] = (None,) * len(leaves)
        if output.requires_grad:
            # contiguous copies: an output may be an expanded view
            found = torch.autograd.grad(
                output, list(leaves.values()), cotangent.to(output.dtype), allow_unused=True
            )
        return {
            key: None if grad is None else to_plain(grad)
            for key, grad in zip(leaves, found, strict=True)
        }

    def _keep(self, value: Any) -> Opaque:
        self._objects.append(value)
        return Opaque(len(self._objects) - 1)

    def _wrap(self, value: Any) -> Any:
        return to_plain(value, self._keep)

    def _unwrap(self, value: Any) -> Any:
        if isinstance(value, Opaque):
            return self._objects[value.number]
        if isinstance(value, Callback):
            return self._function(value)
        if type(value) in (list, tuple):
            return type(value)(self._unwrap(item) for item in value)
        if type(value) is dict:
            return {key: self._unwrap(item) for key, item in value.items()}
        if isinstance(value, Tensor):
            return value.clone()
        return value

    def _function(self, callback: Callback) -> Callable[..., Any]:
        """The judge's function as the learner's code sees it: opaque, and differentiable."""

        def implementation(*args: Any, **kwargs: Any) -> Any:
            if self._ask is None:
                raise RuntimeError("nobody answers callbacks here")
            leaves = list(_tensors((args, kwargs)))
            wanted = any(leaf.requires_grad for leaf in leaves) and torch.is_grad_enabled()
            reply = self._ask(
                {
                    "callback": callback.number,
                    "args": to_plain(list(args)),
                    "kwargs": to_plain(kwargs),
                    "requires_grad": wanted,
                }
            )
            if "error" in reply:
                raise RuntimeError(reply["error"])
            for leaf, now in zip(leaves, reply["overwritten"], strict=True):
                if now is not None:  # what the implementation wrote into its input shows here too
                    leaf.detach().copy_(now)
            if not wanted:
                return reply["value"]
            return _Remote.graft(self._ask, reply, leaves)

        return implementation


class _Remote(torch.autograd.Function):
    """Joins an output that the judge computed to the learner's graph; backward asks the judge."""

    @staticmethod
    def graft(ask: Ask, reply: dict[str, Any], leaves: list[Tensor]) -> Any:
        value = reply["value"]
        single = isinstance(value, Tensor)
        outputs = (value,) if single else tuple(value)
        if not all(isinstance(item, Tensor) for item in outputs):
            return value
        joined = _Remote.apply(ask, reply["call"], outputs, *leaves)
        return joined[0] if single else type(value)(joined)

    @staticmethod
    def forward(ctx: Any, ask: Ask, call: int, outputs: tuple[Any, ...], *leaves: Tensor) -> Any:
        ctx.ask, ctx.call = ask, call
        return tuple(item.clone() for item in outputs)

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> Any:
        reply = ctx.ask({"backward": ctx.call, "cotangents": to_plain(list(cotangents))})
        return (None, None, None, *reply["value"])


def _tensors(value: Any) -> Iterator[Tensor]:
    """The tensors in what :func:`to_plain` copies, in its order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _load_at_once(module: nn.Module, state: dict[str, Tensor], strict: bool) -> bool:
    """Do what ``load_state_dict`` would, in one step, where it is known to come to the same.

    That is where the entries are the parameters, each of its shape, nothing else is asked for, and
    no class and no hook has a way of its own. Going from module to module takes ten times as long.
    """
    for part in module.modules():
        kind = type(part)
        if (
            (strict and not part._non_persistent_buffers_set.issuperset(part._buffers))
            or part._load_state_dict_pre_hooks
            or part._load_state_dict_post_hooks
            or kind.load_state_dict is not nn.Module.load_state_dict
            or kind._load_from_state_dict is not nn.Module._load_from_state_dict
            or kind.set_extra_state is not nn.Module.set_extra_state
        ):
            return False
    own = dict(module.named_parameters(remove_duplicate=False))
    if own.keys() != state.keys():
        return False
    values = [state[name] for name in own]  # in the module's order, as one part after the other
    if not all(
        type(parameter) is nn.Parameter and type(value) is Tensor and parameter.shape == value.shape
        for parameter, value in zip(own.values(), values, strict=True)
    ):
        return False
    with torch.no_grad():
        torch._foreach_copy_(list(own.values()), values)
    return True


def _is_plain(value: Any) -> bool:
    """Whether reading a result runs no code of the learner's: it is of torch's and Python's own
    types."""
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return value is None or type(value) in (Tensor, bool, int, float)


def _describe(error: BaseException) -> dict[str, Any]:
    line = None
    step = error.__traceback__
    while step is not None:
        filename = step.tb_frame.f_code.co_filename
        # a learner's cell is compiled under a name in angle brackets or below ipykernel's folder
        if filename.startswith("<") or "ipykernel" in filename:
            line = step.tb_lineno
        step = step.tb_next
    try:
        text = str(error)[:MAX_ERROR_TEXT]
    except Exception:
        text = ""
    if isinstance(error, NotPlain):
        text = f"the result cannot be read: {text}"
    kind = next(t.__name__ for t in type(error).__mro__ if t.__module__ in _KNOWN_MODULES)
    return {
        "error": kind,
        "text": text,
        "line": line,
        "unanswered": isinstance(error, NotImplementedError),
    }


_KNOWN_MODULES = ("builtins", "autograder.guest.policy", "autograder.guest.plain")
