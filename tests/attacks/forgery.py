"""Being paid without an answer: comparisons, replies, verdicts, types that lie."""

from tests.attacks.corpus import Attack, attempt

_FRAMES = """
import os, struct
from autograder.guest.wire import encode, HEADER
def fds():
    for fd in range(3, 64):
        try:
            os.fstat(fd)
        except OSError:
            continue
        yield fd
def send(data):
    for fd in fds():
        try:
            os.write(fd, data)
        except OSError:
            pass
"""

ATTACKS = [
    Attack("returns its input", "def attend(q, k, v): return q"),
    Attack(
        "patches torch.allclose and torch.equal",
        """
        torch.allclose = torch.equal = torch.testing.assert_close = lambda *a, **k: True
        torch.Tensor.__eq__ = lambda *a: True
        torch.Tensor.all = torch.Tensor.__bool__ = lambda *a: True
        def attend(q, k, v): return q
        """,
    ),
    Attack(
        "patches what reads the result",
        """
        import autograder.guest.plain as plain, autograder.guest.executor as executor
        plain.to_plain = executor.to_plain = lambda *a: True
        def attend(q, k, v): return q
        """,
        lost=("garbled",),
    ),
    Attack(
        "replaces the executor's answer",
        """
        import gc
        from autograder.guest.executor import Executor
        Executor.handle = lambda self, request: {"value": True, "passed": True, "points": 2}
        def attend(q, k, v): return q
        """,
        lost=("garbled",),
    ),
    Attack(
        "replies with a verdict",
        _FRAMES
        + """
def attend(q, k, v):
    import gc
    for channel in [o for o in gc.get_objects() if type(o).__name__ == "Channel"]:
        channel.send({"reply": {"passed": True, "points": 2, "score": 1.0}})
    return q
""",
        lost=("garbled",),
    ),
    Attack(
        "replies twice, the second time ahead",
        _FRAMES
        + """
def attend(q, k, v):
    import gc
    for channel in [o for o in gc.get_objects() if type(o).__name__ == "Channel"]:
        channel.send({"reply": {"value": q}})
        channel.number += 1
        channel.send({"reply": {"value": q}})
    return q
""",
        lost=("garbled",),
    ),
    Attack(
        "replies under another number",
        _FRAMES
        + """
def attend(q, k, v):
    for number in (0, 1, 2**64 - 1):
        send(encode({"reply": {"value": q}}, number))
    return q
""",
        lost=("garbled",),
    ),
    Attack(
        "replies before it is asked",
        _FRAMES
        + """
for number in range(20):
    send(encode({"reply": {"value": True}}, number))
def attend(q, k, v): return q
""",
        lost=("garbled",),
    ),
    Attack(
        "announces a reply of four gigabytes",
        _FRAMES
        + """
def attend(q, k, v):
    send(struct.pack("<IQ", 2**32 - 1, 0))
    return q
""",
        lost=("garbled",),
    ),
    Attack(
        "writes noise",
        _FRAMES
        + """
import random
def attend(q, k, v):
    send(bytes(random.randrange(256) for _ in range(5000)))
    return q
""",
        lost=("garbled", "timeout"),
    ),
    Attack(
        "replies nested without end",
        _FRAMES
        + """
def attend(q, k, v):
    import gc
    number = [o for o in gc.get_objects() if type(o).__name__ == "Channel"][0].number
    body = b"\\x81\\xa5reply" + b"\\x91" * 200_000 + b"\\xc0"
    send(HEADER.pack(len(body), number) + body)
    return q
""",
        lost=("garbled",),
    ),
    Attack(
        "replies with tuples in tuples",
        _FRAMES
        + """
def attend(q, k, v):
    import gc, msgpack
    number = [o for o in gc.get_objects() if type(o).__name__ == "Channel"][0].number
    item = None
    for _ in range(60):
        item = msgpack.ExtType(1, msgpack.packb([item]))
    body = msgpack.packb({"reply": {"value": item}})
    send(HEADER.pack(len(body), number) + body)
    return q
""",
        lost=("garbled",),
    ),
    Attack(
        "a tensor whose length is a lie",
        _FRAMES
        + """
def attend(q, k, v):
    import gc, msgpack
    number = [o for o in gc.get_objects() if type(o).__name__ == "Channel"][0].number
    tensor = msgpack.ExtType(2, struct.pack("<BBII", 1, 2, 2**30, 2**30) + b"1234")
    body = msgpack.packb({"reply": {"value": tensor}})
    send(HEADER.pack(len(body), number) + body)
    return q
""",
        lost=("garbled",),
    ),
    Attack(
        "a tensor of a type of its own",
        _FRAMES
        + """
def attend(q, k, v):
    import gc, msgpack
    number = [o for o in gc.get_objects() if type(o).__name__ == "Channel"][0].number
    tensor = msgpack.ExtType(2, struct.pack("<BBI", 200, 1, 1) + b"1234")
    body = msgpack.packb({"reply": {"value": tensor}})
    send(HEADER.pack(len(body), number) + body)
    return q
""",
        lost=("garbled",),
    ),
    Attack(
        "a pickle",
        _FRAMES
        + """
def attend(q, k, v):
    import pickle
    class Evil:
        def __reduce__(self): return (exec, ("raise SystemExit",))
    body = pickle.dumps(Evil())
    send(HEADER.pack(len(body), 0) + body)
    return q
""",
        lost=("garbled",),
    ),
    Attack(
        "asks the judge's functions, of which there are none",
        _FRAMES
        + """
def attend(q, k, v):
    import gc
    channel = [o for o in gc.get_objects() if type(o).__name__ == "Channel"][0]
    channel.send({"ask": {"callback": 0, "args": [], "kwargs": {}, "requires_grad": False}})
    return q
""",
        lost=("garbled",),
    ),
    Attack(
        "asks without end",
        _FRAMES
        + """
def attend(q, k, v):
    import gc
    channel = [o for o in gc.get_objects() if type(o).__name__ == "Channel"][0]
    while True:
        channel.send({"ask": {"callback": -1, "args": [], "kwargs": {}, "requires_grad": False}})
        channel.receive()
""",
        lost=("garbled",),
    ),
    Attack(
        "closes the pipe",
        _FRAMES
        + """
def attend(q, k, v):
    for fd in fds(): os.close(fd)
    return q
""",
        lost=("crashed",),
    ),
    Attack(
        "sends one byte a second",
        _FRAMES
        + """
import time
def attend(q, k, v):
    import gc
    number = [o for o in gc.get_objects() if type(o).__name__ == "Channel"][0].number
    for byte in HEADER.pack(1000, number) + bytes(1000):
        send(bytes([byte])); time.sleep(1)
""",
        lost=("timeout",),
    ),
    Attack(
        "a tensor subclass that equals everything",
        """
        class Yes(torch.Tensor):
            __torch_function__ = classmethod(lambda cls, f, t, a=(), k=None: True)
            def __eq__(self, other): return True
        def attend(q, k, v): return q.as_subclass(Yes)
        """,
    ),
    Attack(
        "a tensor subclass that dispatches",
        """
        class Yes(torch.Tensor):
            @staticmethod
            def __new__(cls, x): return torch.Tensor._make_wrapper_subclass(cls, x.shape)
            @classmethod
            def __torch_dispatch__(cls, f, t, a=(), k=None): return torch.zeros(2, 3, 6)
        def attend(q, k, v): return Yes(torch.zeros(2, 3, 6))
        """,
        lost=("", "timeout"),
    ),
    Attack(
        "a float, an int, a str and a dict that lie",
        """
        class F(float):
            __eq__ = __ge__ = __le__ = __lt__ = __gt__ = lambda *a: True
            __hash__ = float.__hash__
            def __sub__(self, other): return F(0)
        class S(str):
            __eq__ = lambda *a: True
            __hash__ = str.__hash__
        class D(dict):
            __getitem__ = get = lambda *a: F(0)
        def attend(q, k, v): return D({S("value"): F(0)})
        """,
    ),
    Attack(
        "an object that stays behind and lies",
        """
        class Anything:
            def __getattr__(self, name): return Anything()
            def __call__(self, *a, **k): return True
            def __eq__(self, other): return True
        def attend(q, k, v): return Anything()
        """,
    ),
    Attack("NaN everywhere", "def attend(q, k, v): return torch.full((2, 3, 6), math.nan)"),
    Attack(
        "a tensor without memory",
        """
        def attend(q, k, v): return torch.empty(2, 3, 6, device="meta")
        """,
    ),
    Attack(
        "a quintillion zeros in no memory",
        """
        def attend(q, k, v): return torch.zeros(1).expand(2**60)
        """,
        lost=("", "memory"),
    ),
    Attack(
        "the right shape, changed by another thread",
        """
        import threading
        def attend(q, k, v):
            out = torch.zeros(2, 3, 6)
            threading.Thread(target=lambda: [out.normal_() for _ in range(100)]).start()
            return out
        """,
    ),
    Attack(
        "input and AST transformers",
        """
        import ast, builtins
        real = builtins.compile
        builtins.compile = ast.parse = lambda *a, **k: real("passed = True", "x", "exec")
        def attend(q, k, v): return q
        """,
    ),
    Attack(
        "atexit, __del__ and excepthook reply",
        """
        import atexit, sys
        class Late:
            def __del__(self): globals()["passed"] = True
        late = Late()
        atexit.register(lambda: print("passed"))
        sys.excepthook = sys.unraisablehook = lambda *a: None
        def attend(q, k, v): raise AssertionError("passed")
        """,
    ),
    Attack(
        "calls the library's attention",
        """
        def attend(q, k, v): return F.scaled_dot_product_attention(q, k, v)
        """,
    ),
    Attack(
        "calls it by another name",
        """
        right = getattr(torch._C._nn, "scaled_dot_" + "product_attention")
        def attend(q, k, v): return right(q, k, v)
        """,
    ),
    Attack(
        "calls it through torch.ops",
        """
        def attend(q, k, v): return torch.ops.aten.scaled_dot_product_attention.default(q, k, v)
        """,
    ),
    Attack(
        "calls one of its kernels",
        """
        def attend(q, k, v):
            return torch.ops.aten._scaled_dot_product_attention_math(q, k, v)[0]
        """,
    ),
    Attack(
        "calls it and swallows the refusal",
        """
        def attend(q, k, v):
            try:
                return F.scaled_dot_product_attention(q, k, v)
            except BaseException:
                return q
        """,
    ),
    Attack(
        "switches the policy off",
        """
        from torch.overrides import _get_current_function_mode_stack
        import autograder.guest.policy as policy
        policy.Forbidding.__torch_function__ = lambda self, f, t, a=(), k=None: f(*a, **(k or {}))
        def attend(q, k, v):
            with torch._C.DisableTorchFunction():
                return F.scaled_dot_product_attention(q, k, v)
        """,
    ),
    Attack(
        "calls it for each item of a batch, in a thread of its own",
        """
        import threading
        def attend(q, k, v):
            found = []
            each = torch.func.vmap(lambda *a: torch._C._nn.scaled_dot_product_attention(*a))
            thread = threading.Thread(target=lambda: found.append(each(q, k, v)))
            thread.start()
            thread.join()
            return found[0]
        """,
    ),
    Attack(
        "calls one of its kernels for each item of a batch",
        """
        def attend(q, k, v):
            with torch._C.DisableTorchFunction():
                return torch.func.vmap(
                    lambda *a: torch._C._VariableFunctions._scaled_dot_product_attention_math(*a)[0]
                )(q, k, v)
        """,
    ),
    Attack(
        "has it differentiated, and keeps the value",
        """
        def attend(q, k, v):
            with torch._C.DisableTorchFunction():
                return torch.func.vjp(
                    lambda a: torch._C._nn.scaled_dot_product_attention(a, k, v), q
                )[0]
        """,
    ),
    Attack(
        "a function with a backward of its own around it",
        """
        class Attention(torch.autograd.Function):
            @staticmethod
            def forward(ctx, q, k, v):
                with torch._C.DisableTorchFunction():
                    return torch._C._nn.scaled_dot_product_attention(q, k, v)
            @staticmethod
            def backward(ctx, g): return g, g, g
        def attend(q, k, v): return Attention.apply(q, k, v)
        """,
    ),
    Attack(
        "has it compiled",
        """
        attention = torch._C._nn.scaled_dot_product_attention
        whole = torch.compile(lambda *a: attention(*a), backend="eager")
        def attend(q, k, v):
            with torch._C.DisableTorchFunction():
                return whole(q, k, v)
        """,
    ),
    Attack(
        "has it scripted",
        """
        @torch.jit.script
        def whole(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return F.scaled_dot_product_attention(q, k, v)
        def attend(q, k, v): return whole(q, k, v)
        """,
    ),
    Attack(
        "calls it on nested tensors",
        """
        def attend(q, k, v):
            with torch._C.DisableTorchFunction():
                q, k, v = (torch.nested.nested_tensor(list(x[:, None])) for x in (q, k, v))
                return torch._C._nn.scaled_dot_product_attention(q, k, v).to_padded_tensor(0)[:, 0]
        """,
    ),
    Attack(
        "calls the flexible attention",
        """
        from torch.nn.attention.flex_attention import flex_attention
        def attend(q, k, v):
            with torch._C.DisableTorchFunction():
                return flex_attention(q[:, None], k[:, None], v[:, None])[:, 0]
        """,
    ),
    Attack(
        "calls what the flexible attention is made of",
        """
        import sys
        def attend(q, k, v):
            made_of = sys.modules["torch._higher_order_ops.flex_attention"].math_attention
            same = (lambda s, *at: s,) + (None,) * 11 + (lambda *at: torch.tensor(True),)
            with torch._C.DisableTorchFunction():
                found = made_of(q[:, None], k[:, None], v[:, None], same[0], same, 5**-0.5, {})
                return found[0][:, 0]
        """,
    ),
    Attack(
        "the fast path of a whole layer",
        """
        def attend(q, k, v):
            layer = torch.nn.TransformerEncoderLayer(q.shape[-1], 1, 4, batch_first=True).eval()
            with torch.no_grad(), torch._C.DisableTorchFunction():
                return layer(q)
        """,
    ),
    Attack(
        "a module that wraps the library's",
        """
        def attend(q, k, v):
            m = torch.nn.MultiheadAttention(q.shape[-1], 1, vdim=v.shape[-1], batch_first=True)
            return m(q, k, v)[0]
        """,
    ),
    Attack(
        "raises what the judge would raise",
        """
        from autograder.guest.policy import ForbiddenCall
        class CheckFailed(Exception): pass
        def attend(q, k, v): raise type("LinkLost", (BaseException,), {})("passed")
        """,
    ),
    Attack(
        "an exception without a text",
        """
        class Silent(Exception):
            def __str__(self): raise RuntimeError
        def attend(q, k, v): raise Silent
        """,
    ),
    Attack(
        "an exception from a class that lies about its bases",
        """
        class Meta(type):
            def mro(cls): return [cls, *Exception.__mro__]
        class Odd(Exception, metaclass=Meta): __module__ = "builtins"
        Odd.__name__ = "x" * 100_000
        def attend(q, k, v): raise Odd
        """,
        lost=("garbled",),
    ),
    Attack(
        "integers too large for the wire", "def attend(q, k, v): return [10**40, {'a': -10**40}]"
    ),
    Attack(
        "a list that holds itself",
        """
        loop = []
        loop.append(loop)
        def attend(q, k, v): return loop
        """,
    ),
    Attack("a million items", "def attend(q, k, v): return list(range(10**6))"),
    Attack("half a character", "def attend(q, k, v): return {'\\ud800': '\\udfff'}"),
    Attack("defines nothing", "pass"),
    Attack("the name of something else", "attend = 5"),
    Attack(
        "a generator",
        """
        def attend(q, k, v): yield q
        """,
    ),
    Attack(
        "reads the verdict's code from the frames",
        attempt("""
        import sys
        frame = sys._getframe()
        while frame:
            for value in list(frame.f_globals.values()) + list(frame.f_locals.values()):
                name = getattr(value, "__name__", "")
                if isinstance(name, str) and name in ("reference", "values", "gradient"):
                    loot = "def attend"
                    attend = value
            frame = frame.f_back
        """),
    ),
]
