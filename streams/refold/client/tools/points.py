"""Named points of a tool call: where a test or ``refold verify effects`` makes the runner die or stop.

The order of a call is data (:data:`CALL`), and every gap between two steps is a point.
``REFOLD_TOOL_POINT=<name>:<action>[:<nth>[:<tool>]]`` arms one (nth time it is reached, default 1; only for
this tool). Actions: ``kill`` (SIGKILL to itself), ``stop`` (SIGSTOP to the whole process), ``raise``. Just
before the action one JSON line ``{"point", "operation_id"}`` is appended to ``REFOLD_TOOL_POINT_FILE``, if
that is set. Not armed, a point costs one comparison.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final, Self

from refold.errors import ConfigError, InvariantViolation

#: The steps of a call, in order. ``before_effect`` is the last before the lease is looked at and the body
#: runs; ``before_result`` lies between the body's end and the append of its outcome.
CALL: Final = (
    "before_intent",
    "after_intent",
    "before_started",
    "after_started",
    "before_effect",
    "after_effect",
    "before_result",
    "after_result",
)
#: The steps of a reconciliation, in order.
RECONCILE: Final = ("before_claim", "after_claim", "after_lookup", "after_not_done")
NAMES: Final = CALL + RECONCILE
ACTIONS: Final = ("kill", "stop", "raise")


class Points:
    """The armed point of this process, if any. Thread-safe."""

    NAMES: ClassVar[tuple[str, ...]] = NAMES
    VARIABLE: ClassVar[str] = "REFOLD_TOOL_POINT"
    #: What the last part of a spec names.
    WHAT: ClassVar[str] = "tool"

    def __init__(self, spec: str | None = None, file: Path | None = None) -> None:
        self._name: str | None = None
        self._action = ""
        self._left = 0
        self._tool: str | None = None
        self._file = file
        self._lock = threading.Lock()
        if spec:
            self.arm(spec)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Self:
        file = environment.get(f"{cls.VARIABLE}_FILE")
        return cls(environment.get(cls.VARIABLE), Path(file) if file else None)

    def arm(self, spec: str) -> None:
        """Raises ConfigError for what is no point."""
        name, _, rest = spec.strip().partition(":")
        action, _, rest = rest.partition(":")
        nth, _, tool = rest.partition(":")
        if name not in self.NAMES or action not in ACTIONS or (nth and not (nth.isdigit() and int(nth) > 0)):
            raise ConfigError(
                f"{self.VARIABLE}={spec!r} is not <name>:<action>[:<nth>[:<{self.WHAT}>]] with a name of "
                f"{', '.join(self.NAMES)} and an action of {', '.join(ACTIONS)}"
            )
        with self._lock:
            self._name, self._action, self._left = name, action, int(nth or 1)
            self._tool = tool or None

    @property
    def armed(self) -> str | None:
        return self._name

    def reach(self, name: str, operation_id: str, tool: str) -> None:
        if self._name is not None and self._counted_down(name, tool):
            self._act(name, operation_id)

    def _counted_down(self, name: str, tool: str) -> bool:
        with self._lock:
            if name != self._name or (self._tool is not None and tool != self._tool):
                return False
            self._left -= 1
            if self._left > 0:
                return False
            self._name = None
            return True

    def _act(self, name: str, operation_id: str) -> None:
        if self._file is not None:
            with self._file.open("a") as file:
                file.write(json.dumps({"point": name, "operation_id": operation_id}) + "\n")
        if self._action == "raise":
            raise InvariantViolation(f"the armed point {name} was reached")
        if self._action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        # To this thread: a signal to the process stops another thread first, and this one would run on past
        # the point for as long as it takes to be stopped too.
        signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


#: Of this process.
POINTS: Final = Points.from_environment()
