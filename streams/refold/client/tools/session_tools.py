"""Tools of a session: ``session.tool``, ``session.run_tools``, ``session.reconcile``."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import orjson

from refold.client.publishing import Wait
from refold.client.tools.acquire import lease_left_ms
from refold.client.tools.call import ManualCall
from refold.client.tools.declare import Approval, LookupFunction, Tool, check_effect
from refold.client.tools.keys import operation_id as make_operation_id
from refold.client.tools.lease import LEASE_S_DEFAULT, LEASE_S_MAX, LEASE_S_MIN
from refold.client.tools.manual import manual
from refold.client.tools.operation import Operation, check_lease
from refold.client.tools.outcomes import ApprovalPending, CallOutcome, Effect
from refold.client.tools.perform import perform, refuse
from refold.client.tools.providers import AskedCall, read_calls
from refold.client.tools.results import summary_of, whole
from refold.client.tools.rows import Row, full_arguments
from refold.client.tools.schema import BadArguments
from refold.client.tools.verdicts import stricter
from refold.core.limits import ID_BYTES_MAX
from refold.errors import InvariantViolation, UsageError
from refold.formats.jsonio import dumps_text

if TYPE_CHECKING:
    from refold.client.session import Session

#: Calls of one ``run_tools`` or ``reconcile`` that run at once, and the most that may.
PARALLEL_DEFAULT: Final = 8
PARALLEL_MAX: Final = 64

#: Of an unknown tool's name, to the model: longer than any real one.
NAME_SHOWN_CHARS: Final = 80

T = TypeVar("T")


class SessionTools:
    """Mixed into :class:`refold.client.session.Session`."""

    def tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | str,
        *,
        operation_id: str,
        effect: Effect,
        lookup: LookupFunction | None = None,
        approval: Approval = False,
        timeout: float | None = None,
        call_id: str | None = None,
        message_id: str | None = None,
        run: str | None = None,
        step: str | None = None,
        lease: float = LEASE_S_DEFAULT,
        wait: Wait = "accepted",
    ) -> AbstractAsyncContextManager[ManualCall]:
        """One call around a block of yours: ``async with session.tool(…) as call: … call.done(result)``.

        The block is entered only when *started* was accepted under this runner's lease and the lease still
        holds. Entering raises AlreadySettled (with the first outcome), OutcomeUnknown or ApprovalPending when
        there is nothing to run, and waits while another runner holds the call. Say ``call.done(result)`` or
        ``call.failed(reason)``; an exception that leaves the block is recorded by the rules of ``effect``
        and goes on to you. ``timeout`` in seconds ends the block with TimeoutError.
        """
        raw = arguments if isinstance(arguments, str) else dumps_text(dict(arguments))
        values: Mapping[str, Any] = {}
        if not isinstance(arguments, str):
            values = arguments
        elif isinstance(parsed := _json(arguments), dict):
            values = parsed
        op = Operation(
            session=self._session,
            operation_id=operation_id,
            tool=name,
            arguments=raw,
            effect=check_effect(name, effect),
            lookup=lookup,
            approval=approval,
            values=values,
            call_id=call_id,
            message_id=message_id,
            run=run,
            step=step,
            timeout_s=timeout,
            lease_s=check_lease(lease, LEASE_S_MIN, LEASE_S_MAX),
            wait_accepted=_wait(wait),
        )
        return manual(op, values)

    async def run_tools(
        self,
        calls: Iterable[Any] | None,
        *,
        tools: Sequence[Tool],
        message_id: str,
        run: str | None = None,
        step: str | None = None,
        parallel: int = PARALLEL_DEFAULT,
        lease: float = LEASE_S_DEFAULT,
        wait: Wait = "accepted",
    ) -> list[dict[str, Any]]:
        """Run what a model asked for; returns one provider-ready result per call, in the order asked.

        ``calls``: ``message.tool_calls``, ``response.output`` or ``message.content`` of the answer.
        ``message_id``: of the assistant message they came in; providers give call ids out again, so a call is
        ``run/step/message:call``. Idempotent: the same call again, also from another process, gives the first
        result, or waits for the runner that has it. Results are in the session already: do not append them.

        What a model can mend is an error result: unknown tool, arguments that do not fit, a body's ToolError,
        a failure. A call whose outcome is not known is an error result that says so. Raises ApprovalPending
        when calls wait for approval (all others have run by then), Refused when the fold does not take a
        call, TransientError when Kafka or the workers do not answer; calling again is always right. Events of
        this session whose delivery failed before are sent again first (``session.retry``).
        """
        known = _by_name(tools)
        asked = read_calls(calls)
        seen: Counter[str] = Counter()
        jobs = []
        for index, call in enumerate(asked):
            repeat = seen[call.call_id]
            seen[call.call_id] += 1
            made = make_operation_id(message_id, call.call_id, run=run, step=step, repeat=repeat)
            op = Operation(
                session=self._session,
                operation_id=made,
                tool=call.name,
                arguments=call.arguments,
                effect="none",
                call_id=call.call_id,
                message_id=message_id,
                index=index,
                run=run,
                step=step,
                lease_s=check_lease(lease, LEASE_S_MIN, LEASE_S_MAX),
                wait_accepted=_wait(wait),
            )
            jobs.append(_run(op, known.get(call.name)))
        outcomes = await _bounded(jobs, parallel)
        return _results(asked, outcomes)

    async def reconcile(
        self,
        *,
        tools: Sequence[Tool],
        parallel: int = PARALLEL_DEFAULT,
        lease: float = LEASE_S_DEFAULT,
    ) -> list[CallOutcome]:
        """Look after every call that was started and whose runner's lease is over, as after a crash.

        Each is claimed, then: effect ``none`` runs again, ``idempotent`` runs again under the same key,
        ``external`` is asked for: done (recorded), not done (runs as the next attempt) or unknown (review
        queue, never run again). So are calls whose last attempt is known to be not done and which nobody has
        started again. Calls held by a living runner, and calls of tools not given, are left alone. Returns
        the outcomes in the order asked. Safe to call from several processes at once.
        """
        known = _by_name(tools)
        view = await self._session.state()
        jobs = []
        for row in () if view is None else view.data["tools"]:
            tool = known.get(row["tool"])
            if tool is not None and _left_behind(row):
                op = _operation_of(self._session, row, tool, check_lease(lease, LEASE_S_MIN, LEASE_S_MAX))
                if row["state"] != "started" or lease_left_ms(op, row, view) <= 0:
                    jobs.append(_again(op, row, tool))
        return [outcome for outcome in await _bounded(jobs, parallel) if outcome is not None]

    @property
    def _session(self) -> Session:
        return cast("Session", self)


async def _run(op: Operation, tool: Tool | None) -> CallOutcome:
    """What a model says may be anything: it must not end the turn."""
    said, op.arguments = op.arguments, whole(op.arguments)
    if tool is None:
        op.tool = summary_of(whole(op.tool), ID_BYTES_MAX)
        return await refuse(op, "unknown_tool", f"there is no tool {op.tool[:NAME_SHOWN_CHARS]!r}")
    _declare(op, tool)
    if said != op.arguments:
        return await refuse(op, "invalid_arguments", "the arguments hold half of a surrogate pair")
    try:
        arguments = tool.parameters.read(op.arguments)
    except BadArguments as error:
        return await refuse(op, "invalid_arguments", str(error))
    op.values = arguments
    outcome = await perform(op, tool, arguments)
    if outcome is None:
        raise InvariantViolation(
            f"operation {op.operation_id} waits for its holder and ended without an outcome"
        )
    return outcome


def _declare(op: Operation, tool: Tool) -> None:
    op.effect, op.lookup, op.approval = tool.effect, tool.lookup, tool.approval
    op.timeout_s, op.attempts_max = tool.timeout, tool.attempts_max


def _left_behind(row: Row) -> bool:
    """Started, or between two attempts."""
    between = row["state"] == "intended" and row["declared"] and row["attempt"] > 0
    return bool(row["state"] == "started" or between)


def _operation_of(session: Session, row: Row, tool: Tool, lease_s: float) -> Operation:
    op = Operation(
        session=session,
        operation_id=row["operation_id"],
        tool=row["tool"],
        arguments="",
        effect=tool.effect,
        call_id=row["call_id"],
        message_id=row["message_id"],
        index=row["order"],
        lease_s=lease_s,
        patient=False,
    )
    _declare(op, tool)
    op.effect = stricter(tool.effect, row["effect"])
    return op


async def _again(op: Operation, row: Row, tool: Tool) -> CallOutcome | None:
    op.arguments = await full_arguments(op.session, row)
    arguments: dict[str, Any] | BadArguments
    try:
        arguments = op.values = tool.parameters.read(op.arguments)
    except BadArguments as error:
        arguments = error
    return await perform(op, tool, arguments)


async def _bounded(jobs: Sequence[Awaitable[T]], parallel: int) -> list[T]:
    """All of them, at most so many at once; then the first error, if there was one."""
    if not 1 <= parallel <= PARALLEL_MAX:
        raise UsageError(f"parallel={parallel!r}: it must be 1 to {PARALLEL_MAX}")
    places = asyncio.Semaphore(parallel)

    async def placed(job: Awaitable[T]) -> T:
        async with places:
            return await job

    done = await asyncio.gather(*(placed(job) for job in jobs), return_exceptions=True)
    for item in done:
        if isinstance(item, BaseException):
            raise item
    return cast("list[T]", done)


def _results(asked: Sequence[AskedCall], outcomes: Sequence[CallOutcome]) -> list[dict[str, Any]]:
    pending = [outcome for outcome in outcomes if outcome.state == "awaiting_approval"]
    made = [
        None if outcome.state == "awaiting_approval" else call.result(outcome)
        for call, outcome in zip(asked, outcomes, strict=True)
    ]
    if pending:
        raise ApprovalPending(pending, made)
    return cast("list[dict[str, Any]]", made)


def _by_name(tools: Sequence[Tool]) -> dict[str, Tool]:
    known: dict[str, Tool] = {}
    for tool in tools:
        if not isinstance(tool, Tool):
            raise UsageError(f"{tool!r} is not declared as a tool: decorate it with @tool(effect=…)")
        if tool.name in known:
            raise UsageError(f"two tools are called {tool.name!r}: give one of them name=…")
        known[tool.name] = tool
    return known


def _wait(wait: Wait) -> bool:
    if wait not in ("durable", "accepted"):
        raise UsageError(f"wait={wait!r}: it must be 'durable' or 'accepted'")
    return wait == "accepted"


def _json(text: str) -> Any:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
