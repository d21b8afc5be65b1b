"""OpenTelemetry GenAI messages:

every part of the published schema, and any message, comes back value by value.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.errors import InvalidRecord
from refold.formats import otel
from refold.formats.jsonio import first_difference

from .support import body_through_bytes, json_values, kept_whole, objects, texts

PARTS: dict[str, Any] = {
    "text": {"type": "text", "content": "hi", "vendor": 1},
    "call": {"type": "tool_call", "id": "c", "name": "get_weather", "arguments": {"location": "Paris"}},
    "call, text": {"type": "tool_call", "id": "c", "name": "get_weather", "arguments": '{"location": '},
    "call, bare": {"type": "tool_call", "name": "f"},
    "call, null": {"type": "tool_call", "id": None, "name": "f", "arguments": None},
    "response": {"type": "tool_call_response", "id": "c", "response": "rainy"},
    "response, value": {"type": "tool_call_response", "id": "c", "response": {"temp": 57.0}},
    "response, null": {"type": "tool_call_response", "response": None},
    "result": {"type": "tool_call_response", "id": "c", "result": "rainy, 57°F"},
    "response and result": {"type": "tool_call_response", "id": "c", "response": "a", "result": "b"},
    "server": {
        "type": "server_tool_call",
        "id": "s",
        "name": "code_interpreter",
        "server_tool_call": {"type": "code_interpreter", "code": "1"},
    },
    "server answer": {
        "type": "server_tool_call_response",
        "id": "s",
        "server_tool_call_response": {"type": "code_interpreter", "output": []},
    },
    "reasoning": {"type": "reasoning", "content": "hm"},
    "blob": {"type": "blob", "modality": "image", "mime_type": "image/png", "content": "AAEC"},
    "blob, null type": {"type": "blob", "modality": "audio", "mime_type": None, "content": "AAEC"},
    "blob, video": {"type": "blob", "modality": "video", "content": "AAEC"},
    "blob, odd": {"type": "blob", "modality": "image", "content": "not base64"},
    "file": {"type": "file", "modality": "image", "file_id": "f"},
    "file, document": {
        "type": "file",
        "modality": "document",
        "mime_type": "application/pdf",
        "file_id": "f",
    },
    "file, bare": {"type": "file", "file_id": "f"},
    "uri": {"type": "uri", "modality": "image", "mime_type": "image/png", "uri": "gs://x"},
    "compaction": {"type": "compaction", "id": "k", "content": "so far"},
    "generic": {"type": "new_thing", "x": [1]},
}


def _round_trip(message: dict[str, Any]) -> Any:
    return otel.message_out(body_through_bytes(otel.message_in(message, message_id="m")))


@pytest.mark.parametrize("role", ["user", "assistant", "tool", "system"])
@pytest.mark.parametrize("name", PARTS)
def test_golden_parts_come_back(name: str, role: str) -> None:
    message = {
        "role": role,
        "parts": [PARTS[name], PARTS[name]],
        "finish_reason": "stop",
        "name": "ann",
        "x": None,
    }
    assert first_difference(message, _round_trip(message)) is None
    assert kept_whole(otel.message_in(message, message_id="m")) == []


def test_both_spellings_of_an_answer_are_read() -> None:
    """The schema says ``response``, the attribute pages show ``result``."""
    for name in ("response", "result"):
        (part,) = otel.message_in({"role": "tool", "parts": [PARTS[name]]}, message_id="m")["content"]
        assert part.type == "tool_result"
        assert "rainy" in part.content[0].text


@pytest.mark.parametrize("message", [{"role": "user"}, {"parts": []}, {"role": "user", "parts": "x"}])
def test_role_and_parts_are_needed(message: dict[str, Any]) -> None:
    with pytest.raises(InvalidRecord):
        otel.message_in(message, message_id="m")


@given(
    objects(
        {
            "role": texts,
            "parts": st.lists(
                objects(
                    {"type": st.sampled_from([part["type"] for part in PARTS.values()])},
                    {
                        "content": texts,
                        "id": texts,
                        "name": texts,
                        "arguments": json_values,
                        "response": json_values,
                        "result": json_values,
                        "server_tool_call": json_values,
                        "server_tool_call_response": json_values,
                        "modality": st.sampled_from(["image", "audio", "document", "video"]),
                        "mime_type": texts,
                        "file_id": texts,
                        "uri": texts,
                    },
                )
                | json_values,
                max_size=3,
            ),
        },
        {"name": texts, "finish_reason": texts},
    )
)
def test_any_message_comes_back(message: dict[str, Any]) -> None:
    assert first_difference(message, _round_trip(message)) is None
