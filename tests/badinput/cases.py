"""The cases of docs/concepts/bad-input.md: how to make the record, and what must come of it.

The page's table and these lists name the same cases with the same outcomes; a test compares them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from badinput.registry import newer_body
from badinput.world import Headers, World
from engine.traffic import TENANT, message_event
from refold.core.session import initial
from refold.core.slots import make_key
from refold.engine.forwards import HOPS_MAX
from refold.engine.recordheaders import APPEND_MS, HOPS, ORIGIN
from refold.wire import parts
from refold.wire.envelope import encode_envelope, newest
from refold.wire.framing import frame
from refold.wire.snapshot import encode_snapshot

MARK = "€€€"
#: U+D800 as some encoders write it: the length of one "€", so the record's lengths stay right.
HALF_PAIR = b"\xed\xa0\x80"

Made = tuple[bytes | None, bytes | None]


@dataclass(frozen=True, slots=True)
class Case:
    """One record; ``make(world, partition)`` gives key and value. ``code`` is the reject code."""

    name: str
    code: str
    make: Callable[[World, int], Made]
    headers: Headers = ()
    #: Sent beside the key's own partition.
    astray: bool = False


def _on_good_key(value: bytes | None) -> Callable[[World, int], Made]:
    return lambda world, partition: (make_key(TENANT, world.session(partition)), value)


def _with_key(key: bytes | None) -> Callable[[World, int], Made]:
    return lambda world, partition: (key, encode_envelope(world.message(world.session(partition))))


def _changed(change: Callable[[bytes], bytes], **fields: object) -> Callable[[World, int], Made]:
    """A good record with other bytes."""

    def make(world: World, partition: int) -> Made:
        env = world.message(world.session(partition), text=MARK, **fields)
        return make_key(TENANT, env.session), change(encode_envelope(env))

    return make


def _event(kind: str, payload: dict[str, object], **fields: object) -> Callable[[World, int], Made]:
    def make(world: World, partition: int) -> Made:
        env = world.event(world.session(partition), kind, payload, **fields)
        return make_key(TENANT, env.session), encode_envelope(env)

    return make


def _message(**fields: object) -> Callable[[World, int], Made]:
    def make(world: World, partition: int) -> Made:
        env = world.message(world.session(partition), **fields)
        return make_key(TENANT, env.session), encode_envelope(env)

    return make


def _mismatch(world: World, partition: int) -> Made:
    env = world.message(world.session(partition))
    return make_key(TENANT, world.session(partition)), encode_envelope(env)


def _other_tenant(world: World, partition: int) -> Made:
    env = world.message(world.session(partition), tenant="other")
    return make_key(TENANT, env.session), encode_envelope(env)


def _unknown_symbol(world: World, partition: int) -> Made:
    """The symbol's number under *our* schema, which has none of that number."""
    env = world.message(world.session(partition))
    return make_key(TENANT, env.session), newest().frame + newer_body(env)


def _nested(world: World, partition: int) -> Made:
    """Results within results: a reader that follows them all runs out of stack."""
    part = parts.text("x")
    for _ in range(3_000):
        part = parts.tool_result("c", [part])
    name = world.session(partition)
    payload = {"message_id": "m", "role": "tool", "content": [parts.to_wire(part)]}
    return make_key(TENANT, name), encode_envelope(world.event(name, "MessageAppended", payload))


def _closed(world: World, partition: int) -> Made:
    name = world.session(partition)
    world.accept(world.message(name))
    world.accept(world.event(name, "SessionClosed", {"reason": None}))
    return make_key(TENANT, name), encode_envelope(world.message(name))


def _event_id_again(world: World, partition: int) -> Made:
    name = world.session(partition)
    first = world.message(name)
    world.accept(first)
    other = world.message(name, text="other content", event_id=first.event_id)
    return make_key(TENANT, name), encode_envelope(other)


def _message_id_again(world: World, partition: int) -> Made:
    name = world.session(partition)
    first = world.message(name)
    world.accept(first)
    number = int(first.event_id.removeprefix("e"))
    other = message_event(number, name, text="other content", event_id=f"{first.event_id}-again")
    return make_key(TENANT, name), encode_envelope(other)


def _snapshot(world: World, partition: int) -> Made:
    session = initial(TENANT, world.session(partition))
    return make_key(TENANT, session.session), encode_snapshot(session)


def _huge(size: int) -> Callable[[World, int], Made]:
    """Compresses well: the broker takes it, though it is longer than any topic's limit."""
    return _message(text="tool output " * (size // 12))


#: Name bytes count threefold in the worker's estimate of a record's size: 500 KB of them are too many.
MANY_HEADERS: Headers = [(f"h{number:03}" + "x" * 996, b"") for number in range(500)]

ASTRAY: Headers = [(ORIGIN, b"elsewhere.inbox/0/1"), (HOPS, b"%d" % HOPS_MAX), (APPEND_MS, b"1700000000000")]

REJECTED: tuple[Case, ...] = (
    # the value
    Case("empty value", "empty_value", _on_good_key(b"")),
    Case("JSON instead of Avro", "bad_magic", _on_good_key(b'{"role": "user", "content": "hello"}')),
    Case("text instead of Avro", "bad_magic", _on_good_key(b"hello")),
    Case("shorter than its frame", "bad_frame", _on_good_key(b"\x00\x52\x46")),
    Case("unknown schema id", "unknown_schema", _on_good_key(frame(7) + b"anything")),
    Case("unknown schema GUID", "unknown_schema", _on_good_key(b"\x01" + b"g" * 16 + b"anything")),
    Case("undecodable bytes", "undecodable", _on_good_key(newest().frame + b"\xff" * 40)),
    Case("cut short", "undecodable", _changed(lambda value: value[:-1])),
    Case("bytes after the record", "undecodable", _changed(lambda value: value + b"\x00")),
    Case("record of another subject", "unknown_subject", _snapshot),
    Case("payload of another type", "unknown_subject", _message(type="FactSet")),
    Case("payload without a frame", "bad_magic", _message(payload=b"hello")),
    Case("empty payload of a known type", "empty_value", _message(payload=b"")),
    Case("enum number out of range", "undecodable", _unknown_symbol),
    Case("parts nested without end", "undecodable", _nested),
    # texts
    Case(
        "lone surrogate", "lone_surrogate", _changed(lambda value: value.replace(MARK[0].encode(), HALF_PAIR))
    ),
    Case("text not UTF-8", "bad_text", _changed(lambda value: value.replace(MARK.encode(), b"\xff" * 9))),
    Case(
        "fact with an escaped lone surrogate",
        "bad_json",
        _event("FactSet", {"name": "n", "value": '"\\ud800"'}),
    ),
    # the key
    Case("missing key", "bad_key", _with_key(None)),
    Case("missing key and null value", "bad_key", lambda _world, _partition: (None, None)),
    Case("empty key", "bad_key", _with_key(b"")),
    Case("key without a slash", "bad_key", _with_key(b"session-1")),
    Case("key without a tenant", "bad_key", _with_key(b"/session-1")),
    Case("key not UTF-8", "bad_key", _with_key(b"acme/\xff\xfe")),
    Case("key too long", "bad_key", _with_key(b"acme/" + b"s" * 508)),
    Case("key of another session", "key_mismatch", _mismatch),
    Case("key of another tenant", "key_mismatch", _other_tenant),
    Case("forwarded too often", "too_many_hops", _message(), ASTRAY, astray=True),
    # size
    Case("5 MB in one record", "too_large", _huge(5_000_000)),
    Case("too many header bytes", "too_large", _message(text="x" * 200_000), MANY_HEADERS),
    Case("fact too large", "too_large", _event("FactSet", {"name": "n", "value": '"' + "x" * 9_000 + '"'})),
    # ids and life
    Case("empty event id", "bad_id", _message(event_id="")),
    Case("event id too long", "bad_id", _message(event_id="e" * 257)),
    Case(
        "type reserved for the worker",
        "reserved_type",
        _event("SessionEventParked", {"event_id": "e", "partition": 0, "offset": 0}),
    ),
    Case("event for a closed session", "session_closed", _closed),
    Case("event id with other content", "conflict", _event_id_again),
    Case("message id with other content", "conflict", _message_id_again),
)

#: Accepted, though unusual. Name -> outcome; each has a test of its own in test_accepted.py.
OTHER: dict[str, str] = {
    "unknown type": "accepted",
    "unknown version of a known type": "accepted",
    "unknown enum symbol of a newer schema": "accepted",
    "NUL in a text": "accepted",
    "NUL in the session id": "accepted",
    "arguments with an escaped lone surrogate": "accepted",
    "event time 1970": "accepted",
    "event time 2100": "accepted",
    "event time at the ends of a long": "accepted",
    "record time 1970 and 2100": "accepted",
    "record of 1 MB": "accepted",
    "wrong partition": "forwarded",
    "wrong partition and undecodable": "forwarded, then rejected",
    "null value": "deletes",
    "null value without a session": "duplicate",
    "event id with the same content": "duplicate",
    "made-up headers of ours": "accepted",
    "compressed record above the topic's limit": "refused by Kafka",
    "lone surrogate through the SDK": "refused by the SDK",
    "5 MB of tool output through the SDK": "accepted",
    "registry does not answer": "worker stops",
}
