"""A session's events back to documents: the source's own, or a transcript in a provider's format.

``source`` is exactly what was imported, value by value. The other formats are made from the active path,
whole (not only the context window), with the same rules as a context: what comes out can be sent to the
provider.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol, TypeAlias

from refold.errors import NotFound, UsageError
from refold.formats.context import render
from refold.formats.parts import Part, part, text, tool_result
from refold.formats.sources import SOURCES
from refold.wire.codec import decode
from refold.wire.parts import from_wire

#: Fetches a blob by its reference (the dict of ``schemas/shared/blob_ref``): ``BlobStore.get``. Blocks.
LoadBlob: TypeAlias = Callable[[Mapping[str, Any]], bytes]
Event: TypeAlias = Mapping[str, Any]

EXPORT_FORMATS = ("source", "openai", "anthropic", "otel")


class Entry(Protocol):
    """A decoded journal entry, such as ``refold.client.events.SessionEvent``."""

    @property
    def type(self) -> str: ...

    @property
    def payload(self) -> Mapping[str, Any] | None: ...


def export_session(
    entries: Iterable[Entry | Event],
    format: str = "source",  # noqa: A002 - the CLI's word
    *,
    load: LoadBlob | None = None,
) -> list[Any]:
    """The documents of one session, or (``source`` only) of all sessions of one file, from its events.

    Entries have ``type`` and ``payload``, as attributes or keys; content parts are :class:`Part`. ``load``
    fetches what is kept in the blob store; without it content that is outside raises :class:`NotFound`.
    ``openai``, ``anthropic`` and ``otel`` give one document, a request's arguments. Raises
    :class:`UsageError` for an unknown format, and :class:`NotFound` when ``source`` is asked of a session
    that was not imported. Blocks as ``load`` does.
    """
    if format not in EXPORT_FORMATS:
        raise UsageError(f"there is no export format {format!r}; choose {', '.join(EXPORT_FORMATS)}")
    events = [_loaded(event, load) for event in map(_event, entries) if event["payload"] is not None]
    if format == "source":
        return SOURCES[source_of(events)].export(events)
    return [render(_whole(events), format)]


def source_of(events: Sequence[Event]) -> str:
    """The name of the format a session was imported from. Raises :class:`NotFound` when it was not."""
    for event in events:
        payload = event["payload"]
        if event["type"] == "SourceRecordKept" and payload["source"] in SOURCES:
            return str(payload["source"])
        if event["type"] == "MessageAppended" and payload["extra_format"] == "claude-code":
            return "claude-code"
    raise NotFound(
        "the session was not made by `refold import`, so there is no source to give back; "
        "choose --format openai, anthropic or otel"
    )


def _event(entry: Entry | Event) -> Event:
    event: Event = entry if isinstance(entry, Mapping) else {"type": entry.type, "payload": entry.payload}
    if event["type"] != "GenerationFinished":
        return event
    # Its message entered the session as if it had been appended.
    body = decode(event["payload"]["message"], expect="refold.event.MessageAppended").record
    return {
        "type": "MessageAppended",
        "payload": {**body, "content": [from_wire(item) for item in body["content"]]},
    }


def _loaded(event: Event, load: LoadBlob | None) -> Event:
    payload = dict(event["payload"])
    if payload.get("ref") and payload.get("record") is None and load is not None:
        payload["record"] = load(payload["ref"])
    if "content" in payload:
        payload["content"] = [_inside(item, load) for item in payload["content"]]
    return {"type": event["type"], "payload": payload}


def _inside(item: Part, load: LoadBlob | None) -> Part:
    """The part with its bytes in place, inner parts too."""
    if item.ref is not None:
        if load is None:
            raise NotFound(f"a {item.type} part is in the blob store; export with the store's settings")
        data = load(asdict(item.ref))
        if item.ref.field == "text":
            item = Part(item.type, data.decode("utf-8"), type_version=item.type_version, data=item.data)
        else:
            item = Part(item.type, item.text, type_version=item.type_version, data=data)
    inner = [_inside(one, load) for one in item.content]
    return part(item.type, item.text, {**item.fields, "content": inner}) if inner else item


def _whole(events: Sequence[Event]) -> Mapping[str, Any]:
    """What a snapshot would be if its window had no bounds: the whole active path."""
    messages = _active_path(events)
    lead = 0
    while lead < len(messages) and messages[lead]["role"] in ("system", "developer"):
        lead += 1
    context = {"system": messages[:lead], "summary": None, "recent_messages": messages[lead:]}
    return {"context": context, "tools": _rows(events)}


def _rows(events: Sequence[Event]) -> list[dict[str, Any]]:
    """Which operation is which message's call, as far as the events say; states are the fold's to know."""
    return [
        {
            "operation_id": event["payload"]["operation_id"],
            "call_id": event["payload"]["call_id"],
            "message_id": event["payload"]["message_id"],
            "state": "unknown",
        }
        for event in events
        if event["type"] == "ToolCallIntended"
    ]


def _active_path(events: Sequence[Event]) -> list[dict[str, Any]]:
    messages: dict[str, dict[str, Any]] = {}
    above: dict[str, str] = {}
    head = ""
    for event in events:
        payload = event["payload"]
        if event["type"] == "SessionDeleted":
            messages, above, head = {}, {}, ""
        elif event["type"] in ("BranchSwitched", "ContextRestored"):
            head = payload["head_message_id"] if payload["head_message_id"] in messages else head
        else:
            message = _message_of(event, len(messages))
            if message is not None:
                name = message["message_id"]
                above[name] = head if message["parent_id"] is None else message["parent_id"]
                messages[name] = message
                head = name
    path: list[dict[str, Any]] = []
    while head in messages:
        path.append(messages[head])
        head = above[head]
    return path[::-1]


def _message_of(event: Event, number: int) -> dict[str, Any] | None:
    """The message an event puts into the conversation; the result of a tool event is a tool message."""
    payload = event["payload"]
    if event["type"] == "MessageAppended":
        return {**payload, "seq": number, "elided": None}
    if event["type"] not in ("ToolCallCompleted", "ToolCallFailed"):
        return None
    call_id = payload["call_id"] or payload["operation_id"] or ""
    content = list(payload["content"]) or [text(payload.get("error") or payload.get("summary") or "")]
    return {
        "message_id": payload.get("message_id") or f"@{number}",
        "parent_id": None,
        "role": "tool",
        "content": [tool_result(call_id, content, is_error=bool(payload["is_error"]))],
        "name": None,
        "group_id": None,
        "extra_format": None,
        "seq": number,
        "elided": None,
    }
