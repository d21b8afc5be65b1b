"""Every history of eight events of one run by two holders: invariants, and what must never happen.

States that are the same are followed once: what can happen next depends on the state alone.
"""

from __future__ import annotations

from refold.core import Accepted, Session, decide, evolve, initial, well_formed
from refold.core.envelope import Envelope
from refold.core.events import Event
from refold.core.run_events import HolderEvent, RunLeased, StepCompleted, StepStarted
from refold.core.timers import next_deadline
from refold.core.work import WorkItem, work_changes, work_items
from refold.wire.envelope import decode_envelope, encode_envelope
from refold.wire.events import decode_event
from refold.wire.snapshot import decode_session, encode_snapshot

from .build import SESSION, TENANT, Inbox, event
from .runkit import Item, begun, done, fired, held, leased, run_started, step_failed

LONGEST = 8
#: h1's leases are over within the history, h2's are not; every event comes a second after the one before.
SHORT_MS, FAR_MS, SECOND_MS = 1_500, 10_000, 1_000

ALPHABET: dict[str, Item] = {
    "start": run_started(retries_max=1),
    "h1 takes 1": leased(1, holder="h1", lease_ms=SHORT_MS),
    "h2 takes 1": leased(1, holder="h2", lease_ms=FAR_MS),
    "h1 takes 2": leased(2, holder="h1", lease_ms=SHORT_MS),
    "h2 takes 2": leased(2, holder="h2", lease_ms=FAR_MS),
    "h1 begins under 1": begun(attempt=1, epoch=1, holder="h1", effect="external", heartbeat_ms=FAR_MS),
    "h2 begins under 1": begun(attempt=1, epoch=1, holder="h2", effect="external"),
    "h2 begins under 2": begun(attempt=1, epoch=2, holder="h2", effect="external"),
    "h1 begins again": begun(attempt=2, epoch=1, holder="h1", effect="external"),
    "h1 has it": done(epoch=1, holder="h1"),
    "h2 has it": done(epoch=2, holder="h2"),
    "h1 failed": step_failed(epoch=1, holder="h1"),
    "h1 releases": held("RunReleased", 1, holder="h1"),
    "h1 completes": held("RunCompleted", 1, holder="h1"),
    "h2 completes": held("RunCompleted", 2, holder="h2"),
    "timer": fired(),
    "stop": event("RunStopped", run_id="r"),
    "delete": event("SessionDeleted"),
}

Path = tuple[str, ...]


def test_every_history_of_eight_events_of_a_run() -> None:
    inbox = Inbox()
    prepared: list[list[tuple[str, Envelope, Event]]] = []
    for n in range(LONGEST):
        column = []
        for name, item in ALPHABET.items():
            env = decode_envelope(encode_envelope(inbox.envelope(*item, event_id=f"{name}/{n}")))
            column.append((name, env, decode_event(env)))
        prepared.append(column)
    #: What tells a history from another beside its state: the work topic, who had which epoch, completions.
    states: dict[tuple[bytes, Told], Path] = {(b"", Told()): ()}
    accepted = 0
    takeovers: set[Path] = set()
    for n in range(LONGEST):
        following: dict[tuple[bytes, Told], Path] = {}
        for (state, told), path in states.items():
            for name, env, decoded in prepared[n]:
                session = decode_session(state) if state else initial(TENANT, SESSION)
                work = work_items(session)
                ruling = decide(session, env, decoded, (n + 1) * SECOND_MS)
                if not isinstance(ruling, Accepted):
                    continue
                at = (*path, name)
                check_speaker(session, decoded, at)
                evolve(session, ruling.seq, ruling.time_ms, 3, n, env, decoded)
                well_formed(session)
                now = told.after(session, decoded, work_changes(work, session), at)
                value = encode_snapshot(session) if session.exists else b""
                following.setdefault((value, now), at)
                accepted += 1
                run = session.runs.get("r")
                if run is not None and run.holder == "h2" and run.epoch == 2:
                    takeovers.add(at)
        states = following
    assert accepted > 2_000, accepted
    assert len(takeovers) > 50, len(takeovers)


class Told:
    """What the world outside the session knows. Values; equal ones are one history."""

    __slots__ = ("completed", "holders", "work")

    def __init__(
        self,
        work: WorkItem | None = None,
        holders: tuple[tuple[int, str], ...] = (),
        completed: bool = False,
    ) -> None:
        self.work = work
        self.holders = holders
        self.completed = completed

    def key(self) -> tuple[object, ...]:
        return self.work, self.holders, self.completed

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Told) and self.key() == other.key()

    def __hash__(self) -> int:
        return hash(self.key())

    def after(
        self, session: Session, decoded: Event, changes: list[tuple[str, WorkItem | None]], at: Path
    ) -> Told:
        work = self.work
        for _, item in changes:
            work = item
        run = session.runs.get("r")
        if not session.exists:
            assert work is None, at
            return Told()
        assert (work is None) == (run is None or not run.is_open), at
        holders = dict(self.holders)
        completed = self.completed
        if run is not None:
            assert work is None or (work.state, work.epoch, work.holder) == (
                run.state,
                run.epoch,
                run.holder,
            ), at
            if run.holder is not None:
                # N2: the epoch has one holder, and it never comes back to another.
                assert holders.setdefault(run.epoch, run.holder) == run.holder, at
                assert run.epoch == max(holders), at
            if isinstance(decoded, StepStarted):
                # The effect of a step that is known to have happened is not made again by itself.
                assert not completed, at
            completed = completed or isinstance(decoded, StepCompleted)
        deadline = next_deadline(session)
        assert bool(session.timer_ms) == (deadline is not None), at
        assert deadline is None or session.timer_ms <= deadline, at
        return Told(work, tuple(sorted(holders.items())), completed)


def check_speaker(session: Session, decoded: Event, at: Path) -> None:
    """N2: what a holder says is only accepted from the one who holds the run; nobody takes what is held."""
    if not isinstance(decoded, HolderEvent):
        return
    run = session.runs[decoded.run_id]
    if not isinstance(decoded, RunLeased):
        assert (run.holder, run.epoch) == (decoded.holder, decoded.epoch), at
    elif (decoded.holder, decoded.epoch) != (run.holder, run.epoch):
        until = run.lease_until_ms
        assert decoded.epoch == run.epoch + 1, at
        assert run.state == "ready" or (until is not None and until <= len(at) * SECOND_MS), at
