"""``refold worker --processes N``: one process per core, started again when one ends.

Process ``i`` is instance ``<name>-<i>`` with the data directory ``<dir>/<i>`` and port ``<port> + i`` (0
stays 0). SIGTERM and SIGINT are passed on and waited for; a second one kills the children, which loses
nothing. A child that ends by configuration (exit 64, 77, 78) would end the same way again: then all stop. One
that drained (exit 0) was told to, and stays down; when all are, so does this. Otherwise it is started again,
after a back-off that a minute of running resets.
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

from refold.draining import SIGNAL_BASE
from refold.engine.config import SUPERVISED_VARIABLE
from refold.engine.drain import Place, Running
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
    #: Was told to stop, and did.
    done: bool = False


def child_environment(settings: Settings, index: int) -> dict[str, str]:
    worker = settings.worker
    port = worker.http_port + index if worker.http_port else 0
    return {
        **os.environ,
        SUPERVISED_VARIABLE: "1",
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
        self._place = Place(settings.worker.data_dir / settings.topic_prefix, "supervisor")
        self._stopping = False
        #: Of the last signal, and how many there were.
        self._signal = 0
        self._signals = 0

    def run(self) -> int:
        """0 after a graceful stop of all; else the code of a child that did not drain (75), or could not be
        started at all; 128 + signal after a second signal."""
        running = Running(os.getpid(), self._settings.worker.instance, len(self._children))
        with self._place.held(running):
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, self._on_signal)
            return self._run()

    def _run(self) -> int:
        result = 0
        while not self._stopping and not all(child.done for child in self._children):
            now = time.monotonic()
            for child in self._children:
                if child.done:
                    continue
                if child.process is None:
                    if now >= child.start_at:
                        self._start(child)
                    continue
                code = child.process.poll()
                if code is None:
                    continue
                child.process = None
                if code == 0:
                    child.done = True
                    log.info("child_drained", index=child.index)
                    continue
                if code in HOPELESS:
                    log.error("child_hopeless", index=child.index, exit_code=code)
                    result, self._stopping = code, True
                    break
                self._again(child, code, now)
            if not self._stopping:
                time.sleep(POLL_S)
        stopped = self._stop()
        # What could not be started is why all the others were stopped: that comes first.
        return result or stopped

    def _start(self, child: Child) -> None:
        child.process = subprocess.Popen(self._command, env=child_environment(self._settings, child.index))
        child.started = time.monotonic()
        log.info("child_started", index=child.index, pid=child.process.pid)

    def _again(self, child: Child, code: int, now: float) -> None:
        child.restarts = 0 if now - child.started > FINE_AFTER_S else child.restarts + 1
        wait = min(BACKOFF_S * 2 ** min(child.restarts, 16), BACKOFF_S_MAX)
        child.start_at = now + wait
        log.warning("child_ended", index=child.index, exit_code=code, restart_in_seconds=round(wait, 1))

    def _on_signal(self, number: int, _frame: Any) -> None:
        self._stopping, self._signal = True, number
        self._signals += 1

    def _stop(self) -> int:
        """Pass the stop on; wait for all; kill what does not end, or what a second signal finds. The exit
        status."""
        running = [child.process for child in self._children if child.process is not None]
        order = self._place.take_order()
        seconds_max = self._settings.worker.drain_seconds_max if order is None else order.seconds_max
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        end = time.monotonic() + seconds_max + STOP_MARGIN_S
        while any(process.poll() is None for process in running):
            at_once = self._signals > 1
            if at_once or time.monotonic() > end:
                for process in running:
                    log.error("child_killed", pid=process.pid, second_signal=at_once)
                    process.kill()
                    process.wait()
                return SIGNAL_BASE + (self._signal if at_once else signal.SIGKILL)
            time.sleep(POLL_S)
        codes = [process.wait() for process in running]
        return next((code if code > 0 else SIGNAL_BASE - code for code in codes if code), 0)


def command() -> list[str]:
    return [sys.executable, "-m", "refold.cli.main", "worker", "run"]
