"""Book, journal, state and work topic against each other: what went wrong, in words."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from refold.ops.refolding import Refolder
from refold.ops.runs.leases import Leases
from refold.wire.codec import decode
from refold.wire.events import decode_event
from refold.wire.journal import decode_journal

#: Differences told word for word.
TOLD_MAX: Final = 20
#: Steps whose effect must have happened once in each completed run.
EFFECTS: Final = ("charge", "draft", "publish")


class Record(Protocol):
    """As ``refold.ops.verify.readback.Record``."""

    @property
    def key(self) -> bytes | None: ...

    @property
    def value(self) -> bytes | None: ...


Topic = Mapping[int, Iterable[Record]]


@dataclass(slots=True)
class Verdict:
    """Counts, each 0 where all is well, and the differences told."""

    unended: int = 0
    doubled_effects: int = 0
    lost_effects: int = 0
    together: int = 0
    state_mismatches: int = 0
    work_left: int = 0
    lease_differences: int = 0
    told: list[str] = field(default_factory=list)
    leases: Leases = field(default_factory=Leases)

    @property
    def mismatches(self) -> int:
        return (
            self.unended
            + self.doubled_effects
            + self.lost_effects
            + self.together
            + self.state_mismatches
            + self.work_left
            + self.lease_differences
        )

    def tell(self, text: str) -> None:
        if len(self.told) < TOLD_MAX:
            self.told.append(text)


def judge(
    runs: Iterable[str], book: Mapping[str, Any], journal: Topic, state: Topic, work: Topic, review: Topic
) -> Verdict:
    """``book``: what the world says; topics: per partition, in order, as read_committed sees them."""
    verdict = Verdict()
    _journal_and_state(verdict, journal, state)
    for run in runs:
        _run(verdict, run, book["executed"])
    for what, times in book["executed"].items():
        if times > 1:
            verdict.doubled_effects += 1
            verdict.tell(f"{what} was executed {times} times")
    for text in together(book["marks"]):
        verdict.together += 1
        verdict.tell(text)
    for key, value in _last(review).items():
        if value is not None:
            item = decode(value).record
            verdict.tell(f"waits for a person: {key!r}, {item['kind']} of {item['tool']}: {item['reason']}")
    for key in _left(work):
        verdict.work_left += 1
        verdict.tell(f"the work topic still has {key!r}")
    verdict.lease_differences = len(verdict.leases.differences)
    for text in verdict.leases.differences:
        verdict.tell(text)
    return verdict


def together(marks: Iterable[Sequence[Any]]) -> list[str]:
    """Executions of one run that were not one after the other.

    ``marks``: (run, turn, process, what, at), what each execution of a body (a *turn*) began and when. Once a
    later turn has begun anything, an earlier one must begin nothing more: its lease is over.
    """
    by_run: dict[str, list[tuple[float, str, str, str]]] = {}
    for run, turn, process, what, at in marks:
        by_run.setdefault(run, []).append((float(at), str(turn), str(process), str(what)))
    found = []
    for run, begun in by_run.items():
        begun.sort()
        over: set[str] = set()
        now, who = "", ""
        for _, turn, process, what in begun:
            if turn in over:
                found.append(f"{process} began {what!r} of {run} after {who} had taken the run over")
            elif turn != now:
                over.add(now)
                now, who = turn, process
    return found


def _run(verdict: Verdict, run: str, executed: Mapping[str, int]) -> None:
    times = verdict.leases.completed.get(run, 0)
    if times != 1:
        verdict.unended += 1
        other = verdict.leases.ended_otherwise.get(run)
        verdict.tell(f"run {run} has completed {times} times" + (f" ({other})" if other else ""))
        return
    for step in EFFECTS:
        if not executed.get(f"{run}/{step}", 0):
            verdict.lost_effects += 1
            verdict.tell(f"run {run} has completed, but {step} never happened")


def _journal_and_state(verdict: Verdict, journal: Topic, state: Topic) -> None:
    refolder = Refolder()
    for records in journal.values():
        for record in records:
            if record.key is None or record.value is None:
                continue
            entry = decode_journal(record.value)
            refolder.feed(record.key, record.value)
            verdict.leases.feed(entry, decode_event(entry.env))
    stored = _last(state)
    for key in {*stored, *refolder.sessions}:
        if stored.get(key) != refolder.encoded(key):
            verdict.state_mismatches += 1
            verdict.tell(f"the stored state of {key!r} is not what its journal folds to")


def _last(topic: Topic) -> dict[bytes, bytes | None]:
    found: dict[bytes, bytes | None] = {}
    for records in topic.values():
        for record in records:
            if record.key is not None:
                found[record.key] = record.value
    return found


def _left(work: Topic) -> list[bytes]:
    return [key for key, value in _last(work).items() if value is not None]
