"""``refold worker --processes N``: one process per core, started again when one ends.

Process ``i`` is instance ``<name>-<i>`` with the data directory ``<dir>/<i>`` and port ``<port> + i`` (0
stays 0). SIGTERM and SIGINT are passed on and waited for. A child that ends by configuration (exit 64, 77,
78) would end the same way again: then all stop. Otherwise it is started again, after a back-off that a minute
of running resets.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog

from refold.errors import ConfigError, PermissionDenied, UsageError
from refold.settings import Settings

log = structlog.get_logger("refold.supervisor")

#: First wait before a restart; doubled for each one in a row up to the limit: 0.2, 0.4 … 10 s.
BACKOFF_S: Final = 0.2
BACKOFF_S_MAX: Final = 10.0

#: A child that ran this long was fine: its next restart waits the short time again.
FINE_AFTER_S: Final = 60.0

POLL_S: Final = 0.1

#: Over the children's own drain limit, then they are killed.
STOP_MARGIN_S: Final = 5.0

HOPELESS: Final = frozenset({UsageError.exit_code, PermissionDenied.exit_code, ConfigError.exit_code})


@dataclass(slots=True)
class Child:
    index: int
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    restarts: int = 0
    start_at: float = 0.0


def child_environment(settings: Settings, index: int) -> dict[str, str]:
    worker = settings.worker
    port = worker.http_port + index if worker.http_port else 0
    return {
        **os.environ,
        "REFOLD_WORKER__INSTANCE": f"{worker.instance}-{index}",
        "REFOLD_WORKER__DATA_DIR": str(worker.data_dir / str(index)),
        "REFOLD_WORKER__HTTP_PORT": str(port),
    }


class Supervisor:
    """Blocks in :meth:`run`. ``command`` starts one worker; its settings come through the environment."""

    def __init__(self, settings: Settings, processes: int, command: Sequence[str]) -> None:
        if settings.worker.advertised_url is not None and processes > 1:
            raise ConfigError(
                "REFOLD_WORKER__ADVERTISED_URL names one port, but several processes have one each: run"
                " them as"
                " separate workers, or leave it out"
            )
        self._settings = settings
        self._command = list(command)
        self._children = [Child(index) for index in range(processes)]
        self._stopping = False

    def run(self) -> int:
        """0 after a graceful stop; the code of a child that could not be started at all otherwise."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        result = 0
        while not self._stopping:
            now = time.monotonic()
            for child in self._children:
                if child.process is None:
                    if now >= child.start_at:
                        self._start(child)
                    continue
                code = child.process.poll()
                if code is None:
                    continue
                child.process = None
                if code in HOPELESS:
                    log.error("child_hopeless", index=child.index, exit_code=code)
                    result, self._stopping = code, True
                    break
                self._again(child, code, now)
            if not self._stopping:
                time.sleep(POLL_S)
        self._stop()
        return result

    def _start(self, child: Child) -> None:
        child.process = subprocess.Popen(self._command, env=child_environment(self._settings, child.index))
        child.started = time.monotonic()
        log.info("child_started", index=child.index, pid=child.process.pid)

    def _again(self, child: Child, code: int, now: float) -> None:
        child.restarts = 0 if now - child.started > FINE_AFTER_S else child.restarts + 1
        wait = min(BACKOFF_S * 2 ** min(child.restarts, 16), BACKOFF_S_MAX)
        child.start_at = now + wait
        log.warning("child_ended", index=child.index, exit_code=code, restart_in_seconds=round(wait, 1))

    def _on_signal(self, *_: Any) -> None:
        self._stopping = True

    def _stop(self) -> None:
        """Pass the stop on; wait for all; kill what does not end."""
        running = [child.process for child in self._children if child.process is not None]
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        end = time.monotonic() + self._settings.worker.drain_seconds_max + STOP_MARGIN_S
        for process in running:
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                log.error("child_killed", pid=process.pid)
                process.kill()
                process.wait()


def command() -> list[str]:
    return [sys.executable, "-m", "refold.cli.main", "worker", "run"]
