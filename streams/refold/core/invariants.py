"""What always holds of a session's state. Checked before a row is written and after it is read.

A violation raises :class:`InvariantViolation` (``assert`` disappears under ``-O``) and quarantines the
session. Each label stands in docs/concepts/session.md and in the test that attacks it.

S1  seq counts accepted events: no message, row, fact or summary is from a later seq than the session's.
S2  ``recent`` is one path: each message follows the one before it, the first follows the trunk, the last is
    the head; ids are unique over everything held.
S3  No result without the message that asked for it (W2).
S4  The kept byte counts are the sums of what is held.
S5  Every bound of refold.core.limits holds.
S6  ``open_calls`` counts the rows that are not final; a row's key is its operation id.
S7  A summary is active only on the path that contains its message.
S9  Open generations have a holder and a lease, ended ones neither; a row's key is its generation id.
S10 A run has holder and lease exactly while it is leased, waits for calls exactly while it is waiting, and no
    steps when it has ended; a heartbeat is awaited only of a step that runs under the lease; a started step
    has room for its end. A row's key is its id.
S8  An encoded snapshot is at most STATE_RECORD_BYTES_MAX bytes (follows from S5; checked by the encoder).
"""

from __future__ import annotations

from refold.core.children import child_bytes
from refold.core.generations import is_open
from refold.core.ledger import is_final
from refold.core.limits import (
    ALIASES_MAX,
    BRANCH_BYTES_MAX,
    BRANCH_MESSAGES_MAX,
    CHILDREN_BYTES_MAX,
    CHILDREN_MAX,
    CLOSED_CALLS_MAX,
    DEDUP_ENTRY_BYTES,
    DEDUP_EVENT_IDS_MAX,
    DEDUP_MESSAGE_IDS_MAX,
    ENDED_GENERATIONS_MAX,
    ENDED_RUNS_MAX,
    FACTS_BYTES_MAX,
    FACTS_MAX,
    OLDER_OPEN_CALLS_MAX,
    OPEN_CALLS_MAX,
    OPEN_GENERATIONS_MAX,
    OPEN_RUNS_MAX,
    ORPHANS_BYTES_MAX,
    ORPHANS_MAX,
    PRODUCERS_MAX,
    RUN_STEPS_MAX,
    SYSTEM_BYTES_MAX,
    SYSTEM_MESSAGES_MAX,
    TOOLS_BYTES_MAX,
    TRAIL_MAX,
    TRUNKS_MAX,
    WINDOW_BYTES_MAX,
    WINDOW_MESSAGES_MAX,
)
from refold.core.runlife import free_bytes
from refold.core.runstate import Run
from refold.core.session import Session
from refold.errors import InvariantViolation


def check(session: Session, holds: bool, label: str, what: str) -> None:
    if not holds:
        raise InvariantViolation(
            f"{label} does not hold for {session.key} at seq {session.seq}: {what}. This is a bug of refold, "
            "not of the data: upgrade, then `refold session release` folds the session again"
        )


def well_formed(session: Session) -> None:
    """Raises InvariantViolation naming the label. Linear in what is held."""
    if not session.exists:
        empty = not (
            session.held
            or session.calls
            or session.facts
            or session.producers
            or session.event_ids
            or session.generations
            or session.runs
            or session.children
            or session.reduced
            or session.policy
            or session.timer_ms
        )
        check(session, empty, "S1", "a session without events holds something")
        return
    _path(session)
    _sums(session)
    _bounds(session)
    if session.calls:
        _ledger(session)
    if session.generations:
        _generations(session)
    if session.runs:
        _runs(session)
    summary = session.summary
    if summary is not None:
        check(session, summary.seq <= session.seq, "S1", "the summary is from the future")
        check(session, summary.through_seq <= summary.seq, "S7", "the summary covers later messages")
    if session.summary_active:
        check(session, summary is not None, "S7", "no summary is held")


def _path(session: Session) -> None:
    before = session.trunk_id
    seqs: set[int] | None = None
    for message in session.recent:
        if message.parent != before:
            check(session, False, "S2", "the path is broken")
        before = message.id
        if message.seq > session.seq:
            check(session, False, "S1", "a message is from the future")
        if message.answers:
            if seqs is None:
                seqs = {m.seq for m in session.recent}
            if message.role == "tool" and seqs.isdisjoint(message.answers):
                check(session, False, "S3", "a result stands without its call")
    check(session, session.head == before, "S2", "the head is not the path's last message")
    count = len(session.system) + len(session.recent) + len(session.branch_messages) + len(session.orphans)
    check(session, count == len(session.held), "S2", "an id is held twice or a message is lost")


def _sums(session: Session) -> None:
    check(session, session.recent_bytes == sum([m.size for m in session.recent]), "S4", "recent_bytes")
    if session.system:
        check(session, session.system_bytes == sum(m.size for m in session.system), "S4", "system_bytes")
    branches = session.branch_messages
    check(session, session.branch_bytes == sum([m.size for m in branches.values()]), "S4", "branch_bytes")
    check(session, session.facts_bytes == sum([f.size for f in session.facts.values()]), "S4", "facts_bytes")


def _bounds(session: Session) -> None:
    s = session
    check(s, len(s.recent) <= WINDOW_MESSAGES_MAX and s.recent_bytes <= WINDOW_BYTES_MAX, "S5", "the window")
    check(
        s,
        len(s.system) <= SYSTEM_MESSAGES_MAX and s.system_bytes <= SYSTEM_BYTES_MAX,
        "S5",
        "system messages",
    )
    check(
        s,
        len(s.branch_messages) <= BRANCH_MESSAGES_MAX and s.branch_bytes <= BRANCH_BYTES_MAX,
        "S5",
        "branch messages",
    )
    check(s, len(s.facts) <= FACTS_MAX and s.facts_bytes <= FACTS_BYTES_MAX, "S5", "facts")
    check(s, len(s.orphans) <= ORPHANS_MAX and s.orphans_bytes <= ORPHANS_BYTES_MAX, "S5", "orphans")
    check(s, len(s.producers) <= PRODUCERS_MAX, "S5", "producers")
    check(s, len(s.aliases) <= ALIASES_MAX and len(s.trunks) <= TRUNKS_MAX, "S5", "aliases or trunks")
    if s.children:
        used = sum([child_bytes(child) for child in s.children])
        check(s, len(s.children) <= CHILDREN_MAX and used <= CHILDREN_BYTES_MAX, "S5", "children")
        check(s, max([child.seq for child in s.children]) <= s.seq, "S1", "a child is from the future")
    check(s, len(s.trail) <= 4 * TRAIL_MAX, "S5", "the trail")
    check(
        s,
        len(s.event_ids) <= DEDUP_EVENT_IDS_MAX * DEDUP_ENTRY_BYTES
        and len(s.message_ids) <= DEDUP_MESSAGE_IDS_MAX * DEDUP_ENTRY_BYTES,
        "S5",
        "id memory",
    )


def _ledger(session: Session) -> None:
    open_calls = 0
    size = 0
    for operation_id, call in session.calls.items():
        if call.operation_id != operation_id or call.updated_seq > session.seq:
            check(session, False, "S6", "a row's key or seq")
        size += call.size
        if not is_final(call):
            open_calls += 1
    check(session, open_calls == session.open_calls, "S6", "open_calls")
    check(session, size == session.calls_bytes, "S4", "calls_bytes")
    check(session, open_calls <= OLDER_OPEN_CALLS_MAX, "S5", "open calls")
    check(session, len(session.calls) - open_calls <= CLOSED_CALLS_MAX, "S5", "final rows")
    # An older version took more of them; they may be larger than the present bound, but none is added.
    small = session.calls_bytes <= TOOLS_BYTES_MAX or open_calls > OPEN_CALLS_MAX
    check(session, small, "S5", "the ledger's bytes")


def _generations(session: Session) -> None:
    open_rows = 0
    for generation_id, row in session.generations.items():
        if row.updated_seq > session.seq or row.started_seq > row.updated_seq:
            check(session, False, "S1", "a generation is from the future")
        check(session, row.generation_id == generation_id, "S9", "a generation's key")
        held = (row.holder is not None, row.lease_until_ms is not None)
        check(session, held == (is_open(row), is_open(row)), "S9", "a generation's holder or lease")
        open_rows += is_open(row)
    check(session, open_rows <= OPEN_GENERATIONS_MAX, "S5", "open generations")
    check(session, len(session.generations) - open_rows <= ENDED_GENERATIONS_MAX, "S5", "ended generations")


def _runs(session: Session) -> None:
    for run_id, run in session.runs.items():
        seqs = (run.started_seq, run.updated_seq, *[step.updated_seq for step in run.steps.values()])
        if max(seqs) > session.seq:
            check(session, False, "S1", "a run or step is from the future")
        check(session, run.run_id == run_id, "S10", "a run's key")
        leased = run.state == "leased"
        check(session, (run.holder is not None) == leased, "S10", "a run's holder")
        check(session, (run.lease_until_ms is not None) == leased, "S10", "a run's lease")
        check(session, bool(run.waiting_for) == (run.state == "waiting"), "S10", "what a run waits for")
        check(session, run.is_open or not run.steps, "S10", "an ended run has steps")
        _steps(session, run)
    open_runs = sum([run.is_open for run in session.runs.values()])
    check(session, open_runs <= OPEN_RUNS_MAX, "S5", "open runs")
    check(session, len(session.runs) - open_runs <= ENDED_RUNS_MAX, "S5", "ended runs")
    size = sum([run.size for run in session.runs.values()])
    check(session, size == session.runs_bytes, "S4", "runs_bytes")
    check(session, free_bytes(session) >= 0, "S10", "room for the steps that run")


def _steps(session: Session, run: Run) -> None:
    check(session, len(run.steps) <= RUN_STEPS_MAX, "S5", "steps of a run")
    for step_id, step in run.steps.items():
        awaited = step.heartbeat_until_ms is not None
        held = run.state == "leased" and step.state == "running" and step.epoch == run.epoch
        if step.step_id != step_id or (awaited and not held):
            check(session, False, "S10", "a step's key or heartbeat")
