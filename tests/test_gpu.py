"""The GPU measurement: its goals on made-up figures, and the script itself on a CPU."""

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import book.data.gpu
from autograder import chapters
from autograder.gpu import __main__ as command
from autograder.gpu import agreement, contenders, goals, measure, sizes

ROOT = Path(__file__).parent.parent
needs_triton = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton has wheels for Linux alone"
)


def row(name: str, T: int, tflops: float | None, kind: str = "forward") -> dict[str, Any]:
    case = {"kind": kind, "dtype": "float16", "T": T, "d": 64, "causal": False}
    return {**case, "implementation": name, "tflops": tflops}


def figures(**changes: Any) -> dict[str, Any]:
    """A measurement that meets every goal, but for the changes."""
    times = [
        row(name, T, speed)
        for T in (512, 1024, 4096)
        for name, speed in {"ours": 90.0, "plain": 10.0, "math": 9.0, "flash": 100.0}.items()
    ]
    times.append(row("cudnn", 4096, None))  # could not run: no one is held to it
    memory = [{"implementation": "ours", "T": T, "bytes": 132 * T} for T in (512, 1024, 4096)]
    memory.append({"implementation": "plain", "T": 512, "bytes": 4 * 512**2})
    return {"checks": [{"passed": True}], "times": times, "memory": memory} | changes


def met(found: dict[str, Any]) -> list[bool]:
    return [goal["met"] for goal in goals.judge(found)]


def test_goals_are_met_by_figures_that_meet_them() -> None:
    assert met(figures()) == [True] * 4
    assert "lowest 90% of 1 cases" in goals.judge(figures())[1]["seen"]


@pytest.mark.parametrize(
    ("goal", "changes"),
    [
        (0, {"checks": [{"passed": True}, {"passed": False}]}),
        (1, {"times": [*figures()["times"], row("efficient", 4096, 113.0)]}),
        (2, {"times": [*figures()["times"], row("ours", 2048, 9.0), row("plain", 2048, 9.5)]}),
        (3, {"memory": [{"implementation": "ours", "T": T, "bytes": T**1.1} for T in (512, 4096)]}),
    ],
)
def test_each_goal_is_missed_by_itself(goal: int, changes: dict[str, Any]) -> None:
    assert met(figures(**changes)) == [i != goal for i in range(4)]


def test_short_lengths_are_not_held_to_the_long_ones_goals() -> None:
    slow = [row("ours", 512, 5.0), row("flash", 512, 100.0), row("plain", 512, 10.0)]
    assert met(figures(times=[*figures()["times"][4:], *slow])) == [True] * 4


def test_what_was_not_measured_is_not_met() -> None:
    assert met({"checks": [], "times": [], "memory": []}) == [False] * 4


def test_flops_are_counted_as_the_papers_count_them() -> None:
    full = measure.flops(2, 3, 8, 4, causal=False, kind="forward")
    assert full == 4 * 2 * 3 * 8 * 8 * 4
    assert measure.flops(2, 3, 8, 4, causal=True, kind="backward") == full * 0.5 * 2.5


def test_plain_attention_is_attention() -> None:
    q, k, v = (torch.randn(2, n, 4, dtype=torch.float64) for n in (5, 3, 3))
    output = contenders.plain(q, k, v, causal=True)
    assert torch.equal(output[:, :2], torch.zeros(2, 2, 4, dtype=torch.float64))
    mask = torch.ones(5, 3, dtype=torch.bool).tril(-2)
    right = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    torch.testing.assert_close(output[:, 2:], right[:, 2:])


def test_one_case_that_cannot_run_does_not_end_the_rest() -> None:
    def fails() -> float:
        raise RuntimeError("No viable backend\nand a long story")

    assert measure.attempt(fails, "cpu") == (None, "No viable backend")

    def is_wrong() -> float:
        raise KeyError("a mistake of ours")

    with pytest.raises(KeyError):
        measure.attempt(is_wrong, "cpu")


@needs_triton
@pytest.mark.parametrize("fault", ["output", "gradient", "nan"])
def test_kernels_that_are_wrong_are_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import solutions.flash_attention as reference

    forward, backward = reference.triton_flash_forward, reference.triton_flash_backward

    def wrong_forward(*args: Any, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
        output, logsumexp = forward(*args, **options)
        return output * {"output": 1.02, "nan": float("nan")}.get(fault, 1.0), logsumexp

    def wrong_backward(*args: Any, **options: Any) -> tuple[torch.Tensor, ...]:
        dq, dk, dv = backward(*args, **options)
        return dq, dk * (1.02 if fault == "gradient" else 1.0), dv

    monkeypatch.setattr(reference, "triton_flash_forward", wrong_forward)
    monkeypatch.setattr(reference, "triton_flash_backward", wrong_backward)
    case = next(agreement.compare(sizes.TINY, "cpu"))
    assert not case["passed"]
    found = {"output": "output", "gradient": "gradient", "nan": "output"}[fault]
    assert case["errors"][found] > 0.01


def test_without_a_gpu_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command.main([]) == 2
    assert capsys.readouterr().out.startswith("PyTorch sees no GPU here")


def test_a_file_is_named_after_its_device() -> None:
    assert command.slug("NVIDIA A100-SXM4-80GB") == "nvidia-a100-sxm4-80gb"


def test_a_compiled_kernel_is_not_asked_for_counts() -> None:
    for name in agreement.KERNELS:
        checks = chapters.exercise(f"flash_attention.{name}").checks
        assert all(agreement.is_asked(check, "cpu") for check in checks)
        left = {check.name for check in checks if agreement.is_asked(check, "cuda")}
        assert {"kernel_skips_tiles", "each_score_is_loaded_once"}.isdisjoint(left)
        assert len(checks) // 2 <= len(left) < len(checks)


@needs_triton
def test_the_script_runs_on_a_cpu(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    done = subprocess.run(
        [sys.executable, "-m", "autograder.gpu", "--dry-run", "--out", str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    found = json.loads(file.read_text(encoding="utf-8"))
    assert found["complete"]
    assert all(check["passed"] for check in found["checks"])
    graded = [check["name"] for check in found["checks"] if "message" in check]
    assert {name.partition(":")[0] for name in graded} == set(agreement.KERNELS)
    cases = len(sizes.TINY.lengths) * len(sizes.TINY.dtypes) * 2 * 2  # causal or not, both passes
    assert len(found["times"]) == cases * len(contenders.NAMES)
    for timed in found["times"]:
        assert (timed["tflops"] is None) == bool(timed["missing"])
    ran = {timed["implementation"] for timed in found["times"] if timed["tflops"]}
    assert {"ours", "plain", "math"} <= ran


def test_measurements_are_read_in_the_order_of_their_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.json").write_text(json.dumps({"name": name}), encoding="utf-8")
    (tmp_path / "README.md").write_text("no measurement", encoding="utf-8")
    monkeypatch.setattr(book.data.gpu, "files", lambda _name: tmp_path)
    assert [found["name"] for found in book.data.gpu.measurements()] == ["a", "b"]


def test_measurements_that_are_committed_agree_with_their_goals() -> None:
    for found in book.data.gpu.measurements():  # none, until somebody has run `make gpu`
        assert all(check["passed"] for check in found["checks"])
        assert found["goals"] == goals.judge(found)


def test_the_chapter_draws_what_the_script_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No measurement may be there yet, so the chapter's own cell is given a made-up one."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    names = contenders.NAMES
    case = {"dtype": "bfloat16", "d": 64, "causal": True, "missing": ""}
    found = {
        "device": {"name": "a GPU"},
        "versions": {"torch": "2", "triton": "3"},
        "date": "2026-01-01",
        "goals": [{"asks": "much", "seen": "little", "met": False}],
        "times": [
            {**case, "kind": kind, "implementation": name, "T": T, "tflops": float(T)}
            for kind in ("forward", "backward")
            for name in names[:-1]  # the last one could not run
            for T in (512, 1024)
        ],
        "memory": [{"implementation": "ours", "T": T, "bytes": T} for T in (512, 1024)],
    }
    monkeypatch.setattr(book.data.gpu, "measurements", lambda: [found])
    page = (ROOT / "book" / "flash_attention.md").read_text(encoding="utf-8")
    cells = re.findall(r"^```{code-cell}[^\n]*\n(.*?)^```", page, re.M | re.S)
    (cell,) = [cell for cell in cells if "import measurements" in cell]
    said: list[str] = []
    lines: list[int] = []

    def alt(text: str) -> None:
        drawn = [[line for line in axis.lines if len(line.get_xdata())] for axis in plt.gcf().axes]
        lines.extend(map(len, drawn))
        plt.close("all")

    scope = {"Any": Any, "plt": plt, "alt": alt, "print": said.append}
    exec(cell, scope)
    assert lines == [len(names) - 1, len(names) - 1, 1]
    assert said == ["a GPU, 2026-01-01, torch 2, triton 3", "  much: little: not met"]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_compiled_kernels_agree_with_float64() -> None:
    cases = [*agreement.graded("cuda"), *agreement.compare(sizes.FULL, "cuda")]
    wrong = [case for case in cases if not case["passed"]]
    assert wrong == []
