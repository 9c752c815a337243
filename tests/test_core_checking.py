"""What checks are written with: cases, expectations, messages."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from autograder.checking import (
    Cases,
    CheckFailed,
    Message,
    expect,
    expect_close,
    expect_items,
    expect_tensor,
    hidden_now,
)


def cases() -> Cases:
    return Cases(0, "a.b", "check")


def test_the_same_key_gives_the_same_cases_and_another_key_others() -> None:
    assert torch.equal(cases().normal(3, 4), cases().normal(3, 4))
    assert not torch.equal(cases().normal(3, 4), Cases(1, "a.b", "check").normal(3, 4))
    assert not torch.equal(cases().normal(3, 4), Cases(0, "a.b", "other").normal(3, 4))


def test_cases_leave_the_global_generator_alone() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    found = cases()
    found.normal(3), found.mask(2, 3), found.permutation(4), found.seed(), found.shuffled([1, 2])
    assert torch.rand(1) == expected


def test_a_dtype_rounds_the_same_draw() -> None:
    half, full = cases().normal(5, dtype=torch.float16), cases().normal(5)
    assert half.dtype == torch.float16
    assert torch.equal(half, full.half())


@pytest.mark.parametrize("seed", range(20))
def test_sizes_differ_masks_have_both_and_permutations_move(seed: int) -> None:
    found = Cases(seed)
    sizes = found.distinct(4, 2, 8)
    assert len(set(sizes)) == 4
    assert all(2 <= size < 8 for size in sizes)
    mask = found.mask(3, 4, 5)
    assert bool(mask.any(-1).all())
    assert bool((~mask).any(-1).all())
    assert not torch.equal(found.permutation(3), torch.arange(3))
    assert sorted(found.permutation(6).tolist()) == list(range(6))
    assert sorted(found.shuffled("abcd")) == list("abcd")
    low, high = found.uniform(50, low=2, high=3).aminmax()
    assert 2 <= low <= high < 3


def failure(function: Any, *args: Any, **kwargs: Any) -> Message:
    with pytest.raises(CheckFailed) as caught:
        function(*args, **kwargs)
    return caught.value.message


ADVICE: dict[str, Any] = {"cause": "Because.", "next_step": "Do."}


def close(actual: Any, expected: torch.Tensor, **changes: Any) -> None:
    expect_close(actual, expected, **{"atol": 1e-6, "what": "It", **ADVICE, **changes})


def test_a_message_has_three_parts() -> None:
    message = failure(expect, torch.tensor(False), seen="Seen.", **ADVICE)
    assert message == Message("Seen.", "Because.", "Do.")
    assert str(message) == "Seen. Because. Do."
    assert str(Message("Seen.", "", "Do.")) == "Seen. Do."
    expect(torch.tensor(True), seen="", **ADVICE)


@pytest.mark.parametrize("value", [None, 3.0, [1, 2], (torch.ones(2),)])
def test_what_is_no_tensor(value: Any) -> None:
    message = failure(expect_tensor, value, (2,), what="It")
    assert message.seen == f"It is a {type(value).__name__}, not a tensor."


def test_shape_and_dtype() -> None:
    assert failure(expect_tensor, torch.ones(2, 3), (3, 2), what="It").seen == (
        "It has shape (2, 3); expected (3, 2)."
    )
    assert (
        "float64"
        in failure(expect_tensor, torch.ones(1).double(), (1,), what="It", dtype=torch.float32).seen
    )
    value = torch.ones(1)
    assert expect_tensor(value, (1,), what="It", dtype=torch.float32) is value


def test_items() -> None:
    assert expect_items([1, 2], 2, what="two") == (1, 2)
    assert "one value" in failure(expect_items, torch.ones(2), 2, what="two").seen
    assert "a tuple of 3" in failure(expect_items, (1, 2, 3), 2, what="two").seen


def test_values_are_compared_in_float64() -> None:
    close(torch.ones(3), torch.ones(3).double() + 5e-7)
    close(torch.ones(3, dtype=torch.int64), torch.ones(3))
    close(torch.ones(2).half(), torch.ones(2) * 1.0001, atol=1e-3)
    message = failure(close, torch.ones(3), torch.ones(3).double() + 0.25)
    assert message.seen == "It differs from what the definition gives by up to 0.25."


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_not_a_number_never_passes_for_one(bad: float) -> None:
    failure(close, torch.tensor([1.0, bad]), torch.ones(2), atol=1e9)


def test_nan_and_infinity_may_be_wanted() -> None:
    wanted = torch.tensor([float("nan"), float("-inf"), 1.0])
    close(wanted.clone(), wanted.double())
    failure(close, torch.tensor([float("nan"), float("inf"), 1.0]), wanted)


def test_a_hidden_check_names_no_value_of_a_case() -> None:
    token = hidden_now.set(True)
    try:
        messages = [
            failure(close, torch.ones(3), torch.ones(3) * 7.125),
            failure(expect_tensor, torch.ones(2, 3), (11, 13), what="It"),
        ]
    finally:
        hidden_now.reset(token)
    for secret in ("6.1", "7.1", "11", "13"):
        assert secret not in str(messages)
