"""A rendered context and where it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from refold.client.snapshots import SnapshotView, Staleness
from refold.formats.context import ContextFormat
from refold.formats.context import render as render_format

__all__ = ["Context", "ContextFormat", "render"]


@dataclass(frozen=True, slots=True)
class Context:
    """What to send to a model. ``request`` holds keyword arguments of a provider's request:

    openai ``{"messages": […]}``, anthropic ``{"system"?: […], "messages": […]}``, otel
    ``{"system_instructions": […], "messages": […]}``, raw ``{"system", "summary", "messages"}``
    with refold's own messages and parts.

    ``seq``: of the snapshot it was made from. ``stale``: made without the owner, from the state topic, or
    from a standby, which ``staleness`` says more of.
    ``uncovered``: messages of the path that neither the summary nor the newest messages show.
    ``complete``: false when the beginning of the path is not known to the state; what fits the window was
    then read from the journal, and what lies before it has no summary.
    ``waiting_results``: messages with tool results that are not shown, because no call of the session has
    their id (yet): ``state().waiting_results`` names them.
    ``missing_parent``: the id under which the path goes on and which no message of the session has, else
    ``None``: an append named a wrong ``parent``, and what was said before is on another branch.
    """

    format: ContextFormat
    request: Mapping[str, Any] = field(repr=False)
    seq: int
    stale: bool
    complete: bool
    uncovered: int
    staleness: Staleness | None = None
    missing_parent: str | None = None
    waiting_results: int = 0

    @property
    def messages(self) -> list[Any]:
        """The messages of the request."""
        messages: list[Any] = self.request["messages"]
        return messages


def render(
    view: SnapshotView,
    data: Mapping[str, Any],
    format: ContextFormat,  # noqa: A002
    agent: str | None = None,
) -> Context:
    """``data``: the snapshot's public part, completed; ``agent``: who is to see it. Raises UsageError for an
    unknown format."""
    context = data["context"]
    return Context(
        format=format,
        request=render_format(data, format, view=agent),
        seq=view.seq,
        stale=view.stale,
        complete=bool(context["complete"]),
        uncovered=int(context["uncovered"]),
        staleness=view.staleness,
        missing_parent=context.get("missing_parent"),
        waiting_results=int(context["waiting_results"]),
    )
