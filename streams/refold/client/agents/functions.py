"""``run.step``: a function as a step of the run, with its inputs, its key and its effect."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from refold.client.agents.brief import Brief
from refold.client.agents.current import Step, input_names, wants_step
from refold.client.agents.effects import NotTaken, StepBody, run_call
from refold.client.agents.handles import given
from refold.client.agents.limits import RETRIES_MAX
from refold.client.agents.outcomes import NonRetryable
from refold.client.agents.specs import Attempt, StepSpec
from refold.client.tools.bodies import Beginning, in_thread, is_async
from refold.client.tools.declare import Approval, LookupFunction, Tool, check_effect
from refold.client.tools.outcomes import Effect
from refold.errors import UsageError

if TYPE_CHECKING:
    from refold.client.agents.execution import Execution


def function_step(
    run: Execution, brief: Callable[[], Brief], name: str, function: Callable[..., Any],
    inputs: Sequence[Any], *, effect: Effect, lookup: LookupFunction | None, approval: Approval,
    timeout: float | None, retries: int,
    rerunnable: bool, heartbeat_s: float, summary: str | Callable[[Any], str] | None,
) -> StepSpec:  # fmt: skip
    """Arguments as of ``run.step``. Raises UsageError."""
    if not 0 <= retries <= RETRIES_MAX:
        raise UsageError(f"retries={retries!r}: 0 to {RETRIES_MAX}, then a person decides")
    tool = function if isinstance(function, Tool) else None
    declared = check_effect(name, effect if tool is None else tool.effect)
    parameter = None if tool is not None else wants_step(function)
    names = input_names(function if tool is None else tool.function, len(inputs), parameter)
    made = given(names, inputs)
    call = _Calling(run, brief, function, parameter, made.values)

    async def plainly(attempt: Attempt) -> Any:
        async with asyncio.timeout(timeout):
            return await call(attempt, f"{run.run_id}/{attempt.step_id}/{attempt.number}", run.look)

    async def by_ledger(attempt: Attempt) -> Any:
        said: list[NonRetryable] = []

        async def body(key: str, check: Callable[[], None]) -> Any:
            try:
                return await call(attempt, key, check)
            except NonRetryable as error:
                said.append(error)
                raise

        step_tool = tool or StepBody(
            name, body, effect=declared, lookup=lookup, approval=approval, timeout=timeout
        )
        try:
            return await run_call(
                run.session, run.run_id, attempt.step_id, step_tool, made.named(),
                lease_s=run.agent.tool_lease_s, since_seq=int(run.row.data["started_seq"]),
                again=attempt.resumed or attempt.rerun,
            )  # fmt: skip
        except NotTaken:
            # Nothing took effect; whether trying again makes sense is the body's to say.
            if said:
                raise said[-1] from None
            raise

    ledger = tool is not None or declared != "none" or approval is not False
    return StepSpec(
        name,
        made,
        by_ledger if ledger else plainly,
        effect=declared,
        rerunnable=rerunnable,
        retries=retries,
        heartbeat_s=heartbeat_s,
        summary=summary,
    )


class _Calling:
    """Calls the function with its inputs, on the loop or in a thread of its own."""

    def __init__(
        self,
        run: Execution,
        brief: Callable[[], Brief],
        function: Callable[..., Any],
        parameter: str | None,
        values: Sequence[Any],
    ) -> None:
        self._run = run
        self._brief = brief
        self._function = function
        self._parameter = parameter
        self._values = values

    async def __call__(self, attempt: Attempt, key: str, check: Callable[[], None]) -> Any:
        """``check``: called directly before the function, where that runs."""
        run, function, more = self._run, self._function, {}
        if self._parameter is not None:
            more[self._parameter] = Step(
                run.session, run.run_id, attempt.step_id, attempt.number, rerun=attempt.rerun, key=key,
                check=run.look, beat=attempt.beats.beat, brief=self._brief,
            )  # fmt: skip
        if is_async(function):
            check()
            return await function(*self._values, **more)

        beginning = Beginning(lambda: True)

        def threaded() -> Any:
            with run.running.thread():
                # Given up before it began, it must not begin while the run is another process's.
                beginning.begin()
                check()
                return function(*self._values, **more)

        try:
            made = await in_thread(threaded)
        except BaseException:
            beginning.call_off()
            raise
        return await made if inspect.isawaitable(made) else made
