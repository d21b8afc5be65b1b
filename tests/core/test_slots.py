"""Keys, slots and partitions: the wire contract with every other producer."""

from __future__ import annotations

import pytest

from refold.core.slots import SLOTS, SLOTS_MIN, SlotMap, make_key, murmur2, slots_for, split_key
from refold.errors import ConfigError, InvalidRecord

#: From Apache Kafka's own UtilsTest.testMurmur2 (signed, as Java prints them).
JAVA = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}


@pytest.mark.parametrize(("text", "signed"), JAVA.items())
def test_murmur2_is_javas(text: str, signed: int) -> None:
    assert murmur2(text.encode()) == signed & 0xFFFFFFFF


@pytest.mark.parametrize(
    "partitions", [1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 16, 24, 32, 48, 64, 96, 100, 1000, 16_385]
)
def test_the_first_map_is_javas_default_partitioner(partitions: int) -> None:
    slot_map = SlotMap(partitions)
    for i in range(500):
        key = f"tenant{i % 7}/session-{i}".encode()
        assert slot_map.partition(key) == (murmur2(key) & 0x7FFFFFFF) % partitions
        assert 0 <= slot_map.slot(key) < slot_map.slots


def test_slot_counts() -> None:
    for partitions in range(1, 400):
        slots = slots_for(partitions)
        assert slots % partitions == 0
        assert slots == SLOTS or slots - partitions < SLOTS_MIN <= slots
    for partitions in (4, 6, 8, 12, 16, 24, 32, 48, 64, 96):
        assert slots_for(partitions) == SLOTS
    for partitions in (0, -1, 100_001):
        with pytest.raises(ConfigError, match="partitions"):
            slots_for(partitions)


def test_an_assignment_moves_slots() -> None:
    slots = slots_for(4)
    moved = SlotMap(5, epoch=1, assignment=[4 if s == 7 else s % 4 for s in range(slots)])
    first = SlotMap(4)
    differ = [
        k for k in (f"t/s{i}".encode() for i in range(30_000)) if moved.partition(k) != first.partition(k)
    ]
    assert differ
    assert all(first.slot(k) == 7 and moved.partition(k) == 4 for k in differ)
    with pytest.raises(ConfigError, match="slot map"):
        SlotMap(2, assignment=[0, 1, 2])


@pytest.mark.parametrize("key", [b"t/s", b"t/a/b", "テナント/セッション".encode(), b"t/" + b"x" * 510])
def test_keys_split_and_join(key: bytes) -> None:
    assert make_key(*split_key(key)) == key


@pytest.mark.parametrize(
    "key", [None, b"", b"noslash", b"/s", b"t/", b"\xff/s", b"t/" + b"x" * 511, b"t/\xed\xa0\x80"]
)
def test_bad_keys_are_refused(key: bytes | None) -> None:
    with pytest.raises(InvalidRecord) as caught:
        split_key(key)
    assert caught.value.code == "bad_key"


@pytest.mark.parametrize(
    ("tenant", "session"), [("", "s"), ("t", ""), ("a/b", "s"), ("t", "\ud83d"), ("t", "x" * 511)]
)
def test_keys_that_cannot_be_made(tenant: str, session: str) -> None:
    with pytest.raises(InvalidRecord) as caught:
        make_key(tenant, session)
    assert caught.value.code == "bad_key"
