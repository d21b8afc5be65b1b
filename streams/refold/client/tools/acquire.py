"""Getting the right to run an operation, or finding out why there is nothing to run.

See the picture in :mod:`refold.client.tools.operation`. Every round reads the row as committed, takes the one
step that its state allows, and either ends or reads again.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from refold.client.connection import now_ms
from refold.client.receipts import Receipt, Ruling
from refold.client.snapshots import FINAL_CALL_STATES, SnapshotView
from refold.client.tools.aftermath import in_background
from refold.client.tools.archive import Archive, archive_of, may_have_forgotten
from refold.client.tools.declare import needs_approval
from refold.client.tools.keys import idempotency_key
from refold.client.tools.known import Known, as_new, remember
from refold.client.tools.lookups import ask
from refold.client.tools.operation import Grant, Operation
from refold.client.tools.outcomes import CallOutcome, Done, Lookup
from refold.client.tools.points import POINTS
from refold.client.tools.record import record_done, record_failed, record_unknown
from refold.client.tools.rows import Row, archived_outcome, find_row, outcome_of
from refold.client.tools.verdicts import stricter
from refold.errors import InvariantViolation, RefoldError, TransientError

#: Rounds without waiting for anybody. Each one that does not end means that another runner was faster; a
#: handful of runners of one call settle it in as many rounds.
ROUNDS_MAX: Final = 100

#: While another runner holds the call, its row is looked at again at least this often.
HOLDER_LOOK_S: Final = 2.0
#: And not more often than this, when the worker answers at once that nothing is new.
HOLDER_PAUSE_S: Final = 0.05

#: Attempts ended by "not done" on recovery, after which a person decides: the tool may be what kills its
#: runner. Above ATTEMPTS_MAX, so that declared retries never meet it.
RECOVERED_ATTEMPTS_MAX: Final = 12


class _Held(Exception):
    """Another runner holds the call and the caller does not want to wait."""


async def acquire(op: Operation) -> Grant | CallOutcome | None:
    """The right to run, or the outcome there is. ``None``: another runner holds it and ``op.patient`` is off.

    Raises :class:`Refused` when the fold does not take the call at all (other arguments under the same
    operation id, a closed session, too many open calls), TransientError when nothing answers.
    """
    if op.approval is False and (known := as_new(op)) is not None:
        begun = await _begin_new(op, known)
        if begun is not None:
            return begun
    rounds = 0
    while rounds < ROUNDS_MAX:
        rounds += 1
        view = await op.session.state()
        row = find_row(view, op.operation_id, op.call_id, op.message_id)
        if row is None or (not row["declared"] and row["state"] not in FINAL_CALL_STATES):
            found = await _begin(op, view, row)
        elif row["state"] in FINAL_CALL_STATES or row["state"] in ("unknown", "awaiting_approval"):
            return await outcome_of(op.session, row)
        elif row["state"] == "intended":
            found = await _resume(op, row)
        else:
            waits = lease_left_ms(op, row, view)
            if waits > 0:
                if not op.patient:
                    return None
                await _wait(op, view, waits)
                rounds = 0
                continue
            try:
                found = await _take_over(op, row, view)
            except _Held:
                return None
        if found is not None:
            return found
    raise does_not_settle(op)


def does_not_settle(op: Operation) -> InvariantViolation:
    return InvariantViolation(
        f"operation {op.operation_id} did not settle in {ROUNDS_MAX} rounds: report this as a bug of refold"
    )


def lease_left_ms(op: Operation, row: Row, view: SnapshotView | None) -> int:
    """Until the row's lease is over, by the broker's clock as far as we know it: never before the session's
    own time. A clock that is wrong costs a wait or a refused claim; the fold decides."""
    session_ms = 0 if view is None else view.data["updated_at_ms"]
    return int((row["lease_until_ms"] or 0) - max(session_ms, now_ms() + op.skew_ms))


async def _wait(op: Operation, view: SnapshotView | None, waits_ms: int) -> None:
    """Until the session moves on, the lease is over, or it is time to look again."""
    seconds = min(waits_ms / 1000, HOLDER_LOOK_S)
    pause = min(seconds, HOLDER_PAUSE_S)
    await asyncio.sleep(pause)
    if seconds > pause:
        try:
            await op.session.state(min_seq=(0 if view is None else view.seq) + 1, timeout=seconds - pause)
        except TransientError:
            return  # Nothing new.


async def _begin(op: Operation, view: SnapshotView | None, row: Row | None) -> Grant | CallOutcome | None:
    """No intent yet: record it, and at once the start, so that both are ruled on in one commit."""
    archive: Archive | None = None
    if row is None and view is not None and may_have_forgotten(view):
        archive, first = await ask_archive(op, view, view.seq)
        if first is not None:
            return first
    known = remember(op, view, archive, complete=row is None or not may_have_forgotten(view))
    approval = await needs_approval(op.approval, op.values)
    POINTS.reach("before_intent", op.operation_id, op.tool)
    intent = await op.intend(approval_required=approval)
    POINTS.reach("after_intent", op.operation_id, op.tool)
    if approval:
        asked = await op.send(lambda: op.session.request_approval(op.operation_id, **op.options()))
        ruling = await op.rule(intent)
        await op.rule(asked)
        first = await _first_outcome(op, known, ruling)
        return None if first is None else await _record_again(op, first)
    return await _start(op, 1, intent, op.effect, known)


async def _begin_new(op: Operation, known: Known) -> Grant | CallOutcome | None:
    """As :func:`_begin`, for a call that needs no read to be known as new."""
    POINTS.reach("before_intent", op.operation_id, op.tool)
    intent = await op.intend(approval_required=False)
    POINTS.reach("after_intent", op.operation_id, op.tool)
    return await _start(op, 1, intent, op.effect, known)


async def ask_archive(op: Operation, view: SnapshotView, upto: int) -> tuple[Archive, CallOutcome | None]:
    """The outcome an operation had by ``upto`` that has no row any more; ``None``: it was never declared."""
    archive = archive_of(op.session._connection, op.session.key)
    await archive.read(op.session, upto, view.data["created_at_ms"])
    seq = archive.outcome_seq(op.operation_id, upto)
    return archive, None if seq is None else await archived_outcome(op.session, op.operation_id, op.tool, seq)


async def _first_outcome(op: Operation, known: Known, intended: Ruling) -> CallOutcome | None:
    """The outcome this operation had before its intent was accepted now. ``known``: what the intent was sent
    upon; somebody may have come in between, run it, and run so many others that its row has left."""
    if known.covers(intended):
        return None
    known.end()
    if not intended.in_effect:
        return None
    view = await op.session.state()
    row = find_row(view, op.operation_id, op.call_id, op.message_id)
    if row is None or view is None or not may_have_forgotten(view) or row["message_seq"] in known.asked_seqs:
        return None
    return (await ask_archive(op, view, row["intended_seq"] - 1))[1]


async def _record_again(op: Operation, first: CallOutcome) -> CallOutcome | None:
    if first.state == "done":
        return await record_done(op, first.attempt, list(first.content), None, is_error=first.is_error)
    # Of the attempt that the row is at now, whoever began it: nothing took effect, now as then.
    made = await record_failed(op, None, first.state, first.reason or first.text)
    return made and first


async def _resume(op: Operation, row: Row) -> Grant | CallOutcome | None:
    """An intent that was never started, was approved, or whose last attempt is known to be not done."""
    if row["approval"] in ("required", "requested"):
        asked = await op.send(lambda: op.session.request_approval(op.operation_id, **op.options()))
        await op.rule(asked)
        return None
    return await _start(op, row["attempt"] + 1, None, row["effect"])


async def _start(
    op: Operation, attempt: int, intent: Receipt | None, recorded: str, known: Known | None = None
) -> Grant | CallOutcome | None:
    """``None``: another runner was faster. ``recorded``: the effect in the row. ``known``: what the intent
    was sent upon without a read."""
    first: CallOutcome | None = None
    POINTS.reach("before_started", op.operation_id, op.tool)
    # A caller that is cancelled does not hear of it, but it may be granted all the same.
    starting = in_background(op.start(attempt))
    try:
        receipt, sent_at = await asyncio.shield(starting)
    except asyncio.CancelledError:
        in_background(_give_back_when_sent(op, attempt, starting))
        raise
    try:
        intended = None if intent is None else await op.rule(intent)
        started = await op.rule(receipt)
        if known is not None and intended is not None:
            first = await _first_outcome(op, known, intended)
    except BaseException:
        # Cancelled, or the intent was refused (other arguments under this id) and the start hit the other
        # call. Either way nothing runs: say so, or it would be asked about when the lease is over.
        in_background(_give_back_when_ruled(op, attempt, receipt))
        raise
    if first is not None:
        return await _record_again(op, first)
    if not started.in_effect:
        return None
    if intended is not None and not intended.in_effect:
        await _give_back_when_ruled(op, attempt, receipt)
        return None
    lease = op.lease(attempt, sent_at).start()
    POINTS.reach("after_started", op.operation_id, op.tool)
    key = idempotency_key(op.operation_id, attempt)
    return Grant(
        op, attempt, key, lease, op.effect, fresh=True, ours_alone=op.effect == recorded == "external"
    )


async def _give_back_when_sent(
    op: Operation, attempt: int, starting: asyncio.Task[tuple[Receipt, float]]
) -> None:
    receipt, _ = await starting
    await _give_back_when_ruled(op, attempt, receipt)


async def _give_back_when_ruled(op: Operation, attempt: int, receipt: Receipt) -> None:
    with contextlib.suppress(RefoldError):
        if (await receipt.ruling()).in_effect:
            await give_back(op, attempt)


async def give_back(op: Operation, attempt: int) -> None:
    """An attempt of ours whose body has not begun: not done, so it need not be asked about. Only while it is
    still ours: what another runner has found out since (also *unknown*) stands."""
    row = find_row(await op.session.state(), op.operation_id, op.call_id, op.message_id)
    if row is not None and row["state"] == "started" and row["holder"] == op.holder:
        await op.not_done(attempt, "the body did not begin")


async def _take_over(op: Operation, row: Row, view: SnapshotView | None) -> Grant | CallOutcome | None:
    """A started call whose lease is over: claim it, then decide by what may have happened."""
    attempt = row["attempt"]
    POINTS.reach("before_claim", op.operation_id, op.tool)
    receipt, sent_at = await op.claim(attempt)
    ruling = await op.rule(receipt)
    if not ruling.in_effect:
        if ruling.code == "lease_held":
            if not op.patient:
                raise _Held
            await _wait(op, view, max(1, (row["lease_until_ms"] or 0) - receipt.append_time_ms))
        return None
    lease = op.lease(attempt, sent_at).start()
    keep = False
    try:
        POINTS.reach("after_claim", op.operation_id, op.tool)
        key = idempotency_key(op.operation_id, attempt)
        effect = stricter(op.effect, row["effect"])
        if effect != "external":
            keep = True
            return Grant(op, attempt, key, lease, effect, fresh=False)
        answer = await ask(op.lookup, key)
        POINTS.reach("after_lookup", op.operation_id, op.tool)
        if isinstance(answer.answer, Done):
            return await record_done(
                op, attempt, answer.answer.result, None, is_error=answer.answer.is_error, reconciled=True
            )
        if answer.answer is Lookup.NOT_DONE:
            if attempt < RECOVERED_ATTEMPTS_MAX:
                await op.not_done(attempt, "the external system says so")
                POINTS.reach("after_not_done", op.operation_id, op.tool)
                return None
            return await record_unknown(
                op, attempt, f"not done after {attempt} attempts whose runners ended: somebody should look"
            )
        return await record_unknown(op, attempt, answer.why)
    finally:
        if not keep:
            await lease.stop()
