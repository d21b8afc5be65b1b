"""How a body is cut into payloads, how ``auto`` decides, and what no input may do."""

from __future__ import annotations

import asyncio
import json
import struct
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refold.errors import InvalidRecord, UsageError
from refold.formats.extra import unpack
from refold.formats.streams import FORMATS, chunks_of, format_of, parser_for, sse
from refold.formats.streams.base import UNKNOWN_NAMES_MAX
from refold.formats.streams.eventstream import Frames
from refold.formats.streams.sse import Lines

from .stream_readings import Recording, recordings
from .support import body_through_bytes, json_values, odd_keys

RECORDED = recordings()


@pytest.mark.parametrize(
    ("body", "objects"),
    [
        (b'data: {"a":1}\n\ndata: {"a":2}\n\n', [{"a": 1}, {"a": 2}]),
        (b'\xef\xbb\xbfevent: x\r\nid: 3\r\nretry: 1\r\n: comment\r\ndata:{"a":1}\r\n\r\n', [{"a": 1}]),
        (b'data: {"a":\ndata: 1}\n\n', [{"a": 1}]),  # One object over two data lines.
        (b'data: {"a":1}', [{"a": 1}]),  # Cut before the line's end.
        (b'data: {"a":1}\rdata: {"b":"\\r"}\r', [{"a": 1}, {"b": "\r"}]),
        (b'{"a":1}\n{"a":2}\n', [{"a": 1}, {"a": 2}]),
        (b"data: [DONE]\n\n", []),
        (b"data:\n\n", []),
        (b'data: {"a":NaN}\n\n', None),
    ],
)
def test_lines_in_any_cuts(body: bytes, objects: list[Any] | None) -> None:
    for size in range(1, len(body) + 1):
        lines = Lines()
        found = [one for at in range(0, len(body), size) for one in lines.feed(body[at : at + size])]
        assert repr(found) == repr([{"a": float("nan")}] if objects is None else objects), size
        assert lines.done is (b"[DONE]" in body)


def test_lines_whose_ends_were_taken_off() -> None:
    """iter_lines of httpx and requests."""
    lines = Lines()
    said = [
        "event: message_start",
        'data: {"a":1}',
        "",
        ": comment",
        "event: x",
        'data: {"a":2}',
        "",
        "data: [DONE]",
    ]
    assert [one for line in said for one in lines.feed(line.encode())] == [{"a": 1}, {"a": 2}]
    assert lines.done


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"data: hello\n\n", "bad_json"),
        (b'data: {"a":\n\n', "bad_json"),
        (b'data: {"a":"\xff"}\n\n', "bad_utf8"),
        (b"data: " + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"\n", "bad_json"),
    ],
)
def test_a_broken_body_is_refused(body: bytes, code: str) -> None:
    with pytest.raises(InvalidRecord) as refused:
        Lines().feed(body)
    assert refused.value.code == code


def test_an_endless_event_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "EVENT_BYTES_MAX", 1000)
    lines = Lines()
    with pytest.raises(InvalidRecord, match="too_large"):
        for _ in range(200):
            lines.feed(b"data: xxxxxxx")


def _frame(headers: dict[str, str], payload: bytes) -> bytes:
    head = b"".join(
        bytes([len(name)]) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
        for name, value in headers.items()
    )
    prelude = struct.pack(">II", 16 + len(head) + len(payload), len(head))
    said = prelude + struct.pack(">I", zlib.crc32(prelude)) + head + payload
    return said + struct.pack(">I", zlib.crc32(said))


def test_frames_errors_and_damage() -> None:
    """An exception and an error frame end up in ``error``; a flipped bit is found."""
    exception = {":message-type": "exception", ":exception-type": "throttlingException"}
    parser = parser_for("bedrock")
    parser.feed(_frame(exception, b'{"message":"slow"}'))
    assert parser.error is not None
    assert (parser.error.code, parser.error.message) == ("throttlingException", "slow")
    failed = {":message-type": "error", ":error-code": "500", ":error-message": "no"}
    assert Frames().feed(_frame(failed, b"")) == [
        {"internalServerException": {"code": "500", "message": "no"}}
    ]
    good = _frame(
        {":message-type": "event", ":event-type": "messageStop"}, b'{"stopReason":"end_turn","p":"ab"}'
    )
    assert Frames().feed(good) == [{"messageStop": {"stopReason": "end_turn"}}]
    for at in range(len(good)):
        damaged = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
        with pytest.raises(InvalidRecord, match="bad_frame"):
            Frames().feed(damaged)


# ---- auto ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "format"),
    [
        ("Hello", "text"),
        ("data", "text"),
        ("data: is what we need", "text"),
        ("event horizon", "text"),
        ("{", "text"),
        ('{"answer": 42}', "text"),
        ('{"choices": []}', "openai"),
        ('data: {"choices": []}', "openai"),
        (b'event: ping\ndata: {"type": "ping"}\n\n', "anthropic"),
        ({"choices": [{"delta": {}}]}, "openai"),
        ({"object": "chat.completion.chunk"}, "openai"),
        ({"error": {"message": "no"}}, "openai"),
        ({"type": "response.created", "response": {}}, "openai-responses"),
        ({"object": "response", "output": []}, "openai-responses"),
        ({"type": "error", "code": "x", "sequence_number": 1}, "openai-responses"),
        ({"type": "message_start", "message": {}}, "anthropic"),
        ({"type": "error", "error": {"type": "overloaded_error"}}, "anthropic"),
        ({"messageStart": {"role": "assistant"}}, "bedrock"),
        ({"throttlingException": {}}, "bedrock"),
        ({"candidates": []}, "google"),
        ({"promptFeedback": {"blockReason": "SAFETY"}}, "google"),
        ({"event_type": "interaction.created", "interaction": {}}, "google-interactions"),
        ({"type": "message-start"}, "cohere"),
    ],
)
def test_auto_decides_by_the_first_chunk(first: Any, format: str) -> None:
    parser = parser_for("auto", first)
    parser.feed(first)
    assert parser.format == format


def test_auto_waits_for_a_whole_payload() -> None:
    parser = parser_for()
    assert parser.feed(b": OPENROUTER PROCESSING\n\n") == []
    assert parser.feed(b'data: {"choices"') == []
    assert (parser.format, parser.usage, parser.model, parser.error, parser.complete) == (
        "auto",
        None,
        None,
        None,
        False,
    )
    assert [d.data for d in parser.feed(b': [{"delta": {"content": "x"}}]}\n\n')] == [b"x"]
    assert parser.format == "openai"


def test_an_empty_stream_is_an_empty_text() -> None:
    body = parser_for().finish(message_id="m")
    assert (body["content"], body["role"], body["extra"]) == ([], "assistant", None)


def test_unknown_shapes_are_named() -> None:
    """Keys and kinds, so that one sees what it is; never what is in it."""
    for odd in ({"type": "text-delta", "delta": "secret"}, {f"key{n}": "secret" for n in range(20)}, {}):
        with pytest.raises(UsageError, match="begins with an object with keys") as refused:
            parser_for("auto", odd)
        assert "secret" not in str(refused.value)
    with pytest.raises(UsageError, match="choose openai, "):
        parser_for("gpt")
    for parser in (parser_for(), parser_for("openai")):
        with pytest.raises(UsageError, match="type int"):
            parser.feed(5)
    with pytest.raises(UsageError, match="no text"):
        parser_for("text").feed({"choices": []})


# ---- nothing that comes in may do harm -----------------------------------------------------------------

NAMED = {
    "openai": {"choices": [{"delta": {}}]},
    "openai-responses": {"type": "response.created", "response": {"id": "r"}},
    "anthropic": {"type": "message_start", "message": {"id": "m"}},
    "bedrock": {"messageStart": {"role": "assistant"}},
    "google": {"candidates": []},
    "google-interactions": {"event_type": "interaction.created", "interaction": {}},
    "cohere": {"type": "message-start", "id": "i"},
}


def test_every_format_is_fuzzed() -> None:
    assert {*NAMED, "text", "auto"} == set(FORMATS)
    assert {format: format_of(first) for format, first in NAMED.items()} == {
        format: format for format in NAMED
    }


@pytest.mark.parametrize("format", NAMED)
def test_unknown_events_are_counted_and_kept_out_of_the_way(format: str) -> None:
    """Between known ones, many of many names: a bounded count, no content, no error."""
    parser = parser_for(format)
    parser.feed(NAMED[format])
    for number in range(100):
        odd = {"type": f"new.{number}", "event_type": f"new.{number}", f"new{number}": {"secret": number}}
        assert parser.feed(odd) == []
    body = parser.finish(message_id="m")
    counted = unpack(body["extra"])[1]["stream"]["unknown"]
    assert sum(counted.values()) >= 100
    assert len(counted) <= UNKNOWN_NAMES_MAX + 1
    assert b"secret" not in body["extra"]


def _mutations() -> st.SearchStrategy[Any]:
    """A recorded stream (or a made-up start) with values replaced at random places."""
    return st.tuples(
        st.integers(0, 10**6),
        st.integers(0, 10**6),
        st.lists(st.tuples(st.integers(0, 60), json_values), max_size=3),
    )


@settings(max_examples=250, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(_mutations())
@pytest.mark.skipif(not RECORDED, reason="the shared data is not there; set REFOLD_SHARED_DATA")
def test_damaged_streams_end_in_a_message_or_a_deliberate_error(drawn: Any) -> None:
    """Values of any type anywhere in a few recorded events: a message the wire takes, or a RefoldError."""
    which, where, changes = drawn
    recording: Recording = RECORDED[which % len(RECORDED)]
    first = where % max(1, len(recording.payloads) - 12)
    payloads = json.loads(json.dumps(recording.payloads[:1] + recording.payloads[first : first + 12]))
    for place, value in changes:
        _replace(payloads, place, value)
    _run_all(payloads)


def _replace(payloads: list[Any], place: int, value: Any) -> None:
    holders: list[tuple[Any, Any]] = []
    pending: list[Any] = payloads[1:]
    while pending:
        item = pending.pop(0)
        for key, inner in list(item.items() if isinstance(item, dict) else enumerate(item)):
            holders.append((item, key))
            if isinstance(inner, dict | list):
                pending.append(inner)
    if holders:
        holder, key = holders[place * 7 % len(holders)]
        holder[key] = value


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(sorted(NAMED)), st.lists(st.dictionaries(odd_keys, json_values, max_size=3), max_size=4)
)
def test_odd_payloads_end_in_a_message_or_a_deliberate_error(format: str, odd: list[dict[str, Any]]) -> None:
    first = NAMED[format]
    _run_all([first, *({**first, **one} for one in odd), *odd], format)


def _run_all(payloads: list[Any], format: str = "auto") -> None:
    parser = parser_for(format)
    try:
        for payload in payloads:
            for delta in parser.feed(payload):
                assert isinstance(delta.data, bytes)
                assert delta.call_id is None or isinstance(delta.call_id, str)
                assert delta.name is None or isinstance(delta.name, str)
                delta.data.decode("utf-8")
        body_through_bytes(parser.finish(message_id="m"))
    except (InvalidRecord, UsageError):
        return


async def test_a_provider_that_blocks_takes_none_of_the_threads_that_all_share() -> None:
    """Goal: models that say nothing for a while hold up neither reads nor each other."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    speak = threading.Event()

    def silent() -> Iterator[str]:
        yield "a"
        speak.wait(30)
        yield "b"

    try:
        async with aclosing(chunks_of(silent())) as chunks:  # type: ignore[type-var]
            assert await anext(chunks) == "a"
            waiting = asyncio.ensure_future(anext(chunks))
            await asyncio.sleep(0.05)
            assert await asyncio.wait_for(asyncio.to_thread(lambda: "read"), 5) == "read"
            speak.set()
            assert await waiting == "b"
    finally:
        speak.set()
