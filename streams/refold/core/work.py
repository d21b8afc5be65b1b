"""What a session wants done: the records of the work topic, as a function of the state (N1).

N1  The transaction that makes a run runnable, that leases it, that suspends it, or sends it to the review
    writes its WorkItem; the one that ends it, or deletes the session, the tombstone. A run that nobody may
    take (its session is closed, quarantined or being released) is not announced while that lasts.
Y1  The same for the summary that an open session wants, at most one (:mod:`refold.core.wanting`).

Items are compared before and after the event, as calls that wait for a person are
(:mod:`refold.core.reviews`), so no way in or out can be forgotten. A renewal of a lease writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeAlias

from refold.core.events import Event, MessageAppended, SessionOpened
from refold.core.operationevents import SessionForked
from refold.core.run_events import RunStarted
from refold.core.runstate import Run
from refold.core.session import Session
from refold.core.wanting import SummaryWant, summary_want

WorkKind: TypeAlias = Literal["run", "summary"]

#: The name under which a session asks for a summary; no run id begins with an @.
SUMMARY_WORK: Final = "@summary"


class WorkItem(NamedTuple):
    """One thing to do. ``since_ms``: session time; ``epoch``: of the run as it is, a taker asks for the next.

    ``lease_until_ms`` is that of the take: what is written does not follow the renewals.
    """

    kind: WorkKind
    tenant: str
    session: str
    run: str | None
    agent: str | None
    state: str
    reason: str
    pin: str | None
    avoid: str | None
    epoch: int
    holder: str | None
    lease_until_ms: int | None
    notices: int
    since_ms: int
    seq: int

    def same(self, other: WorkItem) -> bool:
        """Whether a reader would do the same after both: all but the end of the lease and the seq."""
        return self._replace(lease_until_ms=None, seq=0) == other._replace(lease_until_ms=None, seq=0)


def work_items(session: Session) -> dict[str, WorkItem]:
    """Name of the work (a run id, or ``@summary``) → its item, of everything that wants doing."""
    found: dict[str, WorkItem] = {}
    if session.status in ("quarantined", "releasing"):
        return found
    for run_id, run in session.runs.items():
        if run.is_open and (session.status == "open" or run.state != "ready"):
            found[run_id] = _of_run(session, run)
    want = summary_want(session)
    if want is not None:
        found[SUMMARY_WORK] = _of_summary(session, want)
    return found


def _of_summary(session: Session, want: SummaryWant) -> WorkItem:
    return WorkItem(
        "summary",
        session.tenant,
        session.session,
        None,
        None,
        "ready",
        want.reason,
        None,
        None,
        0,
        None,
        None,
        want.grown,
        want.since_ms,
        want.seq,
    )


def _of_run(session: Session, run: Run) -> WorkItem:
    return WorkItem(
        "run",
        session.tenant,
        session.session,
        run.run_id,
        run.agent,
        run.state,
        run.reason,
        run.pin,
        run.avoid,
        run.epoch,
        run.holder,
        run.lease_until_ms,
        run.notices,
        run.ready_ms,
        run.updated_seq,
    )


def may_change_work(session: Session, event: Event) -> bool:
    """False for what cannot change what ``session``, as before the event, wants done: nothing to compare."""
    if session.policy is not None or session.hold_for_summary:
        return True
    if not session.runs:
        return isinstance(event, (RunStarted, SessionForked, SessionOpened))
    return type(event) is not MessageAppended or bool(event.results or event.calls)


def work_changes(before: Mapping[str, WorkItem], session: Session) -> list[tuple[str, WorkItem | None]]:
    """(name, item) of all that is new or another thing to do now, and (name, None) of what is none any more:
    its tombstone is due. ``before``: :func:`work_items` before the event; ``session``: after it."""
    after = work_items(session)
    gone: list[tuple[str, WorkItem | None]] = [(name, None) for name in before if name not in after]
    changed: list[tuple[str, WorkItem | None]] = []
    for name, item in after.items():
        was = before.get(name)
        if was is None or not was.same(item):
            changed.append((name, item))
    return gone + changed
