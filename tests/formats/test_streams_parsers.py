"""Each format's parser on small streams: the rules of docs/guides/streaming-formats.md one by one."""

from __future__ import annotations

import json
from datetime import datetime
from enum import StrEnum
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

from readme.pages import ROOT, blocks
from refold.core.limits import USAGE_MAX
from refold.errors import InvalidRecord, UsageError
from refold.formats.extra import unpack
from refold.formats.streams import Delta, StreamParser, base, chunks_of, message_out, parser_for
from refold.formats.streams.base import PIECES_MAX

from .support import body_through_bytes


def fed(chunks: Any, format: str = "auto") -> tuple[StreamParser, list[Delta]]:
    parser = parser_for(format)
    return parser, [delta for chunk in chunks for delta in parser.feed(chunk)]


def said(deltas: list[Delta], kind: str = "text") -> bytes:
    return b"".join(delta.data for delta in deltas if delta.kind == kind)


def delta_chunk(finish: str | None = None, **delta: Any) -> dict[str, Any]:
    return {"id": "c", "model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


def call_chunk(arguments: str | None = None, name: str | None = None, **entry: Any) -> dict[str, Any]:
    function = {"arguments": arguments, "name": name}
    return delta_chunk(
        tool_calls=[{**entry, "function": {k: v for k, v in function.items() if v is not None}}]
    )


def stream_hints(body: dict[str, Any]) -> dict[str, Any]:
    return dict(unpack(body["extra"])[1].get("stream", {}))


# ---- usage, finish, characters (D12, D13, D14) ---------------------------------------------------------


def test_d12_usage_in_every_chunk_is_a_running_total() -> None:
    """50 chunks with {in: 10, out: n}: input 10, output the last value."""
    chunks = [
        {**delta_chunk(content="x"), "usage": {"prompt_tokens": 10, "completion_tokens": n}}
        for n in range(1, 51)
    ]
    parser, deltas = fed(chunks)
    assert parser.usage_mode == "total"
    assert parser.usage == (10, 50, 0, 0)
    assert parser.finish()["usage"] == {"input": 10, "output": 50, "cached": 0, "reasoning": 0}
    assert said(deltas) == b"x" * 50


def test_usage_that_is_none_and_usage_beyond_reason() -> None:
    """What is no count is 0, what a batch could not hold is the most it can."""
    usage = {
        "prompt_tokens": 2**61,
        "completion_tokens": -4,
        "completion_tokens_details": {"reasoning_tokens": True},
    }
    parser, _ = fed([{**delta_chunk(content="x"), "usage": usage}])
    assert parser.usage == (USAGE_MAX, 0, 0, 0)
    start_of = {
        "type": "message_start",
        "message": {"id": "m", "usage": {"input_tokens": 2**61, "output_tokens": "7"}},
    }
    parser, _ = fed([start_of])
    assert parser.usage == (USAGE_MAX, 0, 0, 0)


def test_d13_two_finish_markers_are_one_finish() -> None:
    parser, _ = fed([delta_chunk("stop", content="x"), delta_chunk("length", content="")])
    body = parser.finish()
    assert (parser.finish_reason, body["finish_reason"]) == ("stop", "stop")
    assert stream_hints(body) == {"finishes": 2}


def test_d13_text_after_the_finish_is_kept_and_counted() -> None:
    parser, deltas = fed([delta_chunk("stop", content="a"), delta_chunk(content="b")])
    body = parser.finish()
    assert said(deltas) == b"ab"
    assert body["content"][0].text == "ab"
    assert stream_hints(body) == {"after_finish": 1}


def test_d13_a_last_chunk_with_usage_and_no_choice() -> None:
    last = {"id": "c", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}
    parser, _ = fed([delta_chunk("stop", content="a"), last])
    assert (parser.finish_reason, parser.usage) == ("stop", (3, 4, 0, 0))
    without = {"usage": {"prompt_tokens": 5, "completion_tokens": 6}}
    parser, _ = fed([delta_chunk("stop", content="a"), without])
    assert parser.usage == (5, 6, 0, 0)


FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"
KOREAN = "한국어"


@pytest.mark.parametrize("words", [FAMILY, KOREAN, "a\0b", "\U0001f600 é"])
def test_d14_a_character_split_over_chunks(words: str) -> None:
    """By bytes of the body, by code points of a family, by the two halves of a pair: joined, the original."""
    body = f"data: {json.dumps(delta_chunk(content=words), ensure_ascii=False)}\n\n".encode()
    for size in (1, 2, 3):
        _, deltas = fed(body[at : at + size] for at in range(0, len(body), size))
        assert said(deltas) == words.encode()
    parser, deltas = fed(delta_chunk(content=one) for one in words)
    assert said(deltas) == words.encode()
    halves = [words.encode("utf-16-le")[at : at + 2].decode("utf-16-le", "surrogatepass") for at in
              range(0, len(words.encode("utf-16-le")), 2)]  # fmt: skip
    parser, deltas = fed(f"data: {json.dumps(delta_chunk(content=half))}\n\n" for half in halves)
    assert said(deltas) == words.encode()
    for delta in deltas:
        delta.data.decode("utf-8")  # No delta of a provider's stream is cut inside a character.
    assert body_through_bytes(parser.finish(message_id="m"))["content"][0].text == words


@pytest.mark.parametrize(
    "chunks",
    [
        [delta_chunk(content="\ud83d"), delta_chunk(content="x")],
        [delta_chunk(content="\ude00")],
        [delta_chunk(content="a\ud83db")],
        [json.dumps(delta_chunk(content="\ud83d")), json.dumps(delta_chunk("stop", content="\ud83d"))],
    ],
)
def test_a_lone_surrogate_is_refused(chunks: list[Any]) -> None:
    """The one rule of docs/concepts/bad-input.md, whichever way it comes in."""
    with pytest.raises(InvalidRecord) as refused:
        parser, _ = fed(chunks)
        parser.finish()
    assert refused.value.code == "lone_surrogate"


def test_a_half_at_a_cut_is_dropped_and_at_the_end_refused() -> None:
    parser, deltas = fed([delta_chunk(content="a\ud83d")])
    assert (said(deltas), parser.finish()["content"][0].text) == (b"a", "a")
    parser, _ = fed([delta_chunk("stop", content="a\ud83d")])
    with pytest.raises(InvalidRecord, match="lone_surrogate"):
        parser.finish()
    parser, _ = fed(["a\ud83d"], "text")
    with pytest.raises(InvalidRecord, match="lone_surrogate"):
        parser.finish()


def test_a_lone_surrogate_elsewhere_is_refused_with_the_message() -> None:
    parser, _ = fed([delta_chunk("stop", content="x", odd="\ud83d")])
    with pytest.raises(InvalidRecord, match="lone_surrogate"):
        parser.finish()


# ---- chat completions ----------------------------------------------------------------------------------


def test_calls_are_put_together_by_index() -> None:
    """Interleaved, a late id, empty ids and names: two calls; the first delta of each tells what is known."""
    parser, deltas = fed(
        [
            call_chunk("", "find", index=0, id="", type="function"),
            call_chunk("", "sum", index=1, id="c2", type="function"),
            call_chunk('{"a":', "", index=0, id="c1"),
            call_chunk("[1", index=1, id=""),
            call_chunk(" 1}", index=0),
            call_chunk("]", index=1, id="c2"),
            delta_chunk("tool_calls"),
        ]
    )
    assert deltas == [
        ("tool_call", 0, b"", None, "find"),
        ("tool_call", 1, b"", "c2", "sum"),
        ("tool_call", 0, b'{"a":', "c1", "find"),
        ("tool_call", 1, b"[1", None, None),
        ("tool_call", 0, b" 1}", None, None),
        ("tool_call", 1, b"]", None, None),
    ]
    body = parser.finish(message_id="m")
    assert [(c.fields["call_id"], c.fields["arguments"]) for c in body["content"]] == [
        ("c1", '{"a": 1}'),
        ("c2", "[1]"),
    ]
    assert message_out(body)["tool_calls"] == [
        {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"a": 1}'}},
        {"id": "c2", "type": "function", "function": {"name": "sum", "arguments": "[1]"}},
    ]


def test_calls_that_are_all_numbered_zero() -> None:
    """Another id and a name at an index begin another call; another id alone does not."""
    parser, _ = fed(
        [
            call_chunk('{"x":1}', "f", index=0, id="a"),
            call_chunk('{"y":', "g", index=0, id="b"),
            call_chunk("2}", index=0, id="made-up"),
        ]
    )
    calls = [
        (c.fields["call_id"], c.fields["name"], c.fields["arguments"]) for c in parser.finish()["content"]
    ]
    assert calls == [("a", "f", '{"x":1}'), ("b", "g", '{"y":2}')]


def test_calls_without_an_index() -> None:
    parser, _ = fed(
        [
            call_chunk('{"x":', "f", id="a"),
            call_chunk("1}"),
            call_chunk('{"y":2}', "g", id="b"),
            call_chunk(" ", id="a"),
            call_chunk("{}", "h"),
        ]
    )
    body = parser.finish(message_id="m")
    calls = [(c.fields["call_id"], c.fields["arguments"]) for c in body["content"]]
    assert calls == [("a", '{"x":1} '), ("b", '{"y":2}'), ("refold_call_m_0", "{}")]
    assert "id" not in message_out(body)["tool_calls"][2]
    unnamed = parser.finish()
    assert (unnamed["message_id"], unnamed["content"][2].fields["call_id"]) == ("", "refold_call_c_0")


def test_d08_arguments_cut_short_stay() -> None:
    """Never completed, never {}: raw, flagged, and the same in the provider's shape."""
    cut = '{"command": "ls -'
    parser, _ = fed([call_chunk(cut, "bash", index=0, id="c"), delta_chunk("length")])
    body = body_through_bytes(parser.finish(message_id="m"))
    (call,) = body["content"]
    assert (call.fields["arguments"], call.fields["arguments_valid"]) == (cut, False)
    assert message_out(body)["tool_calls"][0]["function"]["arguments"] == cut
    start = {"type": "tool_use", "id": "t", "name": "bash", "input": {}}
    parser, _ = fed(
        [
            {"type": "content_block_start", "index": 0, "content_block": start},
            {
                "type": "content_block_delta",
                "index": 0,
                "delta": {"type": "input_json_delta", "partial_json": cut},
            },
        ]
    )
    body = body_through_bytes(parser.finish(message_id="m"))
    assert (body["content"][0].fields["arguments"], body["content"][0].fields["arguments_valid"]) == (
        cut,
        False,
    )
    assert message_out(body)["content"][0]["input"] == cut


def test_several_choices_are_refused() -> None:
    parser = parser_for("openai")
    parser.feed(delta_chunk(content="a"))
    with pytest.raises(UsageError, match="n=1"):
        parser.feed({"choices": [{"index": 1, "delta": {"content": "b"}}]})
    with pytest.raises(UsageError, match="candidate_count=1"):
        parser_for("google").feed({"candidates": [{"index": 1, "content": {"parts": [{"text": "x"}]}}]})


def test_what_else_a_chat_delta_may_have() -> None:
    """Refusal, annotations, both reasoning keys with the same words, details, audio, unknown keys."""
    citation = {"type": "url_citation", "url_citation": {"url": "https://a.example", "title": "A"}}
    parser, deltas = fed(
        [
            delta_chunk(role="assistant", reasoning="th", reasoning_content="th", refusal=None, odd={"a": 1}),
            delta_chunk(
                reasoning_details=[{"type": "reasoning.text", "index": 0, "text": "t", "format": "x"}]
            ),
            delta_chunk(
                reasoning_details=[{"type": "reasoning.text", "index": 0, "text": "h", "signature": "s"}]
            ),
            delta_chunk(refusal="I can"),
            delta_chunk(refusal="not", annotations=[citation]),
            delta_chunk(audio={"id": "au", "transcript": "he", "data": "AA=="}),
            delta_chunk("stop", audio={"transcript": "y", "data": "AQ==", "expires_at": 7}),
        ]
    )
    body = body_through_bytes(parser.finish(message_id="m"))
    assert (said(deltas, "reasoning"), said(deltas, "refusal")) == (b"th", b"I cannot")
    assert [d.name for d in deltas if d.kind == "other"] == ["citation", "audio_transcript", None]
    assert message_out(body) == {
        "role": "assistant",
        "reasoning_content": "th",
        "reasoning": "th",
        "reasoning_details": [
            {"type": "reasoning.text", "index": 0, "format": "x", "signature": "s", "text": "th"}
        ],
        "refusal": "I cannot",
        "annotations": [citation],
        "audio": {"id": "au", "transcript": "hey", "data": "AAE=", "expires_at": 7},
        "odd": {"a": 1},
    }


def test_content_lists_and_thinking_items() -> None:
    """Mistral's magistral: thinking and text items; neighbours of one kind are one item."""
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "h"}]}
    parser, deltas = fed(
        [
            delta_chunk(content=[thinking]),
            delta_chunk(content=[thinking, {"type": "text", "text": "a"}]),
            delta_chunk(content="b"),
            delta_chunk("stop", content=[{"type": "reference", "reference_ids": [1]}]),
        ]
    )
    assert (said(deltas, "reasoning"), said(deltas)) == (b"hh", b"ab")
    assert message_out(parser.finish(message_id="m"))["content"] == [
        {"type": "thinking", "thinking": [{"type": "text", "text": "hh"}]},
        {"type": "text", "text": "ab"},
        {"type": "reference", "reference_ids": [1]},
    ]


def test_what_is_said_about_the_answer_is_kept_beside_the_message() -> None:
    chunk = {
        **delta_chunk("stop", content="x"),
        "citations": ["https://a.example"],
        "system_fingerprint": "fp",
    }
    chunk["choices"][0]["logprobs"] = {"content": [{"token": "x", "logprob": float("nan")}]}
    body = fed([chunk])[0].finish(message_id="m")
    about = unpack(body["extra"])[1]["response"]
    assert about == {"id": "c", "citations": ["https://a.example"], "system_fingerprint": "fp"}
    assert message_out(body) == {"role": "assistant", "content": "x"}
    assert (body["model"], body["role"]) == ("m", "assistant")


def test_older_and_whole_answers() -> None:
    """The legacy function call, the completions API, and an answer that was not streamed at all."""
    parser, _ = fed(
        [
            delta_chunk(function_call={"name": "f", "arguments": "{"}),
            delta_chunk(function_call={"arguments": "}"}),
        ]
    )
    assert message_out(parser.finish())["function_call"] == {"name": "f", "arguments": "{}"}
    parser, deltas = fed([{"object": "text_completion", "choices": [{"index": 0, "text": "hey"}]}])
    assert said(deltas) == b"hey"
    calls = [{"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in "ab"]
    message = {"role": "assistant", "content": "x", "tool_calls": calls}
    whole = {
        "object": "chat.completion",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
    }
    parser, deltas = fed([whole])
    assert message_out(parser.finish()) == message
    assert parser.finish_reason == "stop"


def test_an_error_in_the_stream_keeps_what_came() -> None:
    parser, _ = fed([delta_chunk(content="so f"), {"error": {"code": 502, "message": "gone"}}])
    assert parser.error is not None
    assert (parser.error.code, parser.error.message) == ("502", "gone")
    assert not parser.complete
    assert parser.finish()["content"][0].text == "so f"


# ---- Anthropic -----------------------------------------------------------------------------------------


def start(message_id: str, tokens: int = 1) -> dict[str, Any]:
    usage = {"input_tokens": tokens, "output_tokens": 1}
    message = {
        "id": message_id,
        "type": "message",
        "role": "assistant",
        "model": "c",
        "content": [],
        "usage": usage,
    }
    return {"type": "message_start", "message": message}


def block(index: int, value: dict[str, Any], *deltas: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"type": "content_block_start", "index": index, "content_block": value},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def words(text: str) -> dict[str, Any]:
    return {"type": "text_delta", "text": text}


TEXT = {"type": "text", "text": ""}
END = [
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}},
    {"type": "message_stop"},
]


def test_a_message_that_begins_anew_replaces_the_open_one() -> None:
    """A proxy's retry: the message is the new one, the old one is kept beside it, both count in the usage."""
    parser, deltas = fed(
        [start("m1", 7), *block(0, TEXT, words("old")), start("m2", 7), *block(0, TEXT, words("new")), *END]
    )
    body = body_through_bytes(parser.finish(message_id="m"))
    assert (parser.restarts, parser.provider_response_id) == (1, "m2")
    assert [(d.kind, d.part, d.data, d.name) for d in deltas] == [
        ("text", 0, b"old", None),
        ("other", 1, b"", "restart"),
        ("text", 2, b"new", None),
    ]
    assert message_out(body)["content"] == [{"type": "text", "text": "new"}]
    assert stream_hints(body)["superseded"][0]["content"] == [{"type": "text", "text": "old"}]
    assert parser.usage == (14, 6, 0, 0)


def test_a_start_that_is_sent_twice_is_one() -> None:
    parser, deltas = fed([start("m1", 7), start("m1", 7), *block(0, TEXT, words("x")), *END])
    assert (parser.restarts, parser.usage, said(deltas)) == (0, (7, 5, 0, 0), b"x")


def test_a_message_after_the_end_goes_on() -> None:
    parser, deltas = fed(
        [start("m1"), *block(0, TEXT, words("a")), *END, start("m2"), *block(0, TEXT, words("b")), *END]
    )
    body = parser.finish(message_id="m")
    assert (said(deltas), parser.restarts, parser.usage) == (b"ab", 0, (2, 10, 0, 0))
    assert [item.text for item in body["content"]] == ["a", "b"]


def test_signatures_redacted_thinking_and_citations_are_kept() -> None:
    thinking = block(
        0,
        {"type": "thinking", "thinking": "", "signature": ""},
        {"type": "thinking_delta", "thinking": "hm"},
        {"type": "signature_delta", "signature": "Eq+/"},
        {"type": "signature_delta", "signature": "=="},
    )
    cited = {
        "type": "char_location",
        "cited_text": "c",
        "document_index": 0,
        "start_char_index": 1,
        "end_char_index": 2,
    }
    answer = block(
        2, TEXT, words("so"), {"type": "citations_delta", "citation": cited}, {"type": "new_delta", "x": 1}
    )
    parser, deltas = fed(
        [start("m"), *thinking, *block(1, {"type": "redacted_thinking", "data": "Zm=="}), *answer, *END]
    )
    body = body_through_bytes(parser.finish(message_id="m"))
    assert said(deltas, "reasoning") == b"hm"
    assert body["content"][0].fields["signature"] == "Eq+/=="
    assert message_out(body)["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "Eq+/=="},
        {"type": "redacted_thinking", "data": "Zm=="},
        {"type": "text", "text": "so", "citations": [cited]},
    ]
    assert stream_hints(body) == {"unknown": {"new_delta": 1}}


def test_events_of_the_sdk_helper_say_nothing_new() -> None:
    """MessageStream mixes its own events with the API's."""
    derived = [{"type": "text", "text": "x", "snapshot": "x"}, {"type": "input_json", "partial_json": "{"}]
    parser, deltas = fed([start("m"), *block(0, TEXT, words("x")), *derived, *END])
    assert said(deltas) == b"x"
    assert stream_hints(parser.finish()) == {}


# ---- Responses -----------------------------------------------------------------------------------------


def event(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", **fields}


def created(name: str = "r1") -> dict[str, Any]:
    return event("created", response={"id": name, "status": "in_progress", "model": "m", "output": []})


MESSAGE = {"type": "message", "id": "i1", "role": "assistant", "content": [], "status": "in_progress"}


def test_a_looked_up_response_comes_in_one_piece() -> None:
    """Whole, or only by its closing event: the deltas have all of it, each text once."""
    output = [
        {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "hm"}]},
        {
            **MESSAGE,
            "content": [{"type": "output_text", "text": "so", "annotations": []}],
            "status": "completed",
        },
        {"type": "function_call", "id": "f", "call_id": "c", "name": "f", "arguments": '{"a": 1}'},
    ]
    usage = {"input_tokens": 1, "output_tokens": 2}
    response = {"id": "r", "object": "response", "status": "completed", "output": output, "usage": usage}
    for chunk in (response, event("completed", response=response)):
        parser, deltas = fed([chunk])
        assert [(d.kind, d.data, d.call_id, d.name) for d in deltas] == [
            ("reasoning", b"hm", None, None),
            ("text", b"so", None, None),
            ("tool_call", b"", "c", "f"),
            ("tool_call", b'{"a": 1}', None, None),
        ]
        assert message_out(body_through_bytes(parser.finish(message_id="m"))) == output
        assert (parser.usage, parser.finish_reason) == ((1, 2, 0, 0), "completed")


def test_closing_events_hand_on_what_the_deltas_left_out() -> None:
    parser, deltas = fed(
        [
            created(),
            event("output_item.added", output_index=0, item=MESSAGE),
            event("output_text.delta", output_index=0, content_index=0, delta="ab"),
            event("output_text.done", output_index=0, content_index=0, text="abcd"),
            event(
                "output_item.done",
                output_index=0,
                item={**MESSAGE, "content": [{"type": "output_text", "text": "abcd!"}]},
            ),
        ]
    )
    assert [delta.data for delta in deltas] == [b"ab", b"cd", b"!"]
    assert stream_hints(parser.finish()) == {}


def test_a_closing_event_that_contradicts_is_counted() -> None:
    """What was handed on cannot be taken back; the message is what the provider says in the end."""
    parser, deltas = fed(
        [
            created(),
            event("output_item.added", output_index=0, item=MESSAGE),
            event("output_text.delta", output_index=0, content_index=0, delta="ab"),
            event(
                "output_item.done",
                output_index=0,
                item={**MESSAGE, "content": [{"type": "output_text", "text": "x"}]},
            ),
        ]
    )
    body = parser.finish()
    assert (said(deltas), body["content"][0].text) == (b"ab", "x")
    assert stream_hints(body) == {"unknown": {"(contradicts its deltas)": 1}}


def test_items_cut_short_are_put_together() -> None:
    """A stream that ends in the middle: message, reasoning and call as far as they came."""
    parser, _ = fed(
        [
            created(),
            event("output_item.added", output_index=0, item={"type": "reasoning", "id": "rs", "summary": []}),
            event("reasoning_summary_text.delta", output_index=0, summary_index=0, delta="first"),
            event("reasoning_summary_text.delta", output_index=0, summary_index=1, delta="sec"),
            event("output_item.added", output_index=1, item=MESSAGE),
            event("content_part.added", output_index=1, content_index=0,
                  part={"type": "output_text", "text": "", "annotations": [], "logprobs": []}),
            event("output_text.delta", output_index=1, content_index=0, delta="so"),
            event("output_text.annotation.added", output_index=1, content_index=0,
                  annotation={"type": "x", "index": 1}),
            event("refusal.delta", output_index=1, content_index=1, delta="no"),
            event("output_item.added", output_index=2,
                  item={"type": "function_call", "id": "f", "call_id": "c", "name": "f", "arguments": ""}),
            event("function_call_arguments.delta", output_index=2, item_id="f", delta='{"a"'),
        ]
    )  # fmt: skip
    assert not parser.complete
    assert message_out(body_through_bytes(parser.finish(message_id="m"))) == [
        {"type": "reasoning", "id": "rs", "summary": [
            {"type": "summary_text", "text": "first"}, {"type": "summary_text", "text": "sec"}]},
        {**MESSAGE, "content": [
            {"type": "output_text", "text": "so", "annotations": [{"type": "x", "index": 1}], "logprobs": []},
            {"type": "refusal", "refusal": "no"}]},
        {"type": "function_call", "id": "f", "call_id": "c", "name": "f", "arguments": '{"a"'},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("response", "reason", "code"),
    [
        (
            {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}},
            "max_output_tokens",
            None,
        ),
        ({"status": "failed", "error": {"code": "server_error", "message": "m"}}, "failed", "server_error"),
        ({"status": "cancelled"}, "cancelled", None),
    ],
)
def test_how_a_response_ends(response: dict[str, Any], reason: str, code: str | None) -> None:
    parser, _ = fed([created(), event(response["status"], response={"id": "r1", **response})])
    assert parser.complete
    assert (parser.finish_reason, parser.error and parser.error.code) == (reason, code)


def test_a_response_that_begins_anew() -> None:
    chunks = [
        created(),
        event("output_item.added", output_index=0, item=MESSAGE),
        event("output_text.delta", output_index=0, content_index=0, delta="old"),
        created("r2"),
        event("output_item.added", output_index=0, item=MESSAGE),
        event("output_text.delta", output_index=0, content_index=0, delta="new"),
    ]
    parser, deltas = fed(chunks)
    body = parser.finish(message_id="m")
    assert (said(deltas), body["content"][0].text, parser.restarts) == (b"oldnew", "new", 1)
    assert stream_hints(body)["superseded"][0]["output"][0]["content"][0]["text"] == "old"


# ---- the others ----------------------------------------------------------------------------------------


def test_bedrock_reasoning_and_exceptions() -> None:
    def delta(value: dict[str, Any]) -> dict[str, Any]:
        return {"contentBlockDelta": {"contentBlockIndex": 0, "delta": {"reasoningContent": value}}}

    parser, deltas = fed([delta({"text": "h"}), delta({"text": "m"}), delta({"signature": "s=="})])
    assert said(deltas, "reasoning") == b"hm"
    assert message_out(body_through_bytes(parser.finish(message_id="m"))) == {
        "role": "assistant",
        "content": [{"reasoningContent": {"reasoningText": {"text": "hm", "signature": "s=="}}}],
    }
    parser, _ = fed([delta({"redactedContent": b"\0\1"}), {"throttlingException": {"message": "slow down"}}])
    assert message_out(parser.finish())["content"] == [{"reasoningContent": {"redactedContent": "AAE="}}]
    assert parser.error is not None
    assert (parser.error.code, parser.error.message) == ("throttlingException", "slow down")


def test_google_thoughts_signatures_and_arguments_by_path() -> None:
    def chunk(*parts: dict[str, Any], **fields: Any) -> dict[str, Any]:
        return {"candidates": [{"content": {"role": "model", "parts": list(parts)}, **fields}]}

    def piece(path: str, more: bool = True, **value: Any) -> dict[str, Any]:
        return chunk(
            {
                "functionCall": {
                    "partialArgs": [{"jsonPath": path, **value}],
                    **({"willContinue": True} if more else {}),
                }
            }
        )

    parser, deltas = fed(
        [
            chunk({"text": "h", "thought": True}),
            chunk({"text": "m", "thought": True}, {"text": "so"}),
            chunk({"text": " far"}, {"text": "", "thoughtSignature": "c2ln"}),
            chunk({"functionCall": {"name": "f", "willContinue": True}}),
            piece("$.list[0].name", stringValue="a"),
            piece("$.list[0].name", stringValue="b"),
            piece("$.list[1]", numberValue=1.5),
            piece("$['odd key']", boolValue=True),
            piece("$.none", more=False, nullValue="NULL_VALUE"),
            chunk({"executableCode": {"code": "1"}}, finishReason="STOP"),
        ]
    )
    arguments = {"list": [{"name": "ab"}, 1.5], "odd key": True, "none": None}
    assert (said(deltas, "reasoning"), said(deltas)) == (b"hm", b"so far")
    assert json.loads(said(deltas, "tool_call")) == arguments
    assert message_out(body_through_bytes(parser.finish(message_id="m"))) == {
        "role": "model",
        "parts": [
            {"text": "hm", "thought": True},
            {"text": "so far"},
            {"text": "", "thoughtSignature": "c2ln"},
            {"functionCall": {"name": "f", "args": arguments}},
            {"executableCode": {"code": "1"}},
        ],
    }


def test_cohere_citations_and_plan() -> None:
    def of(kind: str, index: int = 0, **message: Any) -> dict[str, Any]:
        return {"type": kind, "index": index, "delta": {"message": message}}

    citation = {"start": 0, "end": 2, "text": "so", "sources": []}
    parser, deltas = fed(
        [
            {"type": "message-start", "id": "i", "delta": {"message": {"role": "assistant"}}},
            of("tool-plan-delta", tool_plan="look"),
            of("content-start", content={"type": "text", "text": ""}),
            of("content-delta", content={"text": "so"}),
            of("citation-start", citations=citation),
            of(
                "tool-call-start",
                tool_calls={"id": "c", "type": "function", "function": {"name": "f", "arguments": ""}},
            ),
            of("tool-call-delta", tool_calls={"function": {"arguments": "{}"}}),
            {"type": "message-end", "delta": {"finish_reason": "COMPLETE"}},
        ]
    )
    assert (said(deltas), said(deltas, "reasoning"), said(deltas, "tool_call")) == (b"so", b"look", b"{}")
    body = body_through_bytes(parser.finish(message_id="m"))
    assert (body["extra_format"], body["provider"]) == ("cohere", "cohere")
    assert message_out(body) == {
        "role": "assistant",
        "tool_plan": "look",
        "content": [{"type": "text", "text": "so"}],
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        "citations": [citation],
    }


def test_plain_text() -> None:
    """Strings, and bytes cut inside a character; the body is the bare one."""
    parser, deltas = fed(["he", "y \0", ""])
    assert said(deltas) == b"hey \0"
    body = parser.finish(message_id="m")
    assert (body["content"][0].text, body["extra"], body["extra_format"]) == ("hey \0", None, None)
    parser, deltas = fed([KOREAN.encode()[:4], KOREAN.encode()[4:]], "text")
    assert said(deltas) == KOREAN.encode()
    assert parser.finish()["content"][0].text == KOREAN
    with pytest.raises(InvalidRecord, match="bad_utf8"):
        parser_for("text").feed(b"\xff")
    cut = parser_for("text")
    cut.feed(KOREAN.encode()[:4])
    with pytest.raises(InvalidRecord, match="inside a character"):
        cut.finish()


# ---- every parser --------------------------------------------------------------------------------------


def test_sdk_objects_are_what_was_sent() -> None:
    """Fields a model has and the provider did not send do not become nulls of the message."""

    class Function(BaseModel):
        name: str | None = None
        arguments: str | None = None

    class Call(BaseModel):
        index: int
        id: str | None = None
        type: str | None = None
        function: Function | None = None

    class Message(BaseModel):
        content: str | None = None
        refusal: str | None = None
        tool_calls: list[Call] | None = None

    class Choice(BaseModel):
        index: int
        delta: Message
        finish_reason: str | None = None

    class Chunk(BaseModel):
        id: str
        choices: list[Choice]
        usage: dict[str, int] | None = None

    sent = [call_chunk("{}", "f", index=0, id="c", type="function"), delta_chunk("stop")]
    parser, _ = fed(Chunk.model_validate(one) for one in sent)
    assert message_out(parser.finish(message_id="m")) == {
        "role": "assistant",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }


def test_sdk_objects_with_bytes_enums_and_times() -> None:
    """Google's models: a signature in the alphabet it came in, whatever the model's JSON mode does."""

    class Reason(StrEnum):
        STOP = "STOP"

    class Part(BaseModel):
        model_config = ConfigDict(alias_generator=to_camel, ser_json_bytes="base64", val_json_bytes="base64")
        text: str
        thought_signature: bytes

    class Content(BaseModel):
        parts: list[Part]

    class Candidate(BaseModel):
        model_config = ConfigDict(alias_generator=to_camel)
        content: Content
        finish_reason: Reason

    class Chunk(BaseModel):
        model_config = ConfigDict(alias_generator=to_camel)
        candidates: list[Candidate]
        create_time: datetime
        other: str | None = None

    sent = {
        "candidates": [
            {
                "content": {"parts": [{"text": "x", "thoughtSignature": b"\xfb\xff\xfe"}]},
                "finishReason": "STOP",
            }
        ],
        "createTime": "2026-04-02T17:03:50.399550Z",
    }
    parser, _ = fed([Chunk.model_validate(sent)])
    body = parser.finish(message_id="m")
    assert message_out(body)["parts"] == [{"text": "x", "thoughtSignature": "+//+"}]
    assert unpack(body["extra"])[1]["response"] == {"createTime": "2026-04-02T17:03:50.399550Z"}
    assert parser.finish_reason == "STOP"


def test_a_finished_parser_takes_no_more() -> None:
    for parser in (parser_for("openai"), parser_for("text"), parser_for("auto")):
        parser.feed(delta_chunk(content="x") if parser.format != "text" else "x")
        assert parser.finish(message_id="m") == parser.finish(message_id="m")
        with pytest.raises(UsageError, match="finished"):
            parser.feed("x" if parser.format == "text" else delta_chunk(content="y"))


def test_a_stream_of_another_format_is_refused_with_its_shape() -> None:
    """Nothing understood is not an empty answer. The text names keys and types, no content."""
    parser, _ = fed([start("secret")], "openai")
    with pytest.raises(
        UsageError, match=r"format 'openai'.*keys type, message \(type 'message_start'\)"
    ) as refused:
        parser.finish()
    assert "secret" not in str(refused.value)


def test_fields_of_the_body_can_be_given() -> None:
    body = fed(["x"])[0].finish(message_id="m", parent_id="p", provider="mine", model="own")
    assert (body["message_id"], body["parent_id"], body["provider"], body["model"]) == (
        "m",
        "p",
        "mine",
        "own",
    )


def test_pieces_are_bounded() -> None:
    parser = parser_for("anthropic")
    with pytest.raises(InvalidRecord, match="too_large"):
        for index in range(PIECES_MAX + 1):
            parser.feed({"type": "content_block_start", "index": index, "content_block": TEXT})


def test_the_guide_as_printed() -> None:
    """Its programs run, one with a stream of each kind a reader may have."""
    page = (ROOT / "docs/guides/streaming-formats.md").read_text("utf-8")
    first, *others = blocks(page, "python")
    streams = {
        "hey": [delta_chunk(content="h"), delta_chunk("stop", content="ey")],
        "so": [start("m"), *block(0, TEXT, words("so")), *END],
    }
    for expected, stream in streams.items():
        names: dict[str, Any] = {"stream": stream}
        exec(first, names)
        assert names["text"] == expected.encode()
        assert expected in json.dumps(names["message"])
    for program in others:
        exec(program, {})
    assert len(others) == 1


def test_content_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts, arguments, results of the provider's tools and whole items count alike."""
    monkeypatch.setattr(base, "STREAM_BYTES_MAX", 1000)
    long = "x" * 400
    result = {"type": "web_search_tool_result", "tool_use_id": "s", "content": [{"url": long}]}
    item = {**MESSAGE, "content": [{"type": "output_text", "text": long}]}
    for repeated in (
        [delta_chunk(content=long)],
        [call_chunk(long, "f", index=0)],
        block(0, result),
        [event("output_item.done", item=item)],
    ):
        with pytest.raises(InvalidRecord, match="too_large"):
            fed(repeated * 4)


async def test_chunks_of_any_iterable() -> None:
    """Async, blocking and listed; what is no stream is refused."""

    async def agen() -> Any:
        yield "a"
        yield "b"

    for stream in (agen(), iter(["a", "b"]), ["a", "b"], (one for one in "ab")):
        assert [chunk async for chunk in chunks_of(stream)] == ["a", "b"]
    for wrong in ("text", b"bytes", {"a": 1}, 5):
        with pytest.raises(UsageError, match="no stream"):
            [chunk async for chunk in chunks_of(wrong)]  # type: ignore[arg-type]
