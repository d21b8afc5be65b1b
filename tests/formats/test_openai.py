"""OpenAI chat messages and Responses items:

golden shapes, and any message whatever comes back value by value.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.errors import InvalidRecord
from refold.formats import openai, openai_responses
from refold.formats.calls import CallNames
from refold.formats.jsonio import first_difference, same

from .support import body_through_bytes, json_values, kept_whole, objects, texts

CALL = {"id": "call_1", "type": "function", "function": {"name": "refund", "arguments": '{"order": 7}'}}

GOLDEN: dict[str, dict[str, Any]] = {
    "system": {"role": "system", "content": "be brief"},
    "developer": {"role": "developer", "content": "be brief"},
    "user": {"role": "user", "content": "hi", "name": "ann"},
    "empty text": {"role": "user", "content": ""},
    "list of one text": {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    "twice the same text": {
        "role": "user",
        "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "a"}],
    },
    "empty list": {"role": "user", "content": []},
    "nul": {"role": "user", "content": "a\0b \U0001f600"},
    "image": {
        "role": "user",
        "content": [
            {"type": "text", "text": "look", "cache_control": {"type": "ephemeral"}},
            {"type": "image_url", "image_url": {"url": "https://example.com/a.png", "detail": "low"}},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,not base64"}},
            {"type": "image_url", "image_url": {"url": "data:image/png;charset=x;base64,AAAA"}},
        ],
    },
    "audio in": {
        "role": "user",
        "content": [{"type": "input_audio", "input_audio": {"data": "AAEC", "format": "wav"}}],
    },
    "file": {
        "role": "user",
        "content": [
            {"type": "file", "file": {"file_id": "file-1"}},
            {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,AAEC"}},
        ],
    },
    "unknown part": {
        "role": "user",
        "content": [{"type": "video_url", "video_url": {"url": "x"}}, "bare", 1.5, None],
    },
    "calls": {"role": "assistant", "content": None, "tool_calls": [CALL, {**CALL, "id": "call_2"}]},
    "calls without content": {"role": "assistant", "tool_calls": [CALL]},
    "calls with text": {"role": "assistant", "content": "wait", "tool_calls": [CALL]},
    "no calls": {"role": "assistant", "content": "x", "tool_calls": [], "function_call": None},
    "null calls": {"role": "assistant", "content": "x", "tool_calls": None, "refusal": None},
    "cut arguments": {
        "role": "assistant",
        "content": None,
        "tool_calls": [{**CALL, "function": {"name": "bash", "arguments": '{"command": "ls -'}}],
    },
    "arguments of other types": {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {**CALL, "function": {"name": "a", "arguments": {"x": 1.0}}},
            {**CALL, "function": {"name": "a", "arguments": None}},
            {**CALL, "function": {"name": "a"}},
        ],
    },
    "call extras": {
        "role": "assistant",
        "content": None,
        "tool_calls": [{**CALL, "index": 0, "extra_content": {"google": {"thought_signature": "c2ln"}}}],
    },
    "call without id": {
        "role": "assistant",
        "tool_calls": [{"type": "function", "function": CALL["function"]}],
    },
    "call without type": {"role": "assistant", "tool_calls": [{"id": "c", "function": CALL["function"]}]},
    "flat call": {
        "role": "assistant",
        "tool_calls": [{"id": "c", "name": "f", "arguments": {"a": 1}, "x": 2}],
    },
    "custom call": {
        "role": "assistant",
        "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "sql", "input": "select 1"}}],
    },
    "no call at all": {"role": "assistant", "content": None, "tool_calls": ["x"]},
    "legacy call": {"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}},
    "legacy result": {"role": "function", "name": "f", "content": "ok"},
    "refusal": {"role": "assistant", "content": None, "refusal": "no"},
    "refusal part": {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
    "audio out": {
        "role": "assistant",
        "content": None,
        "audio": {"id": "audio_1", "expires_at": 1729018505, "data": "AAEC", "transcript": "yes"},
    },
    "audio id": {"role": "assistant", "audio": {"id": "audio_1"}},
    "annotations": {
        "role": "assistant",
        "content": "see [1]",
        "annotations": [
            {
                "type": "url_citation",
                "url_citation": {"start_index": 4, "end_index": 7, "url": "u", "title": "t"},
            },
            {"type": "new_citation", "x": 1},
        ],
    },
    "no annotations": {"role": "assistant", "content": "x", "annotations": []},
    "reasoning": {"role": "assistant", "content": "x", "reasoning_content": "because"},
    "reasoning, other key": {
        "role": "assistant",
        "content": "x",
        "reasoning": "because",
        "reasoning_details": [{"type": "reasoning.encrypted", "data": "b64=="}],
    },
    "tool": {"role": "tool", "tool_call_id": "call_1", "content": "ok"},
    "tool, named": {"role": "tool", "tool_call_id": "call_1", "name": "refund", "content": "ok"},
    "tool, parts": {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "ok"}]},
    "tool, nothing": {"role": "tool", "tool_call_id": "call_1", "content": None},
    "tool, id list": {"role": "tool", "tool_call_ids": ["call_1"], "content": "ok"},
    "tool, two ids": {"role": "tool", "tool_call_ids": ["call_1", "call_2"], "content": "ok"},
    "our own key": {"role": "user", "content": "x", "$refold": {"raw": 1}},
    "our own key in a part": {"role": "user", "content": [{"type": "text", "text": "x", "$refold": 1}]},
    "large numbers": {"role": "user", "content": "x", "seed": 2**70, "t": 1e300, "minus": -0.0},
    "content of another type": {"role": "user", "content": {"text": "x"}},
}


#: Kinds nobody knows yet: kept whole beside what could be read of them.
KEPT_WHOLE: dict[str, list[str]] = {"annotations": ["citation"]}


def _round_trip(message: dict[str, Any]) -> Any:
    return openai.message_out(body_through_bytes(openai.message_in(message, message_id="m")))


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_messages_come_back(name: str) -> None:
    """Through real bytes; and none of the shapes known to us needs the whole source kept beside it."""
    message = GOLDEN[name]
    assert first_difference(message, _round_trip(message)) is None
    body = openai.message_in(message, message_id="m")
    assert kept_whole(body) == KEPT_WHOLE.get(name, [])


def test_the_parts_say_what_the_message_says() -> None:
    """What a reader sees of a message with everything: kinds, fields, raw arguments, typed results."""
    body = openai.message_in(
        {**GOLDEN["calls with text"], "refusal": "no", "reasoning": "hm"}, message_id="m"
    )
    assert [part.type for part in body["content"]] == ["reasoning", "text", "refusal", "tool_call"]
    call = body["content"][3]
    assert (call.fields["call_id"], call.fields["name"], call.fields["arguments"]) == (
        "call_1",
        "refund",
        '{"order": 7}',
    )
    assert call.fields["arguments_valid"] is True
    cut = openai.message_in(GOLDEN["cut arguments"], message_id="m")["content"][0]
    assert cut.fields["arguments"] == '{"command": "ls -'
    assert cut.fields["arguments_valid"] is False
    (result,) = openai.message_in(GOLDEN["tool, named"], message_id="m")["content"]
    assert (result.type, result.fields["call_id"], result.fields["name"]) == (
        "tool_result",
        "call_1",
        "refund",
    )
    assert result.content[0].text == "ok"
    image = openai.message_in(GOLDEN["image"], message_id="m")["content"][2]
    assert (image.fields["media_type"], image.fields["data"]) == ("image/png", b"\x89PNG\r\n\x1a\n")


def test_bare_text_has_nothing_beside_it() -> None:
    """The commonest message takes the fold's fast path: no optional field is set."""
    body = openai.message_in({"role": "user", "content": "hi"}, message_id="m")
    assert body["extra"] is None
    assert body["extra_format"] is None
    assert body["content"][0].data is None


def test_anonymous_calls_are_answered_in_the_order_asked() -> None:
    """Legacy calls have no ids: the results go to their calls, by name and then by order."""
    names = CallNames()
    asked = openai.message_in(
        {
            "role": "assistant",
            "tool_calls": [
                {"function": {"name": "a", "arguments": "{}"}},
                {"function": {"name": "b", "arguments": "{}"}},
            ],
        },
        message_id="m0",
        calls=names,
    )
    ids = [part.fields["call_id"] for part in asked["content"]]
    second = openai.message_in(
        {"role": "function", "name": "b", "content": "2"}, message_id="m1", calls=names
    )
    first = openai.message_in({"role": "function", "name": "a", "content": "1"}, message_id="m2", calls=names)
    assert second["content"][0].fields["call_id"] == ids[1]
    assert first["content"][0].fields["call_id"] == ids[0]
    orphan = openai.message_in(
        {"role": "function", "name": "a", "content": "3"}, message_id="m3", calls=names
    )
    assert orphan["content"][0].fields["call_id"] not in ids


@pytest.mark.parametrize("message", [{}, {"content": "x"}, {"role": 1}, {"role": None}])
def test_a_message_needs_a_role(message: dict[str, Any]) -> None:
    with pytest.raises(InvalidRecord, match="role"):
        openai.message_in(message, message_id="m")


_parts = st.one_of(
    objects({"type": st.just("text")}, {"text": texts}),
    objects({"type": st.just("refusal")}, {"refusal": texts}),
    objects({"type": st.just("image_url")}, {"image_url": objects({}, {"url": texts, "detail": texts})}),
    objects({"type": st.just("input_audio")}, {"input_audio": objects({}, {"data": texts, "format": texts})}),
    objects({"type": st.just("file")}, {"file": objects({}, {"file_id": texts, "file_data": texts})}),
    json_values,
)
_calls = st.one_of(
    objects({}, {"id": texts, "type": texts, "function": objects({}, {"name": texts, "arguments": texts})}),
    objects(
        {"type": st.just("custom")}, {"id": texts, "custom": objects({}, {"name": texts, "input": texts})}
    ),
    json_values,
)
_messages = objects(
    {"role": st.sampled_from(["system", "user", "assistant", "tool", "function", "developer", "other"])},
    {
        "content": st.none() | texts | st.lists(_parts, max_size=3),
        "name": texts,
        "tool_calls": st.lists(_calls, max_size=3),
        "tool_call_id": texts,
        "tool_call_ids": st.lists(texts, max_size=2),
        "function_call": objects({}, {"name": texts, "arguments": texts}),
        "refusal": texts,
        "reasoning": texts,
        "reasoning_content": texts,
        "audio": objects({}, {"id": texts, "data": texts, "transcript": texts, "expires_at": st.integers()}),
        "annotations": st.lists(
            objects(
                {"type": st.just("url_citation")},
                {"url_citation": objects({}, {"url": texts, "start_index": st.integers()})},
            )
            | json_values,
            max_size=2,
        ),
    },
)


@given(_messages)
def test_any_message_comes_back(message: dict[str, Any]) -> None:
    """Whatever the keys hold: nothing lost, added or changed in type, through real bytes."""
    assert first_difference(message, _round_trip(message)) is None


ITEMS: dict[str, dict[str, Any]] = {
    "plain": {"role": "user", "content": "hi"},
    "message": {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [
            {"type": "output_text", "text": "a", "annotations": [], "logprobs": []},
            {"type": "refusal", "refusal": "no"},
        ],
    },
    "input": {
        "type": "message",
        "role": "user",
        "content": [
            {"type": "input_text", "text": "a"},
            {"type": "input_image", "image_url": "https://example.com/a.png", "detail": "auto"},
            {"type": "input_file", "file_id": "file-1", "filename": "a.pdf"},
            {"type": "input_new", "x": 1},
        ],
    },
    "function_call": {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "c",
        "name": "f",
        "arguments": "{",
        "status": "completed",
    },
    "function_call_output": {"type": "function_call_output", "call_id": "c", "output": "ok"},
    "output list": {
        "type": "function_call_output",
        "call_id": "c",
        "output": [{"type": "input_text", "text": "ok"}],
    },
    "custom": {"type": "custom_tool_call", "call_id": "c", "name": "sql", "input": "select 1"},
    "custom output": {"type": "custom_tool_call_output", "call_id": "c", "output": "1"},
    "reasoning": {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "s"}],
        "encrypted_content": "gAAAAA==",
    },
    "reasoning without summary": {"type": "reasoning", "id": "rs_1", "encrypted_content": None},
    "reasoning text": {
        "type": "reasoning",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "t"}],
    },
    "web search": {
        "type": "web_search_call",
        "id": "ws_1",
        "status": "completed",
        "action": {"type": "search", "query": "q"},
    },
    "mcp": {
        "type": "mcp_call",
        "id": "mcp_1",
        "name": "x",
        "arguments": "{}",
        "output": "o",
        "server_label": "s",
    },
    "compaction": {"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA"},
    "unknown": {"type": "mcp_list_tools", "tools": [{"name": "a"}]},
    "nothing": {},
}


@pytest.mark.parametrize("name", ITEMS)
def test_golden_response_items_come_back(name: str) -> None:
    item = ITEMS[name]
    body = openai_responses.item_in(item, message_id="m")
    assert first_difference(item, openai_responses.item_out(body_through_bytes(body))) is None
    assert kept_whole(body) == KEPT_WHOLE.get(name, [])


@given(
    objects(
        {},
        {
            "type": st.sampled_from([*(item["type"] for item in ITEMS.values() if "type" in item), "other"]),
            "role": texts,
            "content": texts
            | st.lists(objects({"type": texts}, {"text": texts, "refusal": texts}), max_size=2),
            "call_id": texts,
            "name": texts,
            "arguments": texts,
            "input": texts,
            "output": texts | st.lists(json_values, max_size=2),
            "id": texts,
            "status": texts,
            "summary": st.lists(json_values | st.just({"type": "summary_text", "text": "s"}), max_size=2),
            "encrypted_content": texts,
        },
    )
)
def test_any_response_item_comes_back(item: dict[str, Any]) -> None:
    body = body_through_bytes(openai_responses.item_in(item, message_id="m"))
    assert same(openai_responses.item_out(body), item)
