"""Every recorded stream, by ``auto``: what the parsers give equals an independent reading of the files."""

from __future__ import annotations

import json
from collections import defaultdict
from random import Random
from typing import Any

import pytest

from refold.formats.context import render
from refold.formats.extra import unpack
from refold.formats.jsonio import first_difference
from refold.formats.parts import text
from refold.formats.streams import Delta, StreamParser, message_out, parser_for
from refold.formats.validate import problems

from .stream_readings import DATA, Recording, all_recordings, counts_in_sources, cut, reading_of, recordings
from .support import body_through_bytes, kept_whole, snapshot

RECORDED = all_recordings()


class Sent:
    """As an SDK's object: fields that were not sent are not dumped when asked so."""

    def __init__(self, payload: dict[str, Any]) -> None:
        self._payload = payload

    def model_dump(self, *, by_alias: bool, exclude_unset: bool) -> dict[str, Any]:
        assert (by_alias, exclude_unset) == (True, True)
        return dict(self._payload)


def fed(chunks: Any, format: str = "auto") -> tuple[StreamParser, list[Delta]]:
    parser = parser_for(format)
    return parser, [delta for chunk in chunks for delta in parser.feed(chunk)]


def joined(deltas: list[Delta], kind: str) -> bytes:
    return b"".join(delta.data for delta in deltas if delta.kind == kind)


def calls_of(deltas: list[Delta], after: int = -1) -> list[tuple[str, str]]:
    """(name, arguments) of the calls told by deltas."""
    data: dict[int, bytes] = defaultdict(bytes)
    names: dict[int, str] = {}
    for delta in deltas:
        if delta.part > after and delta.name not in ("citation", "restart"):
            data[delta.part] += delta.data
            if delta.name is not None:
                names[delta.part] = delta.name
    return [(names[part], data[part].decode()) for part in sorted(names)]


@pytest.mark.parametrize("recording", RECORDED)
def test_deltas_equal_an_independent_reading(recording: Recording) -> None:
    """Text, reasoning and usage; the text byte by byte. The payloads go in as dicts, untouched by it."""
    format, expected = reading_of(recording)
    before = json.dumps(recording.payloads)
    parser, deltas = fed(recording.payloads)
    assert json.dumps(recording.payloads) == before
    assert parser.format == format
    assert joined(deltas, "text") == expected.text.encode()
    assert joined(deltas, "reasoning") == expected.reasoning.encode()
    assert (parser.usage and (parser.usage.input, parser.usage.output)) == expected.usage
    assert parser.usage_mode == "total"
    if parser.provider_response_id is None:  # Converse has none, and a stateless interaction an empty one.
        assert "bedrock" in recording.name or "stateless" in recording.name
    else:
        assert f'"{parser.provider_response_id}"' in before
    assert parser.complete or parser.error is not None


@pytest.mark.parametrize("recording", RECORDED)
def test_arguments_are_the_raw_text(recording: Recording) -> None:
    """D08: in the message and, joined, in the deltas; a call without any text has the provider's value."""
    _, expected = reading_of(recording)
    parser, deltas = fed(recording.payloads)
    body = parser.finish(message_id="m")
    kinds = ("tool_call", "provider_tool_call") if parser.format == "anthropic" else ("tool_call",)
    made = [item.fields for item in body["content"] if item.type in kinds]
    assert [(one["name"], one["arguments"]) for one in made] == expected.arguments
    assert all(one["arguments_valid"] is _is_json(one["arguments"]) for one in made)
    restart = next((delta.part for delta in deltas if delta.name == "restart"), -1)
    told = [(name, raw or "{}") for name, raw in calls_of(deltas, restart)]
    assert [one for one in told if one in [(n, r or "{}") for n, r in expected.arguments]] == [
        (name, raw or "{}") for name, raw in expected.arguments
    ]


def _is_json(raw: str) -> bool:
    try:
        json.loads(raw)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("recording", RECORDED)
def test_every_form_of_chunk_gives_the_same(recording: Recording) -> None:
    """Dicts, SDK objects, the body's bytes in random cuts, its lines as text: same deltas, same message."""
    parser, deltas = fed(recording.payloads)
    body = parser.finish(message_id="m")
    forms: dict[str, Any] = {
        "objects": map(Sent, recording.payloads),
        "one body": [recording.body],
        "cuts": cut(recording.body, Random(recording.name)),
    }
    if not recording.body.startswith(b"\0"):
        forms["lines"] = recording.body.decode().split("\n")
        forms["json lines"] = [json.dumps(one) + "\n" for one in recording.payloads]
    for name, chunks in forms.items():
        other, told = fed(chunks)
        assert told == deltas, name
        assert other.finish(message_id="m") == body, name
        assert (other.usage, other.finish_reason, other.error) == (
            parser.usage,
            parser.finish_reason,
            parser.error,
        )


@pytest.mark.parametrize("recording", RECORDED)
def test_the_message_survives_the_wire_and_goes_to_providers(recording: Recording) -> None:
    """In real bytes and back: nothing kept whole beside its fields, the same shape, and a valid context."""
    parser, _ = fed(recording.payloads)
    body = parser.finish(message_id="m")
    read_back = body_through_bytes(body)
    assert kept_whole(body) == []
    shape = parser.format if body["extra_format"] is None else None
    assert first_difference(message_out(body, shape), message_out(read_back, shape)) is None
    assert "$refold" not in json.dumps(message_out(body, shape))
    user = {
        **read_back,
        "role": "user",
        "message_id": "u",
        "content": [text("hi")],
        "extra": None,
        "extra_format": None,
    }
    for provider in ("openai", "anthropic"):
        assert problems(render(snapshot([user, read_back]), provider), provider) == []


@pytest.mark.parametrize("recording", RECORDED)
def test_the_shape_is_the_providers_own(recording: Recording) -> None:
    """Against what the provider itself says in whole (Responses' output, Anthropic's whole message), and else
    the independent reading of text and calls.
    """
    format, expected = reading_of(recording)
    parser, _ = fed(recording.payloads)
    made = message_out(parser.finish(message_id="m"), format)
    if format == "openai-responses":
        items = [one["item"] for one in recording.payloads if one["type"] == "response.output_item.done"]
        assert first_difference(items, made) is None
    elif not recording.streamed:
        assert first_difference(recording.payloads[0], made) is None
    elif format == "openai":
        assert (made["content"] or "") == expected.text
        assert [c["function"]["arguments"] for c in made.get("tool_calls") or []] == [
            raw for _, raw in expected.arguments
        ]
    elif format == "anthropic":
        starts = [
            one["content_block"]["type"] for one in recording.payloads if one["type"] == "content_block_start"
        ]
        kinds = [block["type"] for block in made["content"]]
        assert kinds == starts[len(starts) - len(kinds) :]
        assert made["stop_reason"] == parser.finish_reason
        assert [b["input"] for b in made["content"] if b["type"].endswith("_use")] == [
            json.loads(raw) for _, raw in expected.arguments
        ]
        signed = [b["signature"] for b in made["content"] if b["type"] == "thinking"]
        assert all(f'"{one}"'.encode() in recording.body for one in signed)
        cited = [c for b in made["content"] for c in b.get("citations") or []]
        assert cited == [
            p["delta"]["citation"] for p in recording.payloads if p.get("delta", {}).get("citation")
        ]


def _one_answer(recording: Recording | None) -> bool:
    """Of a format whose answers can be fetched in whole, and only one of them in the file."""
    starts = ("message_start", "response.created")
    return recording is None or sum(one.get("type") in starts for one in recording.payloads) == 1


@pytest.mark.parametrize("recording", [one for one in RECORDED if _one_answer(one.values[0])])
def test_what_is_looked_up_has_the_same_parts(recording: Recording) -> None:
    """The whole answer in one chunk gives the streamed deltas again, part by part: what is recorded of a
    stream can be passed over (``skip_prefix``) when the answer is fetched instead.
    """
    parser, deltas = fed(recording.payloads)
    body = parser.finish(message_id="m")
    whole: Any = message_out(body, parser.format)
    if parser.format == "openai-responses":
        whole = {"object": "response", "id": "r", "status": "completed", "output": whole}
    _, fetched = fed([whole])
    assert by_part(fetched) == by_part(deltas)


def by_part(deltas: list[Delta]) -> dict[tuple[str, int], Any]:
    """What each part says; of calls and citations the value, for a whole answer has no raw text of them."""
    made: dict[tuple[str, int], bytes] = defaultdict(bytes)
    for delta in deltas:
        made[delta.kind, delta.part] += delta.data
    read = {
        key: json.loads(data) if data[:1] == b"{" and _is_json(data.decode()) else data
        for key, data in made.items()
    }
    return {key: {} if value == b"" and key[0] == "tool_call" else value for key, value in read.items()}


def test_chunks_are_counted_as_in_the_sources() -> None:
    """Every file of the list is read, with as many chunks as it says."""
    found: dict[str, int] = defaultdict(int)
    for recording in recordings():
        found[recording.name.split("#")[0]] += recording.chunks
    if not found:
        pytest.skip(f"{DATA / 'SOURCES.md'} is not there; set REFOLD_SHARED_DATA")
    listed = {name: count for name, count in counts_in_sources().items() if name in found}
    assert len(listed) == 68
    assert {name: found[name] for name in listed} == listed


@pytest.mark.parametrize("recording", RECORDED)
def test_a_stream_cut_anywhere_gives_what_came(recording: Recording) -> None:
    """Killed after any chunk or byte: no error, the text is a prefix of the whole, and the message has it."""
    _, expected = reading_of(recording)
    random = Random(recording.name)
    for _ in range(4):
        end = random.randrange(len(recording.body) + 1)
        parser, deltas = fed([recording.body[:end]])
        _check_cut(parser, deltas, expected.text)
        end = random.randrange(len(recording.payloads) + 1)
        parser, deltas = fed(recording.payloads[:end])
        _check_cut(parser, deltas, expected.text)


def _check_cut(parser: StreamParser, deltas: list[Delta], whole: str) -> None:
    came = joined(deltas, "text")
    assert whole.encode().startswith(came)
    body = body_through_bytes(parser.finish(message_id="m"))
    said = "".join(item.text or "" for item in body["content"] if item.type == "text")
    assert said.encode() == came or unpack(body["extra"])[1]["stream"]["superseded"]
