"""What attacks aim at: a process, files, servers and shared memory that hold a right answer."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import threading
from multiprocessing import shared_memory
from pathlib import Path

from tests.attacks.corpus import LOOT

_CANARY = """
import ctypes, os, sys
held = ctypes.create_string_buffer(os.environ["LOOT"].encode())
print(ctypes.addressof(held), flush=True)
sys.stdin.read()
"""
_IPC_CREAT, _IPC_RMID = 0o1000, 0


class Target:
    """The places that attacks name in braces.

    Args:
        folder: an empty folder that this user owns.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.repository = Path(__file__).resolve().parents[2]
        self.path = folder / "loot.txt"
        self.path.write_text(LOOT, encoding="utf-8")
        (folder / "loot_module.py").write_text(LOOT, encoding="utf-8")
        for path in folder.iterdir():
            path.chmod(0o644)
        folder.chmod(0o755)
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _CANARY],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"LOOT": LOOT},
        )
        self.pid = self._process.pid
        self.address = int(self._process.stdout.readline())
        self.unix = folder / "socket"
        self.abstract = f"loot-{os.getpid()}"
        self._servers = [
            self._serve(socket.AF_INET, ("127.0.0.1", 0)),
            self._serve(socket.AF_UNIX, str(self.unix)),
            self._serve(socket.AF_UNIX, "\0" + self.abstract),
        ]
        self.port = self._servers[0].getsockname()[1]
        self._shared = shared_memory.SharedMemory(create=True, size=4096)
        self._shared.buf[: len(LOOT)] = LOOT.encode()
        self.shm = self._shared.name
        self.sysv = self._share()
        self._before = self._state()

    @staticmethod
    def _serve(family: int, address: object) -> socket.socket:
        server = socket.socket(family)
        server.bind(address)
        server.listen(8)

        def answer() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(LOOT.encode())

        threading.Thread(target=answer, daemon=True).start()
        return server

    @staticmethod
    def _share() -> int:
        libc = ctypes.CDLL(None, use_errno=True)
        libc.shmat.restype = ctypes.c_void_p
        number = libc.shmget(0, 4096, _IPC_CREAT | 0o666)
        assert number >= 0
        ctypes.memmove(libc.shmat(number, None, 0), LOOT.encode(), len(LOOT))
        return number

    def _state(self) -> dict[str, object]:
        status = self.path.stat()
        return {
            "files": sorted(path.name for path in self.folder.iterdir()),
            "text": self.path.read_text(encoding="utf-8"),
            "inode": (status.st_mode, status.st_uid, status.st_mtime_ns, status.st_nlink),
            "attributes": os.listxattr(self.path),
            "affinity": sorted(os.sched_getaffinity(self.pid)),
            "nice": os.getpriority(os.PRIO_PROCESS, self.pid),
        }

    def touched(self) -> list[str]:
        """What is no longer as it was."""
        if self._process.poll() is not None:
            return ["the process is gone"]
        now = self._state()
        return [key for key, value in self._before.items() if now[key] != value]

    def close(self) -> None:
        """Take everything down."""
        self._process.communicate()
        for server in self._servers:
            server.close()
        self._shared.close()
        self._shared.unlink()
        ctypes.CDLL(None).shmctl(self.sysv, _IPC_RMID, None)
