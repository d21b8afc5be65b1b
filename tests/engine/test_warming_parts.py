"""Goal: the pure parts of hot first: what is handled beyond an offset, records that wait, ranges."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.engine.chunks import Record
from refold.engine.commitmeta import CommitMeta
from refold.engine.warming import keyset
from refold.engine.warming.beyond import PARKED_MAX, Beyond
from refold.engine.warming.interval import (
    FIRST_OFFSETS,
    RANGE_OFFSETS_MAX,
    RUN_BYTES_MAX,
    RUN_RECORDS_MAX,
    Ranges,
)
from refold.engine.warming.keyset import Allowance, Keys
from refold.engine.warming.parking import PARKED_BYTES_MAX, Parking
from refold.engine.warming.scan import FOUND_BYTES_MAX, Scan
from refold.errors import ConfigError

#: The broker's ``offset.metadata.max.bytes``.
METADATA_BYTES_MAX = 4_096

#: A busy machine is no failure.
NO_CLOCK = settings(deadline=None, max_examples=60)

GAPS = st.lists(st.one_of(st.integers(0, 3), st.integers(0, 2**20), st.integers(0, 2**54)), max_size=255)


@st.composite
def beyonds(draw: st.DrawFn) -> Beyond:
    parked = [draw(st.integers(0, 2**40))]
    for gap in draw(GAPS):
        parked.append(parked[-1] + 1 + gap)
    return Beyond(parked[-1] + 1 + draw(st.integers(0, 1_000)), tuple(parked))


# --- beyond ----------------------------------------------------------------------------------------------


@NO_CLOCK
@given(beyonds())
def test_what_was_handled_beyond_survives_the_metadata_and_fits_into_it(beyond: Beyond) -> None:
    meta = CommitMeta("refold-" + "i" * 200, 2**50, 2**50, 2**50, 1, beyond)
    text = meta.encode()
    assert len(text) <= METADATA_BYTES_MAX
    assert CommitMeta.parse(text, beyond.low) == meta


@NO_CLOCK
@given(beyonds(), st.data())
def test_handled_is_what_lies_below_the_position_and_does_not_wait(
    beyond: Beyond, data: st.DataObject
) -> None:
    some = st.one_of(
        st.sampled_from(beyond.parked), st.integers(0, beyond.position + 3), st.just(beyond.position)
    )
    offset = data.draw(some)
    assert beyond.handled(offset) == (offset < beyond.position and offset not in beyond.parked)
    assert beyond.waiting(offset) == tuple(one for one in beyond.parked if one >= offset)


def test_metadata_without_it_is_what_it_was() -> None:
    """Goal: the path without hot first writes the same bytes as before."""
    plain = CommitMeta("p-a", 12, 3, 5, 1)
    assert b"beyond" not in plain.encode().encode()
    assert CommitMeta("p-a", 12, 3, 5, 1, Beyond(9)).encode() == plain.encode()


@pytest.mark.parametrize("text", ["", "!", "AA==", "AgIC", "AQI=", 7, None])
def test_what_cannot_be_read_stops_the_takeover(text: object) -> None:
    """Goal: records that were handled are never handled again because their list was not understood."""
    written = CommitMeta("p-a", 12, 3, 5, 1, Beyond(9, (4, 6))).encode()
    right = '"' + Beyond(9, (4, 6)).encode() + '"'
    assert right in written
    shown = f'"{text}"' if isinstance(text, str) else "7" if text else "null"
    broken = written.replace(right, shown)
    with pytest.raises(ConfigError, match="newer worker"):
        CommitMeta.parse(broken, 4)


def test_more_than_may_wait_is_not_read() -> None:
    with pytest.raises(ValueError, match="not what"):
        Beyond.decode(0, Beyond(PARKED_MAX + 1, tuple(range(PARKED_MAX + 1))).encode())


# --- parking ---------------------------------------------------------------------------------------------


def record(offset: int, key: bytes, size: int = 10) -> Record:
    return Record(0, offset, 0, key, b"v" * size, None)


class Model:
    """What a partition did with each of its records, written down plainly."""

    def __init__(self) -> None:
        self.handled: set[int] = set()
        self.order: dict[bytes, list[int]] = {}

    def fold(self, key: bytes, offset: int) -> None:
        assert offset not in self.handled, "handled twice"
        self.handled.add(offset)
        self.order.setdefault(key, []).append(offset)


@NO_CLOCK
@given(
    keys=st.lists(st.integers(0, 5), min_size=1, max_size=60),
    known=st.lists(st.integers(0, 70), min_size=6, max_size=6),
    lives=st.lists(st.integers(1, 40), max_size=6),
    most=st.integers(1, 8),
)
def test_every_record_is_handled_once_and_in_order_over_any_lives(
    keys: list[int], known: list[int], lives: list[int], most: int
) -> None:
    """Goal: rules H4 and H5. Method: session ``k`` becomes known at step ``known[k]``; a life ends after so
    many steps, and the next one begins with nothing but the text of what was committed last, which may be
    steps ago: what was handled since is undone, as its transaction was."""
    names = [b"t/%d" % key for key in keys]
    model, step = Model(), 0
    committed: tuple[int, Beyond | None, Model] = (0, None, Model())
    for steps in [*lives, 10_000]:
        position, beyond, before = committed
        model = Model()
        model.handled, model.order = set(before.handled), {k: list(v) for k, v in before.order.items()}
        parking = Parking(beyond, most=most)
        for _ in range(steps):
            step += 1
            for name in parking.sessions():
                while known[int(name[2:])] <= step and (waiting := parking.oldest(name)) is not None:
                    model.fold(name, waiting.offset)
                    parking.handled(name)
            if position < len(names):
                name = names[position]
                if parking.skips(position):
                    position += 1
                elif name in parking or known[int(name[2:])] > step:
                    if not parking.full:
                        parking.add(name, record(position, name))
                        position += 1
                else:
                    model.fold(name, position)
                    position += 1
            assert len(parking) <= most
            if step % 3 == 0:
                told = parking.beyond(position)
                low = position if told is None else told.low
                text = None if told is None or not told.parked else told.encode()
                for offset in range(len(names)):
                    handled = told.handled(offset) if told is not None else offset < low
                    assert handled == (offset in model.handled)
                copy = Model()
                copy.handled, copy.order = set(model.handled), {k: list(v) for k, v in model.order.items()}
                committed = (low, None if text is None else Beyond.decode(low, text), copy)
            if position == len(names) and parking.ended(position) and step > 70:
                break
    assert model.handled == set(range(len(names)))
    for name, order in model.order.items():
        assert order == [offset for offset, one in enumerate(names) if one == name]


def test_parked_records_are_bounded_in_bytes_too() -> None:
    parking = Parking()
    parking.add(b"t/a", record(0, b"t/a", PARKED_BYTES_MAX - 1_000))
    assert not parking.full
    parking.add(b"t/a", record(1, b"t/a", 5_000))
    assert parking.full
    assert not parking.roomy
    parking.handled(b"t/a")
    assert parking.roomy
    parking.handled(b"t/a")
    assert (parking.bytes, len(parking), b"t/a" in parking) == (0, 0, False)


# --- ranges ----------------------------------------------------------------------------------------------


@NO_CLOCK
@given(
    low=st.integers(0, 1_000),
    density=st.lists(st.integers(0, 3), min_size=1, max_size=8),
    size=st.sampled_from((10, 1_600, 1_000_000)),
)
def test_ranges_cover_the_interval_once_from_its_end_within_memory(
    low: int, density: list[int], size: int
) -> None:
    """Goal: every offset once, newest first, no range above the bounds but one of a single record. Method:
    logs whose stretches hold between no and three records per four offsets, of one size."""
    stretch = 20_000
    high = low + len(density) * stretch

    def records(start: int, end: int) -> int:
        return sum(
            (min(end, low + (at + 1) * stretch) - max(start, low + at * stretch)) * dense // 4
            for at, dense in enumerate(density)
            if min(end, low + (at + 1) * stretch) > max(start, low + at * stretch)
        )

    def reached(start: int, end: int) -> int:
        """Where memory is full, or the end."""
        if records(start, end) <= RUN_RECORDS_MAX and records(start, end) * size <= RUN_BYTES_MAX:
            return end
        a, b = start, end
        while b - a > 1:
            middle = (a + b) // 2
            held = records(start, middle)
            a, b = (a, middle) if held > RUN_RECORDS_MAX or held * size > RUN_BYTES_MAX else (middle, b)
        return b

    ranges, top, tries = Ranges(), high, 0
    assert ranges.last_of(low, high) == (max(low, high - FIRST_OFFSETS), high)
    while low < top:
        tries += 1
        assert tries < 200_000
        start, end = ranges.last_of(low, top)
        assert end == top
        assert low <= start < end
        assert end - start <= RANGE_OFFSETS_MAX
        here = reached(start, end)
        if here < end and end - start > 1:
            before = ranges.offsets
            ranges.too_long(start, end, here)
            assert 1 <= ranges.offsets < max(before, end - start)
            continue
        found = records(start, end)
        ranges.learned(end - start, found, found * size)
        assert ranges.offsets >= 1
        top = start


# --- keys ------------------------------------------------------------------------------------------------


@NO_CLOCK
@given(st.lists(st.binary(min_size=1, max_size=30), max_size=200), st.integers(0, 3_000))
def test_a_set_of_keys_holds_all_that_were_put_in(put_in: list[bytes], offsets: int) -> None:
    keys = Allowance().keys(offsets)
    assert keys is not None
    keys.add_all(put_in)
    assert all(key in keys for key in put_in)


def test_few_others_seem_to_be_in_and_memory_is_bounded() -> None:
    """Goal: what a session that nobody has heard of waits for is rare: 4 bytes per offset are 3 %, and the
    largest set has room for 5 000 000 keys with 4 %. All sets of a worker share one allowance."""
    allowance = Allowance()
    keys = allowance.keys(20_000)
    assert keys is not None
    keys.add_all(b"bench/s-%d" % number for number in range(20_000))
    seem = sum(b"bench/new-%d" % number in keys for number in range(10_000))
    assert seem < 600
    assert keys.size <= 2 * 20_000 * 4
    allowance.back(keys)
    largest = []
    while (one := allowance.keys(10**9)) is not None:
        assert one.size == keyset.BYTES_MAX
        largest.append(one)
    assert len(largest) == keyset.ALL_BYTES_MAX // keyset.BYTES_MAX
    allowance.back(largest.pop())
    assert allowance.keys(10**9) is not None


class Looked:
    def __init__(self, key: bytes | None, value: bytes) -> None:
        self._key, self._value = key, value

    def key(self) -> bytes | None:
        return self._key

    def value(self) -> bytes:
        return self._value

    def __len__(self) -> int:
        return len(self._value)


def test_a_scan_knows_who_was_met_and_keeps_the_last_record_of_those_who_are_waited_for() -> None:
    scan = Scan(Keys(1), frozenset((b"t/a", b"t/b", b"t/none")), 0, 9)
    messages = [
        Looked(b"t/a", b"1"),
        Looked(None, b"no session"),
        Looked(b"t/b", b"2"),
        *(Looked(b"t/%d" % number, b"other") for number in range(100)),
        Looked(b"t/a", b"3"),
    ]
    assert scan.take(messages[:60]) == 60  # type: ignore[arg-type]
    assert scan.take(messages[60:]) == len(messages) - 60  # type: ignore[arg-type]
    assert {key: message.value() for key, message in scan.found.items()} == {b"t/a": b"3", b"t/b": b"2"}
    assert scan.count == 103
    scan.ended()
    # All eight bits are set by now: for these it is known exactly.
    assert [scan.met(key) for key in (b"t/a", b"t/b", b"t/none", b"t/never")] == [True, True, False, True]


def test_a_scan_holds_a_bounded_number_of_bytes() -> None:
    scan = Scan(Keys(1_024), frozenset((b"t/a", b"t/b")), 0, 9)
    for _ in range(3):
        scan.take([Looked(b"t/a", b"x" * (FOUND_BYTES_MAX - 100))])  # type: ignore[list-item]
    assert list(scan.found) == [b"t/a"]
    scan.take([Looked(b"t/b", b"x" * 200)])  # type: ignore[list-item]
    assert scan.found == {}
    scan.ended()
    assert scan.met(b"t/a")
    assert scan.met(b"t/b")
