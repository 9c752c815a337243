"""Triton kernels on the learner's side: launched, watched, counted; and compiled without a GPU."""

from __future__ import annotations

import importlib.util
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from autograder import chapters
from autograder.answer import Answer, AnswerRaised, Callbacks, LocalLink
from autograder.engine import Engine
from autograder.guest import no_triton
from autograder.guest.fixtures import Stream
from autograder.guest.kernels import launch
from autograder.judge import Judge, opening
from autograder.learner import session
from autograder.sources import definition_source, strip_markers

ROOT = chapters.ROOT
linux = pytest.mark.skipif(
    sys.platform != "linux", reason="Triton has wheels for Linux alone, and so has this sandbox"
)

SETUP = """
import math, os
import torch
os.environ.setdefault("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")
try:
    import triton
    import triton.language as tl
except ImportError:
    from autograder.guest.no_triton import tl, triton
"""

COPY = """
@triton.jit
def copy(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at{load})
    tl.store(y_ptr + at, x{store})
"""


def answer(target: Any) -> Answer:
    callbacks = Callbacks()
    return Answer(LocalLink(target, callbacks=callbacks), callbacks)


def copying(tmp_path: Path, load: str = ", mask=at < n", store: str = ", mask=at < n") -> Any:
    """A kernel that copies a vector."""
    source = COPY.format(load=load, store=store)
    return loaded(tmp_path, "copy", source)


def loaded(tmp_path: Path, name: str, source: str) -> Any:
    """A kernel from a file of its own: Triton reads its source there."""
    path = tmp_path / f"{name}_{abs(hash(source))}.py"
    path.write_text(SETUP + source, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def run(kernel: Any, n: int = 20, *, meter: bool = True) -> Any:
    there = answer(kernel)
    arguments = [torch.arange(float(n)), torch.full((n,), math.nan), n]
    launcher = there.fixture("launcher")
    return launcher.run((there, [-(-n // 16)], arguments, {"BLOCK": 16}), meter=meter)


@linux
def test_what_is_loaded_and_stored_is_counted(tmp_path: Path) -> None:
    found = run(copying(tmp_path))
    assert found.value["outside"] == []
    assert torch.equal(found.value["tensors"][1], torch.arange(20.0))
    assert (found.meter["loaded"], found.meter["stored"], found.meter["dots"]) == (20, 20, 0)


@linux
@pytest.mark.parametrize(
    ("load", "store", "outside"),
    [
        ("", ", mask=at < n", ["load", "x_ptr"]),
        (", mask=at < n", "", ["store", "y_ptr"]),
        (", mask=at <= n", ", mask=at < n", ["load", "x_ptr"]),
    ],
)
def test_what_leaves_its_tensor_is_stopped_and_named(
    tmp_path: Path, load: str, store: str, outside: list[str]
) -> None:
    assert run(copying(tmp_path, load, store)).value == {
        "missing": False,
        "outside": outside,
        "tensors": [],
    }


@linux
def test_the_interpreter_is_left_as_it_was(tmp_path: Path) -> None:
    from triton.language import core
    from triton.runtime import interpreter

    semantic = type(interpreter.interpreter_semantic)
    owners = (interpreter, interpreter.tl, core, core.dtype, core.tensor, semantic)
    builder = interpreter.interpreter_builder

    def now() -> list[dict[str, Any]]:
        # of modules what a launch replaces: Triton itself leaves traces of a launch in them
        names = ("_patch_lang", "_get_np_dtype", "block_type", "__eq__", "__init__", "cast")
        kept = [{name: vars(owner).get(name) for name in names} for owner in owners]
        running = ("grid_dim", "grid_idx")  # where a launch has come to
        return [*kept, {k: v for k, v in vars(builder).items() if k not in running}]

    run(copying(tmp_path))
    before = now()
    run(copying(tmp_path, load=""))
    assert now() == before
    assert torch.equal(run(copying(tmp_path)).value["tensors"][1], torch.arange(20.0))


MIXED = """
@triton.jit
def mixed(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n, other=-1.0)
    column, row = x[:, None], (at * 3 - n // 2)[None, :].to(tl.float32) / 7
    half = (x.to(tl.float16) / (at + 3).to(tl.float16))[:, None] / 3 + row.to(tl.float16)
    both = tl.where((at[:, None] > row) & (at[None, :] % 3 != 1), half.to(tl.float32), 2 - column)
    wide = tl.dot(both, tl.trans(both), input_precision="ieee") + (at.to(tl.int64) * -5)[:, None]
    y = tl.sum(wide, axis=0) / tl.max(wide, axis=1) + (1 << at) - (-at >> 1)
    tl.store(y_ptr + at, y + tl.exp2(-x * x) + tl.minimum(x, n), mask=at < n)
"""


@linux
@pytest.mark.parametrize("n", [16, 11])
def test_the_shorter_way_through_the_interpreter_leads_to_the_same_numbers(
    tmp_path: Path, n: int
) -> None:
    """Mixed kinds and widths of numbers, scalars on either side, broadcasts of all sorts."""
    mixed = loaded(tmp_path, "mixed", MIXED)
    x = torch.linspace(-3, 3, n)
    shorter = launch(mixed, [1], [x, torch.zeros(n), n], {"BLOCK": 16})["tensors"][1]
    plain = torch.zeros(n)
    mixed[(1,)](x, plain, n, BLOCK=16)
    assert torch.equal(shorter, plain)
    assert len(set(plain.tolist())) == n


@linux
def test_what_the_interpreter_refuses_is_refused_on_the_shorter_way_too(tmp_path: Path) -> None:
    from triton.runtime.errors import InterpreterError

    mixed = loaded(tmp_path, "mixed", MIXED)
    for number, line in enumerate(
        (
            "x_ptr * 2",
            "(x_ptr + at) * (y_ptr + at)",
            "x_ptr + 0.5",
            "at[:, None] + tl.arange(0, 2 * BLOCK)[None, :, None]",
            "at + tl.arange(0, 2 * BLOCK)",
            "tl.zeros((12, BLOCK), tl.float32)",
            "tl.dot(at[:, None].to(tl.float32), at[None, :].to(tl.float16))",
        )
    ):
        source = COPY.format(load="", store="").replace("    x =", f"    z = {line}\n    x =")
        kernel = loaded(tmp_path, f"refused_{number}", source.replace("copy", f"refused_{number}"))
        x = torch.zeros(16)
        launch(mixed, [1], [x, x.clone(), 16], {"BLOCK": 16})  # whose types are known from then on
        with pytest.raises(InterpreterError) as plain:
            kernel[(1,)](x, x.clone(), 16, BLOCK=16)
        with pytest.raises(type(plain.value.__cause__)) as shorter:
            launch(kernel, [1], [x, x.clone(), 16], {"BLOCK": 16})
        assert repr(shorter.value) == repr(plain.value.__cause__), line


@linux
def test_a_stub_is_open_and_a_plain_function_is_told_what_it_lacks() -> None:
    def unanswered(x_ptr: Any, y_ptr: Any, n: int, BLOCK: int) -> None:
        raise NotImplementedError

    import triton

    with pytest.raises(AnswerRaised) as stub:
        run(triton.jit(unanswered))
    assert stub.value.unanswered
    with pytest.raises(AnswerRaised, match=r"@triton\.jit"):
        run(unanswered)


def test_what_only_looks_like_a_kernel_is_not_launched() -> None:
    class LooksLikeOne:
        arg_names = ("x_ptr", "y_ptr", "n")
        src = ""
        rewrite = True

        def __getitem__(self, grid: Any) -> Any:
            return lambda x, y, n, BLOCK: y.copy_(x)

    with pytest.raises(AnswerRaised, match="no Triton kernel"):
        run(LooksLikeOne(), meter=False)


def test_without_triton_a_kernel_says_so_in_one_line() -> None:
    kernel = no_triton.triton.jit(lambda x_ptr: None)
    assert launch(kernel, [1], [torch.ones(2)], {})["missing"] is True
    with pytest.raises(RuntimeError, match="Colab") as error:
        kernel[(1,)](torch.ones(2))
    assert "\n" not in str(error.value)


def test_without_triton_a_check_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "triton" else real(name)
    )
    monkeypatch.setattr(session.known, "find", chapters.exercise)
    session.check("flash_attention.flash_forward_kernel")
    said = capsys.readouterr().out
    assert said.count("\n") == 1
    assert "Colab" in said
    session.check("flash_attention.flash_forward")  # the others do without
    assert "not defined" in capsys.readouterr().out


@linux
def test_the_bank_names_an_access_out_of_bounds() -> None:
    exercise = chapters.exercise("flash_attention.flash_forward_kernel")
    entries = chapters.entries(exercise)
    wrong = next(item for item in entries if item.name == "out_of_bounds_load")
    result = Judge(exercise, [wrong]).judge(opening(exercise, wrong.target))
    failed = {item.name: item for item in result.checks if not item.passed}
    assert "kernel_ragged_tiles" in failed
    assert "A load reads outside the tensor of k_ptr." in failed["kernel_ragged_tiles"].message
    assert failed["kernel_ragged_tiles"].diagnosis == "out_of_bounds_load"


@linux
def test_a_kernel_is_judged_in_a_sandbox() -> None:
    source = strip_markers(
        definition_source(ROOT / "solutions" / "flash_attention.py", "logsumexp_kernel")
    )
    exercise = chapters.exercise("flash_attention.logsumexp_kernel")
    with Engine(sandbox="auto") as engine:
        judge = Judge(exercise)
        result = judge.judge(
            lambda callbacks: engine.open(
                [("course cell 1", SETUP), ("notebook cell 2", source)],
                exercise.name,
                callbacks=callbacks,
            )
        )
    assert [item.message for item in result.checks if not item.passed] == []
    assert result.score == exercise.points


def test_a_stream_knows_whether_it_was_kept() -> None:
    def hoarded(consume: Callable[[Stream], object]) -> bool:
        stream = Stream([0.5, -1.0, 2.0] * 20, 40)
        consume(stream)
        return stream.hoarded

    kept: list[object] = []
    assert not hoarded(max)
    assert not hoarded(lambda stream: sum(math.exp(x) for x in stream))
    assert hoarded(kept.extend)
    assert hoarded(lambda stream: kept.append(torch.tensor(list(stream))))
    with pytest.raises(RuntimeError, match="once"):
        hoarded(lambda stream: (list(stream), list(stream)))


def test_matrix_products_are_counted() -> None:
    def products(a: Tensor, b: Tensor) -> Tensor:
        return (a @ b).sum(0) @ b.T + torch.einsum("td,ds->ts", a, b).sum()

    meter = answer(products).run((torch.ones(3, 4), torch.ones(4, 5)), meter=True).meter
    assert meter["flops"] == 2 * (3 * 4 * 5 + 5 * 4 + 3 * 4 * 5)


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from solutions import flash_attention as flash

for name in ("logsumexp", "flash_forward", "flash_backward_dq", "flash_backward_dkv"):
    kernel = getattr(flash, name + "_kernel")
    signature, constants = {}, {"d": 64, "CAUSAL": True, "BLOCK_Q": 64, "BLOCK_K": 64, "BLOCK": 128}
    for argument in kernel.arg_names:
        if argument in constants:
            signature[argument] = "constexpr"
        elif argument in ("x_ptr", "logsumexp_ptr", "delta_ptr"):
            signature[argument] = "*fp32"
        elif argument.endswith("_ptr"):
            signature[argument] = "*fp16"
        else:
            signature[argument] = "fp32" if argument == "scale" else "i32"
    constants = {key: value for key, value in constants.items() if key in signature}
    source = ASTSource(kernel, signature, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
    print(name, "wgmma" in compiled.asm["ptx"])
"""


@linux
def test_the_kernels_compile_for_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    """Triton compiles for any target; only running the result needs the card."""
    environment = os.environ | {"TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == [
        "logsumexp", "False", "flash_forward", "True",
        "flash_backward_dq", "True", "flash_backward_dkv", "True",
    ]  # fmt: skip
