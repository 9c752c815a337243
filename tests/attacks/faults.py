"""Right answers with odd surroundings: each earns all its points."""

from tests.attacks.corpus import Attack

_ALL = 2

ATTACKS = [
    Attack("a right answer", "{RIGHT}", _ALL),
    Attack(
        "warns on standard error",
        """
        import sys, warnings
        {RIGHT}
        inner = attend
        def attend(q, k, v):
            warnings.warn("careful"); print("oh", file=sys.stderr)
            return inner(q, k, v)
        """,
        _ALL,
    ),
    Attack(
        "warnings are errors",
        """
        import warnings
        warnings.simplefilter("error")
        {RIGHT}
        """,
        _ALL,
    ),
    Attack(
        "prints twenty megabytes in a line",
        """
        {RIGHT}
        inner = attend
        def attend(q, k, v):
            print("x" * 20_000_000)
            return inner(q, k, v)
        """,
        _ALL,
    ),
    Attack(
        "closes standard output",
        """
        import sys
        sys.stdout.close(); sys.stderr = None
        {RIGHT}
        """,
        _ALL,
    ),
    Attack("an earlier cell raises", "{RIGHT}", _ALL, before=("1 / 0", "raise SystemExit")),
    Attack("an earlier cell interrupts", "{RIGHT}", _ALL, before=("raise KeyboardInterrupt",)),
    Attack("an earlier cell is no Python", "{RIGHT}", _ALL, before=("def :", "%%bash\nrm -rf /")),
    Attack(
        "magics and shell lines",
        """
        %matplotlib inline
        !pip install torch
        files = !ls
        attend?
        {RIGHT}
        get_ipython().run_line_magic("time", "")
        display(attend)
        """,
        _ALL,
    ),
    Attack("a timed cell", "%%time\n{RIGHT}", _ALL),
    Attack(
        "a percent sign that begins a line",
        """
        text = '''
        %matplotlib
        '''
        rest = (7
        % 4)
        assert "%matplotlib" in text and rest == 3
        {RIGHT}
        """,
        _ALL,
    ),
    Attack(
        "threads of its own",
        """
        from concurrent.futures import ThreadPoolExecutor
        {RIGHT}
        inner = attend
        def attend(q, k, v):
            with ThreadPoolExecutor(4) as pool:
                rows = list(pool.map(lambda b: inner(q[b], k[b], v[b]), range(q.shape[0])))
            return torch.stack(rows)
        """,
        _ALL,
    ),
    Attack("more threads for torch", "torch.set_num_threads(4)\n{RIGHT}", _ALL),
    Attack(
        "a file of its own",
        """
        import tempfile
        {RIGHT}
        inner = attend
        def attend(q, k, v):
            with tempfile.TemporaryFile() as file:
                torch.save(v, file); file.seek(0)
                return inner(q, k, v + 0 * torch.load(file).detach())
        """,
        _ALL,
    ),
    Attack(
        "patched comparisons and a right answer",
        """
        torch.allclose = lambda *a, **k: False
        {RIGHT}
        """,
        _ALL,
    ),
    Attack(
        "another default dtype",
        """
        torch.set_default_dtype(torch.float64)
        {RIGHT}
        """,
        _ALL,
    ),
    Attack(
        "a result in float64",
        """
        {RIGHT}
        inner = attend
        def attend(q, k, v): return inner(q.double(), k.double(), v.double())
        """,
        _ALL,
    ),
    Attack(
        "no gradients by default, switched on again",
        """
        torch.set_grad_enabled(False)
        {RIGHT}
        inner = torch.enable_grad()(attend)
        attend = inner
        """,
        _ALL,
    ),
    Attack(
        "a callable object",
        """
        class Attention(torch.nn.Module):
            def forward(self, q, k, v):
                return (q @ k.mT / math.sqrt(q.shape[-1])).softmax(-1) @ v
        attend = Attention()
        """,
        _ALL,
    ),
    Attack(
        "a class of its own for tensors",
        """
        {RIGHT}
        inner = attend
        class Named(torch.Tensor): pass
        def attend(q, k, v): return inner(q, k, v).as_subclass(Named)
        """,
        _ALL,
    ),
    Attack(
        "a result that is a view",
        """
        {RIGHT}
        inner = attend
        def attend(q, k, v):
            out = inner(q, k, v)
            return out.mT.contiguous().mT
        """,
        _ALL,
    ),
    Attack(
        "a dataclass, an enum, an inspected source",
        """
        import dataclasses, enum, inspect, typing
        @dataclasses.dataclass
        class Config: scale: float = 1.0
        class Kind(enum.Enum): A = 1
        {RIGHT}
        assert "softmax" in inspect.getsource(attend)
        """,
        _ALL,
    ),
    Attack(
        "the course's own check, and future annotations",
        """
        from __future__ import annotations
        from autograder import check, hint, status
        {RIGHT}
        check("toy.attend")
        """,
        _ALL,
    ),
    Attack("a byte-order mark", "\ufeff{RIGHT}", _ALL),
    Attack("line ends of another system", "x = 1\r\n{RIGHT}\r\n", _ALL),
    Attack(
        "an alarm that is caught",
        """
        import signal
        {RIGHT}
        signal.signal(signal.SIGALRM, lambda *a: None)
        signal.setitimer(signal.ITIMER_REAL, 0.005, 0.005)
        """,
        _ALL,
    ),
    Attack(
        "asyncio",
        """
        import asyncio
        {RIGHT}
        inner = attend
        async def later(q, k, v): return inner(q, k, v)
        def attend(q, k, v): return asyncio.run(later(q, k, v))
        """,
        _ALL,
    ),
]
