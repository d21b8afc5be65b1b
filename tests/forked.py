"""``refold`` commands as processes of their own that need not import everything again.

A worker's life in a test is short, and two thirds of its CPU is the import of Faust, aiohttp, pydantic and
refold. So one process per test run imports them, and forks whenever a command is to be run: a pid, signals, a
session, exit codes, files and environment of its own, as any other process; only what Python has loaded is
there already. That process has one thread, which is what makes forking it safe; the tests' own has many.

What reads the environment before ``main`` does (PYTHONPATH, a C library's variables) cannot be had by
forking: such a command is started as ever. So are the workers of the commands under ``refold verify``, of the
demo and of the README: real starts are tested all the time.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, TypeAlias

REFOLD: Final = [sys.executable, "-m", "refold.cli.main"]

#: Read by the interpreter or the C library when they start.
EARLY: Final = ("PYTHON", "LD_", "MALLOC_", "GLIBC_", "LC_", "LANG", "TZ")

#: The environment of the process that forks, whatever the test that needs it first has changed in ours.
BEGUN: Final = dict(os.environ)

#: A command line and an environment.
MESSAGE_BYTES_MAX: Final = 1 << 20

#: Imports on a machine that does ten other things.
READY_S_MAX: Final = 120.0
LOOK_S: Final = 0.01


class Forked:
    """As much of :class:`subprocess.Popen` as tests use."""

    def __init__(self, pid: int, ended: int, args: Sequence[str]) -> None:
        self.pid = pid
        self.args = args
        self.returncode: int | None = None
        self.stdin = self.stdout = self.stderr = None
        self._ended = ended

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._ended], [], [], 0)[0]:
            said = os.read(self._ended, 16)
            # Nothing: the forking process is gone, and all its children with it.
            self.returncode = int(said) if said else -signal.SIGKILL
            os.close(self._ended)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(list(self.args), timeout or 0.0)
            select.select([self._ended], [], [], left)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


Process: TypeAlias = "subprocess.Popen[bytes] | Forked"


class _Server:
    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for end in (self._ours, theirs):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MESSAGE_BYTES_MAX)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())],
                env=BEGUN,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        atexit.register(self._ours.close)

    def fork(self, order: dict[str, Any], files: Sequence[int]) -> Forked:
        ended, told = os.pipe()
        try:
            text = json.dumps(order).encode(errors="surrogateescape")
            fds = array.array("i", [*files, told])
            self._ours.sendmsg([text], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
            self._ours.settimeout(READY_S_MAX)
            said = self._ours.recv(64)
        finally:
            os.close(told)
        if not said:
            raise AssertionError(f"the process that forks has ended: {self.process.poll()}")
        return Forked(int(said), ended, order["command"])


_server: dict[int, _Server] = {}


def _forkable(command: Sequence[str], env: Mapping[str, str]) -> bool:
    changed = {name for name in {*env, *BEGUN} if env.get(name) != BEGUN.get(name)}
    return list(command[: len(REFOLD)]) == REFOLD and not any(name.startswith(EARLY) for name in changed)


def popen(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    stdout: int | IO[Any],
    stderr: int | IO[Any],
    cwd: str | Path | None = None,
    start_new_session: bool = False,
) -> Process:
    """Run ``command``, with nothing to read; by forking if it is one of refold's."""
    if not _forkable(command, env):
        return subprocess.Popen(
            command,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            cwd=cwd,
            start_new_session=start_new_session,
        )
    server = _server.get(os.getpid())
    if server is None:
        server = _server[os.getpid()] = _Server()
    out = stdout if isinstance(stdout, int) else stdout.fileno()
    error = out if stderr == subprocess.STDOUT else stderr if isinstance(stderr, int) else stderr.fileno()
    order = {
        "command": list(command),
        "env": dict(env),
        "cwd": str(cwd or Path.cwd()),
        "session": start_new_session,
    }
    return server.fork(order, [out, error])


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str],
    timeout: float,
    cwd: str | Path | None = None,
) -> subprocess.CompletedProcess[str]:
    """To its end, as :func:`subprocess.run` with text captured."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as error:
        process = popen(command, env=env, stdout=out, stderr=error, cwd=cwd)
        try:
            code = process.wait(timeout)
        except BaseException:
            process.kill()
            process.wait()
            raise
        texts = []
        for file in (out, error):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    return subprocess.CompletedProcess(list(command), code, *texts)


# -- the process that forks -----------------------------------------------------------------------


def load() -> None:
    """Import what the commands import."""
    from refold.cli.main import NOUNS

    for noun in NOUNS.values():
        importlib.import_module(noun.module)
    for name in (
        *("refold.agents.app", "refold.engine.worker", "refold.client", "refold.topology.plan"),
        *("confluent_kafka.admin", "aiohttp.web", "fsspec.implementations.local"),
    ):
        importlib.import_module(name)
    gc.collect()
    # Pages of what is loaded are not copied for the sake of its reference cycles.
    gc.freeze()
    threads = len(os.listdir("/proc/self/task"))
    assert threads == 1, f"{threads} threads: a child would miss all but one"


def serve(talk: socket.socket) -> list[str] | None:
    """In a child: its arguments. In the server: ``None`` when the tests are over."""
    running: dict[int, tuple[int, int]] = {}
    waiting = select.poll()
    waiting.register(talk, select.POLLIN)
    while True:
        for ready, _ in waiting.poll():
            if ready == talk.fileno():
                size = array.array("i").itemsize
                text, extra, _, _ = talk.recvmsg(MESSAGE_BYTES_MAX, socket.CMSG_SPACE(8 * size))
                if not text:
                    for pid, _ in running.values():
                        os.kill(pid, signal.SIGKILL)
                    return None
                fds = array.array("i")
                for _, _, data in extra:
                    fds.frombytes(data[: len(data) - len(data) % size])
                order = json.loads(text)
                pid = os.fork()
                if pid == 0:
                    return become(order, fds[0], fds[1])
                for fd in fds[:-1]:
                    os.close(fd)
                watched = os.pidfd_open(pid)
                running[watched] = (pid, fds[-1])
                waiting.register(watched, select.POLLIN)
                talk.send(str(pid).encode())
            else:
                pid, told = running.pop(ready)
                waiting.unregister(ready)
                os.close(ready)
                _, status = os.waitpid(pid, 0)
                with contextlib.suppress(BrokenPipeError):
                    os.write(told, str(os.waitstatus_to_exitcode(status)).encode())
                os.close(told)


def become(order: dict[str, Any], out: int, error: int) -> list[str]:
    """The process that was asked for, up to its arguments."""
    if order["session"]:
        os.setsid()
    os.dup2(out, 1)
    os.dup2(error, 2)
    os.closerange(3, max(int(name) for name in os.listdir("/proc/self/fd")) + 1)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    # As ``-m`` does.
    sys.path[0] = order["cwd"]
    command: list[str] = order["command"]
    sys.argv = ["refold", *command[len(REFOLD) :]]
    return command[len(REFOLD) :]


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    load()
    arguments = serve(socket.socket(fileno=int(sys.argv[1])))
    if arguments is not None:
        from refold.cli.main import main

        main(arguments)
