"""What a step's function may ask for: the step it runs as."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from refold.client.agents.brief import Brief

if TYPE_CHECKING:
    from refold.client.session import Session

#: Of a step that runs again: the same question should get the same answer.
RERUN_TEMPERATURE: Final = 0.0


class Step:
    """A step's function that takes a parameter annotated with this class gets it.

    ``key``: the idempotency key for an external system, the same as long as this attempt's outcome is not
    known to be "not done". ``rerun``: an attempt before had an outcome; ``temperature`` is 0 then, else
    ``None``.
    """

    def __init__(
        self,
        session: Session,
        run_id: str,
        step_id: str,
        attempt: int,
        *,
        rerun: bool,
        key: str,
        check: Callable[[], None],
        beat: Callable[[], None],
        brief: Callable[[], Brief],
    ) -> None:
        self.session = session
        self.run_id = run_id
        self.step_id = step_id
        self.attempt = attempt
        self.rerun = rerun
        self.key = key
        self._check = check
        self._beat = beat
        self._brief = brief

    def __repr__(self) -> str:
        return f"Step({self.run_id}/{self.step_id}, attempt {self.attempt})"

    @property
    def temperature(self) -> float | None:
        return RERUN_TEMPERATURE if self.rerun else None

    def heartbeat(self) -> None:
        """Show life: a step that shows none for its ``heartbeat`` (five minutes) counts as stuck, and its run
        goes to another process. Any thread, costs nothing."""
        self._beat()

    def check(self) -> None:
        """Raises RunLeft when this process has to leave the run: look directly before each effect. Any
        thread, asks nobody."""
        self._check()

    def brief(self) -> Brief:
        """What has been done before, and this step's input."""
        return self._brief()


def wants_step(function: Callable[..., Any]) -> str | None:
    """The name of the parameter that is annotated with :class:`Step`."""
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError, AttributeError, SyntaxError):
        # An annotation of something that is imported for type checkers only.
        hints = dict(getattr(function, "__annotations__", {}))
    for name, kind in hints.items():
        if name != "return" and (kind is Step or kind in ("Step", "refold.Step", "agents.Step")):
            return name
    return None


def input_names(function: Callable[..., Any], count: int, step_parameter: str | None) -> list[str]:
    """What positional inputs are called in the function; their number where that cannot be told."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        parameters = typing.cast(Any, ())
    names = [
        parameter.name
        for parameter in parameters
        if parameter.name != step_parameter
        and parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    ]
    return [names[index] if index < len(names) else str(index + 1) for index in range(count)]
