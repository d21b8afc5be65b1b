"""The control's process: start, kill with the worker, restart, and count what it lost and doubled."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from confluent_kafka.admin import AdminClient, NewTopic

from refold.errors import RefoldError, UnavailableError
from refold.ops.fleet import JournalWatch
from refold.ops.verify.own import delete
from refold.ops.verify.quiesce import committed_offsets
from refold.ops.verify.readback import Record, read_topic
from refold.settings import Settings
from refold.topology.groupoffsets import GroupOffsets

#: After the last death: the session time-out of the dead member, then the auto-commit interval (5 s).
CATCH_UP_S_MAX: Final = 40.0
#: As a supervisor would restart it.
RESTART_S: Final = 0.5


@dataclass(slots=True)
class ControlResult:
    """``lost``: events missing from the final counts. ``doubled``: outputs beyond one per event."""

    events: int
    lost: int
    doubled: int
    continue_ms: list[float]


class Control:
    """The plain consumer of :mod:`refold.demo.control` under the demo's kills."""

    def __init__(self, settings: Settings, inbox: str, directory: Path, session_timeout_ms: int) -> None:
        self._settings = settings
        self._inbox = inbox
        self._group = f"{settings.topic_prefix}-control"
        self._output = f"{settings.topic_prefix}.control"
        self._directory = directory
        self._session_timeout_ms = session_timeout_ms
        self._process: subprocess.Popen[bytes] | None = None
        self._watch: JournalWatch | None = None
        self._tickets: list[int] = []
        self.admin = AdminClient(settings.kafka_config("admin"))
        self._offsets = GroupOffsets(settings.kafka_config("reader"), self._group)

    def start(self) -> None:
        """Create its output topic and start it. Blocks."""
        topic = NewTopic(self._output, num_partitions=1, config={"retention.ms": "-1"})
        for future in self.admin.create_topics([topic]).values():
            future.result()
        self._watch = JournalWatch(self._settings.kafka_config("reader"), self._output, 1)
        self._spawn()

    async def die(self) -> None:
        """SIGKILL it, restart it as a supervisor would."""
        if self._process is None or self._watch is None:
            return
        self._check(self._process)
        self._process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(self._process.wait)
        self._tickets.append(self._watch.died([0]))
        await asyncio.sleep(RESTART_S)
        self._spawn()

    def finish(self, inbox: Mapping[int, Sequence[Record]]) -> ControlResult:
        """Let it catch up, stop it gracefully, compare its counts and outputs with the inbox. Blocks."""
        watch, process = self._watch, self._process
        if watch is None or process is None:
            raise UnavailableError("the control was not started")
        self._catch_up(inbox)
        self._check(process)
        process.send_signal(signal.SIGTERM)
        process.wait()
        final: Counter[str] = Counter(json.loads((self._directory / "control.json").read_text()))
        sent = Counter(
            (record.key or b"").decode(errors="replace") for records in inbox.values() for record in records
        )
        outputs = Counter(
            (record.value or b"").split(b" ")[0]
            for record in read_topic(self._settings.kafka_config("reader"), self._output, 1)[0]
        )
        times = [watch.recovered_ms(ticket) for ticket in self._tickets]
        watch.close()
        return ControlResult(
            events=sent.total(),
            lost=(sent - final).total(),
            doubled=sum(count - 1 for count in outputs.values()),
            continue_ms=[time for time in times if time is not None],
        )

    def close(self) -> None:
        """Kill it and delete its topic and group; its figures are in the report."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(RefoldError):
            delete(self._settings, [self._output], self._group)

    def _spawn(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        arguments: dict[str, Any] = {
            "group": self._group,
            "source": self._inbox,
            "output": self._output,
            "session-timeout-ms": self._session_timeout_ms,
        }
        flags = [text for name, value in arguments.items() for text in (f"--{name}", str(value))]
        with (self._directory / "control.json").open("wb") as out:
            with (self._directory / "control.log").open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "refold.demo.control", *flags],
                    stdin=subprocess.PIPE,
                    stdout=out,
                    stderr=log,
                )
        if self._process.stdin is not None:
            with self._process.stdin as kafka:
                kafka.write(json.dumps(self._settings.kafka_config("reader")).encode())

    def _check(self, process: subprocess.Popen[bytes]) -> None:
        """It may only die when we kill it: its losses must come from that and nothing else."""
        if process.poll() is not None:
            raise UnavailableError(
                f"the control ended by itself (exit {process.returncode}): see {self._directory}/control.log"
            )

    def _catch_up(self, inbox: Mapping[int, Sequence[Record]]) -> None:
        """Give it every chance: wait until it has committed the end, or the time is over."""
        deadline = time.monotonic() + CATCH_UP_S_MAX
        ends = {p: records[-1].offset + 1 for p, records in inbox.items() if records}
        while time.monotonic() < deadline:
            done = committed_offsets(self._offsets, self._inbox, len(inbox))
            if all(done[p] >= end for p, end in ends.items()):
                return
            time.sleep(0.25)
