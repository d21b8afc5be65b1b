"""Named points of a run: where a test or ``refold verify runs`` makes an agent process die or stop.

``REFOLD_AGENT_POINT=<name>:<action>[:<nth>[:<step>]]`` arms one, as ``REFOLD_TOOL_POINT`` does for tools;
``REFOLD_AGENT_POINT_FILE`` gets a JSON line before the action. ``POINTS.watch`` is called at every point in
this process: for a harness that embeds ``agent.serve``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

from refold.client.tools.points import Points

#: The order of a run. ``before_step`` lies before a step's start is asked for, ``after_step_started`` before
#: the lease is looked at and the body runs, ``before_step_completed`` between body and record.
RUN: Final = (
    "before_lease",
    "after_lease",
    "before_step",
    "after_step_started",
    "after_step_body",
    "before_step_completed",
    "after_step_completed",
    "before_suspended",
    "before_run_completed",
    "after_run_completed",
    "before_released",
)


class AgentPoints(Points):
    NAMES: ClassVar[tuple[str, ...]] = RUN
    VARIABLE: ClassVar[str] = "REFOLD_AGENT_POINT"
    WHAT: ClassVar[str] = "step"

    #: ``(point, run id, step id or "")``; may raise.
    watch: Callable[[str, str, str], None] | None = None

    def reach(self, name: str, operation_id: str, tool: str = "") -> None:
        if self.watch is not None:
            self.watch(name, operation_id, tool)
        super().reach(name, operation_id, tool)


#: Of this process.
POINTS: Final = AgentPoints.from_environment()
