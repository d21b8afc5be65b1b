"""Running a granted attempt, and saying what came of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from refold.client.tools.acquire import give_back
from refold.client.tools.aftermath import finish, settle
from refold.client.tools.bodies import Beginning, CalledOff
from refold.client.tools.clocks import lease_clock
from refold.client.tools.lookups import ask
from refold.client.tools.operation import Grant
from refold.client.tools.outcomes import CallOutcome, Done, LeaseLost, Lookup, NotDone, ToolError
from refold.client.tools.points import POINTS
from refold.client.tools.record import record_done, record_failed, record_unknown
from refold.client.tools.verdicts import describe, judge, retryable

#: Before the second and third try: 0.2 and 0.4 s.
RETRY_PAUSE_S: Final = 0.2

#: ``body(check)``: calls ``check`` directly before it begins.
Body = Callable[[Callable[[], None]], Awaitable[Any]]


async def execute(
    grant: Grant, body: Body, *, retry_on: tuple[type[BaseException], ...]
) -> CallOutcome | None:
    """Run the body under the grant's lease. ``None``: look at the call again, it has moved on (the lease was
    lost, or the attempt is not done and another one may be made). Stops the lease."""
    op, effect = grant.operation, grant.effect
    tries = 0
    try:
        while True:
            tries += 1
            started_at = lease_clock()
            beginning = Beginning(grant.lease.held)

            def check(beginning: Beginning = beginning) -> None:
                POINTS.reach("before_effect", op.operation_id, op.tool)
                beginning.begin()

            try:
                result = await body(check)
            except CalledOff:
                if grant.ours_alone and tries == 1:
                    await give_back(op, grant.attempt)
                return None
            except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
                began = not beginning.call_off()
                await settle(cancelled(grant, began=began or tries > 1))
                raise
            except Exception as raised:
                POINTS.reach("after_effect", op.operation_id, op.tool)
                error = raised
                if beginning.call_off():
                    # The time was over, or no thread to be had, in front of the body: it will not begin now.
                    error = _not_begun(raised, op.timeout_s)
                may_retry = retryable(raised, retry_on) and max(tries, grant.attempt) < op.attempts_max
                again = tries > 1 or not grant.fresh
                if judge(effect, error, again=again) == "repeat" and may_retry:
                    await asyncio.sleep(RETRY_PAUSE_S * 2 ** (tries - 1))
                    continue
                return await finish(conclude(grant, error, started_at, may_retry=may_retry, again=again))
            POINTS.reach("after_effect", op.operation_id, op.tool)
            return await finish(record_done(op, grant.attempt, result, ms_since(started_at)))
    finally:
        await grant.lease.stop()


def _not_begun(error: Exception, timeout_s: float | None) -> NotDone:
    code, words = describe(error, timeout_s)
    return NotDone(f"the body did not begin: {words}", code=code)


async def conclude(
    grant: Grant,
    error: BaseException,
    started_at: float,
    *,
    may_retry: bool,
    again: bool = False,
) -> CallOutcome | None:
    """The body ended by an exception. ``None`` as in :func:`execute`. ``again``: as in :func:`judge`."""
    op, effect = grant.operation, grant.effect
    attempt = grant.attempt
    code, words = describe(error, op.timeout_s)
    verdict = judge(effect, error, again=again)
    if verdict == "done" and isinstance(error, ToolError):
        return await record_done(
            op, attempt, words, ms_since(started_at), is_error=True, error_code=error.code
        )
    if isinstance(error, LeaseLost):
        # The body looked and stopped; whoever holds the call now finds out what it did.
        return None
    if verdict == "not_done":
        return await _not_done(grant, code, words, may_retry=may_retry)
    answer = await ask(op.lookup, grant.key)
    if isinstance(answer.answer, Done):
        return await record_done(
            op, attempt, answer.answer.result, ms_since(started_at),
            is_error=answer.answer.is_error, reconciled=True,
        )  # fmt: skip
    if answer.answer is Lookup.NOT_DONE:
        return await _not_done(grant, code, words, may_retry=may_retry, reconciled=True)
    if not grant.lease.held():
        return None
    return await record_unknown(op, attempt, f"{words}; {answer.why}")


async def _not_done(
    grant: Grant, code: str, words: str, *, may_retry: bool, reconciled: bool = False
) -> CallOutcome | None:
    op = grant.operation
    if not grant.lease.held():
        # Not ours to close any more: whoever holds it may be running the next attempt.
        return None
    if grant.effect == "idempotent" and not may_retry:
        # Whoever has claimed it since that look sends the same key, and *failed* would be final: so the fold
        # says first whether this is the holder (L10).
        if not await op.not_done(grant.attempt, words):
            return None
    elif may_retry:
        await op.not_done(grant.attempt, words)
        await asyncio.sleep(RETRY_PAUSE_S * 2 ** (grant.attempt - 1))
        return None
    return await record_failed(op, grant.attempt, code, words, reconciled=reconciled)


async def cancelled(grant: Grant, *, began: bool) -> None:
    """Nobody knows how far the body came: say as much as can be known."""
    op, effect = grant.operation, grant.effect
    if not grant.lease.held():
        return
    if effect == "none" or (grant.ours_alone and not began):
        await op.not_done(grant.attempt, "cancelled; nothing took effect")
    elif effect == "external":
        answer = await ask(op.lookup, grant.key)
        if isinstance(answer.answer, Done):
            await record_done(
                op,
                grant.attempt,
                answer.answer.result,
                None,
                is_error=answer.answer.is_error,
                reconciled=True,
            )
        elif not grant.lease.held():
            return
        elif answer.answer is Lookup.NOT_DONE:
            await op.not_done(grant.attempt, "cancelled; the external system says nothing took effect")
        else:
            await record_unknown(op, grant.attempt, f"cancelled while it ran; {answer.why}")
    # Idempotent: left started. When its lease is over it runs again under the same key.


def ms_since(started_at: float) -> int:
    return int((lease_clock() - started_at) * 1000)
