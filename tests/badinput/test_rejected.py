"""What cannot be taken: one record in the rejected topic, with code, bytes and origin, and nothing else."""

from __future__ import annotations

import hashlib

import pytest
from confluent_kafka import Message

from badinput.cases import REJECTED, Case
from badinput.world import Headers, Mark, Place, World
from engine.check import differences
from refold.core.codes import WAY_OUT
from refold.engine import recordheaders
from refold.engine.recordheaders import APPEND_MS, CODE, ORIGIN, REASON

pytestmark = pytest.mark.broker


def whole(found: Message, key: bytes | None, value: bytes | None) -> bool:
    """The original bytes; of a record too large for the topic a named beginning, its length and digest."""
    headers = dict(found.headers())
    if recordheaders.VALUE_LENGTH not in headers:
        return found.key() == key and found.value() == value
    assert value is not None
    return (
        found.key() == key
        and found.value() == value[: recordheaders.VALUE_HEAD_BYTES]
        and int(headers[recordheaders.VALUE_LENGTH]) == len(value)
        and headers[recordheaders.VALUE_SHA256].decode() == hashlib.sha256(value).hexdigest()
    )


def only_that(world: World, mark: Mark, place: Place, code: str) -> Message:
    """The one rejected record since ``mark``; journal and state hold nothing but the good event after it."""
    [found] = world.rejected(mark.rejected)
    headers = dict(found.headers())
    assert headers[CODE].decode() == code
    assert code in WAY_OUT
    assert headers[REASON]
    assert headers[ORIGIN].decode() == f"{world.topics.inbox}/{place.partition}/{place.offset}"
    assert int(headers[APPEND_MS]) > 0
    assert found.partition() == place.partition
    return found


@pytest.mark.parametrize("number", range(len(REJECTED)), ids=[case.name for case in REJECTED])
def test_rejected_and_the_partition_goes_on(world: World, number: int) -> None:
    """Goal: one rejected record, the bystanders' states byte-equal, the next event accepted."""
    case: Case = REJECTED[number]
    partition = number % world.cluster.partitions
    key, value = case.make(world, partition)
    mark = world.mark()
    where = (partition + 1) % world.cluster.partitions if case.astray else partition
    place = world.send(key, value, where, headers=case.headers)
    assert isinstance(place, Place), place
    world.sent.rejected.add((place.partition, place.offset))
    before = world.state(key or b"")
    good = world.settle(where, mark, rejected=1)
    found = only_that(world, mark, place, case.code)
    assert whole(found, key, value)
    assert kept(found, case.headers)
    assert [message.key() for message in world.journal(mark.journal)] == [good]
    assert {message.key() for message in world.states(mark.states)} == {good}
    assert world.state(key or b"") == before


def kept(found: Message, headers: Headers) -> bool:
    """Headers of the sender are there too, but for our own names and more than fit."""
    names = {name for name, _ in found.headers()}
    ours = {ORIGIN, APPEND_MS}
    return recordheaders.DROPPED in names or all(name in names for name, _ in headers if name not in ours)


def test_nothing_came_later(world: World) -> None:
    """Goal: over all cases, state = fold(journal), gapless, and what cannot be taken is rejected once."""
    assert differences(world.cluster, world.sent) == []
