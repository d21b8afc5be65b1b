"""The lives of a batch: runners that are killed, one that is fenced, and those that end by themselves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from refold.errors import FencedError, UnavailableError
from refold.ops.evals.proof.plan import OUTSIDE, Death, ProofPlan
from refold.ops.evals.proof.task import BOOK, HOLD, LIMIT, calls
from refold.ops.evals.run import EXIT_DONE, EXIT_FAILED

POLL_S: Final = 0.005

#: One life: imports, a claim, a share of the samples. On a busy machine some seconds.
LIFE_SECONDS_MAX: Final = 120.0

#: Lives end with failed samples behind them, or try again at once: both happen. The last tries again.
RETRIES: Final = (0, 1)

#: The run after the deaths does all that is left; that it does is judged, not assumed.
RUNS_MAX: Final = 2

LOG_TAIL_BYTES: Final = 1_500


@dataclass(slots=True)
class Lives:
    """What happened. ``told``: what must not have."""

    kills: int = 0
    killed_in_commits: int = 0
    fenced: int = 0
    runs: int = 0
    exit_codes: list[int] = field(default_factory=list)
    told: list[str] = field(default_factory=list)


class Batch:
    """``command``: of ``refold eval run``, without ``--resume``. Blocks throughout."""

    def __init__(
        self, plan: ProofPlan, command: Sequence[str], settings: Mapping[str, str], directory: Path
    ) -> None:
        self._plan = plan
        self._command = command
        self._environment = {**os.environ, **settings, BOOK: str(directory / "book")}
        self._directory = directory
        self.book = directory / "book"
        self.lives = Lives()
        #: By process id, one per life.
        self._logs: dict[int, Path] = {}

    def play(self, say: Callable[[str], None]) -> Lives:
        """All deaths, one fencing, then to the end. Stops where a runner ends in an unforeseen way."""
        deaths = list(self._plan.deaths())
        for number, death in enumerate(deaths):
            # This life begins while another still runs: that one must be fenced.
            before = self._hold() if number == 1 else None
            died = self._life(death, before)
            say(f"kill {number + 1}/{len(deaths)} {death.where}: {calls(self.book)} calls so far")
            if not died:
                return self.lives
        for _ in range(RUNS_MAX):
            last = self._start(retries=max(RETRIES))
            code = self._ended(last)
            self.lives.exit_codes.append(code)
            if code != EXIT_FAILED:
                break
        if code != EXIT_DONE:
            text = f"after {RUNS_MAX} runs without a kill the batch is not done (exit status {code})"
            self._tell(text, last)
        return self.lives

    def _life(self, death: Death, before: subprocess.Popen[bytes] | None) -> bool:
        begun = calls(self.book)
        victim = self._start(
            None if death.where == OUTSIDE else death,
            retries=RETRIES[self.lives.runs % len(RETRIES)],
            further={LIMIT: str(begun + self._plan.quota)} if death.where == OUTSIDE else {},
        )
        try:
            if before is not None:
                self._until(lambda: calls(self.book) > begun or victim.poll() is not None)
                self._fenced(before)
            if death.where == OUTSIDE:
                self._until(lambda: calls(self.book) >= begun + death.count or victim.poll() is not None)
                victim.kill()
            code = self._ended(victim)
        finally:
            victim.kill()
            if before is not None:
                before.kill()
        if code != -signal.SIGKILL:
            text = f"a runner that was to be killed at {death.where} ended with exit status {code}"
            self._tell(text, victim)
            return False
        self.lives.kills += 1
        self.lives.killed_in_commits += death.where != OUTSIDE
        return True

    def _hold(self) -> subprocess.Popen[bytes]:
        """A runner all of whose slots hold a sample, until it may let go."""
        hold = self._directory / "hold"
        hold.touch()
        begun = calls(self.book)
        process = self._start(further={HOLD: str(hold)})
        enough = begun + self._plan.concurrency
        self._until(lambda: calls(self.book) >= enough or process.poll() is not None)
        return process

    def _fenced(self, process: subprocess.Popen[bytes]) -> None:
        """It lets go, tries to commit, and must be told that the batch is another's."""
        (self._directory / "hold").unlink()
        code = self._ended(process)
        if code == FencedError.exit_code:
            self.lives.fenced += 1
        else:
            text = f"a runner whose batch was taken over ended with exit status {code}, not 76"
            self._tell(text, process)

    def _start(
        self,
        death: Death | None = None,
        *,
        retries: int = 0,
        further: Mapping[str, str] | None = None,
    ) -> subprocess.Popen[bytes]:
        self.lives.runs += 1
        change = [] if death is None else ["--die-at", f"{death.where}:{death.count}"]
        if self._plan.sabotage is not None:
            change += ["--sabotage", self._plan.sabotage]
        path = self._directory / f"run-{self.lives.runs}.log"
        with path.open("wb") as log:
            process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "refold.ops.evals.proof.victim", *change),
                    *("--", *self._command, "--resume", "--retries", str(retries)),
                ],
                env={**self._environment, **(further or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._logs[process.pid] = path
        return process

    def _ended(self, process: subprocess.Popen[bytes]) -> int:
        try:
            return process.wait(LIFE_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            raise UnavailableError(f"a runner did not end within {LIFE_SECONDS_MAX:g} s") from None

    def _until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIFE_SECONDS_MAX
        while not condition():
            if time.monotonic() > deadline:
                raise UnavailableError(f"a runner did not come so far within {LIFE_SECONDS_MAX:g} s")
            time.sleep(POLL_S)

    def _tell(self, text: str, process: subprocess.Popen[bytes]) -> None:
        tail = self._logs[process.pid].read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
        last = tail.splitlines()[-1] if tail else "it said nothing"
        self.lives.told.append(f"{text}: {last}")
