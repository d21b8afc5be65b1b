"""Shared by the format tests: recorded data, events through real bytes, and JSON strategies."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from refold.formats.extra import RAW, raw_of, unpack
from refold.formats.sources import NewEvent, Reading, SourceSession, detect
from refold.wire.codec import decode
from refold.wire.events import event_payload
from refold.wire.parts import from_wire, to_wire

DATA = Path(os.environ.get("REFOLD_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))

#: Every recorded file of a format refold imports.
SUPPORTED = (
    "tau-bench/gpt-4o-airline.trials0-1.jsonl.gz",
    "tau-bench/retail-assertions-fork.first50.jsonl.gz",
    "tau2/whissle-airline_run1.sims0-19.jsonl.gz",
    "glaive/glaive_toolcall_zh_demo.0-149.jsonl",
    "glaive/glaive_toolcall_en_demo.0-149.jsonl",
    "reason-tool-use/reason_tool_use_demo.0-24.jsonl",
    "swe-agent/function_calling_simple.traj.jsonl",
    "swe-agent/marshmallow-1867-fc-replace-from-source.traj.jsonl",
    "swe-agent/marshmallow-1867-fc.traj.jsonl",
    "swe-agent/ctf-katy.traj.jsonl",
    "swe-agent/humanevalfix-0.traj.jsonl",
    "openhands/llm-log-1757015025.972.jsonl",
    "openhands/llm-log-1757015033.222.jsonl",
    "openhands/llm-log-1757015040.416.jsonl",
    "claude-code/30530d66.jsonl",
    "claude-code/50a7220d.jsonl",
    "claude-code/50a7220d-subagent-a21e2f5.jsonl",
    "claude-code/98b76fb9.jsonl",
    "oasst/en_100_tree.0-44.jsonl",
    "chat-trees/chatgpt-tree.jsonl",
    "chat-trees/librechat-opts-nonr-branches.jsonl",
    "chat-trees/librechat-export.jsonl",
    "tooltalk/tooltalk.even.jsonl",
)


def recorded(name: str) -> Path:
    """A recorded file; the test is skipped where the shared data is not at hand."""
    path = DATA / name
    if not path.exists():
        pytest.skip(f"{path} is not there; set REFOLD_SHARED_DATA")
    return path


def read(path: Path) -> list[SourceSession]:
    return list(detect(path).read(path, Reading()))


def through_bytes(event: NewEvent) -> dict[str, Any]:
    """The event as a reader of the journal has it: encoded with the schemas and decoded again."""
    record = dict(event.payload)
    if "content" in record:
        record["content"] = [to_wire(part) for part in record["content"]]
    read_back = decode(event_payload(event.type, record)).record
    if "content" in read_back:
        read_back["content"] = [from_wire(part) for part in read_back["content"]]
    return {"type": event.type, "payload": read_back}


def body_through_bytes(body: Mapping[str, Any]) -> dict[str, Any]:
    return through_bytes(NewEvent("MessageAppended", dict(body), "e"))["payload"]


def kept_whole(body: Mapping[str, Any]) -> list[str]:
    """What of a body is kept as the whole source object beside its fields:

    allowed, but not for known shapes.
    """
    found = ["message"] if RAW in unpack(body["extra"])[1] else []
    pending = list(body["content"])
    while pending:
        item = pending.pop()
        pending.extend(item.content)
        if raw_of(item) is not None:
            found.append(item.type)
    return found


def snapshot(
    messages: Iterable[Mapping[str, Any]],
    *,
    system: Iterable[Mapping[str, Any]] = (),
    summary: str | None = None,
    tools: Iterable[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """A decoded snapshot's public part as far as a context needs it."""
    return {
        "context": {
            "system": [_held(body, at) for at, body in enumerate(system)],
            "summary": None if summary is None else {"text": summary},
            "summary_active": summary is not None,
            "recent_messages": [_held(body, at) for at, body in enumerate(messages)],
        },
        "tools": list(tools),
    }


def _held(body: Mapping[str, Any], at: int) -> dict[str, Any]:
    return {"seq": at + 1, "elided": None, **body}


#: Text any codec can carry: no lone surrogates, NUL and astral characters included.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts
)
json_values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
#: Keys a provider may add one day, and our own.
odd_keys = texts | st.sampled_from(["$refold", "signature", "cache_control", "type", "id", "name", "index"])


def objects(required: dict[str, st.SearchStrategy[Any]], optional: dict[str, st.SearchStrategy[Any]]) -> Any:
    """Objects with these keys, some of them with a value of any type, and keys nobody knows."""
    known = st.fixed_dictionaries(
        required, optional={key: value | json_values for key, value in optional.items()}
    )
    return st.builds(
        lambda extra, base: {**extra, **base}, st.dictionaries(odd_keys, json_values, max_size=2), known
    )
