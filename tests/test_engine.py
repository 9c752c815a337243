"""The engine with real sandboxes: what it carries, and what happens when processes die."""

from __future__ import annotations

import dataclasses
import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import psutil
import pytest
import torch

from autograder.answer import Answer, AnswerRaised, Callbacks, ForbiddenUse, LinkLost
from autograder.engine import Engine, Limits, SandboxUnavailable, warm_process
from autograder.engine.link import read_reply
from autograder.guest.plain import Opaque
from autograder.guest.wire import pack

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="sandboxes are Linux only")

LIMITS = Limits(startup_seconds=2, request_seconds=1, memory=512 * 2**20)


@pytest.fixture(scope="module")
def engine():
    with Engine(sandbox=os.environ.get("AUTOGRADER_TIER", "namespaces"), limits=LIMITS) as engine:
        yield engine


def answer(engine, source, name="answer", **options):
    callbacks = options.setdefault("callbacks", Callbacks())
    source = "import torch\n" + textwrap.dedent(source)
    return Answer(engine.open([("cell", source)], name, **options), callbacks)


def test_a_function_its_gradients_and_its_arguments(engine):
    f = answer(engine, "def answer(x, *, n=2): x.mul_(1); return (x**n).sum(), x.shape, 'text'")
    x = torch.tensor([1.0, 2.0, 3.0])
    run = f.run([x], {"n": 3}, of=0, echo=True)
    assert run.value[1:] == ((3,), "text")
    assert run.value[0] == 36
    assert torch.equal(run.args[0], x)
    square = answer(engine, "def answer(x): return x**2")
    assert torch.equal(square.run([x], wrt=[0]).grads["0"], 2 * x)


def test_a_module_is_built_loaded_called_and_differentiated(engine):
    built = answer(
        engine,
        """
        class answer(torch.nn.Module):
            def __init__(self, n):
                super().__init__()
                self.inner = torch.nn.Linear(n, 2)
                self.drop = torch.nn.Dropout(0.5)
            def forward(self, x):
                return self.drop(self.inner(x))
        """,
    )(3)
    assert {key: tuple(item.shape) for key, item in built.state().items()} == {
        "inner.weight": (2, 3),
        "inner.bias": (2,),
    }
    assert built.shapes() == {"inner.weight": "(2, 3)", "inner.bias": "(2,)"}
    built.load({"inner.weight": torch.ones(2, 3), "inner.bias": torch.zeros(2)})
    built.eval()
    run = built.run([torch.ones(4, 3)], wrt=["parameters"])
    assert torch.equal(run.value, torch.full((4, 2), 3.0))
    assert torch.equal(run.grads["inner.bias"], torch.full((2,), 4.0))
    built.train()
    assert (built(torch.ones(64, 3)) == 0).any()


def test_a_sequence_of_calls_keeps_what_the_answer_keeps(engine):
    cache = answer(
        engine,
        """
        class answer:
            def __init__(self): self.rows = []
            def step(self, x):
                self.rows.append(x)
                return torch.stack(self.rows).sum(0)
        """,
    )()
    assert [int(cache.method("step", torch.tensor(n))) for n in (1, 2, 3)] == [1, 3, 6]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed(engine, dtype):
    """Before its first product of this kind torch asks the system what the processor can do."""
    f = answer(engine, "def answer(x): return torch.softmax(x @ x.mT, dim=-1)")
    x = torch.eye(3, dtype=dtype)[None]
    assert f(x).shape == (1, 3, 3)


def test_many_requests_in_one_message(engine):
    f = answer(engine, "def answer(x, n): return x * n, object()")._link
    requests = [
        {"op": "call", "object": 0, "args": [torch.ones(30_000), n], "fresh": True}
        for n in range(8)
    ]
    bodies = f.ask_all([pack(request) for request in requests], 5)
    for n, body in enumerate(bodies):
        value, reference = read_reply("call", body)["value"]
        assert torch.equal(value, torch.full((30_000,), float(n)))
        assert reference == Opaque(1)  # a fresh one knows of nothing that was made before
    assert torch.equal(f.request(requests[3])["value"][0], torch.full((30_000,), 3.0))


@pytest.mark.parametrize(
    ("source", "reason"),
    [("while x.sum() == 3: pass", "timeout"), ("import os; os._exit(0)", "crashed")],
)
def test_many_requests_are_lost_together(engine, source, reason):
    f = answer(engine, f"def answer(x):\n    {source}\n    return x\n")._link
    bodies = [
        pack({"op": "call", "object": 0, "args": [torch.tensor([float(n)])]}) for n in range(5)
    ]
    with pytest.raises(LinkLost) as lost:
        f.ask_all(bodies, 0.5)
    assert lost.value.reason == reason


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64])
def test_dtypes(engine, dtype):
    value = answer(engine, "def answer(x): return x + 1")(torch.ones(2, dtype=dtype))
    assert value.dtype == dtype


def test_memory_of_a_call(engine):
    meter = (
        answer(engine, "def answer(n): return torch.zeros(n).sum()").run([1000], meter=True).meter
    )
    assert meter["largest"] == 1000


def test_a_learners_test_is_run_on_the_judges_functions(engine):
    learners_test = answer(
        engine,
        """
        def answer(softmax):
            x = torch.randn(3, 4, requires_grad=True)
            out = softmax(x, dim=-1)
            assert torch.allclose(out.sum(-1), torch.ones(3)), "rows"
            out[0, 0].backward()
            assert x.grad[1].eq(0).all()
        """,
    )
    assert learners_test.accepts(torch.softmax)
    assert not learners_test.accepts(lambda x, dim: torch.softmax(x, dim=0))
    with pytest.raises(AnswerRaised, match="small inputs"):
        answer(engine, "def answer(f): f(torch.zeros(10**6))").accepts(torch.relu)


def test_what_a_judges_function_is_cannot_be_told_from_outside(engine):
    look = """
    def answer(f):
        seen = [f.__name__, f.__doc__, f.__code__.co_filename.rpartition("/")[2], f.__module__]
        raise AttributeError(repr(seen))
    """
    texts = set()
    for implementation in (torch.softmax, lambda x: x):
        with pytest.raises(AnswerRaised) as caught:
            answer(engine, look).accepts(implementation)
        texts.add(caught.value.text)
    assert len(texts) == 1


def test_a_forbidden_call_is_named(engine):
    source = """
    def answer(q):
        return torch.nn.functional.scaled_dot_product_attention(q, q, q)
    """
    with pytest.raises(ForbiddenUse) as caught:
        answer(engine, source, forbid=("torch.nn.functional.scaled_dot_product_attention",))(
            torch.ones(2, 3, 4)
        )
    assert caught.value.names == ("scaled_dot_product_attention",)


def test_a_forbidden_kernel_is_named_where_the_first_layer_is_gone(engine):
    source = """
    import autograder.guest.policy as policy
    policy.Forbidding.__torch_function__ = lambda self, f, t, a=(), k=None: f(*a, **(k or {}))
    def answer(q):
        return torch.nn.functional.scaled_dot_product_attention(q, q, q)
    """
    with pytest.raises(ForbiddenUse):
        answer(engine, source, forbid=("scaled_dot_product_attention",))(torch.ones(2, 3, 4))


NORMS = ("layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm")
ATTENTION = ("scaled_dot_product_attention", "multi_head_attention_forward")
_NONE = "None, None, None, None, True, 0.0, 1e-5"
_CLASSES = "x[:, 0, :, None, None], torch.ones(2, 1, 1, dtype=torch.int64)"
_LINEAR = "torch.nn.functional.linear_cross_entropy"
_NESTED = "torch.nested.nested_tensor([row for row in x])"
_HEADS = "torch.nested.nested_tensor([row[None] for row in x])"


@pytest.mark.parametrize(
    ("forbid", "expression"),
    [
        (NORMS, "torch._refs.native_layer_norm(x, [6], None, None, 1e-5)[0]"),
        (NORMS, "torch._refs.native_group_norm(x, None, None, 2, 3, 6, 1, 1e-5)[0]"),
        (NORMS, "torch._refs._normalize(x, [2], 1e-5)[0]"),
        (
            NORMS,
            "torch._decomp.decomposition_table[torch.ops.aten.native_layer_norm.default]"
            "(x, [6], None, None, 1e-5)[0]",
        ),
        (
            NORMS,
            "torch._decomp.decomposition_table[torch.ops.aten._fused_rms_norm.default]"
            "(x, [6], None, 1e-5)[0]",
        ),
        (NORMS, "torch._decomp.decompositions.native_batch_norm(x, " + _NONE + ")[0]"),
        (NORMS, f"torch.ops.aten.native_batch_norm(x, {_NONE})[0]"),
        (NORMS, f"torch.ops.aten._batch_norm_impl_index(x, {_NONE}, False)[0]"),
        (
            NORMS,
            "torch.ops.aten._native_batch_norm_legit.no_stats(x, None, None, True, 0.0, 1e-5)[0]",
        ),
        (NORMS, "torch.ops.aten._fused_rms_norm(x, [6], None, 1e-5)[0]"),
        (NORMS, "torch.group_norm(x, 1)"),
        (NORMS, f"torch.instance_norm(x, {_NONE}, False)"),
        (
            NORMS,
            f"torch.ops.aten.native_layer_norm({_NESTED}, [6], torch.ones(6), torch.zeros(6), "
            "1e-5)[0].to_padded_tensor(0.0)",
        ),
        (
            NORMS,
            "torch.ops.quantized.layer_norm(torch.quantize_per_tensor(x, 0.02, 128, "
            "torch.quint8), [6], None, None, 1e-5, 0.02, 128).dequantize()",
        ),
        (ATTENTION, "torch.onnx.ops._impl.attention_23(*[x[:, None]] * 3)[0]"),
        (
            ATTENTION,
            f"torch._C._nn.scaled_dot_product_attention(*[{_HEADS}] * 3).to_padded_tensor(0)",
        ),
        (ATTENTION, "torch.ao.nn.quantizable.MultiheadAttention(6, 1)(x, x, x)[0]"),
        (("cross_entropy",), f"torch.ops.aten.nll_loss2d({_CLASSES}, None, 1, -1)"),
        (("cross_entropy",), f"torch.ops.aten.nll_loss2d_forward({_CLASSES}, None, 1, -1)[0]"),
        (("cross_entropy",), f"{_LINEAR}(x[:, 0], torch.eye(6), torch.tensor([1, 2]))"),
        (
            ("cross_entropy",),
            f"{_LINEAR}(x[:, 0], torch.eye(6), torch.tensor([1, 2]), "
            "options=torch.nn.LinearCrossEntropyOptions(batch_chunk_size=1))",
        ),
        (("softmax",), "torch._refs.softmax(x, -1)"),
        (("softmax",), "torch._masked_softmax(x, x > 9, -1, 2)"),
        (("softmax",), "torch.sparse.softmax(x.to_sparse(), 2).to_dense()"),
    ],
)
def test_what_does_the_same_is_forbidden_too(engine, forbid, expression):
    source = f"""
    import torch.onnx.ops, torch._refs, torch._decomp
    def answer(x):
        with torch._C.DisableTorchFunction():
            return {expression}
    """
    x = torch.randn(2, 3, 6)
    if "quantize" not in expression:  # what this machine's torch cannot do, is no gap
        assert answer(engine, source)(x) is not None
    with pytest.raises(ForbiddenUse):
        answer(engine, source, forbid=forbid)(x)


def test_the_replacement_is_not_found_by_its_type(engine):
    source = """
    import gc
    from autograder.guest import dispatcher
    found = []
    dispatcher.ctypes.pythonapi.Py_IncRef = lambda item: found.append(item)
    dispatcher._replace_kernels("aten", "CPU", {"softmax.int": len})
    def answer():
        return [type(item.value) is torch._C._DispatchModule for item in found]
    """
    assert answer(engine, source)() == [False]


def test_what_is_not_forbidden_still_works_beside_it(engine):
    source = """
    layer = torch.nn.LayerNorm(4)
    def answer(q):
        return layer(torch.softmax(q @ q.mT, -1) @ q)
    """
    f = answer(engine, source, forbid=("scaled_dot_product_attention", "cross_entropy"))
    assert f(torch.ones(2, 3, 4)).shape == (2, 3, 4)


def test_modules_of_earlier_chapters_can_be_imported(engine):
    modules = {"solutions.early": "def double(x):\n    return 2 * x\n"}
    f = answer(
        engine,
        """
        import solutions
        from solutions.early import double
        def answer(x): return double(x)
        """,
        modules=modules,
    )
    assert f(3) == 6
    link = engine.open([("cell", "from solutions.late import f")], "f", modules=modules)
    assert link.startup["cells"][0]["error"]["error"] == "ModuleNotFoundError"


def test_the_report_of_the_cells(engine):
    cells = [("one", "x = 1"), ("two", "\n1 / 0\nx = 2"), ("three", "def f(): return x")]
    link = engine.open(cells, "f")
    assert link.startup["found"]
    errors = [cell["error"] for cell in link.startup["cells"]]
    assert [error and (error["error"], error["line"]) for error in errors] == [
        None,
        ("ZeroDivisionError", 2),
        None,
    ]
    assert link.request({"op": "call", "object": 0}) == {"value": 1}


def test_an_answer_that_is_not_there(engine):
    link = engine.open([("cell", "x = 1")], "f")
    assert not link.startup["found"]
    assert link.request({"op": "call", "object": 0})["error"] == "NameError"


def test_cells_that_never_end_lose_the_link(engine):
    link = engine.open([("cell", "while True: pass")], "f")
    assert link.startup is None
    with pytest.raises(LinkLost, match="timeout"):
        link.request({"op": "call", "object": 0})


def test_every_sandbox_draws_the_same(engine):
    source = (
        "import random, numpy\ndef answer(): return [random.random(), torch.rand(2), hash('a')]"
    )
    first, second = (answer(engine, source)() for _ in range(2))
    assert first[0] == second[0]
    assert torch.equal(first[1], second[1])
    assert first[2] == second[2]


def test_scratch_is_empty_for_each(engine):
    source = """
    import os, tempfile
    def answer():
        before = os.listdir(tempfile.gettempdir())
        with tempfile.NamedTemporaryFile(delete=False) as file: file.write(b"x")
        return before, len(os.listdir(tempfile.gettempdir()))
    """
    for _ in range(2):
        assert answer(engine, source)() == ([], 1)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("x.softmax(-1)", lambda x: x.softmax(-1)),
        ("(x.requires_grad_() @ x).detach()", lambda x: x @ x),
    ],
    ids=["pool", "gradients"],
)
def test_threads_of_a_learner_may_start_at_once(engine, part, expected):
    source = f"""
        import threading
        from concurrent.futures import ThreadPoolExecutor
        def answer(x):
            start = threading.Barrier(4)
            def part(number):
                start.wait(5)
                return {part}
            with ThreadPoolExecutor(4) as pool:
                return sum(pool.map(part, range(4)))
    """
    x = torch.eye(3)
    # torch has races at the first use after a fork: one is lost about one time in seven
    for _ in range(40):
        assert torch.equal(answer(engine, source)(x), 4 * expected(x))


def test_several_threads_may_open(engine):
    results = []

    def work(n):
        results.append(answer(engine, f"def answer(): return {n}")() == n)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 8


def below(engine):
    return psutil.Process(engine._warm._process.pid).children(recursive=True)


def gone(processes):
    return not psutil.wait_procs(processes, timeout=10)[1]


def test_a_closed_link_leaves_no_process(engine):
    link = engine.open([("cell", "def f(): return 1")], "f")
    process = psutil.Process(link._transport._pid)
    assert process in below(engine)
    link.close()
    assert gone([process])
    with pytest.raises(LinkLost):
        link.request({"op": "call", "object": 0})


@pytest.mark.parametrize("victim", ["launcher", "zygote"])
def test_a_killed_warm_process_is_replaced(engine, victim):
    link = engine.open([("cell", "def f(): return 1")], "f")
    launcher = psutil.Process(engine._warm._process.pid)
    family = [launcher, *below(engine)]
    (launcher if victim == "launcher" else launcher.children()[0]).kill()
    assert gone(family)  # the kernel ends the sandboxes with it
    with pytest.raises(LinkLost, match="crashed"):
        link.request({"op": "call", "object": 0})
    assert answer(engine, "def answer(): return 2")() == 2


def test_a_killed_sandbox_costs_its_link_alone(engine):
    one = engine.open([("cell", "def f(): return 1")], "f")
    two = engine.open([("cell", "def f(): return 2")], "f")
    os.kill(one._transport._pid, signal.SIGKILL)
    with pytest.raises(LinkLost, match="crashed"):
        one.request({"op": "call", "object": 0})
    assert two.request({"op": "call", "object": 0}) == {"value": 2}


_RUN = """
import sys
from autograder.engine import Engine
engine = Engine(sandbox=sys.argv[1])
link = engine.open([("cell", "def f():\\n    while True: pass")], "f")
print(engine._warm._process.pid, flush=True)
link.request({"op": "call", "object": 0})
"""


def test_a_killed_engine_leaves_no_process(engine):
    run = subprocess.Popen(
        [sys.executable, "-c", _RUN, engine.tier],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[1],
    )
    launcher = psutil.Process(int(run.stdout.readline()))
    family = [launcher, *launcher.children(recursive=True)]
    assert len(family) >= 3
    run.kill()
    run.communicate()
    assert gone(family)


@pytest.fixture(scope="module")
def shared(engine):
    """A warm process that others order sandboxes from."""
    warm, _weaker = warm_process.start(engine.tier, engine.limits)
    yield warm
    warm.stop()


def copy_of(door):
    """A door as another process gets it."""
    return dataclasses.replace(door, control=door.control.dup())


def test_several_engines_share_a_warm_process(shared):
    with Engine(door=copy_of(shared.door())) as one, Engine(door=copy_of(shared.door())) as two:
        links = [e.open([("cell", "def f(): return 1")], "f") for e in (one, two, one)]
        sandboxes = psutil.Process(shared._process.pid).children(recursive=True)
        assert {link._transport._pid for link in links} < {item.pid for item in sandboxes}
        assert [link.request({"op": "call", "object": 0})["value"] for link in links] == [1, 1, 1]


def test_the_scratch_of_another_sandbox_cannot_be_read(engine):
    mine = answer(engine, "open('mine', 'w').write('x')\ndef answer(): return open('mine').read()")
    look = """
    import os
    def answer():
        beside = os.path.dirname(os.getcwd())
        try:
            folders = os.listdir(beside)
        except PermissionError:
            return []
        found = []
        for name in folders:
            try:
                found += os.listdir(os.path.join(beside, name))
            except OSError:
                pass
        return [name for name in found if name == "mine"]
    """
    assert answer(engine, look)() == []
    assert mine() == "x"


_CLIENT = """
import multiprocessing, time
from autograder.engine import Engine
def work(door, told):
    engine = Engine(door=door)
    told.send(engine.open([("cell", "def f(): pass")], "f")._transport._pid)
    time.sleep(600)
"""


def test_who_is_killed_takes_his_sandboxes_along_and_no_others(shared, tmp_path, monkeypatch):
    (tmp_path / "client_of_a_door.py").write_text(_CLIENT)
    monkeypatch.syspath_prepend(tmp_path)
    work = importlib.import_module("client_of_a_door").work
    with Engine(door=copy_of(shared.door())) as engine:
        link = engine.open([("cell", "def f(): return 1")], "f")
        hears, told = multiprocessing.Pipe()
        other = multiprocessing.get_context("spawn").Process(
            target=work, args=(shared.door(), told)
        )
        other.start()
        assert hears.poll(60)
        sandbox = psutil.Process(hears.recv())
        other.kill()
        assert gone([sandbox])
        assert link.request({"op": "call", "object": 0})["value"] == 1
    other.join()


def test_an_engine_outlives_the_warm_process_that_it_shared(engine):
    warm, _weaker = warm_process.start(engine.tier, engine.limits)
    late = copy_of(warm.door())
    with Engine(door=copy_of(warm.door())) as shares:
        assert answer(shares, "def answer(): return 1")() == 1
        warm.stop()
        assert answer(shares, "def answer(): return 2")() == 2
    with Engine(door=late) as engine_of_its_own:
        assert answer(engine_of_its_own, "def answer(): return 3")() == 3


def test_close_ends_everything():
    with Engine(sandbox=os.environ.get("AUTOGRADER_TIER", "namespaces")) as engine:
        engine.open([("cell", "def f(): return 1")], "f")
        family = [psutil.Process(engine._warm._process.pid), *below(engine)]
        scratch = engine._warm._scratch
    assert gone(family)
    assert not scratch or not Path(scratch).exists()


def test_without_walls_it_refuses_in_one_line(monkeypatch):
    def refuse(tier, limits, preload):
        raise OSError(f"no {tier} here")

    monkeypatch.setattr(warm_process, "WarmProcess", refuse)
    with pytest.raises(SandboxUnavailable) as caught:
        Engine()
    text = str(caught.value)
    assert "\n" not in text
    assert "no namespaces here" in text
    assert "no landlock here" in text
    assert "--sandbox none" in text


def test_none_warns_and_works():
    with pytest.warns(UserWarning, match="without a sandbox"):
        engine = Engine(sandbox="none", limits=Limits(startup_seconds=20, request_seconds=0.5))
    link = engine.open([("cell", "def f(x):\n    while x: pass\n    return 1")], "f")
    assert link.request({"op": "call", "object": 0, "args": [0]}) == {"value": 1}
    with pytest.raises(LinkLost, match="timeout"):
        link.request({"op": "call", "object": 0, "args": [1]})
    assert gone(
        [psutil.Process(link._transport._process.pid)]
        if psutil.pid_exists(link._transport._process.pid)
        else []
    )


def test_learners_do_not_load_the_engine():
    code = "import autograder, autograder.guest.executor, sys; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[1],
    ).stdout.split()
    assert not {name for name in loaded if name.startswith("autograder.engine")}
    assert not {"msgpack", "psutil"} & set(loaded)
