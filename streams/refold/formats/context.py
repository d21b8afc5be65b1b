"""``context(format=…)``: what a model is shown of a session, from its decoded snapshot.

``openai`` and ``anthropic`` are transcripts the provider accepts whatever the session went through (the
rules are in :mod:`refold.formats.validate`, checked over every recorded conversation); ``otel`` is the same
as telemetry; ``raw`` is the messages as they are, for code that knows refold's parts.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from refold.errors import UsageError
from refold.formats import context_anthropic, context_openai, context_otel
from refold.formats.parts import as_part
from refold.formats.transcript import LoadMessage, LoadPart, Snapshot, transcript
from refold.formats.views import seen_by

ContextFormat = Literal["openai", "anthropic", "otel", "raw"]


def render(
    snapshot: Snapshot,
    format: str = "openai",  # noqa: A002 - the public word for it
    *,
    load_message: LoadMessage | None = None,
    load_part: LoadPart | None = None,
    view: str | None = None,
) -> dict[str, Any]:
    """The context as keyword arguments of a request.

    - ``openai``: ``{"messages": [...]}``
    - ``anthropic``: ``{"system"?: [text blocks], "messages": [...]}``
    - ``otel``: ``{"system_instructions": [...], "messages": [...]}``
    - ``raw``: ``{"system": [...], "summary": str | None, "messages": [...]}`` with the snapshot's messages,
      their ``content`` as :class:`Part` values, nothing left out and nothing added

    ``snapshot`` is what ``refold.wire.snapshot.decode_snapshot`` gives. ``load_message`` and ``load_part``
    fetch content that is not in the snapshot; without them a marker stands for it. A session without
    messages gives an empty list, which no provider takes: add the user's message. ``view``: the agent that
    is to see it (:mod:`refold.formats.views`), not for ``raw``. Raises :class:`UsageError` for an unknown
    format.
    """
    if format == "raw":
        if view is not None:
            raise UsageError("raw is everything as it is, which no agent's view is: choose another format")
        return _raw(snapshot, load_message, load_part)
    if format not in get_args(ContextFormat):
        raise UsageError(f"there is no context format {format!r}; choose openai, anthropic, otel or raw")
    source = transcript(snapshot, load_message=load_message, load_part=load_part)
    if view is not None:
        source = seen_by(source, view)
    if format == "openai":
        return {"messages": context_openai.messages(source)}
    return context_anthropic.request(source) if format == "anthropic" else context_otel.request(source)


def _raw(snapshot: Snapshot, load_message: LoadMessage | None, load_part: LoadPart | None) -> dict[str, Any]:
    context = snapshot["context"]

    def shown(message: Any) -> dict[str, Any]:
        content = message["content"]
        if message.get("elided") and load_message is not None:
            loaded = load_message(message)
            content = content if loaded is None else loaded
        parts = [as_part(item) for item in content]
        if load_part is not None:
            parts = [part if part.ref is None else load_part(part) for part in parts]
        return {**message, "content": parts}

    short = context.get("summary")
    return {
        "system": [shown(message) for message in context.get("system", ())],
        "summary": short["text"] if short and context.get("summary_active") else None,
        "messages": [shown(message) for message in context["recent_messages"]],
    }
