"""A run and its steps as the session's snapshot has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from refold.client.snapshots import ENDED_RUN_STATES, SnapshotView


@dataclass(slots=True)
class StepRow:
    """``output``: its JSON where the row has it inline. ``output_seq``: the journal event that has it
    anyway."""

    step_id: str
    name: str
    state: str
    attempt: int
    #: Of its attempts, since a person last said "again".
    failures: int = 0
    epoch: int = 0
    effect: str = "none"
    rerunnable: bool = False
    inputs: tuple[tuple[str, str], ...] = ()
    reads: tuple[tuple[str, str], ...] = ()
    output: bytes | None = field(default=None, repr=False)
    output_ref: Mapping[str, Any] | None = field(default=None, repr=False)
    output_digest: str | None = None
    output_seq: int = 0
    summary: str | None = field(default=None, repr=False)
    error_code: str | None = None
    error: str | None = None
    started_seq: int = 0

    @property
    def valid(self) -> bool:
        """Completed, and what it read has not changed since."""
        return self.state == "completed"

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> StepRow:
        return cls(
            step_id=row["step_id"],
            name=row["name"],
            state=row["state"],
            attempt=row["attempt"],
            failures=row["failures"],
            epoch=row["epoch"],
            effect=row["effect"],
            rerunnable=row["rerunnable"],
            inputs=tuple((item["name"], item["digest"]) for item in row["inputs"]),
            reads=tuple((item["step_id"], item["digest"]) for item in row["reads"]),
            output=row["output"],
            output_ref=row["output_ref"],
            output_digest=row["output_digest"] or None,
            output_seq=row["output_seq"],
            summary=row["summary"],
            error_code=row["error_code"],
            error=row["error"],
            started_seq=row["started_seq"],
        )


@dataclass(slots=True)
class RunRow:
    """``data``: the row as in the snapshot."""

    data: Mapping[str, Any] = field(repr=False)
    steps: dict[str, StepRow] = field(repr=False)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> RunRow:
        return cls(row, {step["step_id"]: StepRow.of(step) for step in row["steps"]})

    @property
    def run_id(self) -> str:
        return str(self.data["run_id"])

    @property
    def state(self) -> str:
        return str(self.data["state"])

    @property
    def epoch(self) -> int:
        return int(self.data["epoch"])

    @property
    def ended(self) -> bool:
        return self.state in ENDED_RUN_STATES


def find_run(view: SnapshotView | None, run_id: str) -> RunRow | None:
    """The run's row; ``None`` where the session holds none (any more)."""
    row = None if view is None else view.run(run_id)
    return None if row is None else RunRow.of(row)
