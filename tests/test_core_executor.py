"""Next to the learner's code: weights loaded in one step are those that torch would load."""

from __future__ import annotations

import copy
import io
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from autograder.guest.executor import Executor
from autograder.guest.plain import Opaque


class Tied(nn.Module):
    """One part under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.a = self.b = nn.Linear(2, 3)


class Doubling(nn.Linear):
    """Loads in a way of its own."""

    def _load_from_state_dict(self, state: Any, prefix: str, *rest: Any) -> None:
        doubled = {name: 2 * item for name, item in state.items()}
        super()._load_from_state_dict(doubled, prefix, *rest)


def hooked() -> nn.Module:
    layer = nn.Linear(2, 3)
    layer.register_load_state_dict_pre_hook(lambda _module, state, *_rest: state.clear())
    return layer


def kept_aside() -> nn.Module:
    layer = nn.Linear(2, 3)
    layer.register_buffer("table", torch.ones(2), persistent=False)
    return layer


MODULES: dict[str, Callable[[], nn.Module]] = {
    "plain": lambda: nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3)),
    "double": lambda: nn.Linear(2, 3).double(),
    "tied": Tied,
    "tied without its second name": Tied,
    "with a buffer": lambda: nn.BatchNorm1d(3),
    "without its buffers": lambda: nn.BatchNorm1d(3),
    "with a buffer that is not kept": kept_aside,
    "with a way of its own": lambda: nn.Sequential(Doubling(2, 3)),
    "with a hook": hooked,
    "one too few": lambda: nn.Linear(2, 3),
    "one too many": lambda: nn.Linear(2, 3),
    "another shape": lambda: nn.Linear(2, 3),
}


def state_for(name: str, module: nn.Module) -> dict[str, Tensor]:
    state = {key: torch.randn(item.shape) for key, item in module.state_dict().items()}
    if name == "tied without its second name":
        del state["b.weight"]
    if name == "without its buffers":
        state = {"weight": state["weight"], "bias": state["bias"]}
    if name == "one too few":
        del state["bias"]
    if name == "one too many":
        state["more"] = torch.zeros(1)
    if name == "another shape":
        state["bias"] = torch.zeros(4)
    return state


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize("name", MODULES)
def test_loading_in_one_step(name: str, strict: bool) -> None:
    executor = Executor(MODULES[name])
    assert executor.handle({"op": "call", "object": 0, "args": []})["value"] == Opaque(1)
    module = executor._objects[1]
    other = copy.deepcopy(module)
    state = state_for(name, module)
    before = {key: item.clone() for key, item in state.items()}
    expected: dict[str, Any] = {"value": None}
    try:
        other.load_state_dict(dict(state), strict=strict)
    except RuntimeError:
        expected = {"error": "RuntimeError"}
    reply = executor.handle({"op": "load", "object": 1, "state": state, "strict": strict})
    assert {key: reply[key] for key in expected} == expected
    loaded = other.state_dict()
    assert all(torch.equal(item, loaded[key]) for key, item in module.state_dict().items())
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
    assert all(torch.equal(item, before[key]) for key, item in state.items())


def test_what_is_printed_is_dropped_and_the_streams_come_back() -> None:
    def noisy() -> int:
        print("out")
        print("err", file=sys.stderr)
        sys.stdout = io.StringIO()
        return 1

    streams = sys.stdout, sys.stderr
    assert Executor(noisy).handle({"op": "call", "object": 0})["value"] == 1
    assert (sys.stdout, sys.stderr) == streams


def test_an_unknown_request_is_an_error_like_any_other() -> None:
    assert Executor(None).handle({"op": "nonsense"})["error"] == "AttributeError"
