"""Looking for a right answer where one lies: files, memory, other processes, the network."""

from tests.attacks.corpus import MARK, Attack, attempt

ATTACKS = [
    Attack("opens a file of the instructor", attempt("loot = open('{path}').read()")),
    Attack("opens it by way of ..", attempt("loot = open('../../../../../..{path}').read()")),
    Attack(
        "opens it by way of a descriptor",
        attempt("""
        import os
        root = os.open("/", os.O_RDONLY)
        loot = open(os.open("{path}".lstrip("/"), os.O_RDONLY, dir_fd=root)).read()
        """),
    ),
    Attack(
        "links to it",
        attempt("""
        import os
        os.symlink("{path}", "link")
        loot = open("link").read()
        """),
    ),
    Attack(
        "hard-links to it",
        attempt("""
        import os
        os.link("{path}", "link")
        loot = open("link").read()
        """),
    ),
    Attack("goes through /proc/self/root", attempt("loot = open('/proc/self/root{path}').read()")),
    Attack(
        "goes through the warm process's root",
        attempt("""
        import glob
        for root in glob.glob("/proc/*/root") + ["/proc/1/root"]:
            loot = loot or open(root + "{path}").read()
        """),
    ),
    Attack(
        "imports it",
        attempt("""
        import sys, inspect
        sys.path.insert(0, "{folder}")
        import loot_module
        loot = inspect.getsource(loot_module)
        """),
    ),
    Attack(
        "imports the solutions",
        attempt("""
        from solutions.attention import scaled_dot_product_attention
        attend = lambda q, k, v: scaled_dot_product_attention(q, k, v)[0]
        """),
    ),
    Attack(
        "imports the checks and the bank",
        attempt("""
        import importlib
        for name in ("autograder.checks.attention", "autograder.answers.attention",
                     "autograder.judge", "tests.attacks.corpus"):
            module = importlib.import_module(name)
            loot = "def attend" + module.RIGHT.partition("def attend")[2]
        """),
    ),
    Attack(
        "finds them in the installed packages",
        attempt("""
        import site, os, torch
        top = os.path.dirname(os.path.dirname(torch.__file__))
        for folder in (top, top + "/autograder/checks", "{repository}"):
            for name in os.listdir(folder):
                if name in ("solutions", "checks", "answers", "tests"): loot = "def attend"
        assert loot is None
        """),
    ),
    Attack(
        "asks a server for it",
        attempt("""
        import socket
        with socket.create_connection(("127.0.0.1", {port}), 2) as s: loot = s.recv(10000)
        """),
    ),
    Attack(
        "asks it over IPv6, datagrams and raw sockets",
        attempt("""
        import socket
        for family in (socket.AF_INET6, socket.AF_INET, socket.AF_PACKET, socket.AF_NETLINK):
            for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
                try:
                    s = socket.socket(family, kind)
                    s.connect(("localhost", {port}))
                    loot = s.recv(10000)
                except OSError: pass
        """),
    ),
    Attack(
        "asks it over a socket in the file system",
        attempt("""
        import socket
        s = socket.socket(socket.AF_UNIX)
        s.connect("{unix}")
        loot = s.recv(10000)
        """),
    ),
    Attack(
        "asks it over an abstract socket",
        attempt("""
        import socket
        s = socket.socket(socket.AF_UNIX)
        s.connect("\\0{abstract}")
        loot = s.recv(10000)
        """),
    ),
    Attack(
        "asks it with a socket that the pipe's end gives",
        attempt("""
        import socket
        for fd in range(3, 64):
            try:
                s = socket.socket(fileno=fd)
                s.connect("\\0{abstract}")
                loot = s.recv(10000)
            except OSError: pass
        """),
    ),
    Attack(
        "reads shared memory by name",
        attempt("""
        loot = open("/dev/shm/{shm}", "rb").read()
        """),
    ),
    Attack(
        "reads System V shared memory",
        attempt("""
        import ctypes
        libc = ctypes.CDLL(None)
        libc.shmat.restype = ctypes.c_void_p
        address = libc.shmat({sysv}, None, 0o10000)
        if address not in (None, 2**64 - 1): loot = ctypes.string_at(address)
        """),
    ),
    Attack(
        "reads another process's environment",
        attempt("""
        loot = open("/proc/{pid}/environ").read()
        """),
    ),
    Attack(
        "reads another process's memory",
        attempt("""
        import ctypes
        libc = ctypes.CDLL(None, use_errno=True)
        class V(ctypes.Structure): _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
        buffer = ctypes.create_string_buffer(4096)
        mine, theirs = V(ctypes.addressof(buffer), 4096), V({address}, 4096)
        n = libc.process_vm_readv({pid}, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0)
        if n > 0: loot = buffer.raw
        """),
    ),
    Attack(
        "traces another process",
        attempt("""
        import ctypes, os
        libc = ctypes.CDLL(None)
        libc.ptrace.restype = ctypes.c_long
        for pid in ({pid}, os.getppid(), 1):
            if libc.ptrace(16, pid, None, None) == 0: loot = "def attend"; os.abort()
        """),
    ),
    Attack(
        "takes a descriptor of another process",
        attempt("""
        import ctypes, os
        libc = ctypes.CDLL(None)
        for pid in ({pid}, os.getppid()):
            fd = libc.syscall(434, pid, 0)
            for number in range(32):
                mine = libc.syscall(438, fd, number, 0)
                if mine >= 0: loot = os.pread(mine, 10000, 0)
        """),
    ),
    Attack(
        "reads whatever it inherited",
        attempt("""
        import os
        for fd in range(256):
            try:
                os.set_blocking(fd, False)
                data = os.pread(fd, 100000, 0)
            except OSError:
                try: data = os.read(fd, 100000)
                except OSError: continue
            if b"def attend" in data: loot = data
        """),
        lost=("", "crashed"),
    ),
    Attack(
        "searches its memory for an earlier submission",
        attempt(f"""
        import gc
        needle = "{MARK[2:]}"[::-1]
        needle = needle[::-1]
        own = open
        for thing in gc.get_objects():
            try: text = thing.__doc__ if not isinstance(thing, (list, dict, tuple)) else None
            except Exception: text = None
            for item in ([text] if text else thing.values() if type(thing) is dict
                         else thing if type(thing) in (list, tuple) else ()):
                if type(item) is str and "# " + needle in item and "needle" not in item:
                    loot = item
        """),
    ),
    Attack(
        "searches its heap for an earlier submission",
        attempt("""
        import ctypes
        needle = bytes([35, 32, 55, 99, 49, 102, 45]) + b"loot"
        top = id(object()) & ~0xFFFFF
        for start in range(top - 2**22, top + 2**22, 4096):
            pass
        import mmap, io
        data = open("/proc/self/mem", "rb")
        data.seek(top)
        loot = data.read(2**20)
        """),
    ),
    Attack(
        "reads the warm process's memory",
        attempt("""
        import os
        for pid in (os.getppid(), 0, 1):
            with open(f"/proc/{pid}/mem", "rb") as memory: loot = memory.read(1)
        """),
    ),
    Attack(
        "looks through sys.modules",
        attempt("""
        import sys
        for name in list(sys.modules):
            if name.startswith(("solutions", "autograder.checks", "autograder.answers", "tests.",
                                "autograder.judge", "autograder.engine")):
                loot = "def attend"
        assert loot is None
        """),
    ),
    Attack(
        "runs a program that reads it",
        attempt("""
        import subprocess
        loot = subprocess.run(["cat", "{path}"], capture_output=True).stdout
        """),
    ),
    Attack(
        "opens a file by its handle",
        attempt("""
        import ctypes, os
        libc = ctypes.CDLL(None)
        handle = ctypes.create_string_buffer(128)
        mount = ctypes.c_int()
        ctypes.memmove(handle, b"\\x80\\0\\0\\0", 4)
        libc.name_to_handle_at(-100, b"{path}", handle, ctypes.byref(mount), 0)
        fd = libc.open_by_handle_at(os.open("/", os.O_RDONLY), handle, 0)
        loot = os.read(fd, 10000)
        """),
    ),
    Attack(
        "mounts the old root back",
        attempt("""
        import ctypes, os
        libc = ctypes.CDLL(None)
        libc.unshare(0x10000000 | 0x20000)
        os.mkdir("m")
        libc.mount(b"/", b"m", None, 4096 | 16384, None)
        libc.umount2(b"/scratch", 2)
        libc.chroot(b"m")
        loot = open("{path}").read()
        """),
    ),
    Attack(
        "enters another process's namespaces",
        attempt("""
        import ctypes, os
        libc = ctypes.CDLL(None)
        for pid in ({pid}, os.getppid()):
            fd = libc.syscall(434, pid, 0)
            libc.setns(fd, 0x20000)
        loot = open("{path}").read()
        """),
    ),
    Attack(
        "makes calls of another machine",
        attempt("""
        import ctypes, mmap
        # mov eax, 11 (getpid's place is taken by execve's in 32 bits); int 0x80; ret
        code = mmap.mmap(-1, 4096, prot=7)
        code.write(b"\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3")
        address = ctypes.addressof(ctypes.c_char.from_buffer(code))
        ctypes.CFUNCTYPE(ctypes.c_int)(address)()
        """),
        lost=("crashed",),
    ),
]
