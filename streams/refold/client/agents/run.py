"""What a body is given: its run. Steps, model calls, tools, the plan and the brief go through it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from refold.client.agents.answers import Answer, Calls
from refold.client.agents.brief import Brief, make_brief
from refold.client.agents.declared import check_heartbeat
from refold.client.agents.functions import function_step
from refold.client.agents.handles import StepResult, given
from refold.client.agents.limits import RETRIES_MAX
from refold.client.agents.models import model_step
from refold.client.agents.plans import PlannedStep, planned_steps, set_plan
from refold.client.agents.toolcalls import tools_step
from refold.client.tools.declare import Approval, LookupFunction
from refold.client.tools.outcomes import Effect

if TYPE_CHECKING:
    from refold.client.agents.execution import Execution
    from refold.client.generations.registry import Answer as Generator
    from refold.client.session import Session


class Run:
    """``input``: as given to ``agent.start``. ``session``, ``id``. Use from the body's tasks."""

    def __init__(self, execution: Execution, task: Any) -> None:
        self._execution = execution
        #: As given to ``agent.start``; ``None`` without one.
        self.input = task

    def __repr__(self) -> str:
        return f"Run({self.id} of {self.session!r})"

    @property
    def id(self) -> str:
        return self._execution.run_id

    @property
    def session(self) -> Session:
        """Read from it and append to it inside of steps; a body that does so between steps does it again
        after a crash."""
        return self._execution.session

    @property
    def version(self) -> str:
        """Of the agent that executes it now."""
        return self._execution.agent.version

    @property
    def reason(self) -> str:
        """Why the run was ready: new, timed_out, released, approval, review, heartbeat."""
        return str(self._execution.row.data["reason"])

    @property
    def resumed(self) -> bool:
        """Whether another holder had it before."""
        return self._execution.writer.epoch > 1

    async def plan(self, steps: Iterable[str | PlannedStep | Mapping[str, Any]]) -> None:
        """Say which steps are going to come, for readers and the brief: names, or names with a summary.

        Steps that were planned, not begun, and are not in it go. Returns when it is accepted.
        """
        self._execution.check()
        await set_plan(self._execution, planned_steps(steps))

    async def step(
        self,
        name: str,
        function: Callable[..., Any],
        *inputs: Any,
        effect: Effect = "none",
        lookup: LookupFunction | None = None,
        approval: Approval = False,
        timeout: float | None = None,
        retries: int = RETRIES_MAX,
        rerunnable: bool = False,
        heartbeat: float | None = None,
        summary: str | Callable[[Any], str] | None = None,
    ) -> StepResult:
        """Run ``function(*inputs)`` once, and remember its output: executed again, the body gets that one.

        Handles of other steps among ``inputs``, at any depth, are replaced by their values and recorded as
        read. ``function``: sync (in a thread) or async, or a declared tool; JSON in, JSON out. One with a
        parameter annotated :class:`Step` is given it. ``effect``, ``lookup``, ``approval`` and ``timeout``
        (seconds) as of ``refold.tool``: with an effect the step is one call of the tool ledger, and after a
        crash it is looked up and never guessed. ``retries``: after the first try, at most two; then a person
        decides. ``rerunnable``: may run again, although it has an effect, when what it read has changed.
        ``heartbeat``: seconds without a sign of life after which it counts as stuck. ``summary``: for the
        brief, default the beginning of the output.
        """
        spec = function_step(
            self._execution, self.brief, name, function, inputs,
            effect=effect, lookup=lookup, approval=approval, timeout=timeout, retries=retries,
            rerunnable=rerunnable, heartbeat_s=self._heartbeat(heartbeat), summary=summary,
        )  # fmt: skip
        return await self._execution.stepping.perform(spec)

    async def model(
        self,
        name: str,
        *inputs: Any,
        generator: Generator | str | None = None,
        params: Mapping[str, Any] | None = None,
        reply_to: str | None = None,
        heartbeat: float | None = None,
    ) -> Answer:
        """Let a generator (``@agent.generator``; default: the one of this name) answer in the run's session,
        as a step. Executed again after a crash it is the same generation, gone on with under its own
        parameters; a step that runs again asks with temperature 0. ``inputs``: handles the answer rests on,
        recorded as read and given in ``params["inputs"]``."""
        spec = model_step(
            self._execution, name, given([str(n + 1) for n in range(len(inputs))], inputs),
            generator=generator or name, params=params, reply_to=reply_to,
            heartbeat_s=self._heartbeat(heartbeat),
        )  # fmt: skip
        return Answer.of(await self._execution.stepping.perform(spec))

    async def tools(
        self,
        calls: Answer | Calls | Sequence[Any],
        *,
        name: str = "tools",
        message_id: str | None = None,
        heartbeat: float | None = None,
    ) -> StepResult:
        """Run what a model asked for, with the agent's tools, as a step; its value: provider-ready results
        in the order asked. Operations are ``run/step/message:call``. Calls that wait for approval suspend the
        run: no process waits, and the body goes on, in whatever process, when they are approved or denied."""
        spec = tools_step(
            self._execution, name, calls, message_id=message_id, heartbeat_s=self._heartbeat(heartbeat)
        )
        return await self._execution.stepping.perform(spec)

    def brief(self) -> Brief:
        """Summaries of the valid completed steps, and the input of the step that began last."""
        run = self._execution
        return make_brief(run.agent.name, self.input, run.rows.values(), run.stepping.current)

    def _heartbeat(self, seconds: float | None) -> float:
        chosen = self._execution.agent.step_heartbeat_s if seconds is None else seconds
        return check_heartbeat(chosen)
