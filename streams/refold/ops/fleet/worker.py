"""One worker process, and a fleet of them: started as a user would start them, by the command line.

Settings go through the environment, so a user's own settings (security, registry, paths) pass through
untouched. A detached fleet outlives its starter (the demo leaves its stack up); an owned one is killed
when the starter dies, however it dies.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import aiohttp

from refold.broker.ports import choose
from refold.errors import FencedError, TransientError, UnavailableError
from refold.ops.fleet.logged import LoggedProcess

#: From start to ready: imports (1.5 s), start jitter, join, restore of a small state. Ten times that.
READY_S_MAX: Final = 60.0
#: How often a condition about a process is looked at. Ten looks a second cost nothing.
POLL_S: Final = 0.1
#: Ends after which whoever supervises a worker starts it again: fenced, cluster away, try again.
RESTARTED: Final = frozenset({FencedError.exit_code, UnavailableError.exit_code, TransientError.exit_code})
#: librdkafka's own ends when a coordinator goes away under a request of the admin client: it uses freed
#: memory, and notices it (SIGABRT) or not (issue 4605). Hidden only where brokers go away on purpose.
CRASHED: Final = frozenset({-signal.SIGABRT, -signal.SIGSEGV})
#: More of them in one life of a fleet is no accident any more.
REVIVALS_MAX: Final = 5


class WorkerProcess(LoggedProcess):
    """``refold worker`` with its own instance name, data directory, port, log and point file."""

    def __init__(self, name: str, directory: Path, settings: Mapping[str, str], *, detached: bool) -> None:
        super().__init__(name, directory, detached=detached)
        self.directory = directory
        self.data_path = directory / f"{name}.data"
        self.point_path = directory / f"{name}.point"
        self.port = choose(None)
        self.exit_codes: list[int] = []
        self.revivals = 0
        self.revivals_max = REVIVALS_MAX
        self.restarted = RESTARTED
        self._settings = {
            **settings,
            "REFOLD_WORKER__INSTANCE": name,
            "REFOLD_WORKER__DATA_DIR": str(self.data_path),
            "REFOLD_WORKER__HTTP_PORT": str(self.port),
            "REFOLD_LOGGING__FORMAT": "json",
            "REFOLD_POINT_FILE": str(self.point_path),
        }

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def configure(self, changes: Mapping[str, str]) -> None:
        """Settings of its next lives, over those it has; name, directory and port stay."""
        self._settings = {**self._settings, **changes}

    def start(self) -> None:
        """Start the process; returns at once. A point left armed by an earlier life is disarmed."""
        self.directory.mkdir(parents=True, exist_ok=True)
        self.point_path.unlink(missing_ok=True)
        self._launch([sys.executable, "-m", "refold.cli.main", "worker"], self._settings)

    def revive(self) -> int | None:
        """Do what a supervisor does: start a worker again that ended by itself in one of the ways in
        ``RESTARTED``. Its exit code, or ``None`` when there is nothing to do or it must not be hidden."""
        if (
            self.process is None
            or self.process.poll() not in self.restarted
            or self.revivals >= self.revivals_max
        ):
            return None
        code = self.wait_end(0)
        self.revivals += 1
        self.start()
        return code

    def wait_end(self, seconds: float) -> int | None:
        """Block until it ended, at most ``seconds``; the exit code, or ``None`` while it still runs."""
        if self.process is None:
            return None
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        self.exit_codes.append(code)
        self._stand_down()
        return code

    async def ready(self) -> bool:
        """Whether it says that it serves all its partitions."""
        timeout = aiohttp.ClientTimeout(total=2)
        try:
            async with aiohttp.ClientSession(timeout=timeout) as http:
                async with http.get(f"{self.url}/healthz/ready") as answer:
                    return answer.status == 200
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    def tell_to_stop(self) -> None:
        """SIGTERM, once: a second one would end it without draining."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)

    def stop(self, seconds: float = 25.0) -> None:
        """SIGTERM, wait, then SIGKILL."""
        self.tell_to_stop()
        self.wait_stopped(seconds)

    def wait_stopped(self, seconds: float = 25.0) -> None:
        """Wait after :meth:`tell_to_stop`, then SIGKILL."""
        if self.alive and self.wait_end(seconds) is None:
            self.kill()
        self._stand_down()


class Fleet:
    """``count`` workers sharing settings."""

    def __init__(
        self, count: int, directory: Path, settings: Mapping[str, str], *, detached: bool = False
    ) -> None:
        self.workers = [
            WorkerProcess(f"w{number}", directory, settings, detached=detached) for number in range(count)
        ]

    def start(self) -> None:
        for worker in self.workers:
            worker.start()

    async def wait_ready(self, seconds: float = READY_S_MAX) -> None:
        """Return when every worker is ready. Raises :class:`UnavailableError` quoting a log otherwise."""
        import asyncio

        deadline = time.monotonic() + seconds
        for worker in self.workers:
            while not await worker.ready():
                dead = not worker.alive and worker.revive() is None
                if dead or time.monotonic() > deadline:
                    what = "ended while starting" if dead else f"was not ready within {seconds:.0f} s"
                    raise UnavailableError(
                        f"worker {worker.name} {what}. The end of its log:\n{worker.log_tail()}"
                    )
                await asyncio.sleep(POLL_S)

    def stop(self) -> None:
        """Stop all at once, then wait for each."""
        for worker in self.workers:
            worker.tell_to_stop()
        for worker in self.workers:
            worker.wait_stopped()

    def kill(self) -> None:
        for worker in self.workers:
            worker.kill()
