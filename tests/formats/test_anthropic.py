"""Anthropic messages: golden blocks, and any message whatever comes back value by value."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from refold.errors import InvalidRecord
from refold.formats import anthropic
from refold.formats.jsonio import first_difference

from .support import body_through_bytes, json_values, kept_whole, objects, texts

SEARCH = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [
        {"type": "web_search_result", "url": "u", "title": "t", "encrypted_content": "Eo8E", "page_age": None}
    ],
}
BLOCKS: dict[str, Any] = {
    "text": {"type": "text", "text": "hi"},
    "text with cache": {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
    "citations": {
        "type": "text",
        "text": "the grass is green",
        "citations": [
            {
                "type": "char_location",
                "cited_text": "The grass",
                "document_index": 0,
                "document_title": "Doc",
                "start_char_index": 0,
                "end_char_index": 9,
                "file_id": None,
            },
            {
                "type": "page_location",
                "cited_text": "x",
                "document_index": 0,
                "start_page_number": 1,
                "end_page_number": 2,
            },
            {
                "type": "web_search_result_location",
                "cited_text": "x",
                "url": "u",
                "title": None,
                "encrypted_index": "Eo8B",
            },
            {
                "type": "search_result_location",
                "cited_text": "x",
                "source": "s",
                "title": "t",
                "search_result_index": 0,
                "start_block_index": 0,
                "end_block_index": 1,
            },
            {"type": "new_location", "where": [1]},
            "odd",
        ],
    },
    "null citations": {"type": "text", "text": "x", "citations": None},
    "no citations": {"type": "text", "text": "x", "citations": []},
    "thinking": {
        "type": "thinking",
        "thinking": "let me see",
        "signature": "EqQBCgIYAhIM1gbcDa9GJwZA2b3hGgxBdjrkzLoky3dl1pk=",
    },
    "thinking, empty and unsigned": {"type": "thinking", "thinking": ""},
    "redacted": {"type": "redacted_thinking", "data": "EmwKAhgBEgy3va3pzix/LafPsn4aDFIT2Xlxh0L5L8rLVyIw"},
    "tool_use": {
        "type": "tool_use",
        "id": "toolu_1",
        "name": "get",
        "input": {"b": 1, "a": [1.0, None]},
        "caller": {"type": "direct"},
    },
    "tool_use, nothing": {"type": "tool_use", "id": "toolu_1", "name": "get", "input": {}},
    "tool_use, cut": {"type": "tool_use", "id": "toolu_1", "name": "get", "input": '{"a": '},
    "result": {"type": "tool_result", "tool_use_id": "toolu_1", "content": "ok"},
    "result, blocks": {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "a"}],
    },
    "result, one block": {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": [{"type": "text", "text": "a"}],
    },
    "result, image": {
        "type": "tool_result",
        "tool_use_id": "toolu_1",
        "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAEC"}}
        ],
        "is_error": False,
    },
    "result, error": {"type": "tool_result", "tool_use_id": "toolu_1", "content": "no", "is_error": True},
    "result, nothing": {"type": "tool_result", "tool_use_id": "toolu_1"},
    "result, empty": {"type": "tool_result", "tool_use_id": "toolu_1", "content": []},
    "image, url": {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
    "image, file": {"type": "image", "source": {"type": "file", "file_id": "file_1"}},
    "image, odd base64": {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": "AAE"},
    },
    "document": {
        "type": "document",
        "title": "Doc",
        "context": "c",
        "citations": {"enabled": True},
        "source": {"type": "text", "media_type": "text/plain", "data": "The grass"},
    },
    "document, pdf": {
        "type": "document",
        "source": {"type": "base64", "media_type": "application/pdf", "data": "AAEC"},
    },
    "document, content": {
        "type": "document",
        "source": {"type": "content", "content": [{"type": "text", "text": "x"}]},
    },
    "search": {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}},
    "search result": SEARCH,
    "search error": {
        "type": "web_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"},
    },
    "code": {
        "type": "bash_code_execution_tool_result",
        "tool_use_id": "srvtoolu_2",
        "content": {"type": "bash_code_execution_result", "stdout": "1", "return_code": 0, "content": []},
    },
    "mcp": {
        "type": "mcp_tool_use",
        "id": "mcptoolu_1",
        "name": "echo",
        "server_name": "s",
        "input": {"x": 1},
    },
    "mcp result": {
        "type": "mcp_tool_result",
        "tool_use_id": "mcptoolu_1",
        "is_error": False,
        "content": [{"type": "text", "text": "x"}],
    },
    "compaction": {"type": "compaction", "content": "so far"},
    "upload": {"type": "container_upload", "file_id": "file_1"},
    "search_result": {
        "type": "search_result",
        "source": "s",
        "title": "t",
        "content": [{"type": "text", "text": "x"}],
    },
    "no type": {"text": "x"},
    "no object": "x",
}
MESSAGES: dict[str, dict[str, Any]] = {
    "string": {"role": "user", "content": "hi"},
    "one block": {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    "empty": {"role": "user", "content": []},
    "assistant string": {"role": "assistant", "content": "hi"},
    "null": {"role": "assistant", "content": None},
    "response": {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-x",
        "content": [BLOCKS["thinking"], BLOCKS["tool_use"]],
        "stop_reason": "tool_use",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 10,
            "cache_read_input_tokens": 5,
            "cache_creation_input_tokens": 2,
            "output_tokens": 3,
        },
    },
}


#: In every golden message: a citation of a kind nobody knows yet, kept whole beside what could be read of it.
KEPT_WHOLE = {"citation"}


def _round_trip(message: dict[str, Any]) -> Any:
    return anthropic.message_out(body_through_bytes(anthropic.message_in(message, message_id="m")))


@pytest.mark.parametrize("name", MESSAGES)
def test_golden_messages_come_back(name: str) -> None:
    assert first_difference(MESSAGES[name], _round_trip(MESSAGES[name])) is None


@pytest.mark.parametrize("role", ["user", "assistant"])
@pytest.mark.parametrize("name", BLOCKS)
def test_golden_blocks_come_back(name: str, role: str) -> None:
    """Alone and between others; none of the shapes known to us needs the whole source kept beside it."""
    for content in ([BLOCKS[name]], [BLOCKS["citations"], BLOCKS[name], BLOCKS["text"], BLOCKS[name]]):
        message = {"role": role, "content": content}
        assert first_difference(message, _round_trip(message)) is None
        body = anthropic.message_in(message, message_id="m")
        assert set(kept_whole(body)) <= KEPT_WHOLE


def test_a_response_fills_the_typed_fields() -> None:
    """Readers see model, reason and usage without knowing Anthropic; cached input counts as input."""
    body = anthropic.message_in(MESSAGES["response"], message_id="m")
    assert (body["group_id"], body["model"], body["finish_reason"]) == ("msg_1", "claude-x", "tool_use")
    assert body["usage"] == {"input": 17, "output": 3, "cached": 5, "reasoning": 0}
    thinking, call = body["content"]
    assert thinking.fields["signature"] == BLOCKS["thinking"]["signature"]
    assert call.fields["arguments"] == '{"b":1,"a":[1.0,null]}'


def test_results_make_a_tool_message_and_citations_parts() -> None:
    """A user message with a result never starts a turn; citations are parts with their source."""
    body = anthropic.message_in(
        {"role": "user", "content": [BLOCKS["result, error"], BLOCKS["text"]]}, message_id="m"
    )
    assert body["role"] == "tool"
    assert body["content"][0].fields["is_error"] is True
    cited = anthropic.message_in({"role": "assistant", "content": [BLOCKS["citations"]]}, message_id="m")[
        "content"
    ]
    assert [part.type for part in cited] == ["text"] + ["citation"] * 6
    assert (cited[1].text, cited[1].fields["source"], cited[1].fields["end"]) == ("The grass", "Doc", 9)


def test_a_search_keeps_its_encrypted_content_byte_for_byte() -> None:
    body = body_through_bytes(
        anthropic.message_in({"role": "assistant", "content": [SEARCH]}, message_id="m")
    )
    assert b'"encrypted_content":"Eo8E"' in body["content"][0].fields["json"]
    failed = anthropic.message_in({"role": "assistant", "content": [BLOCKS["search error"]]}, message_id="m")
    assert failed["content"][0].fields["is_error"] is True


def test_a_message_needs_a_role() -> None:
    with pytest.raises(InvalidRecord, match="role"):
        anthropic.message_in({"content": "x"}, message_id="m")


_source = objects(
    {},
    {
        "type": st.sampled_from(["base64", "url", "file", "text"]),
        "media_type": texts,
        "data": texts,
        "url": texts,
        "file_id": texts,
    },
)
_plain_blocks = st.one_of(
    objects(
        {"type": st.just("text")},
        {
            "text": texts,
            "citations": st.lists(
                objects({"type": texts}, {"cited_text": texts, "document_index": st.integers()})
                | json_values,
                max_size=2,
            ),
        },
    ),
    objects({"type": st.sampled_from(["image", "document"])}, {"source": _source, "title": texts}),
    objects({"type": st.just("thinking")}, {"thinking": texts, "signature": texts}),
    objects({"type": st.just("redacted_thinking")}, {"data": texts}),
    objects(
        {"type": st.sampled_from(["tool_use", "server_tool_use", "mcp_tool_use"])},
        {"id": texts, "name": texts, "input": json_values},
    ),
    objects({"type": st.just("compaction")}, {"content": texts}),
    json_values,
)
_blocks = _plain_blocks | objects(
    {"type": st.sampled_from(["tool_result", "web_search_tool_result", "mcp_tool_result", "x_tool_result"])},
    {"tool_use_id": texts, "content": texts | st.lists(_plain_blocks, max_size=2), "is_error": st.booleans()},
)


@given(
    objects(
        {"role": st.sampled_from(["user", "assistant", "system"])},
        {
            "content": texts | st.lists(_blocks, max_size=3),
            "type": st.just("message"),
            "id": texts,
            "model": texts,
            "usage": objects({}, {"input_tokens": st.integers(), "output_tokens": st.integers()}),
        },
    )
)
def test_any_message_comes_back(message: dict[str, Any]) -> None:
    """Whatever the keys hold: nothing lost, added or changed in type, through real bytes."""
    assert first_difference(message, _round_trip(message)) is None
