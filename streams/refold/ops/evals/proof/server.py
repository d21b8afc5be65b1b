"""A PostgreSQL of our own, for the length of a run: what the system has installed, on a free loopback port.

It does not run as root; started by root it is the system's user ``postgres``, else the caller. Its
directory is removed afterwards.
"""

from __future__ import annotations

import os
import pwd
import shlex
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from refold.errors import NotFound, UnavailableError

#: Where Debian and its like have it; elsewhere it is on the path.
PLACES: Final = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin")

USER: Final = "postgres"

#: initdb takes 0.6 s and a start 0.2 s; a busy machine ten times as long.
COMMAND_SECONDS_MAX: Final = 90


def binaries() -> Path | None:
    """The directory of ``initdb`` and ``pg_ctl``, newest version first."""
    found = [path for place in PLACES for path in Path("/").glob(f"{place.lstrip('/')}/initdb")]
    if not found and (on_path := shutil.which("initdb")):
        found = [Path(on_path)]
    return max((path.parent for path in found if (path.parent / "pg_ctl").exists()), default=None)


def unavailable() -> str | None:
    """Why there can be none here, None when there can."""
    if binaries() is None:
        return "PostgreSQL is not installed (no initdb): name one with --dsn"
    if os.geteuid() != 0:
        return None
    try:
        pwd.getpwnam(USER)
    except KeyError:
        return f"PostgreSQL does not run as root, and there is no user {USER}: name one with --dsn"
    return None if shutil.which("su") else f"there is no su to become the user {USER}"


class Server:
    """``with Server() as server: server.dsn``. Raises NotFound where :func:`unavailable`."""

    def __init__(self) -> None:
        if (why := unavailable()) is not None:
            raise NotFound(why)
        self._bin = binaries() or Path()
        self._root = Path(tempfile.mkdtemp(prefix="refold-postgres-"))
        self._data = self._root / "data"
        self.port = free_port()

    @property
    def dsn(self) -> str:
        return f"postgresql://{USER}@127.0.0.1:{self.port}/postgres"

    def __enter__(self) -> Self:
        try:
            if os.geteuid() == 0:
                shutil.chown(self._root, USER)
            self._run("initdb", "-D", str(self._data), "-U", USER, "-A", "trust", "-N", "-E", "UTF8")
            options = f"-p {self.port} -k {self._root} -c listen_addresses=127.0.0.1 -c fsync=off"
            log = str(self._root / "log")
            self._run("pg_ctl", "-D", str(self._data), "-l", log, "-o", options, "-w", "start")
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._run("pg_ctl", "-D", str(self._data), "-m", "immediate", "-w", "stop")
        finally:
            self._remove()

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._bin / program), *arguments]
        if os.geteuid() == 0:
            command = ["su", USER, "-s", "/bin/sh", "-c", shlex.join(command)]
        try:
            done = subprocess.run(
                command,
                cwd=self._root,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                timeout=COMMAND_SECONDS_MAX,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise UnavailableError(f"{program} did not end within {COMMAND_SECONDS_MAX} s") from None
        if done.returncode:
            said = done.stdout.decode(errors="replace").strip()[-500:]
            raise UnavailableError(f"{program} failed ({done.returncode}): {said}")

    def _remove(self) -> None:
        shutil.rmtree(self._root, ignore_errors=True)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
