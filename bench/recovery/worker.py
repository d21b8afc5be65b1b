"""A refold worker watched through its log: when it was given partitions, when they were live."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from bench.harness import Stack, wait_until
from refold.settings import Settings


def has(setting: str) -> bool:
    """Whether this build has ``worker.<setting>``."""
    return setting in type(Settings().worker).model_fields


@dataclass(frozen=True)
class Live:
    """Seconds from the start of the process, from the assignment, and from the first restore's turn, until
    all of its partitions were live; records its restores read."""

    from_start_s: float
    from_assignment_s: float
    from_restoring_s: float
    records: int


class Watched:
    """One worker process; its log is its own file, so a life is one object."""

    def __init__(self, stack: Stack, instance: str, life: str, **env: str) -> None:
        self.instance = instance
        self.directory = stack.directory / stack.prefix / instance
        self._log = stack.directory / f"{stack.prefix}-{instance}.log"
        self._from = self._log.stat().st_size if self._log.exists() else 0
        self.started = time.time()
        self.process: subprocess.Popen[bytes] = stack.start_worker(
            instance, REFOLD_LOGGING__LEVEL="info", REFOLD_LOGGING__FORMAT="json", **env
        )
        self.life = life

    def lines(self, event: str) -> list[dict[str, Any]]:
        """Its log's lines of one kind so far, each with ``at`` (seconds since the epoch)."""
        if not self._log.exists():
            return []
        found = []
        with self._log.open("rb") as file:
            file.seek(self._from)
            for line in file:
                if not line.endswith(b"\n") or f'"event": "{event}"'.encode() not in line:
                    continue
                row = json.loads(line)
                row["at"] = datetime.fromisoformat(row["timestamp"]).timestamp()
                found.append(row)
        return found

    def alive(self) -> bool:
        """Raises RuntimeError when it ended by itself."""
        if self.process.poll() is not None:
            raise RuntimeError(
                f"worker {self.instance} ({self.life}) ended with exit code {self.process.returncode}:"
                f" {self._log.read_text()[-1500:]}"
            )
        return True

    def assigned_at(self) -> float:
        """When it was first given partitions."""
        return next(float(row["at"]) for row in self.lines("partitions_assigned") if row["partitions"])

    def wait_live(self, partitions: Sequence[int]) -> Live:
        def done() -> bool:
            return self.alive() and {row["partition"] for row in self.lines("partition_live")} >= set(
                partitions
            )

        wait_until(done, f"all partitions live ({self.life})")
        rows = [row for row in self.lines("partition_live") if row["partition"] in partitions]
        restoring = [row["at"] for row in self.lines("partition_moved") if row["state"] == "restoring"]
        end = max(row["at"] for row in rows)
        return Live(
            end - self.started,
            end - self.assigned_at(),
            end - min(restoring),
            sum(row["records"] for row in rows),
        )

    def folded(self, stack: Stack) -> int:
        """Wait until the whole inbox is committed; returns how many records that is.

        First until it is live: asked for offsets while its coordinator is still being loaded, librdkafka's
        admin client was seen to crash the interpreter.
        """
        self.wait_live(range(stack.partitions))
        end = stack.inbox_end()
        wait_until(lambda: self.alive() and stack.committed() >= end, f"folding up to {end}")
        return end

    def stop(self, *, kill: bool = False) -> None:
        self.process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
        self.process.wait(60)
