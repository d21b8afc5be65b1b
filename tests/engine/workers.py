"""Worker processes under the test's control: started by the command line, stopped, killed, frozen at named
points."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import forked
from engine.cluster import CONFIGS, WAIT_S_MAX, Cluster, wait_for
from refold.errors import FencedError

#: Exit codes after which whoever supervises a worker starts it again: a cluster that did not answer in time,
#: a drain that took too long. A busy machine does both.
TRY_AGAIN = (69, 75)


class Worker:
    """One ``refold worker run``. Arm a point with :meth:`arm` while it runs."""

    def __init__(
        self, cluster: Cluster, directory: Path, name: str, *, session_timeout_ms: int = 2_000, **extra: str
    ) -> None:
        self.cluster = cluster
        self.name = name
        self.log_path = directory / f"{name}.log"
        self.point = directory / f"{name}.point"
        self.data_dir = directory / f"{name}.data"
        self.process: forked.Process | None = None
        self.processes = 1
        self.command = list(forked.REFOLD)
        self.environment = {
            **os.environ,
            "REFOLD_BOOTSTRAP": cluster.bootstrap,
            "REFOLD_TOPIC_PREFIX": cluster.prefix,
            "REFOLD_WORKER__INSTANCE": name,
            "REFOLD_WORKER__DATA_DIR": str(self.data_dir),
            "REFOLD_WORKER__SESSION_TIMEOUT_MS": str(session_timeout_ms),
            "REFOLD_WORKER__START_JITTER_MS_MAX": "0",
            "REFOLD_WORKER__RESTORE_JITTER_MS_MAX": "0",
            "REFOLD_LOGGING__FORMAT": "json",
            "REFOLD_POINT_FILE": str(self.point),
            **extra,
        }

    def start(self) -> Self:
        self.point.unlink(missing_ok=True)
        with self.log_path.open("ab") as log:
            self._log_start = self.log_path.stat().st_size
            self.process = forked.popen(
                [*self.command, "worker", "run", "--processes", str(self.processes)],
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self

    def arm(self, point: str, action: str) -> None:
        self.hit.unlink(missing_ok=True)
        self.release.unlink(missing_ok=True)
        temporary = self.point.with_suffix(".tmp")
        temporary.write_text(f"{point}:{action}")
        temporary.replace(self.point)

    @property
    def hit(self) -> Path:
        return self.point.with_name(self.point.name + ".hit")

    @property
    def release(self) -> Path:
        return self.point.with_name(self.point.name + ".release")

    def events_at_point(self) -> int:
        """Wait until the armed point was reached; how many folded, uncommitted events the commit held."""
        wait_for(f"{self.name} to reach its point", self._was_hit)
        return int(json.loads(self.hit.read_text().splitlines()[0])["events"])

    def _was_hit(self) -> bool:
        return self.hit.exists() and self.hit.read_text().endswith("\n")

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def log(self) -> str:
        with self.log_path.open("rb") as file:
            file.seek(self._log_start)
            return file.read().decode(errors="replace")

    def live(self) -> set[int]:
        """Partitions this life of the process has brought up and not given up."""
        owned: set[int] = set()
        for line in self.log().splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if row.get("event") == "partition_live":
                owned.add(row["partition"])
            elif row.get("event") == "partitions_given_up":
                owned -= set(row["partitions"])
        return owned

    def wait_live(self, count: int, seconds: float = WAIT_S_MAX) -> None:
        def there() -> bool:
            if self.process is not None and self.process.poll() in TRY_AGAIN:
                self.start()
            assert self.alive, (
                f"{self.name} ended ({self.process and self.process.returncode}):\n{self.tail()}"
            )
            return len(self.live()) >= count

        wait_for(f"{self.name} to have {count} live partitions\n{self.tail()}", there, seconds)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait_end(self, seconds: float = WAIT_S_MAX) -> int:
        assert self.process is not None
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} did not end:\n{self.tail()}") from None

    def stop(self) -> int:
        """Graceful stop; the exit status."""
        if self.alive:
            self.signal(signal.SIGCONT)
            self.signal(signal.SIGTERM)
        return self.wait_end()

    def tail(self) -> str:
        return "\n".join(re.sub(r"\s+", " ", line)[:400] for line in self.log().splitlines()[-25:])

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


def wait_ruled(cluster: Cluster, seconds: float = WAIT_S_MAX, *, supervised: Sequence[Worker] = ()) -> None:
    """Every inbox record, forwards included, has a committed ruling, every record of batches is folded, and
    what came of them can be read. ``supervised``: of these, who ends fenced is started again meanwhile."""

    def done() -> bool:
        for worker in supervised:
            if worker.process is not None and worker.process.poll() == FencedError.exit_code:
                worker.start()
        # In this order: what a commit forwarded is in the inbox when its offsets are committed. Its marker
        # may still be on the way (each partition's is written on its own): hidden records count as unruled.
        for topic in (cluster.topics.inbox, cluster.topics.batches):
            committed = cluster.committed(topic)
            if not cluster.stable(topic):
                return False
            ends = cluster.data_ends(topic)
            if not all(committed.get(number, -1) >= end for number, end in ends.items()):
                return False
        # Offsets are seen to be committed before the last of the transaction's markers is written.
        return cluster.stable(*(f"{cluster.prefix}.{name}" for name in CONFIGS))

    wait_for("every inbox record to be ruled on", done, seconds, every=0.1)
