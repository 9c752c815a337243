"""Using up what there is: time, memory, disk, descriptors, output, the stack."""

from tests.attacks.corpus import Attack

ATTACKS = [
    Attack(
        "a loop without end",
        """
        def attend(q, k, v):
            while True: pass
        """,
        lost=("timeout",),
    ),
    Attack(
        "a loop that swallows interrupts",
        """
        import signal
        for number in range(1, 65):
            try: signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError): pass
        def attend(q, k, v):
            while True:
                try:
                    while True: pass
                except BaseException: pass
        """,
        lost=("timeout",),
    ),
    Attack(
        "a loop in a cell",
        """
        def attend(q, k, v): return q
        while True: pass
        """,
        lost=("timeout",),
    ),
    Attack(
        "a loop in C",
        """
        def attend(q, k, v): return sum(range(10**12))
        """,
        lost=("timeout",),
    ),
    Attack(
        "sleeps",
        """
        import time
        def attend(q, k, v): time.sleep(10_000)
        """,
        lost=("timeout",),
    ),
    Attack(
        "works a little and sleeps in turn",
        """
        import time
        def attend(q, k, v):
            for _turn in range(100):  # 5 s of sleep; the limit is 0.3 s, however busy the machine
                start = time.process_time()
                while time.process_time() - start < 0.003: pass
                time.sleep(0.05)
            scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
            return scores.softmax(-1) @ v
        """,
        lost=("timeout",),
    ),
    Attack(
        "waits for a lock",
        """
        import threading
        lock = threading.Lock()
        lock.acquire()
        def attend(q, k, v): lock.acquire()
        """,
        lost=("timeout",),
    ),
    Attack(
        "stops itself",
        """
        import os, signal, time
        def attend(q, k, v):
            signal.raise_signal(signal.SIGSTOP)
            time.sleep(10_000)
        """,
        lost=("timeout",),
    ),
    Attack("waits for input", "def attend(q, k, v): return input()"),
    Attack(
        "memory in Python",
        """
        def attend(q, k, v):
            hoard = []
            while True: hoard.append(bytearray(2**24))
        """,
        lost=("memory", "crashed", "timeout"),
    ),
    Attack(
        "memory in torch",
        """
        def attend(q, k, v): return torch.ones(10**5, 10**5).sum()
        """,
        lost=("memory",),
    ),
    Attack(
        "memory in a cell",
        """
        def attend(q, k, v): return q
        hoard = [bytearray(2**24) for _ in range(10_000)]
        """,
        lost=("", "memory", "timeout"),
    ),
    Attack(
        "memory that is mapped and shared",
        """
        import mmap
        def attend(q, k, v):
            hoard = []
            while True:
                part = mmap.mmap(-1, 2**26)
                part.write(b"x" * 2**26)
                hoard.append(part)
        """,
        lost=("memory", "crashed", "timeout"),
    ),
    Attack(
        "memory in files without names",
        """
        import os
        def attend(q, k, v):
            for _ in range(1000):
                fd = os.memfd_create("x")
                os.write(fd, bytes(2**24))
        """,
        lost=("", "memory", "timeout"),
    ),
    Attack(
        "fills the disk",
        """
        def attend(q, k, v):
            for number in range(100_000):
                with open(f"f{number}", "wb") as file: file.write(bytes(2**20))
        """,
        lost=("", "memory", "timeout", "crashed"),
    ),
    Attack(
        "one endless file",
        """
        def attend(q, k, v):
            with open("f", "wb") as file:
                while True: file.write(bytes(2**20))
        """,
        lost=("", "memory", "timeout", "crashed"),
    ),
    Attack(
        "a million empty files",
        """
        def attend(q, k, v):
            for number in range(10**6): open(f"f{number}", "w").close()
        """,
        lost=("", "memory", "timeout", "crashed"),
    ),
    Attack(
        "folders in folders",
        """
        import os
        def attend(q, k, v):
            for _ in range(100_000):
                os.mkdir("d"); os.chdir("d")
        """,
        lost=("", "memory", "timeout", "crashed"),
    ),
    Attack(
        "opens files until none is left",
        """
        held = []
        def attend(q, k, v):
            while True: held.append(open("/dev/null"))
        """,
    ),
    Attack(
        "prints without end",
        """
        def attend(q, k, v):
            while True: print("x" * 10_000)
        """,
        lost=("timeout",),
    ),
    Attack(
        "writes to every descriptor without end",
        """
        import os
        def attend(q, k, v):
            while True:
                for fd in range(8):
                    try: os.write(fd, bytes(65536))
                    except OSError: pass
        """,
        lost=("garbled",),
    ),
    Attack(
        "recursion",
        """
        def attend(q, k, v): return attend(q, k, v)
        """,
    ),
    Attack(
        "recursion without Python's limit",
        """
        import sys
        sys.setrecursionlimit(10**9)
        class Deep:
            def __getattr__(self, name): return getattr(self, name + "x")
        def attend(q, k, v):
            f = lambda: f()
            return repr(__import__("functools").reduce(lambda a, _: [a], range(10**6), []))
        """,
        lost=("crashed", "timeout", "memory"),
    ),
    Attack(
        "ends the process",
        """
        import os
        def attend(q, k, v): os._exit(0)
        """,
        lost=("crashed",),
    ),
    Attack(
        "ends the process in a cell",
        """
        import os
        os._exit(0)
        """,
        lost=("crashed",),
    ),
    Attack(
        "a fault of memory",
        """
        import ctypes
        def attend(q, k, v): ctypes.string_at(0)
        """,
        lost=("crashed",),
    ),
    Attack(
        "aborts",
        """
        import os
        def attend(q, k, v): os.abort()
        """,
        lost=("crashed",),
    ),
    Attack(
        "a very large result",
        """
        def attend(q, k, v): return torch.zeros(2**25)
        """,
        lost=("", "memory", "timeout"),
    ),
    Attack(
        "many large results",
        """
        def attend(q, k, v): return [torch.zeros(2**22) for _ in range(20)]
        """,
        lost=("", "memory", "timeout"),
    ),
    Attack("a very long text", "def attend(q, k, v): return 'x' * 10**8"),
    Attack("a very long number", "def attend(q, k, v): return int('9' * 4000)"),
    Attack(
        "a regular expression that never ends",
        """
        import re
        def attend(q, k, v): return re.match(r"(a+)+$", "a" * 64 + "b")
        """,
        lost=("timeout",),
    ),
    Attack("a source nested without end", "(" * 100_000 + "\ndef attend(q, k, v): return q"),
    Attack("a source with null bytes", "\0\ndef attend(q, k, v): return q"),
    Attack(
        "collects garbage that never ends",
        """
        import gc
        class Again:
            def __del__(self): Again()
        def attend(q, k, v):
            Again()
            return q
        """,
        lost=("timeout", "crashed", "memory"),
    ),
]
