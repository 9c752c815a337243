"""Harm to others: processes, files, the machine, and what is left behind."""

from tests.attacks.corpus import Attack, attempt

_WRONG = "\ndef attend(q, k, v): return q\n"

ATTACKS = [
    Attack("kills a process", attempt("import os; os.kill({pid}, 9)")),
    Attack(
        "kills everything",
        attempt("""
        import os
        for pid in (-1, 0, os.getppid(), -os.getpgrp()):
            try: os.kill(pid, 9)
            except OSError: pass
        os.killpg(0, 9)
        """),
    ),
    Attack(
        "kills by thread, queue and descriptor",
        attempt("""
        import ctypes, os, signal
        libc = ctypes.CDLL(None)
        libc.tgkill({pid}, {pid}, 9)
        libc.syscall(200, {pid}, 9)
        libc.syscall(129, {pid}, 9, ctypes.create_string_buffer(128))
        libc.syscall(424, libc.syscall(434, {pid}, 0), 9, None, 0)
        """),
    ),
    Attack(
        "has the kernel send a signal",
        attempt("""
        import fcntl, os, socket, signal
        a, b = socket.socketpair()
        fcntl.fcntl(a, fcntl.F_SETOWN, {pid})
        fcntl.fcntl(a, 10, 9)
        fcntl.fcntl(a, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
        b.send(b"x")
        """),
    ),
    Attack(
        "lowers another process's limits",
        attempt("""
        import resource
        resource.prlimit({pid}, resource.RLIMIT_CPU, (0, 0))
        """),
    ),
    Attack(
        "raises its own limits",
        attempt("""
        import resource
        for kind in (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE):
            resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        loot = "def attend"
        """),
    ),
    Attack(
        "takes another priority and another processor",
        attempt("""
        import os
        os.sched_setaffinity({pid}, {0})
        os.setpriority(os.PRIO_PROCESS, {pid}, 19)
        os.nice(-20)
        """),
    ),
    Attack("overwrites a file", attempt("open('{path}', 'w').write('gone')")),
    Attack("empties a file", attempt("import os; os.truncate('{path}', 0)")),
    Attack("removes a file", attempt("import os; os.unlink('{path}')")),
    Attack("renames a file", attempt("import os; os.rename('{path}', '{path}.old')")),
    Attack("removes a folder", attempt("import shutil; shutil.rmtree('{folder}')")),
    Attack(
        "changes mode, owner, times and attributes",
        attempt("""
        import os
        for action in (lambda: os.chmod("{path}", 0), lambda: os.chown("{path}", 0, 0),
                       lambda: os.utime("{path}", (0, 0)),
                       lambda: os.setxattr("{path}", "user.x", b"1")):
            try: action()
            except OSError: pass
        """),
    ),
    Attack(
        "writes into the gradebook's folder",
        attempt("""
        open("{folder}/new", "w").write("x")
        """),
    ),
    Attack(
        "writes into Python's packages",
        attempt("""
        import torch, os
        for folder in (os.path.dirname(torch.__file__), os.path.dirname(os.__file__), "/usr/lib"):
            try: open(folder + "/autograder-was-here", "w").write("x")
            except OSError: pass
        """),
    ),
    Attack(
        "writes into the next submission's scratch",
        attempt("""
        import os
        here = os.getcwd()
        for number in range(1, 60):
            try: open(f"{os.path.dirname(here)}/{number}/sitecustomize.py", "w").write("x")
            except OSError: pass
        """),
    ),
    Attack(
        "forks",
        attempt("""
        import os
        if os.fork() == 0:
            while True: pass
        """),
    ),
    Attack(
        "a fork bomb",
        """
        import os
        def attend(q, k, v):
            while True: os.fork()
        """,
    ),
    Attack(
        "a daemon",
        attempt("""
        import os
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                import time; time.sleep(600)
            os._exit(0)
        """),
    ),
    Attack(
        "starts a program",
        attempt("""
        import subprocess, sys
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        """),
    ),
    Attack(
        "becomes a program",
        attempt("""
        import os
        os.execv("/bin/sh", ["sh", "-c", "sleep 600"])
        """),
    ),
    Attack(
        "multiprocessing and a pool",
        attempt("""
        import multiprocessing
        with multiprocessing.get_context("fork").Pool(2) as pool: pool.map(abs, [1])
        """),
    ),
    Attack(
        "threads that never end",
        """
        import threading, time
        for _ in range(1000):
            try: threading.Thread(target=time.sleep, args=(600,)).start()
            except RuntimeError: break
        """
        + _WRONG,
        # where only memory bounds them, there may be none left for the answer
        lost=("", "memory", "crashed"),
    ),
    Attack(
        "a thread that works on",
        """
        import threading
        def spin():
            while True: pass
        threading.Thread(target=spin, daemon=True).start()
        """
        + _WRONG,
        # the limit of all its time is a kill
        lost=("", "timeout", "crashed"),
    ),
    Attack(
        "becomes root",
        attempt("""
        import os
        os.setuid(0)
        loot = "def attend"
        """),
    ),
    Attack(
        "maps itself to root",
        attempt("""
        import ctypes
        assert ctypes.CDLL(None).unshare(0x10000000) == 0
        loot = "def attend"
        """),
    ),
    Attack(
        "asks for keys, bpf, io_uring and more",
        attempt("""
        import ctypes
        libc = ctypes.CDLL(None)
        for number in (246, 248, 249, 250, 272, 298, 313, 321, 323, 425, 426, 427, 435, 442, 448):
            if libc.syscall(number, 0, 0, 0, 0, 0, 0) >= 0: loot = "def attend"
        """),
    ),
    Attack(
        "puts characters into a terminal",
        attempt("""
        import fcntl, termios
        for fd in range(4): fcntl.ioctl(fd, termios.TIOCSTI, b"x")
        """),
    ),
    Attack(
        "leaves the sandbox's time by a longer alarm",
        """
        import signal
        signal.signal(signal.SIGALRM, lambda *a: None)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        """
        + _WRONG,
    ),
]
# attempts that mark their own success by a `loot` that is no answer still earn nothing: what they
# touched is looked at afterwards.
