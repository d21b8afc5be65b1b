"""The parts of the SDK's own producer, without a broker: gathering, lines, promises, and what does not
answer."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator

import pytest
from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st

from refold.client.delivery import Delivery, Outcome, Record, outcome_unknown
from refold.client.sender import Sender
from refold.client.wired.gathering import ENOUGH_RECORDS, GATHER_S, SESSIONS_MIN, WINDOW_S, Gathering
from refold.client.wired.line import BATCH_BYTES, Line
from refold.client.wired.promises import Promises
from refold.errors import PermissionDenied, RefoldError, TransientError, UsageError
from refold.protocol import brokers as brokers_module
from refold.protocol.brokers import Brokers
from refold.protocol.connection import Disconnected
from refold.protocol.requests import Identity
from refold.protocol.security import security_of

ANSWER_S_MAX = 60.0
TOO_LARGE = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), "t"


def keys(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


# --- gathering -------------------------------------------------------------------------------------------


def test_few_sessions_are_not_gathered() -> None:
    gathering = Gathering()
    for step in range(100):
        now = 1.0 + step * 0.001
        assert gathering.pause_s(now, 1) == 0
        gathering.sent(keys(SESSIONS_MIN - 1), now)


def test_many_sessions_are_gathered_from_one_request_to_the_next() -> None:
    gathering = Gathering()
    gathering.sent(keys(SESSIONS_MIN), 1.0)
    assert gathering.pause_s(1.0, 1) == pytest.approx(GATHER_S)
    assert gathering.pause_s(1.002, 1) == pytest.approx(GATHER_S - 0.002)
    assert gathering.pause_s(1.0 + GATHER_S, 1) == 0


def test_what_is_enough_for_a_request_does_not_wait() -> None:
    gathering = Gathering()
    gathering.sent(keys(SESSIONS_MIN), 1.0)
    assert gathering.pause_s(1.0, ENOUGH_RECORDS - 1) > 0
    assert gathering.pause_s(1.0, ENOUGH_RECORDS) == 0


def test_one_session_after_the_rush_is_not_held_up_by_it() -> None:
    gathering = Gathering()
    gathering.sent(keys(1000), 1.0)
    # The window after a full one is judged by that; the next is not.
    gathering.sent(keys(1), 1.0 + 1.5 * WINDOW_S)
    assert gathering.pause_s(1.0 + 1.5 * WINDOW_S, 1) > 0
    gathering.sent(keys(1), 1.0 + 3 * WINDOW_S)
    assert gathering.pause_s(1.0 + 3 * WINDOW_S, 1) == 0
    gathering.sent(keys(1000), 2.0)
    gathering.sent(keys(1), 2.0 + 2.5 * WINDOW_S)
    assert gathering.pause_s(2.0 + 2.5 * WINDOW_S, 1) == 0


@given(st.lists(st.tuples(st.integers(0, 80), st.floats(0, 0.2)), max_size=40))
def test_a_pause_is_never_longer_than_the_gathering(steps: list[tuple[int, float]]) -> None:
    gathering, now = Gathering(), 5.0
    for count, passed in steps:
        now += passed
        assert 0 <= gathering.pause_s(now, 1) <= GATHER_S
        gathering.sent(keys(count), now)


# --- a line ----------------------------------------------------------------------------------------------


def waits(line: Line, *values: bytes, until: float = 9.0) -> None:
    for value in values:
        record: Record = (line.place[0], b"k", value, (), line.place[1], _nobody)
        line.waiting.append((record, until))


def _nobody(_: Outcome) -> None: ...


def values_of(line: Line) -> list[bytes]:
    parcel = line.pack()
    return [] if parcel is None else [item[0][2] for item in parcel.items]


def test_a_parcel_stays_until_it_is_in_and_tells_true_offsets() -> None:
    line = Line(("t", 3))
    waits(line, b"a", b"b")
    first = line.pack()
    waits(line, b"c")
    assert line.pack() is first
    reports = line.landed(40, 7)
    assert [known for _, known in reports] == [Delivery(3, 40, 7), Delivery(3, 41, 7)]
    assert values_of(line) == [b"c"]


def test_a_record_larger_than_a_batch_is_one_by_itself() -> None:
    line = Line(("t", 0))
    large = b"x" * (BATCH_BYTES + 1)
    waits(line, large, b"a", large)
    assert values_of(line) == [large]
    line.landed(0, -1)
    assert values_of(line) == [b"a"]
    line.landed(1, -1)
    assert values_of(line) == [large]


def test_what_is_refused_as_a_batch_is_sent_one_by_one_and_the_rest_together() -> None:
    line = Line(("t", 0))
    waits(line, b"a", b"b")
    line.pack()
    waits(line, b"c", b"d")
    line.unpack(alone=True)
    packed = []
    while line.busy:
        packed.append(values_of(line))
        line.landed(0, -1)
    assert packed == [[b"a"], [b"b"], [b"c", b"d"]]


def test_a_record_that_cannot_be_encoded_takes_none_with_it_in_silence() -> None:
    line = Line(("t", 0))
    waits(line, b"a")
    line.waiting.append((("t", b"k", 7, (), 0, _nobody), 9.0))  # type: ignore[arg-type]
    with pytest.raises((TypeError, AttributeError)):
        line.pack()
    assert len(line.given_up(outcome_unknown("?"))) == 2
    assert not line.busy


@pytest.mark.parametrize("asked", [0, 1])
def test_not_written_is_only_said_of_what_was_never_sent_without_an_answer(asked: int) -> None:
    """Goal: a topic that is refused now may have taken the batch a moment ago."""
    line = Line(("t", 0))
    waits(line, b"a")
    parcel = line.pack()
    assert parcel is not None
    parcel.asked = asked
    waits(line, b"b")
    known = [said for _, said in line.given_up(PermissionDenied("no; not written"))]
    assert [type(one) for one in known] == [TransientError if asked else PermissionDenied, PermissionDenied]
    waits(line, b"c")
    again = line.pack()
    assert again is not None
    again.asked = asked
    [(_, said)] = line.failed(TOO_LARGE)
    assert isinstance(said, TransientError) == bool(asked)
    assert asked == 0 or "outcome unknown" in str(said)


def test_what_nobody_waits_for_is_not_sent_and_what_somebody_waits_for_is() -> None:
    line = Line(("t", 0))
    waits(line, b"a", until=1.0)
    waits(line, b"b", until=2.0)
    line.pack()
    waits(line, b"c", until=3.0)
    assert (line.oldest, line.newest) == (1.0, 3.0)
    line.drop(1.5)
    assert values_of(line) == [b"a", b"b"], "somebody waits for its second record"
    line.drop(2.0)
    assert values_of(line) == [b"c"]
    line.drop(3.0)
    assert not line.busy


#: What may happen to a line, and to how many records.
STEPS = st.lists(
    st.sampled_from(["add", "add", "pack", "land", "fail", "renumber", "separate", "drop", "give up"]),
    max_size=60,
)


@given(STEPS)
def test_whatever_happens_each_record_leaves_a_line_once_and_in_order(steps: list[str]) -> None:
    line, now, made = Line(("t", 0)), 0.0, 0
    gone: list[bytes] = []
    landed: list[bytes] = []

    def leave(reports: list[tuple[object, object]], where: list[bytes]) -> None:
        where.extend(tell.value for tell, _ in reports)  # type: ignore[attr-defined]

    class Told:
        def __init__(self, value: bytes) -> None:
            self.value = value

    for step in [*steps, "give up"]:
        now += 1
        if step == "add":
            value = b"%d" % made
            made += 1
            line.waiting.append((("t", b"k", value, (), 0, Told(value)), now + 8))  # type: ignore[arg-type]
        elif step == "pack":
            line.pack()
        elif step == "land":
            leave(line.landed(0, 0), landed)  # type: ignore[arg-type]
        elif step == "fail":
            leave(line.failed(TOO_LARGE), gone)  # type: ignore[arg-type]
        elif step in ("renumber", "separate"):
            line.unpack(alone=step == "separate")
        elif step == "drop":
            before = [*(line.parcel.items if line.parcel else ()), *line.waiting]
            line.drop(now)
            after = [*(line.parcel.items if line.parcel else ()), *line.waiting]
            assert after == before[len(before) - len(after) :]
            dropped = before[: len(before) - len(after)]
            assert all(until <= now for _, until in dropped)
            gone += [record[2] for record, _ in dropped]
        else:
            leave(line.given_up(TOO_LARGE), gone)  # type: ignore[arg-type]
    order = [int(value) for value in landed]
    assert order == sorted(order)
    assert sorted(order + [int(value) for value in gone]) == list(range(made))


def test_a_numbered_parcel_is_the_same_bytes_each_time() -> None:
    line = Line(("t", 0))
    waits(line, b"a" * 200, b"b" * 200)
    parcel = line.pack()
    assert parcel is not None
    parcel.batch.number(Identity(7, 0), 5)
    before = bytes(parcel.batch.data or b"")
    assert before
    again = line.pack()
    assert again is parcel
    assert bytes(again.batch.data or b"") == before


# --- promises --------------------------------------------------------------------------------------------


class Told:
    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []
        self.come = asyncio.Event()

    def __call__(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.come.set()


def late() -> RefoldError:
    return TransientError("late")


async def test_a_promise_is_kept_once() -> None:
    promises = Promises(60.0, late, lambda: None)
    told = Told()
    promise = promises.make(told)
    assert promises.count == 1
    promise(Delivery(0, 1, 2))
    promise(TransientError("no"))
    promises.end(TransientError("closed"))
    assert told.outcomes == [Delivery(0, 1, 2)]
    assert promises.count == 0


async def test_what_is_late_is_told_at_its_time_and_again_after_it() -> None:
    """Goal: the second is told although the first took the timer, and one is made by whoever is told."""
    after: list[int] = []
    promises = Promises(0.05, late, lambda: after.append(promises.count))
    first, second, third = Told(), Told(), Told()

    def told_and_asked(outcome: Outcome) -> None:
        promises.make(third)
        first(outcome)

    began = time.monotonic()
    promises.make(told_and_asked)
    await asyncio.sleep(0.02)
    kept = promises.make(second)
    async with asyncio.timeout(ANSWER_S_MAX):
        for told in (first, second, third):
            await told.come.wait()
    assert time.monotonic() - began >= 0.1
    assert [str(told.outcomes[0]) for told in (first, second, third)] == ["late"] * 3
    assert promises.count == 0
    assert after
    kept(Delivery(0, 0, 0))
    assert len(second.outcomes) == 1


async def test_kept_promises_are_forgotten_whatever_their_order() -> None:
    promises = Promises(60.0, late, lambda: None)
    made = [promises.make(_nobody) for _ in range(100)]
    for promise in reversed(made):
        promise(Delivery(0, 0, 0))
    assert promises.count == 0
    assert not promises._made
    promises.end(late())


async def test_who_raises_when_told_does_not_stop_the_clock() -> None:
    promises = Promises(0.02, late, lambda: None)
    told = Told()

    def broken(_: Outcome) -> None:
        raise RuntimeError("broken")

    asyncio.get_running_loop().set_exception_handler(lambda *_: None)
    promises.make(broken)
    promises.make(told)
    await asyncio.wait_for(told.come.wait(), ANSWER_S_MAX)


# --- what does not answer --------------------------------------------------------------------------------


@pytest.fixture
def silent() -> Iterator[tuple[str, list[socket.socket]]]:
    """A port that takes connections and never says a word."""
    taken: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            while True:
                try:
                    taken.append(listening.accept()[0])
                except OSError:
                    return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}", taken
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()
    for one in taken:
        one.close()


def ours() -> set[threading.Thread]:
    return {one for one in threading.enumerate() if one.name in ("refold-delivery", "refold-courier")}


async def test_a_thread_that_is_held_up_does_not_hold_up_what_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: a name server that does not answer, which has no time limit, makes nothing late. Method: looking
    the broker's name up takes until the test says so."""
    asked, answer = threading.Event(), threading.Event()

    def held_up(*_: object, **__: object) -> object:
        asked.set()
        answer.wait(ANSWER_S_MAX)
        raise OSError("no such name")

    before = ours()
    monkeypatch.setattr(socket, "getaddrinfo", held_up)
    sender = Sender({"bootstrap.servers": "nowhere.invalid:9092"}, delivery_timeout_ms=200)
    try:
        with pytest.raises(TransientError, match="outcome unknown"):
            await sender.send("t", b"k", b"v", (), 0)
        assert asked.is_set()
        assert not answer.is_set(), "told while the thread was held up"
    finally:
        answer.set()
        await sender.close(0)
    assert ours() == before


async def test_closing_cuts_what_is_under_way_and_tells_everything(
    silent: tuple[str, list[socket.socket]],
) -> None:
    before = ours()
    sender = Sender({"bootstrap.servers": silent[0]}, delivery_timeout_ms=600_000)
    told = [Told() for _ in range(50)]
    for number, one in enumerate(told):
        sender.start("t", b"k", b"v", (), number % 3, one)
    async with asyncio.timeout(ANSWER_S_MAX):
        while not silent[1]:  # noqa: ASYNC110 - a condition of other threads
            await asyncio.sleep(0.01)
    await sender.close(0.05)
    assert [len(one.outcomes) for one in told] == [1] * 50
    assert all("closed before the event was acknowledged" in str(one.outcomes[0]) for one in told)
    assert ours() == before
    with pytest.raises(UsageError):
        sender.start("t", b"k", b"v", (), 0, _nobody)


async def test_a_connection_made_while_it_was_interrupted_is_not_used(
    silent: tuple[str, list[socket.socket]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: closing does not wait for an answer that is asked for just then. Method: the interruption comes
    when the connection is made and known to nobody."""
    brokers = Brokers(silent[0], security_of({}), "test")
    made = brokers_module.Connection

    def interrupted(*arguments: object) -> object:
        connection = made(*arguments)  # type: ignore[arg-type]
        brokers.interrupt()
        return connection

    monkeypatch.setattr(brokers_module, "Connection", interrupted)
    with pytest.raises(Disconnected, match="closed"):
        brokers.any(time.monotonic() + ANSWER_S_MAX)


def test_a_broker_that_answered_in_vain_is_not_the_only_one_asked() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = {each.getsockname()[1] for each in (one, other)}
        brokers = Brokers(",".join(f"127.0.0.1:{port}" for port in ports), security_of({}), "test")
        deadline = time.monotonic() + ANSWER_S_MAX
        asked = [brokers.any(deadline), brokers.any(deadline)]
        assert asked[0] is asked[1], "as long as it answers"
        brokers.elsewhere()
        asked.append(brokers.any(deadline))
        assert {connection._port for connection in asked} == ports
        brokers.close()


async def test_nothing_spins_while_brokers_are_away() -> None:
    """Goal: an outage costs no processor. Method: turns of the thread are counted, not time."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    sender = Sender({"bootstrap.servers": f"127.0.0.1:{port}"}, delivery_timeout_ms=600)
    tries: list[float] = []
    try:
        sender._open()
        assert sender._carrier is not None
        learn = sender._carrier._brokers.any

        def counted(deadline: float) -> object:
            tries.append(time.monotonic())
            return learn(deadline)

        sender._carrier._brokers.any = counted  # type: ignore[method-assign, assignment]
        with pytest.raises(TransientError):
            await sender.send("t", b"k", b"v", (), 0)
        # 20, 40, 80, 160, 320 ms between them.
        assert 2 <= len(tries) <= 8
        alone = len(tries)
        await asyncio.sleep(0.1)
        assert len(tries) <= alone + 1, "nobody waits for anything"
    finally:
        await sender.close(0)
