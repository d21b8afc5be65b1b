"""A step's body, run by what it does to the world: as it is, or as a call of the ledger.

A step without effects simply runs again after a crash. One with an effect (declared at the step, or a tool
given as the step's function) runs as *one call* of the tool ledger: started only after the fold accepted it,
looked up after a crash, never run again while nobody can tell. Its outcome is then the step's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from refold.client.agents.outcomes import NonRetryable
from refold.client.agents.past import body_operation, read_past
from refold.client.tools.bodies import run_body
from refold.client.tools.call import ToolCall
from refold.client.tools.declare import ATTEMPTS_DEFAULT, Approval, LookupFunction, Tool
from refold.client.tools.operation import Operation
from refold.client.tools.outcomes import ApprovalPending, CallOutcome, Effect
from refold.client.tools.perform import perform
from refold.errors import InvariantViolation
from refold.formats.jsonio import dumps_text

if TYPE_CHECKING:
    from refold.client.session import Session

#: The body, given the idempotency key and what to call directly before it acts.
Body = Callable[[str, Callable[[], None]], Awaitable[Any]]


class NotTaken(Exception):
    """The body is known to have had no effect: the step may be tried again."""

    def __init__(self, reason: str, code: str) -> None:
        super().__init__(reason)
        self.code = code


class StepBody(Tool):
    """A step's function as the ledger's tool: its inputs are values, not a model's arguments."""

    def __init__(
        self,
        name: str,
        body: Body,
        *,
        effect: Effect,
        lookup: LookupFunction | None,
        approval: Approval,
        timeout: float | None,
    ) -> None:
        self.name = name
        self.effect = effect
        self.lookup = lookup
        self.approval = approval
        self.timeout = timeout
        self.retry_on = ()
        self.attempts_max = ATTEMPTS_DEFAULT
        self._body = body

    async def run(self, call: ToolCall, arguments: dict[str, Any], check: Callable[[], None]) -> Any:
        async def body() -> Any:
            return await self._body(call.key, check)

        return await run_body(body, {}, lambda: None, self.timeout)


async def run_call(
    session: Session, run_id: str, step_id: str, tool: Tool, arguments: dict[str, Any], *,
    lease_s: float, since_seq: int, again: bool,
) -> Any:  # fmt: skip
    """The result of the step's call, run now or found. ``again``: the step had an attempt before.

    Raises ApprovalPending, NotTaken, and NonRetryable for what trying again does not mend.
    """
    number = 1
    if again:
        async with aclosing(session.events(after=max(0, since_seq - 1))) as events:
            number = (await read_past(events, run_id, step_id)).number(run_id, step_id)
    op = Operation(
        session=session,
        operation_id=body_operation(run_id, step_id, number),
        tool=tool.name,
        arguments=dumps_text(arguments),
        effect=tool.effect,
        lookup=tool.lookup,
        approval=tool.approval,
        values=arguments,
        run=run_id,
        step=step_id,
        timeout_s=tool.timeout,
        attempts_max=tool.attempts_max,
        lease_s=lease_s,
    )
    outcome = await perform(op, tool, arguments)
    if outcome is None:
        raise InvariantViolation(f"operation {op.operation_id} waits for its holder and ended without one")
    return _value(outcome)


def _value(outcome: CallOutcome) -> Any:
    if outcome.state == "done" and not outcome.is_error:
        return outcome.value
    if outcome.state == "awaiting_approval":
        raise ApprovalPending([outcome])
    if outcome.state == "failed":
        raise NotTaken(outcome.text, "not_done")
    if outcome.state == "unknown":
        raise NonRetryable(
            f"nobody can tell whether operation {outcome.operation_id} took effect: rule on it with `refold "
            "review resolve`, then retry the run",
            code="outcome_unknown",
        )
    raise NonRetryable(outcome.text, code="denied" if outcome.state == "denied" else "tool_error")
