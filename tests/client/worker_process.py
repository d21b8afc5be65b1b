"""Workers as processes for the SDK's tests: started, killed, and always ended."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import forked

#: Exit codes after which starting again is right: unavailable, transient.
TRY_AGAIN = (69, 75)

#: A start takes 3 s and a stop 1 s; a very busy machine takes thirty times that.
STARTED_S_MAX = 180.0

REFOLD = forked.REFOLD


def refold(
    bootstrap: str, prefix: str, *arguments: str, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run one command to its end."""
    done = forked.run(
        [*REFOLD, *arguments, "--bootstrap", bootstrap, "--prefix", prefix],
        timeout=STARTED_S_MAX,
        env=_environment(),
    )
    if check and done.returncode != 0:
        raise AssertionError(f"refold {' '.join(arguments)}: {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done


class Worker:
    """``program``: what is run with the arguments of `refold`."""

    def __init__(
        self,
        bootstrap: str,
        prefix: str,
        directory: Path,
        instance: str,
        *,
        program: Sequence[str] = REFOLD,
        **environment: str,
    ) -> None:
        self.instance = instance
        self._log = directory / f"{instance}.log"
        self._command = [
            *program,
            "worker",
            *("--bootstrap", bootstrap, "--prefix", prefix, "--instance", instance),
            *("--data-dir", str(directory / instance)),
        ]
        self._environment = _environment(
            REFOLD_WORKER__SESSION_TIMEOUT_MS="6000",
            REFOLD_WORKER__START_JITTER_MS_MAX="0",
            REFOLD_WORKER__RESTORE_JITTER_MS_MAX="0",
            REFOLD_LOGGING__LEVEL="info",
            **environment,
        )
        self.process: forked.Process | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self.process = forked.popen(
                self._command, stdout=log, stderr=subprocess.STDOUT, env=self._environment
            )

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(30)

    def stop(self) -> int:
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(STARTED_S_MAX)

    def wait_started(self, timeout_s: float = STARTED_S_MAX) -> None:
        """Until the worker says that it runs; raises with its log when it ended instead.

        A worker that ends with "try again" is started again, as a supervisor does: the coordinators of a
        broker that has just come up are still loading.
        """
        assert self.process is not None
        deadline = time.monotonic() + timeout_s
        while "worker_started" not in self.log:
            code = self.process.poll()
            if code in TRY_AGAIN and time.monotonic() < deadline:
                self.start()
            elif code is not None or time.monotonic() > deadline:
                raise AssertionError(f"the worker did not start: {self.log[-2000:]}")
            time.sleep(0.05)

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""


@contextmanager
def worker(
    bootstrap: str, prefix: str, directory: Path, instance: str, **environment: str
) -> Iterator[Worker]:
    made = Worker(bootstrap, prefix, directory, instance, **environment)
    made.start()
    try:
        made.wait_started()
        yield made
    finally:
        made.kill()


def _environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")}
    return {**kept, **more, "NO_COLOR": "1"}
