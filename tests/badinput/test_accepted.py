"""What looks bad and is not: accepted, recognised, forwarded, or refused before it is a record."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from confluent_kafka import KafkaError

from badinput.registry import NEWER_ID, newer_body
from badinput.world import World
from engine.check import differences
from engine.traffic import TENANT, message_event
from refold.client import Refold
from refold.core.envelope import Envelope
from refold.core.slots import make_key
from refold.engine.recordheaders import APPEND_MS, CODE, HOPS, ORIGIN
from refold.errors import InvalidRecord
from refold.settings import Settings
from refold.wire import parts
from refold.wire.envelope import encode_envelope
from refold.wire.framing import frame
from refold.wire.journal import decode_journal
from refold.wire.snapshot import decode_snapshot

pytestmark = pytest.mark.broker

F = TypeVar("F", bound=Callable[..., object])

COVERED: set[str] = set()
P = 1

YEAR_1970, YEAR_2100 = 0, 4_102_444_800_000


def case(*names: str) -> Callable[[F], F]:
    """Marks the test of a case, so that none of the page's rows is without one."""
    COVERED.update(names)
    return lambda function: function


def accepted(world: World, env: Envelope, **options: object) -> dict[str, object]:
    """Accepted, in the journal with the envelope's own bytes; the bystanders are untouched. The state."""
    mark = world.mark()
    world.accept(env, **options)  # type: ignore[arg-type]
    world.settle(P, mark, rejected=0)
    [entry] = [
        entry
        for message in world.journal(mark.journal)
        if (entry := decode_journal(message.value())).env.event_id == env.event_id
    ]
    assert entry.env == env
    assert world.rejected(mark.rejected) == []
    state = world.state(make_key(env.tenant, env.session))
    assert state is not None
    found: dict[str, object] = decode_snapshot(state)
    return found


def only_message(state: dict[str, object]) -> dict[str, object]:
    [message] = state["context"]["recent_messages"]  # type: ignore[index]
    assert isinstance(message, dict)
    return message


@case("unknown type", "unknown version of a known type")
@pytest.mark.parametrize("changes", [{"type": "acme.Ticket"}, {"type_version": 99}], ids=["type", "version"])
def test_unknown_types_are_kept_and_passed_on(world: World, changes: dict[str, object]) -> None:
    """Goal: sequenced, in the journal untouched, without effect on the context."""
    state = accepted(
        world, world.message(world.session(P), **changes, payload=b"\x00what only its owner reads")
    )
    assert state["seq"] == 1
    assert state["context"]["recent_messages"] == []  # type: ignore[index]


@case("unknown enum symbol of a newer schema")
def test_a_symbol_of_a_newer_schema_is_read_as_its_default(world: World) -> None:
    """Goal: another team's registry has a newer envelope; its actor's kind becomes ``unknown``."""
    env = world.message(world.session(P))
    mark = world.mark()
    world.send(make_key(TENANT, env.session), frame(NEWER_ID) + newer_body(env), P)
    world.sent.accepted.add(env.event_id)
    world.wait_journal(env.event_id, mark)
    world.settle(P, mark, rejected=0)
    found = decode_journal(world.journal(mark.journal)[0].value()).env
    assert found.actor is not None
    assert (found.actor.kind, found.actor.id) == ("unknown", "r-1")
    assert found.payload == env.payload


@case("NUL in a text", "NUL in the session id")
def test_nul_is_text_like_any_other(world: World) -> None:
    state = accepted(world, world.message(world.session(P, "nul\0"), text="a\0b"))
    assert "nul\0" in str(state["session_id"])
    assert only_message(state)["content"][0]["text"].startswith("a\0b")  # type: ignore[index]


@case("arguments with an escaped lone surrogate")
def test_arguments_are_kept_as_they_came_and_flagged(world: World) -> None:
    call = {"operation_id": "op", "tool": "t", "arguments": '{"a": "\\ud800"}', "call_id": "c"}
    state = accepted(world, world.event(world.session(P), "ToolCallIntended", call))
    [row] = state["tools"]  # type: ignore[misc]
    assert (row["arguments"], row["arguments_valid"]) == ('{"a": "\\ud800"}', False)


@case("event time 1970", "event time 2100", "event time at the ends of a long", "record time 1970 and 2100")
@pytest.mark.parametrize("at", [YEAR_1970, YEAR_2100, -(2**63), 2**63 - 1, -1])
def test_a_producers_clock_is_data(world: World, at: int) -> None:
    """Goal: session time is the broker's append time, whatever envelope and record say."""
    before = time.time_ns() // 1_000_000
    env = world.message(world.session(P), event_time_ms=at)
    state = accepted(world, env, timestamp=at if at == YEAR_2100 else 1)
    # The embedded broker and this process share a clock; a minute covers a broker elsewhere.
    assert before - 60_000 <= state["updated_at_ms"] <= time.time_ns() // 1_000_000 + 60_000  # type: ignore[operator]
    assert state["created_at_ms"] == state["updated_at_ms"]


@case("record of 1 MB")
def test_a_megabyte_in_one_message_is_elided_in_the_state(world: World) -> None:
    """Goal: whole in the journal, length and digest in the state, the state record small."""
    env = world.message(world.session(P), text="x" * 1_000_000)
    message = only_message(accepted(world, env))
    assert message["content"] == []
    assert message["elided"]["length"] > 1_000_000  # type: ignore[index]
    assert len(world.state(make_key(TENANT, env.session)) or b"") < 2_000


@case("wrong partition")
def test_a_record_on_another_partition_is_forwarded_once(world: World) -> None:
    """Goal: folded by its owner only; the journal has it at home, with the origin's partition nowhere."""
    env = world.message(world.session(P))
    key, mark, away = make_key(TENANT, env.session), world.mark(), P + 1
    origin = world.send(key, encode_envelope(env), away)
    world.sent.accepted.add(env.event_id)
    world.wait_journal(env.event_id, mark)
    world.wait_state(key, mark)
    for partition in (away, P):
        world.settle(partition, mark, rejected=0)
    [at_home] = [m for m in world.journal(mark.journal) if m.key() == key]
    assert at_home.partition() == P
    copies = [m for m in world.cluster.read(world.topics.inbox) if m.key() == key]
    assert sorted(m.partition() for m in copies) == [P, away]
    [copy] = [m for m in copies if m.partition() == P]
    headers = dict(copy.headers())
    assert headers[HOPS] == b"1"
    assert headers[ORIGIN].decode() == f"{world.topics.inbox}/{away}/{origin.offset}"  # type: ignore[union-attr]


@case("wrong partition and undecodable")
def test_a_bad_record_on_another_partition_is_rejected_at_home(world: World) -> None:
    """Goal: once, by the owner; its origin is the copy, whose own headers name the first place."""
    key, mark, away = make_key(TENANT, world.session(P)), world.mark(), P + 1
    world.send(key, b"hello", away)
    world.settle(away, mark, rejected=1)
    world.settle(P, mark, rejected=1)
    [found] = world.rejected(mark.rejected)
    headers = dict(found.headers())
    assert (found.key(), found.value(), headers[CODE]) == (key, b"hello", b"bad_magic")
    topic, partition, offset = headers[ORIGIN].decode().rsplit("/", 2)
    assert (topic, int(partition), headers[HOPS]) == (world.topics.inbox, P, b"1")
    world.sent.rejected.add((int(partition), int(offset)))


@case("null value", "null value without a session")
def test_a_null_value_deletes(world: World) -> None:
    """Goal: a tombstone in the state topic, the deletion in the journal; without a session nothing."""
    env = world.message(world.session(P))
    key = make_key(TENANT, env.session)
    mark = world.mark()
    world.send(key, None, P)
    good = world.settle(P, mark, rejected=0)
    assert [m.key() for m in world.journal(mark.journal)] == [good]
    world.accept(env)
    mark = world.mark()
    world.send(key, None, P)
    world.wait_state(key, mark)
    world.settle(P, mark, rejected=0)
    assert world.state(key) is None
    deleted = decode_journal(world.journal(mark.journal)[0].value())
    assert (deleted.env.type, deleted.seq) == ("SessionDeleted", 2)
    world.sent.accepted.add(deleted.env.event_id)
    again = world.message(env.session)
    assert accepted(world, again)["seq"] == 1


@case("event id with the same content")
def test_a_repeat_changes_nothing(world: World) -> None:
    env = world.message(world.session(P))
    key = make_key(TENANT, env.session)
    world.accept(env)
    mark, before = world.mark(), world.state(key)
    world.send(key, encode_envelope(env), P)
    good = world.settle(P, mark, rejected=0)
    assert [m.key() for m in world.journal(mark.journal)] == [good]
    assert world.rejected(mark.rejected) == []
    assert world.state(key) == before


@case("made-up headers of ours")
def test_headers_in_our_names_are_not_believed(world: World) -> None:
    """Goal: an origin from the future does not move session time; none of our names reaches the journal."""
    env = world.message(world.session(P))
    mark = world.mark()
    sent = [
        (ORIGIN, b"x/0/0"),
        (HOPS, b"1"),
        (APPEND_MS, b"9000000000000"),
        ("refold-code", b"x"),
        ("a", b"1"),
    ]
    state = accepted(world, env, headers=sent)
    assert state["updated_at_ms"] < YEAR_2100  # type: ignore[operator]
    [found] = [m for m in world.journal(mark.journal) if m.key() == make_key(TENANT, env.session)]
    assert found.headers() == [("refold-type", b"MessageAppended"), ("a", b"1")]


@case("compressed record above the topic's limit")
def test_kafka_refuses_what_no_topic_takes(world: World) -> None:
    """Goal: the producer is told; nothing lands. Method: 3 MB that do not compress."""
    noise = random.Random(1).randbytes(1_500_000).hex()
    env = message_event(1, world.session(P), text=noise)
    mark = world.mark()
    refused = world.send(make_key(TENANT, env.session), encode_envelope(env), P)
    assert isinstance(refused, KafkaError)
    assert refused.code() == KafkaError.MSG_SIZE_TOO_LARGE
    good = world.settle(P, mark, rejected=0)
    assert [m.key() for m in world.journal(mark.journal)] == [good]


def client(world: World, directory: Path) -> Refold:
    settings = Settings(
        topic_prefix=world.cluster.prefix, tenant=TENANT, blobs={"url": f"file://{directory}/blobs"}
    )
    return Refold(settings, bootstrap=world.cluster.bootstrap)


@case("lone surrogate through the SDK", "5 MB of tool output through the SDK")
async def test_the_sdk_refuses_or_refers_before_it_sends(world: World, tmp_path: Path) -> None:
    """Goal: half a pair never becomes a record; 5 MB of tool output are a reference and come back whole."""
    name, output = world.session(P), "tool output " * 420_000
    async with client(world, tmp_path) as rf:
        chat = rf.session(name)
        with pytest.raises(InvalidRecord, match="half of a surrogate pair") as raised:
            await chat.append("\ud800")
        assert raised.value.code == "lone_surrogate"
        mark = world.mark()
        await chat.append([parts.tool_call("c1", "cat", "{}")], role="assistant", message_id="m1")
        await chat.tool_intended("op1", "cat", "{}", call_id="c1", asked_by="m1")
        await chat.tool_started("op1", holder="me")
        receipt = await chat.tool_completed("op1", output, call_id="c1")
        assert await receipt.accepted() == 4
        context = await chat.context(format="openai", load_blobs=True)
        assert context.messages[-1] == {"role": "tool", "tool_call_id": "c1", "content": output}
    key = make_key(TENANT, name)
    world.settle(P, mark, rejected=0)
    mine = [decode_journal(m.value()) for m in world.journal(mark.journal) if m.key() == key]
    world.sent.accepted.update(entry.env.event_id for entry in mine)
    assert [entry.seq for entry in mine] == [1, 2, 3, 4]
    assert len(mine[-1].env.payload) < 10_000


def test_nothing_came_later(world: World) -> None:
    """Goal: over all cases, state = fold(journal), gapless, and what cannot be taken is rejected once."""
    assert differences(world.cluster, world.sent) == []
