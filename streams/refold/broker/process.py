"""A process by its identity: pid plus creation time, because pids are reused."""

from __future__ import annotations

import contextlib
import signal
import time
from dataclasses import dataclass
from typing import Final

import psutil

from refold.errors import UnavailableError

#: The kernel's start time is in ticks since boot and the boot time moves when NTP steps the clock.
CREATION_TOLERANCE_S: Final = 2.0
#: SIGTERM takes 0.3 s on an idle broker; a busy one flushes and closes its segments first.
STOP_S_MAX: Final = 20.0
#: After SIGKILL only the kernel has work left.
KILL_S_MAX: Final = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    pid: int
    created: float  # seconds since the epoch, as psutil reports it

    @classmethod
    def of(cls, pid: int) -> Identity:
        return cls(pid=pid, created=psutil.Process(pid).create_time())

    def process(self) -> psutil.Process | None:
        """The live process, or ``None`` when it ended, is a zombie, or its pid belongs to another one."""
        try:
            process = psutil.Process(self.pid)
            if abs(process.create_time() - self.created) > CREATION_TOLERANCE_S:
                return None
            if process.status() != psutil.STATUS_ZOMBIE:
                return process
            # A killed JVM is a zombie while its other threads still exit, and until the last of them is
            # gone its port and its lock on the data are held.
            return process if process.num_threads() > 1 else None
        except psutil.NoSuchProcess:
            return None

    @property
    def alive(self) -> bool:
        return self.process() is not None

    def signal(self, number: signal.Signals) -> None:
        """A no-op when the process is gone."""
        if process := self.process():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def wait(self, seconds: float) -> bool:
        """Block until it ended, at most ``seconds``; whether it did. Works for children and strangers."""
        deadline = time.monotonic() + seconds
        while self.alive:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.02)
        return True

    def stop(self) -> bool:
        """SIGTERM, wait up to STOP_S_MAX, then SIGKILL. Returns whether it stopped by itself."""
        self.signal(signal.SIGCONT)  # a suspended process would not see the SIGTERM
        self.signal(signal.SIGTERM)
        if self.wait(STOP_S_MAX):
            return True
        self.kill()
        return False

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        if not self.wait(KILL_S_MAX):
            raise UnavailableError(
                f"the broker (pid {self.pid}) is still there {KILL_S_MAX:.0f} s after SIGKILL. "
                "It hangs in the kernel, usually on a dead disk or network file system: check that."
            )
