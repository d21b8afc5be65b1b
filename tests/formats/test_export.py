"""Exports of sessions that were not imported, with branches, tool events and content kept outside."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from refold.errors import NotFound, UsageError
from refold.formats.export import export_session, source_of
from refold.formats.parts import text, tool_call, tool_result
from refold.formats.validate import problems
from refold.wire.codec import encode
from refold.wire.parts import BlobRef, Part, to_wire

from .support import read, recorded, through_bytes


def _message(role: str, content: list[Part], message_id: str, parent: str | None = None) -> dict[str, Any]:
    payload = {"message_id": message_id, "parent_id": parent, "role": role, "content": content}
    return through_bytes_of("MessageAppended", payload)


def through_bytes_of(type_: str, payload: dict[str, Any]) -> dict[str, Any]:
    from refold.formats.sources import NewEvent

    return through_bytes(NewEvent(type_, payload, "e"))


def test_the_active_path_is_exported_whole() -> None:
    """Branches that were left are not in it; a switch back changes the path; a deletion begins anew."""
    events = [
        _message("user", [text("before")], "x"),
        through_bytes_of("SessionDeleted", {}),
        _message("user", [text("u1")], "u1"),
        _message("assistant", [text("a1")], "a1"),
        _message("assistant", [text("a2")], "a2", "u1"),
    ]
    assert [m["content"] for m in export_session(events, "openai")[0]["messages"]] == ["u1", "a2"]
    events.append(through_bytes_of("BranchSwitched", {"head_message_id": "a1"}))
    events.append(_message("user", [text("u2")], "u2"))
    assert [m["content"] for m in export_session(events, "openai")[0]["messages"]] == ["u1", "a1", "u2"]


def test_a_generations_message_is_in_it() -> None:
    """It stands in the event that finished the generation, framed, and may answer an earlier message."""
    nested = encode(
        "refold.event.MessageAppended",
        {"message_id": "a2", "parent_id": "u1", "role": "assistant", "content": [to_wire(text("streamed"))]},
    )
    events = [
        _message("user", [text("u1")], "u1"),
        _message("assistant", [text("a1")], "a1"),
        through_bytes_of(
            "GenerationFinished",
            {
                "generation_id": "g",
                "attempt": 1,
                "last_seq": 1,
                "length": 8,
                "sha256": "0" * 64,
                "message": nested,
            },
        ),
        _message("user", [text("u2")], "u2"),
    ]
    shown = export_session(events, "openai")[0]["messages"]
    assert [m["content"] for m in shown] == ["u1", "streamed", "u2"]


@pytest.mark.parametrize("format_", ["openai", "anthropic", "otel"])
def test_results_of_tool_events_are_in_it(format_: str) -> None:
    """The SDK's way: intents by operation id, results as events."""
    events = [
        _message("user", [text("go")], "u1"),
        _message("assistant", [tool_call("c1", "f", "{}")], "a1"),
        through_bytes_of(
            "ToolCallIntended",
            {"operation_id": "op", "call_id": "c1", "message_id": "a1", "tool": "f", "arguments": "{}"},
        ),
        through_bytes_of("ToolCallCompleted", {"operation_id": "op", "content": [text("refunded")]}),
        through_bytes_of("FactSet", {"name": "n", "value": "1"}),
    ]
    (document,) = export_session(events, format_)
    assert "refunded" in json.dumps(document)
    if format_ != "otel":
        assert problems(document, format_) == []


@dataclass
class _Entry:
    """As the SDK gives them: attributes, and no payload for types it does not know."""

    type: str
    payload: Mapping[str, Any] | None


def test_entries_with_attributes_and_unknown_types_are_taken() -> None:
    entries = [_Entry("SomethingNew", None), _Entry(**_message("user", [text("hi")], "u1"))]
    assert export_session(entries, "openai") == [{"messages": [{"role": "user", "content": "hi"}]}]


def test_source_is_for_imported_sessions_only() -> None:
    with pytest.raises(NotFound, match="not made by `refold import`"):
        export_session([_message("user", [text("hi")], "u1")])
    with pytest.raises(UsageError, match="source, openai, anthropic, otel"):
        export_session([], "csv")


def test_content_kept_outside_is_fetched_or_named() -> None:
    """Large texts, inner parts of results and kept records come back from the store;

    without one the export says so.
    """
    stored: dict[str, bytes] = {}

    def put(data: bytes, field: str) -> BlobRef:
        name = hashlib.sha256(data).hexdigest()
        stored[name] = data
        return BlobRef(f"file:///{name}", name, len(data), "text/plain", field)

    def get(ref: Mapping[str, Any]) -> bytes:
        return stored[ref["sha256"]]

    path = recorded("swe-agent/marshmallow-1867-fc.traj.jsonl")
    (session,) = read(path)
    events = []
    for event in session.events:
        payload = dict(event.payload)
        if event.type == "SourceRecordKept":
            ref = put(payload["record"], "data")
            payload.update(record=None, ref=_as_dict(ref))
        elif event.type == "MessageAppended":
            payload["content"] = [_outside(part, put) for part in payload["content"]]
        events.append(through_bytes_of(event.type, payload))
    (document,) = export_session(events, load=get)
    assert document == json.loads(Path(path).read_text("utf-8"))
    with pytest.raises(NotFound, match="blob store"):
        export_session(events)


def _as_dict(ref: BlobRef) -> dict[str, Any]:
    return {name: getattr(ref, name) for name in ("uri", "sha256", "length", "media_type", "field")}


def _outside(item: Part, put: Any) -> Part:
    if item.type == "tool_result":
        inner = [_outside(one, put) for one in item.content]
        return tool_result(
            item.fields["call_id"], inner, name=item.fields["name"], extra=item.fields["extra"]
        )
    return (
        item
        if item.text is None
        else Part(item.type, None, ref=put(item.text.encode(), "text"), data=item.data)
    )


def test_the_source_is_named_by_what_was_kept() -> None:
    (session,) = read(recorded("chat-trees/chatgpt-tree.jsonl"))
    assert source_of([through_bytes(event) for event in session.events]) == "chatgpt"
