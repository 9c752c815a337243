"""What a check may do with a learner's answer, and nothing more.

An :class:`Answer` asks over a :class:`Link`. In the learner's own kernel the link is a
:class:`LocalLink` around the object itself; at grading it leads to another process. Checks cannot
tell them apart: both give plain data (:mod:`autograder.guest.plain`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from autograder.guest.executor import Executor
from autograder.guest.plain import Callback, Opaque, reach, tensors_in, to_plain
from autograder.i18n import _

MAX_CALLBACKS = 2_000
MAX_GRAPHS = 64
"""Results of callbacks that can still be differentiated: the latest ones."""
MAX_REACH = 2**22
"""Of all these results together, what :func:`autograder.guest.plain.reach` says of their inputs: a
graph holds several tensors of that size, 16 MB each in float32."""
MAX_RESULT = 16 * 2**20
"""Bytes of what one callback returns."""


class Link(Protocol):
    """A way to the learner's side."""

    def request(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send one request of :mod:`autograder.guest.executor`, return its reply.

        Raises:
            LinkLost: there is no reply to be had, for the reason it names.
        """
        ...


@runtime_checkable
class Recording(Link, Protocol):
    """A link that keeps what came back over it: mistakes are recognised by that.

    Attributes:
        trace: what came back, in order.
    """

    trace: list[Any]


class LinkLost(Exception):
    """The learner's side gave no usable reply.

    Attributes:
        reason: ``timeout``, ``memory``, ``crashed`` or ``garbled``.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class AnswerRaised(Exception):
    """The learner's code raised. Everything here comes from the learner's side.

    Attributes:
        kind: the name of the built-in exception type.
        text: its message, cut.
        line: the line of the learner's cell, where known.
        unanswered: it was ``NotImplementedError``: the stub as it was handed out.
    """

    def __init__(self, kind: str, text: str, line: int | None, unanswered: bool) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind, self.text, self.line, self.unanswered = kind, text, line, unanswered


class ForbiddenUse(Exception):
    """The learner's code called functions that the exercise forbids (``names``)."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(", ".join(names))
        self.names = tuple(names)


class _Late(Exception):
    """A result cannot be differentiated any longer."""


class _Large(Exception):
    """A result is larger than a test needs it."""


class Callbacks:
    """The judge's functions that a learner's code may call (a test that the learner wrote).

    One object serves one link; :meth:`answer` takes what the learner's side asks
    (``{"callback", "args", "kwargs", "requires_grad"}`` or ``{"backward", "cotangents"}``) and
    returns plain data. What is asked is checked: it comes from the other side.

    Attributes:
        probed: replies of the learner's test that say the same to every check, see
            :meth:`Answer.probe`.
    """

    def __init__(self) -> None:
        self.probed: dict[Hashable, Any] = {}
        self._functions: list[Callable[..., Any]] = []
        self._names: list[Hashable] = []
        self._graphs: dict[int, tuple[list[Tensor], list[Tensor], int]] = {}
        self._calls = 0

    def add(self, function: Callable[..., Any], name: Hashable = None) -> Callback:
        """Register a function; the reference is what goes to the learner's side.

        Args:
            name: what else has this name does the same.
        """
        self._functions.append(function)
        self._names.append(name)
        return Callback(len(self._functions) - 1)

    def function(self, callback: Callback) -> Callable[..., Any]:
        """A function that was registered."""
        return self._functions[callback.number]

    def name(self, callback: Callback) -> Hashable:
        """The name that a function was registered by, or None."""
        return self._names[callback.number]

    def answer(self, ask: dict[str, Any]) -> dict[str, Any]:
        """Serve one request of the learner's side; its mistakes become ``{"error": text}``."""
        self._calls += 1
        if self._calls > MAX_CALLBACKS:
            return {"error": f"more than {MAX_CALLBACKS} calls"}
        try:
            if "backward" in ask:
                return self._backward(ask)
            return self._call(ask)
        except _Late:
            return {"error": _("differentiate a result before you compute many others")}
        except _Large:
            return {"error": _("it returns too much: a test may use small inputs only")}
        except Exception:
            # A wrong call of an implementation is the learner's mistake. What it raises would tell
            # the right ones from the wrong ones: by the names in it, or by who raises it.
            return {
                "error": _(
                    "it does not take these arguments: see what the docstring of your test "
                    "promises of names, shapes and dtypes"
                )
            }

    def _call(self, ask: dict[str, Any]) -> dict[str, Any]:
        function = self._functions[ask["callback"]]
        wanted = bool(ask.get("requires_grad"))
        leaves: list[Tensor] = []
        before: list[Tensor] = []

        def prepare(item: Any) -> Any:
            if isinstance(item, Tensor):
                before.append(item.clone())
                if wanted and item.is_floating_point():
                    # a leaf that an implementation may still write into
                    item = item.requires_grad_()
                leaves.append(item)
                return item
            if type(item) in (list, tuple):
                return type(item)(prepare(part) for part in item)
            if type(item) is dict:
                return {key: prepare(part) for key, part in item.items()}
            return item

        args, kwargs = prepare(list(ask["args"])), prepare(dict(ask["kwargs"]))
        with torch.set_grad_enabled(wanted):
            value = function(*args, **kwargs)
        if sum(tensor.numel() * tensor.itemsize for tensor in tensors_in(value)) > MAX_RESULT:
            raise _Large
        if wanted:
            outputs = [value] if isinstance(value, Tensor) else list(value)
            self._keep(outputs, leaves)
        overwritten = [
            None if _equal(leaf, old) else to_plain(leaf)
            for leaf, old in zip(leaves, before, strict=True)
        ]
        return {"value": to_plain(value), "call": self._calls, "overwritten": overwritten}

    def _keep(self, outputs: list[Tensor], leaves: list[Tensor]) -> None:
        """Keep a result with its graph; the oldest ones make room."""
        self._graphs[self._calls] = (outputs, leaves, reach(leaves))
        while len(self._graphs) > 1 and (
            len(self._graphs) > MAX_GRAPHS
            or sum(size for _outputs, _leaves, size in self._graphs.values()) > MAX_REACH
        ):
            del self._graphs[min(self._graphs)]

    def _backward(self, ask: dict[str, Any]) -> dict[str, Any]:
        if ask["backward"] not in self._graphs:
            raise _Late
        outputs, leaves, _size = self._graphs[ask["backward"]]
        pairs = [
            (output, cotangent)
            for output, cotangent in zip(outputs, ask["cotangents"], strict=True)
            if output.requires_grad
        ]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        found = torch.autograd.grad(
            [output for output, _ in pairs],
            wanted,
            [cotangent for _, cotangent in pairs],
            allow_unused=True,
            retain_graph=True,
        )
        by_leaf = {id(leaf): grad for leaf, grad in zip(wanted, found, strict=True)}
        return {"value": [to_plain(by_leaf.get(id(leaf))) for leaf in leaves]}


def _equal(one: Tensor, other: Tensor) -> bool:
    return torch.equal(one, other) or bool(((one == other) | (one.isnan() & other.isnan())).all())


class LocalLink:
    """A link to an object of this process: the learner's own kernel, and the answer bank.

    Args:
        target: the answer.
        trials: of a test that depends on what it is tried on and on nothing else: what it said,
            by the implementation's name. It takes what is not in it yet.
    """

    def __init__(
        self,
        target: Any,
        *,
        forbid: Iterable[str] = (),
        callbacks: Callbacks | None = None,
        trials: dict[Hashable, dict[str, Any]] | None = None,
    ) -> None:
        ask = callbacks.answer if callbacks is not None else None
        self._executor = Executor(target, forbid=forbid, ask=ask)
        self._callbacks, self._trials = callbacks, trials

    def request(self, message: dict[str, Any]) -> dict[str, Any]:
        """Carry the request out here. The generator of the process is left as it was."""
        callback = tried_on(message)
        if self._trials is None or self._callbacks is None or callback is None:
            return self._carry_out(message)
        name = self._callbacks.name(callback)
        if name is None:
            return self._carry_out(message)
        if name not in self._trials:
            self._trials[name] = self._carry_out(message)
        return self._trials[name]

    def _carry_out(self, message: dict[str, Any]) -> dict[str, Any]:
        before = torch.default_generator.get_state()
        try:
            return self._executor.handle(message)
        finally:
            torch.default_generator.set_state(before)


_TRIAL = {"op": "call", "object": 0, "method": None, "kwargs": {}, "seed": 0}
"""The request that tries a learner's test on an implementation, without the implementation."""


def tried_on(message: dict[str, Any]) -> Callback | None:
    """The implementation of a request by :meth:`Answer.accepts`; of any other one, None."""
    args = message.get("args", ())
    if len(args) != 1 or type(args[0]) is not Callback or message != {**_TRIAL, "args": args}:
        return None
    return args[0]


@dataclass
class Run:
    """What one call gave.

    Attributes:
        value: the result, plain data; an object that is none is an :class:`Answer`.
        grads: gradients by argument position or name (as ``str``), and by parameter name.
        args: the arguments as they were after the call, where ``echo`` was asked.
        meter: the counts of :class:`autograder.guest.meter.Meter`, by name, where asked.
    """

    value: Any
    grads: dict[str, Tensor | None] = field(default_factory=dict)
    args: list[Any] = field(default_factory=list)
    meter: dict[str, int] = field(default_factory=dict)


class Answer:
    """A learner's function, class or object, seen through a link."""

    def __init__(self, link: Link, callbacks: Callbacks, number: int = 0) -> None:
        self._link, self._callbacks, self._number = link, callbacks, number

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it and return its value. To build a module, call its class."""
        return self.run(args, kwargs).value

    def run(
        self,
        args: Sequence[Any],
        kwargs: dict[str, Any] | None = None,
        *,
        method: str | None = None,
        seed: int | None = None,
        wrt: Sequence[int | str] | None = None,
        cotangent: Tensor | None = None,
        of: int | None = None,
        echo: bool = False,
        meter: bool = False,
    ) -> Run:
        """Call it (or its ``method``), with what else is to be known of the call.

        Args:
            seed: set torch's generator before the call.
            wrt: positions and names of the arguments to differentiate by; ``"parameters"`` adds
                the object's parameters.
            cotangent: gradient of the differentiated output; ones by default.
            of: which item of a tuple is differentiated; None where the output is one tensor.
            echo: return the arguments as they are afterwards.
            meter: count the elements of the floating-point tensors that are made, the matrix
                products, and what Triton's interpreter loads and stores.

        Raises:
            AnswerRaised: the learner's code raised.
            ForbiddenUse: it called what the exercise forbids.
            LinkLost: no usable reply.
        """
        message: dict[str, Any] = {
            "op": "call",
            "object": self._number,
            "method": method,
            "args": [self._outgoing(item) for item in args],
            "kwargs": {key: self._outgoing(item) for key, item in (kwargs or {}).items()},
        }
        optional: dict[str, Any] = {
            "seed": seed,
            "wrt": None if wrt is None else list(wrt),
            "of": of,
        }
        optional |= {"cotangent": cotangent, "echo": echo or None, "meter": meter or None}
        message |= {key: item for key, item in optional.items() if item is not None}
        reply = self._ask(message)
        return Run(
            value=self._incoming(reply.get("value")),
            grads=dict(reply.get("grads") or {}),
            args=list(reply.get("args") or ()),
            meter=dict(reply.get("meter") or {}),
        )

    def method(self, name: str, *args: Any, **kwargs: Any) -> Any:
        """Call one of its methods and return the value."""
        return self.run(args, kwargs, method=name).value

    def state(self) -> dict[str, Tensor]:
        """A module's ``state_dict``."""
        return dict(self._ask({"op": "state", "object": self._number})["value"])

    def parameters(self) -> dict[str, Tensor]:
        """A module's parameters by name."""
        return dict(self._ask({"op": "parameters", "object": self._number})["value"])

    def shapes(self) -> dict[str, str]:
        """The shapes of a module's parameters by name, as text, such as ``(3, 4)``.

        Where values do not matter: they need not be copied, kept and compared.
        """
        return dict(self._ask({"op": "shapes", "object": self._number})["value"])

    def load(self, state: dict[str, Tensor], *, strict: bool = True) -> None:
        """Load weights into a module."""
        self._ask({"op": "load", "object": self._number, "state": state, "strict": strict})

    def train(self, on: bool = True) -> None:
        """Set a module's mode."""
        self._ask({"op": "train", "object": self._number, "on": on})

    def eval(self) -> None:
        """Set a module to evaluation mode."""
        self.train(False)

    def attribute(self, name: str) -> Any:
        """The value of an attribute."""
        reply = self._ask({"op": "attribute", "object": self._number, "name": name})
        return self._incoming(reply.get("value"))

    def fixture(self, name: str, *args: Any) -> Any:
        """An object beside the learner's code, from :mod:`autograder.guest.fixtures`."""
        return self._incoming(
            self._ask({"op": "fixture", "name": name, "args": list(args)}).get("value")
        )

    def note(self, fact: Any) -> None:
        """Add what a check found out from counts to what mistakes are recognised by.

        Counts themselves do not take part, since no two answers make the same tensors.
        """
        if isinstance(self._link, Recording):
            self._link.trace.append({"value": fact})

    def accepts(self, implementation: Callable[..., Any], name: Hashable = None) -> bool:
        """Run the answer, a test that the learner wrote, on an implementation.

        Args:
            name: what else has this name does the same.

        Returns:
            True where the test returned, False where it raised ``AssertionError``.

        Raises:
            AnswerRaised: it raised anything else.
        """
        try:
            # The same seed for each implementation: a test may draw its own inputs.
            self.run((self._callbacks.add(implementation, name),), seed=0)
        except AnswerRaised as error:
            if error.kind == "AssertionError":
                return False
            raise
        return True

    def rejects(self, implementation: Callable[..., Any], name: Hashable = None) -> bool:
        """Like ``not accepts``, for an implementation that is wrong.

        A test that stumbles over a wrong result with another exception has found it as well; on
        right implementations (:meth:`accepts`) the same exception is the test's own fault.
        """
        try:
            return not self.accepts(implementation, name)
        except AnswerRaised as error:
            if error.unanswered:
                raise
            return True

    def probe(self, implementation: Callable[..., Any], name: Hashable) -> None:
        """Run the answer, a test that the learner wrote, to recognise mistakes by what it says.

        It is run once: what the next checks over this link are told is the same, by ``name``.
        """
        known, recorder = self._callbacks.probed, self._link
        if name in known and isinstance(recorder, Recording):
            recorder.trace.append(known[name])
            return
        self.rejects(implementation, name)
        if isinstance(recorder, Recording):
            known[name] = recorder.trace[-1]

    def _ask(self, message: dict[str, Any]) -> dict[str, Any]:
        reply = self._link.request(message)
        if reply.get("forbidden"):
            raise ForbiddenUse([str(name) for name in reply["forbidden"]])
        if "error" in reply:
            line = reply.get("line")
            raise AnswerRaised(
                str(reply["error"]),
                str(reply.get("text", "")),
                line if type(line) is int else None,
                reply.get("unanswered") is True,
            )
        if "value" not in reply:
            raise LinkLost("garbled")
        return reply

    def _outgoing(self, item: Any) -> Any:
        if isinstance(item, Answer):
            return Opaque(item._number)
        if callable(item):
            return self._callbacks.add(item)
        if type(item) in (list, tuple):
            return type(item)(self._outgoing(part) for part in item)
        return item

    def _incoming(self, item: Any) -> Any:
        if isinstance(item, Opaque):
            return Answer(self._link, self._callbacks, item.number)
        if type(item) in (list, tuple):
            return type(item)(self._incoming(part) for part in item)
        if type(item) is dict:
            return {key: self._incoming(part) for key, part in item.items()}
        return item
