"""A session's state as a reader sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import orjson

from refold.client.reduced import ReducedPart, plain_part
from refold.errors import InvalidRecord
from refold.formats.views import actors
from refold.wire.snapshot import decode_session, decode_snapshot

#: States of a tool row that no event changes any more.
FINAL_CALL_STATES: Final = frozenset({"done", "failed", "denied"})

#: States of a generation that is not over.
OPEN_GENERATION_STATES: Final = frozenset({"started", "stopping"})

#: States of a run that is over.
ENDED_RUN_STATES: Final = frozenset({"completed", "failed", "stopped"})

Frontier = Mapping[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class Staleness:
    """What a standby said of its copy. ``position``: next offset of the state topic; ``behind``: offsets of
    the partition's changelogs that it had not read; ``age_s``: everything that was committed so many seconds
    before the answer is in it."""

    position: int
    behind: int
    age_s: float


@dataclass(frozen=True, slots=True)
class WaitingResult:
    """A result that waits for its call. ``state``: ``done`` or ``failed``."""

    message_id: str
    seq: int
    operation_id: str | None
    call_id: str | None
    state: str


@dataclass(frozen=True)
class SnapshotView:
    """One committed snapshot. ``data`` is the public part in the shape of ``schemas/session_snapshot``.

    ``stale``: it was not read from the owner and may lack the newest events. ``staleness`` says how many
    where a standby has answered; ``None`` where the state topic was read.
    """

    tenant: str
    session: str
    seq: int
    data: Mapping[str, Any] = field(repr=False)
    raw: bytes = field(repr=False)
    stale: bool = False
    staleness: Staleness | None = None

    @classmethod
    def of(cls, raw: bytes, *, stale: bool = False, staleness: Staleness | None = None) -> SnapshotView:
        """Decode a framed state record. Raises InvalidRecord for what no worker has written."""
        data = decode_snapshot(raw)
        return cls(data["tenant"], data["session_id"], data["seq"], data, raw, stale, staleness)

    @cached_property
    def frontier(self) -> Frontier:
        """(topic, partition) → next offset to be applied."""
        return {(entry["topic"], entry["partition"]): entry["next_offset"] for entry in self.data["frontier"]}

    @property
    def status(self) -> str:
        """open, closed, quarantined or releasing."""
        return str(self.data["status"])

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Named facts, values parsed."""
        return {fact["name"]: orjson.loads(fact["value"]) for fact in self.data["facts"]}

    @property
    def config(self) -> Any:
        """The pinned configuration, parsed; ``None`` when there is none."""
        pinned = self.data["config"]
        return None if pinned is None or not pinned["json"] else orjson.loads(pinned["json"])

    @property
    def open_calls(self) -> list[Mapping[str, Any]]:
        """Tool rows without a final outcome (``unknown`` included), in the order asked."""
        return [row for row in self.data["tools"] if row["state"] not in FINAL_CALL_STATES]

    @cached_property
    def waiting_results(self) -> list[WaitingResult]:
        """Tool results outside the context, because no call of the session has their id (yet), or its message
        has not come: in the order they came (rule L6). Empty where a newer refold wrote the record;
        ``data["context"]["waiting_results"]`` counts their messages then too."""
        if not self.data["context"]["waiting_results"]:
            return []
        try:
            held = decode_session(self.raw)
        except InvalidRecord:
            return []
        return [
            WaitingResult(one.message.id, one.message.seq, result.operation_id, result.call_id, result.state)
            for one in held.orphans
            for result in one.results
        ]

    @cached_property
    def reduced(self) -> dict[str, ReducedPart]:
        """Parts of the application's own reducers, by name, their states as JSON."""
        return {row["name"]: plain_part(row) for row in self.data["reduced"]}

    @property
    def generations(self) -> list[Mapping[str, Any]]:
        """Rows of the open generations and of the last that ended, in the order they were started."""
        return list(self.data["generations"])

    @property
    def open_generations(self) -> list[Mapping[str, Any]]:
        """Rows of the generations that are not over."""
        return [row for row in self.data["generations"] if row["state"] in OPEN_GENERATION_STATES]

    @property
    def runs(self) -> list[Mapping[str, Any]]:
        """Rows of the open runs, with their steps, and of the last that ended, in the order they were
        started."""
        return list(self.data["runs"])

    @property
    def open_runs(self) -> list[Mapping[str, Any]]:
        """Rows of the runs that are not over."""
        return [row for row in self.data["runs"] if row["state"] not in ENDED_RUN_STATES]

    def run(self, run_id: str) -> Mapping[str, Any] | None:
        """The row of one run, ``None`` where none is held."""
        return next((row for row in self.data["runs"] if row["run_id"] == run_id), None)

    @property
    def policy(self) -> Mapping[str, Any] | None:
        """What the session does when it is busy, idle or long; ``None``: the defaults."""
        policy: Mapping[str, Any] | None = self.data["policy"]
        return policy

    @cached_property
    def actors(self) -> list[str]:
        """Names that stand on the messages held on the active path, in the order they first spoke: what
        ``context(view=…)`` takes."""
        return actors(self.data)

    @property
    def children(self) -> list[Mapping[str, Any]]:
        """Child sessions and forks, in the order they were linked."""
        return list(self.data["children"])
