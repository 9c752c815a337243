"""How a chapter's checks are written: exercises, checks, seeded cases, messages in three parts.

A chapter's ``autograder/checks/<stem>.py`` makes one :class:`Exercise` per exercise, in the order
of the page, and decorates its checks::

    exercise = Exercise("masked_softmax", title=_("..."), difficulty=2, minutes=15, hints=(...))

    @exercise.check(points=1)
    def rows_sum_to_one(answer, cases):
        "Every row of the weights sums to 1."
        weights = expect_tensor(answer(cases.normal(3, 5)), (3, 5), what=_("the weights"))
        ...

``answer`` is an :class:`autograder.answer.Answer`, ``cases`` a :class:`Cases`. A check passes by
returning and fails by raising, most simply through ``expect_*`` and :func:`fail`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from autograder.i18n import _
from autograder.memory import Memory

if TYPE_CHECKING:
    from autograder.answer import Answer

CheckFunction = Callable[..., None]
T = TypeVar("T")

hidden_now: ContextVar[bool] = ContextVar("hidden_now", default=False)
"""Whether the check that is running is hidden: then a message may hold no value of a case."""


_made: dict[str, list[Exercise]] = {}


def exercises_of(module_name: str) -> list[Exercise]:
    """The exercises that a checks file made, in order."""
    return _made.get(module_name, [])


@dataclass(frozen=True)
class Message:
    """A message to a learner: what was seen, the likely cause, the next step."""

    seen: str
    cause: str
    next_step: str

    def __str__(self) -> str:
        return " ".join(part for part in (self.seen, self.cause, self.next_step) if part)


class CheckFailed(Exception):
    """A check's verdict on an answer that is not right."""

    def __init__(self, message: Message) -> None:
        super().__init__(str(message))
        self.message = message


@dataclass(frozen=True)
class Check:
    """One check of an exercise: its function, its name, and what it is worth."""

    function: CheckFunction
    name: str
    asks: str
    points: float
    hidden: bool


@dataclass
class Exercise:
    """An exercise as it is judged.

    Attributes:
        name: the function or class the learner writes; the id is ``<stem>.<name>``.
        title: a few words for badges and reports.
        difficulty: 1 (a warm-up) to 5.
        minutes: what a learner should allow.
        hints: three rungs: a question, help for the likely error, pseudocode.
        forbid: bare names of torch functions that may not answer the exercise, such as
            ``scaled_dot_product_attention`` (a dotted name counts by its last part).
        given: name of the bank's wrong answer that is handed out (bug finding).
        needs: packages that not every machine can have.
    """

    name: str
    title: str
    difficulty: int
    minutes: int
    hints: tuple[str, str, str]
    forbid: tuple[str, ...] = ()
    given: str | None = None
    needs: tuple[str, ...] = ()
    stem: str = ""
    checks: list[Check] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.forbid = tuple(name.rsplit(".", 1)[-1] for name in self.forbid)
        # frame 1 is the generated __init__, frame 2 the chapter's checks file
        module = sys._getframe(2).f_globals["__name__"]
        self.stem = self.stem or module.rsplit(".", 1)[-1]
        _made.setdefault(module, []).append(self)

    @property
    def id(self) -> str:
        """The exercise's name everywhere: ``<stem>.<name>``."""
        return f"{self.stem}.{self.name}"

    @property
    def missing(self) -> str:
        """In one line, what the exercise cannot do without and is not installed here; or empty."""
        names = [name for name in self.needs if importlib.util.find_spec(name) is None]
        if not names:
            return ""
        return _(
            "`{exercise}` needs {names}, which is not installed here and not to be had for Windows "
            "and macOS: open the chapter in Colab for it. The other exercises work here."
        ).format(exercise=self.name, names=", ".join(names))

    @property
    def points(self) -> float:
        """What the exercise is worth."""
        return sum(check.points for check in self.checks)

    def check(
        self, *, points: float, hidden: bool = False
    ) -> Callable[[CheckFunction], CheckFunction]:
        """Add a check; its docstring says to the learner what it asks."""

        def add(function: CheckFunction) -> CheckFunction:
            asks = _((function.__doc__ or "").strip())
            self.checks.append(Check(function, function.__name__, asks, points, hidden))
            return function

        return add


class Cases:
    """Seeded inputs of one check: the same seed gives the same cases on every machine.

    Args:
        key: what the seed depends on; the seed itself, the exercise and the check.
        memory: what was drawn with this key before, and is drawn again; a tensor is the same
            object then, unless somebody wrote into it.
    """

    def __init__(self, *key: Any, memory: Memory | None = None) -> None:
        self._key = key
        self._memory = Memory() if memory is None else memory
        self._drawn = 0
        self._generator: torch.Generator | None = None

    def _draw(self, what: Hashable, make: Callable[[torch.Generator], T]) -> T:
        """The next draw; ``what`` tells it from any other that could come in its place."""
        place = self._drawn
        self._drawn += 1
        draws = self._memory.draws
        if place < len(draws) and draws[place].what == what:
            value: T = self._memory.drawn(place)
            return value
        if place < len(draws):  # another answer took the check another way
            self._memory = self._memory.up_to(place)
        if self._generator is None:
            digest = hashlib.sha256("/".join(map(str, self._key)).encode()).digest()
            self._generator = torch.Generator().manual_seed(int.from_bytes(digest[:7], "big"))
            for earlier in draws[:place]:
                earlier.make(self._generator)
        value = make(self._generator)
        self._memory.add(what, make, value)
        return value

    def normal(self, *shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float32) -> Tensor:
        """Normal values of deviation ``scale``; drawn in float64, then rounded to ``dtype``."""

        def make(generator: torch.Generator) -> Tensor:
            drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
            return (drawn * scale).to(dtype)

        return self._draw(("normal", shape, scale, dtype), make)

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """Uniform float32 values in [low, high)."""

        def make(generator: torch.Generator) -> Tensor:
            drawn = torch.rand(shape, generator=generator, dtype=torch.float64)
            return (low + (high - low) * drawn).to(torch.float32)

        return self._draw(("uniform", shape, low, high), make)

    def integers(self, low: int, high: int, *shape: int) -> Tensor:
        """Integers in [low, high), dtype int64."""
        return self._draw(
            ("integers", low, high, shape),
            lambda generator: torch.randint(low, high, shape, generator=generator),
        )

    def integer(self, low: int, high: int) -> int:
        """One integer in [low, high)."""
        return self._draw(
            ("integer", low, high),
            lambda generator: int(torch.randint(low, high, (1,), generator=generator)),
        )

    def distinct(self, count: int, low: int, high: int) -> list[int]:
        """``count`` different integers in [low, high): sizes that cannot be mixed up."""
        return [low + item for item in self._order(high - low)[:count]]

    def permutation(self, n: int) -> Tensor:
        """A permutation of 0 … n-1 that moves at least one item (n > 1)."""

        def make(generator: torch.Generator) -> Tensor:
            order = torch.randperm(n, generator=generator)
            return order if n < 2 or bool((order != torch.arange(n)).any()) else order.roll(1)

        return self._draw(("permutation", n), make)

    def mask(self, *shape: int, p: float = 0.6) -> Tensor:
        """A boolean mask, True with probability ``p``; each row allows one key and hides one."""

        def make(generator: torch.Generator) -> Tensor:
            mask = torch.rand(shape, generator=generator) < p
            last = shape[-1]
            if last > 1:
                rows = (*shape[:-1], 1)
                allowed = torch.randint(last, rows, generator=generator)
                hidden = (allowed + 1 + torch.randint(last - 1, rows, generator=generator)) % last
                mask = mask.scatter(-1, hidden, False).scatter(-1, allowed, True)
            return mask

        return self._draw(("mask", shape, p), make)

    def shuffled(self, items: Sequence[Any]) -> list[Any]:
        """The items in another order (a learner's test must not learn which comes when)."""
        return [items[i] for i in self._order(len(items))]

    def _order(self, n: int) -> tuple[int, ...]:
        return self._draw(
            ("order", n),
            lambda generator: tuple(torch.randperm(n, generator=generator).tolist()),
        )

    def seed(self) -> int:
        """A seed for a call whose own randomness is wanted."""
        return self.integer(0, 2**31)


def fail(*, seen: str, cause: str, next_step: str) -> None:
    """Fail the running check with a message in three parts."""
    raise CheckFailed(Message(seen, cause, next_step))


def expect(condition: bool | Tensor, *, seen: str, cause: str, next_step: str) -> None:
    """Fail the running check unless the condition holds."""
    if not bool(condition):
        fail(seen=seen, cause=cause, next_step=next_step)


def expect_tensor(
    value: Any, shape: Sequence[int], *, what: str, dtype: torch.dtype | None = None
) -> Tensor:
    """The value, where it is a tensor of that shape (and dtype); else the check fails."""
    if not isinstance(value, Tensor):
        fail(
            seen=_("{what} is a {kind}, not a tensor.").format(
                what=what, kind=type(value).__name__
            ),
            cause=_("Perhaps a return value is missing, or in another order."),
            next_step=_("Compare what you return with the last line of the docstring."),
        )
    if tuple(value.shape) != tuple(shape):
        if hidden_now.get():
            seen = _("{what} has shape {found}, which is not the right one.")
        else:
            seen = _("{what} has shape {found}; expected {wanted}.")
        fail(
            seen=seen.format(what=what, found=tuple(value.shape), wanted=tuple(shape)),
            cause=_("An axis was summed, swapped or lost on the way."),
            next_step=_(
                "Write the shape behind each line of your code and find the first that "
                "differs from the docstring."
            ),
        )
    if dtype is not None and value.dtype != dtype:
        fail(
            seen=_("{what} has dtype {found}; expected {wanted}.").format(
                what=what, found=value.dtype, wanted=dtype
            ),
            cause=_("A constant or a conversion on the way has another dtype than the input."),
            next_step=_(
                "Make new tensors with the dtype of the input, and convert back what you "
                "computed in another."
            ),
        )
    return value


def expect_items(value: Any, count: int, *, what: str) -> tuple[Any, ...]:
    """The items, where the value is a tuple (or list) of ``count``; else the check fails."""
    if not isinstance(value, tuple | list) or len(value) != count:
        found = (
            _("a tuple of {n}").format(n=len(value))
            if isinstance(value, tuple | list)
            else _("one value")
        )
        fail(
            seen=_("The result is {found}; expected {what}.").format(found=found, what=what),
            cause=_("Something that the docstring promises is not returned."),
            next_step=_("Return exactly {what}, in this order.").format(what=what),
        )
    return tuple(value)


def expect_parameters(module: Answer, shapes: Mapping[str, Sequence[int]]) -> None:
    """The module has exactly these parameters. What they start from tells mistakes apart."""
    _expect_shapes({n: str(tuple(p.shape)) for n, p in module.parameters().items()}, shapes)


def expect_counted(answer: Answer, meter: Mapping[str, int], least: int) -> None:
    """So many numbers were made where they are counted, see :mod:`autograder.guest.meter`.

    Args:
        meter: of a call.
        least: what every right answer makes: its scores, for instance.
    """
    enough = meter["total"] >= least
    answer.note(enough)
    expect(
        enough,
        seen=_("PyTorch made {n} numbers, and there are {least} scores.").format(
            n=meter["total"], least=least
        ),
        cause=_("They are computed outside of it: in NumPy, in lists, or in another thread."),
        next_step=_("Compute with tensors, in the function itself: nothing else is counted."),
    )


def expect_shapes(module: Answer, shapes: Mapping[str, Sequence[int]]) -> None:
    """The same where other weights are loaded next, and what they start from does not matter."""
    _expect_shapes(module.shapes(), shapes)


def _expect_shapes(found: Mapping[str, str], shapes: Mapping[str, Sequence[int]]) -> None:
    for name, shape in shapes.items():
        wanted = str(tuple(shape))
        if name not in found:
            fail(
                seen=_("There is no parameter called {name}.").format(name=name),
                cause=_(
                    "An attribute has another name than the docstring gives it, a module stands "
                    "in a plain list, one module stands in two places, or a part is missing."
                ),
                next_step=_("Print the names: [name for name, _ in module.named_parameters()]."),
            )
        if found[name] != wanted:
            fail(
                seen=_("{name} has shape {found}; expected {wanted}.").format(
                    name=name, found=found[name], wanted=wanted
                ),
                cause=_("A width is not the one that was given, or two widths are swapped."),
                next_step=_("Compare the module's arguments with the docstring's attributes."),
            )
    surplus = sorted(set(found) - set(shapes))
    expect(
        not surplus,
        seen=_("There are parameters too many: {names}.").format(names=", ".join(surplus[:3])),
        cause=_("A part stands there, such as a bias or a norm, that the docstring does not name."),
        next_step=_("Build what the docstring lists under Attributes, and nothing else."),
    )


def expect_close(
    actual: Any,
    expected: Tensor,
    *,
    atol: float,
    rtol: float = 0.0,
    what: str,
    cause: str,
    next_step: str,
) -> None:
    """Compare a tensor with its float64 reference: shape first, then finite, then the values.

    The comparison is made in float64; ``atol`` and ``rtol`` need a reason where they are given.
    A NaN or an infinity in ``expected`` must stand in ``actual`` too.
    """
    actual = expect_tensor(actual, expected.shape, what=what)
    if actual.is_complex() or expected.is_complex():
        actual, expected = actual.to(torch.complex128), expected.to(torch.complex128)
    else:
        actual, expected = actual.double(), expected.double()
        # the usual case in few steps; a NaN or an infinity is no gap that is small enough
        if rtol == 0 and expected.numel() and (actual - expected).abs().max().item() <= atol:
            return
    if bool(actual.isnan().any()) and not bool(expected.isnan().any()):
        fail(
            seen=_("{what} has NaN in it.").format(what=what),
            cause=_("Somewhere infinity is subtracted from infinity, or 0 divided by 0. ") + cause,
            next_step=next_step,
        )
    if torch.allclose(actual, expected, atol=atol, rtol=rtol, equal_nan=True):
        return
    if hidden_now.get():
        seen = _("{what} differs from what the definition gives.").format(what=what)
    else:
        gap = (actual - expected).abs().nan_to_num(nan=float("inf")).max().item()
        seen = _("{what} differs from what the definition gives by up to {gap:.2g}.").format(
            what=what, gap=gap
        )
    fail(seen=seen, cause=cause, next_step=next_step)
