"""The warm process: confines itself, imports once, forks a sandbox whenever it is asked to.

Two processes stand here. The *launcher* is started by the engine; it makes the namespaces and stays
to hold their parent's place. The *zygote* is its child, the first process of its own process
namespace: when it ends, however it ends, the kernel ends every sandbox with it. It talks with the
engine over a control socket that no sandbox inherits, and holds no learner's code: that goes from
the engine straight into a sandbox.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from typing import Any, NoReturn

from autograder.engine.warm import landlock, linux, seccomp, view

_ROOTLESS = 0  # how the zygote's own user is called inside its namespace
_NOBODY = 65534  # how a sandbox's user is called inside its own


class Zygote:
    """Configuration and descriptors that outlive the confinement.

    Args:
        configuration: ``tier``, ``uid`` (the unprivileged user to become, where started by root),
            ``limits`` (fields of :class:`autograder.engine.limits.Limits`), ``preload``,
            ``scratch`` (second tier: the folder that holds the sandboxes' folders), ``control``.
    """

    def __init__(self, configuration: dict[str, Any], seal: Callable[[], None]) -> None:
        self.tier: str = configuration["tier"]
        self.uid: int | None = configuration["uid"]
        self.limits: dict[str, Any] = configuration["limits"]
        self.preload: list[str] = configuration["preload"]
        self.scratch: str = configuration["scratch"]
        self.control = socket.socket(fileno=configuration["control"])
        self.seal = seal
        # looked up while all of it can be seen
        self.folders = view.import_folders()
        self.readable = list(view.readable_without_hidden())
        # Stays readable after the root is gone: user maps, own size, own namespace.
        self.proc = os.open("/proc", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        self.serve: Any = None
        self.filter = b""
        self.bounds: list[tuple[int, int]] = []
        self._pid_namespace = -1

    # --- talking with the engine

    def tell(self, message: dict[str, Any], *fds: int) -> None:
        """Send a message to the one who started this process, with descriptors."""
        _send(self.control, message, *fds)

    def hear(self) -> dict[str, Any]:
        """Its next message; ends the process when it is gone."""
        message, _fds = _receive(self.control)
        if message is None:
            os._exit(0)
        return message

    # --- becoming confined

    def confine(self) -> None:
        """Give up rights, go behind the first walls, and fork the zygote."""
        if self.tier == "namespaces":
            self._enter_namespaces()
        elif self.uid is not None:
            self._become_unprivileged(self.uid)
        pid = os.fork()
        if pid:
            linux.close_all_but()
            os.waitpid(pid, 0)
            os._exit(0)
        linux.die_with_parent(signal.SIGKILL)

    def _enter_namespaces(self) -> None:
        own = linux.CLONE_NEWNS | linux.CLONE_NEWUTS | linux.CLONE_NEWIPC | linux.CLONE_NEWNET
        megabytes = self.limits["scratch_megabytes"]
        if self.uid is None:
            # An ordinary user gains the right to mount by a user namespace of its own.
            self._enter_user_namespace()
            linux.unshare(own)
            view.build(megabytes)
        else:
            # Root mounts what only root may read the way to, then stops being root.
            linux.unshare(own)
            view.build(megabytes)
            self._become_unprivileged(self.uid)
            self._enter_user_namespace()
        linux.unshare(linux.CLONE_NEWPID)

    def _enter_user_namespace(self) -> None:
        linux.unshare(linux.CLONE_NEWUSER)
        self.tell({"map": True})
        self.hear()

    def _become_unprivileged(self, uid: int) -> None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        linux.set_dumpable(True)  # a change of user makes /proc/self root's; the maps are there

    # --- becoming warm

    def warm(self) -> None:
        """Import what answers use, and make the memory cheap to fork."""
        for folder in self.folders:
            if not os.access(folder, os.R_OK | os.X_OK):
                raise OSError(f"an unprivileged user cannot read {folder}")
        sys.path[:] = self.folders
        os.environ.update(HOME=view.SCRATCH, TMPDIR=view.SCRATCH)
        if self.tier == "landlock":
            os.environ.update(HOME=self.scratch, TMPDIR=self.scratch)
        self.serve = importlib.import_module("autograder.guest.serve")
        for name in self.preload:
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
        self.serve.rehearse()
        if self.tier == "namespaces":
            self._pid_namespace = os.open(
                "self/ns/pid", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.proc
            )
        threads = int(self._read_proc("stat").rpartition(")")[2].split()[17])
        if threads != 1:
            raise OSError(f"{threads} threads after the imports; a fork would lose all but one")
        self.filter = seccomp.program(1)
        self.seal()
        gc.collect()
        gc.freeze()  # a collection in a sandbox leaves what was there before alone
        linux.trim_heap()
        self._collapse()
        self.bounds = self._bounds()
        with contextlib.suppress(OSError):
            self._write_proc("oom_score_adj", "500")  # out of memory, this goes before the engine
        if self.tier == "landlock":
            # The second walls are each sandbox's own; these first ones are common to all.
            linux.no_new_privileges()
            landlock.confine(self.readable, view.DEVICES, self.scratch)

    def _collapse(self) -> None:
        """Move private memory into huge pages: halves the cost of a fork, where the kernel can."""
        huge = 2 * 2**20
        regions = [line.split() for line in self._read_proc("maps").splitlines()]
        for span, rights, _, _, _, *path in regions:
            if rights.startswith("rw") and (not path or path[0] == "[heap]"):
                start, end = (int(part, 16) for part in span.split("-"))
                start, end = -(-start // huge) * huge, end // huge * huge
                if end > start:
                    linux.collapse_to_huge_pages(start, end - start)

    # --- forking

    def run(self) -> NoReturn:
        """Fork a sandbox for each order, until the one who started this process is gone."""
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel clears ended children away
        self.tell({"ready": True})
        clients = {self.control.fileno(): _Client(self.control)}
        orders = select.poll()
        orders.register(self.control, select.POLLIN)
        while True:
            for number, _event in orders.poll():
                client = clients[number]
                message, fds = _receive(client.control)
                if message is None:
                    if client.control is self.control:
                        os._exit(0)
                    orders.unregister(number)
                    clients.pop(number).end()
                elif "join" in message:
                    joined = _Client(socket.socket(fileno=fds.pop()))
                    clients[joined.control.fileno()] = joined
                    orders.register(joined.control, select.POLLIN)
                else:
                    self._serve(client, fds[0], message.get("scratch", ""))
                for fd in fds:
                    os.close(fd)

    def _serve(self, client: _Client, channel: int, scratch: str) -> None:
        try:
            pidfd = os.pidfd_open(self._fork(channel, scratch))
        except OSError as error:
            client.tell({"error": str(error)})
        else:
            client.tell({"forked": True}, pidfd)
            client.keep(pidfd)

    def _fork(self, channel: int, scratch: str) -> int:
        if self.tier == "namespaces":
            linux.unshare(linux.CLONE_NEWPID)  # for the next child: it is its first process
        try:
            pid = linux.fork()
            if pid == 0:
                self._sandbox(channel, scratch)
        finally:
            if self.tier == "namespaces":
                linux.setns(self._pid_namespace, linux.CLONE_NEWPID)
        return pid

    def _sandbox(self, fd: int, scratch: str) -> None:
        """The child: the last walls, then the learner's code. Never returns into the loop above."""
        try:
            guest = self.serve
            requests = select.poll()
            requests.register(fd, select.POLLIN)
            channel = guest.Channel(
                lambda size: guest.read_exactly(fd, size),
                lambda data: guest.write_all(fd, data),
                lambda: bool(requests.poll(0)),
            )
            try:
                self._wall_in(fd, scratch)
            except OSError as error:
                channel.send({"failed": str(error)})
                return
            channel.send({"ready": True})
            # What is left of the warm process's own objects is no use to anyone here.
            self.__dict__.clear()
            gc.enable()
            guest.serve(channel)
        except (EOFError, OSError):
            pass  # the other side closed: it has all it wanted
        finally:
            os._exit(0)  # no atexit function, no thread and no __del__ of the learner's runs on

    def _wall_in(self, fd: int, scratch: str) -> None:
        if self.tier == "namespaces":
            linux.unshare(
                linux.CLONE_NEWUSER | linux.CLONE_NEWNS | linux.CLONE_NEWIPC | linux.CLONE_NEWUTS
            )
            self._write_proc("setgroups", "deny")
            self._write_proc("uid_map", f"{_NOBODY} {_ROOTLESS} 1")
            self._write_proc("gid_map", f"{_NOBODY} {_ROOTLESS} 1")
            view.mount_scratch(self.limits["scratch_megabytes"])
            socket.sethostname("sandbox")
            os.chdir(view.SCRATCH)
        else:
            # not "/": of the folder that holds every sandbox's own, this one's own alone
            landlock.confine(self.readable, view.DEVICES, scratch)
            os.environ.update(HOME=scratch, TMPDIR=scratch)
            os.chdir(scratch)
        tempfile.tempdir = None  # looked up again: the folder is this sandbox's own
        with contextlib.suppress(OSError):
            self._write_proc("oom_score_adj", "1000")  # and this goes first of all
        for which, bound in self.bounds:
            resource.setrlimit(which, (bound, bound))
        linux.close_all_but(fd)
        linux.die_with_parent(signal.SIGKILL)
        linux.drop_capabilities()
        linux.set_dumpable(False)
        linux.no_new_privileges()
        # the first process of its namespace is number 1, so that the filter is made beforehand
        linux.install_seccomp(self.filter if os.getpid() == 1 else seccomp.program(os.getpid()))

    def _bounds(self) -> list[tuple[int, int]]:
        """What every sandbox is limited to, found out once: they start as large as this process."""
        limits = self.limits
        pages = int(self._read_proc("statm").split()[0])
        bounds = {
            resource.RLIMIT_AS: pages * resource.getpagesize() + limits["memory"],
            resource.RLIMIT_CPU: int(limits["total_seconds"]),
            resource.RLIMIT_FSIZE: limits["file_bytes"],
            resource.RLIMIT_NOFILE: limits["open_files"],
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_MEMLOCK: 0,
            resource.RLIMIT_MSGQUEUE: 0,
        }
        if self.tier == "namespaces":
            # counted within the sandbox's own user namespace; elsewhere it would count all that
            # the user runs, and threads are bounded by their stacks' address space
            bounds[resource.RLIMIT_NPROC] = limits["threads"]
        return list(bounds.items())

    def _read_proc(self, name: str) -> str:
        fd = os.open(f"self/{name}", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.proc)
        with open(fd, encoding="utf-8") as file:
            return file.read()

    def _write_proc(self, name: str, text: str) -> None:
        fd = os.open(f"self/{name}", os.O_WRONLY, dir_fd=self.proc)
        try:
            os.write(fd, text.encode())
        finally:
            os.close(fd)


class _Client:
    """A process that orders sandboxes. When it ends, those that it ordered end with it."""

    def __init__(self, control: socket.socket) -> None:
        self.control = control
        self._sandboxes: list[int] = []

    def tell(self, message: dict[str, Any], *fds: int) -> None:
        """Send a message, if there is still someone to read it."""
        with contextlib.suppress(OSError):
            _send(self.control, message, *fds)

    def keep(self, pidfd: int) -> None:
        """Remember a sandbox, and forget those that have ended."""
        ended = select.poll()
        for known in self._sandboxes:
            ended.register(known, select.POLLIN)
        for known, _event in ended.poll(0):
            self._sandboxes.remove(known)
            os.close(known)
        self._sandboxes.append(pidfd)

    def end(self) -> None:
        """End its sandboxes."""
        for pidfd in self._sandboxes:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
        self.control.close()


def _send(control: socket.socket, message: dict[str, Any], *fds: int) -> None:
    socket.send_fds(control, [json.dumps(message).encode()], list(fds))


def _receive(control: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """A message with its descriptors; None where the other side is gone."""
    try:
        data, fds, _, _ = socket.recv_fds(control, 65536, 4)
    except ConnectionResetError:
        return None, []
    return (json.loads(data) if data else None), fds


def run(configuration: dict[str, Any], seal: Callable[[], None]) -> None:
    """Confine, warm up, serve; what goes wrong on the way is told to the engine."""
    zygote = Zygote(configuration, seal)
    try:
        zygote.confine()
        zygote.warm()
    except Exception as error:
        zygote.tell({"error": f"{type(error).__name__}: {error}"})
        os._exit(1)
    zygote.run()
