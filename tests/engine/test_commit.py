"""The commit against a scripted producer: order, fencing, what is called again, what is aborted, what is
fatal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from engine.test_step import KEY, PARTITION, View, event, record
from refold.engine import commit as commit_module
from refold.engine import history, rows
from refold.engine.commit import Aborted, Committed, Transactor
from refold.engine.commitmeta import CommitMeta
from refold.engine.overlay import Overlay, apply
from refold.engine.plan import Written
from refold.engine.points import Points
from refold.engine.sabotage import Sabotage
from refold.engine.step import step
from refold.engine.store import Memory, Store
from refold.errors import FencedError, InvariantViolation, PermissionDenied, StorageError, UnavailableError
from refold.topology.names import TopicNames
from refold.wire.snapshot import encode_snapshot

MEMBER = b"CGMDv2:" + (4).to_bytes(4, "little") + b"t\0member-1\0\0a\0"
NOBODY = b"CGMDv2:" + (-1).to_bytes(4, "little", signed=True) + b"t\0\0\0a\0"


def kafka_error(code: int, **flags: bool) -> KafkaException:
    return KafkaException(KafkaError(code, "scripted", **flags))


class Message:
    def __init__(self, offset: int) -> None:
        self._offset = offset

    def offset(self) -> int:
        return self._offset


class FakeProducer:
    """Numbers journal offsets from 100, changelog offsets from 10; raises what the script says, once per
    entry."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.script: dict[str, list[BaseException | None]] = {}
        self.produced: list[tuple[str, int, bytes | None, bytes | None]] = []
        self.offsets: list[Any] = []
        self.next = {
            "t.journal": 100,
            "t.state": 10,
            "t.history": 10,
            "t.generations": 10,
            "t.rejected": 0,
            "t.inbox": 0,
            "t.batches": 0,
            "t.review": 0,
            "t.work": 0,
        }
        self.accepts = {MEMBER}
        self.interleave = 0
        self.full = 0
        self._waiting: list[Callable[[], None]] = []

    def _step(self, name: str) -> None:
        self.calls.append(name)
        planned = self.script.get(name)
        if planned:
            error = planned.pop(0)
            if error is not None:
                raise error

    def begin_transaction(self) -> None:
        self._step("begin")
        self.produced = []

    def produce(
        self, topic: str, value: Any, key: Any, partition: int, on_delivery: Any = None, *, headers: Any
    ) -> None:
        if self.full:
            self.full -= 1
            raise BufferError
        self._step(f"produce {topic}")
        self.produced.append((topic, partition, key, value))
        offset = self.next[topic]
        self.next[topic] += 1
        if topic == "t.journal" and self.interleave:
            self.interleave -= 1
            self.next[topic] += 1
        if on_delivery is not None:
            self._waiting.append(lambda: on_delivery(None, Message(offset)))

    def poll(self, _timeout: float) -> int:
        self.calls.append("poll")
        return 0

    def flush(self, _timeout: float) -> int:
        self._step("flush")
        for tell in self._waiting:
            tell()
        self._waiting = []
        return 0

    def send_offsets_to_transaction(self, offsets: Any, metadata: bytes, _timeout: float) -> None:
        assert metadata in self.accepts
        self._step("offsets")
        self.offsets = offsets

    def _mark(self) -> None:
        for topic in {topic for topic, _, _, _ in self.produced}:
            self.next[topic] += 1

    def commit_transaction(self, _timeout: float) -> None:
        self._step("commit")
        self._mark()
        for tell in self._waiting:
            tell()
        self._waiting = []

    def abort_transaction(self, _timeout: float) -> None:
        self._step("abort")
        self._mark()
        self._waiting = []


class Table:
    """The ownership table: epoch 7 for everything, unless taken away."""

    def __init__(self, store: Store) -> None:
        self.epochs = {PARTITION: 7, 9: 7}
        self._written = {number: Written(store, "ts", "th", "tg", 5, 2, 8) for number in (PARTITION, 9)}

    def epoch(self, number: int) -> int | None:
        return self.epochs.get(number)

    def written(self, number: int) -> Written:
        return self._written[number]


class Bench:
    def __init__(self, store: Store, **sabotage: bool) -> None:
        self.store = store
        self.producer = FakeProducer()
        self.table = Table(store)
        self.metadata = [MEMBER]
        self.asked: list[float] = []
        self.transactor = Transactor(
            self.producer,  # type: ignore[arg-type]
            TopicNames("t"),
            txid="t-a",
            map_epoch=0,
            ownership=self.table,
            group_metadata=self._metadata,
            points=Points(),
            sabotage=Sabotage(**sabotage),
            now_ms=lambda: 1_234,
        )
        self.overlay = Overlay()

    def _metadata(self, newer_than: float) -> Any:
        self.asked.append(newer_than)
        return self.metadata.pop(0) if len(self.metadata) > 1 else self.metadata[0]

    def fold(self, *values: bytes | None) -> Overlay:
        view = View()
        part = self.overlay.part(PARTITION, 7, 0)
        for offset, value in enumerate(values):
            one = record(value, offset)
            apply(self.overlay, part, one, step(view, one))
        for touched in part.touched.values():
            session = touched.entry.session
            touched.encoded = encode_snapshot(session) if session.seq else None
            touched.seq = session.seq
        return self.overlay

    def commit(self) -> Committed | Aborted:
        return self.transactor.commit(self.overlay)


@pytest.fixture
def bench(tmp_path: Path) -> Any:
    store = Store(tmp_path / "p", Memory())
    yield Bench(store)
    store.close()


def order(calls: list[str]) -> list[str]:
    """Without repeats of the same call in a row."""
    return [name for at, name in enumerate(calls) if at == 0 or calls[at - 1] != name]


def test_the_order_of_a_commit_and_what_is_on_disk_after_it(bench: Bench) -> None:
    bench.fold(event(1), b"bad", event(2))
    outcome = bench.commit()
    assert isinstance(outcome, Committed)
    assert order(bench.producer.calls) == [
        "begin",
        "offsets",
        "produce t.journal",
        "produce t.rejected",
        "flush",
        "produce t.state",
        "commit",
    ]
    row = bench.store.row(KEY)
    assert row is not None
    assert rows.seq_of(row) == 2
    assert history.decode_tail(rows.tail_of(row)).offsets == [100, 101]
    assert outcome.tails[KEY].offsets == [100, 101]
    frontier = bench.store.frontier()
    assert frontier is not None
    assert (frontier.inbox_next, frontier.state_next, frontier.applied_ms) == (3, 11, 1_234)


def next_overlay(bench: Bench, numbers: range) -> None:
    """What follows the first commit, for the same session."""
    bench.overlay = Overlay()
    view = View()
    part = bench.overlay.part(PARTITION, 7, numbers.start)
    for number in range(1, numbers.stop):
        one = record(event(number), number)
        effects = step(view, one)
        if number >= numbers.start:
            apply(bench.overlay, part, one, effects)
    (touched,) = part.touched.values()
    touched.encoded, touched.seq = encode_snapshot(touched.entry.session), touched.entry.session.seq


def test_once_the_journals_end_is_known_nothing_waits_before_the_commit(bench: Bench) -> None:
    """Offsets are foretold, and proved by the acknowledgements the commit needs anyway."""
    bench.fold(event(1))
    bench.commit()
    bench.producer.calls.clear()
    next_overlay(bench, range(2, 5))
    outcome = bench.commit()
    assert isinstance(outcome, Committed)
    assert order(bench.producer.calls) == [
        "begin",
        "offsets",
        "produce t.journal",
        "produce t.state",
        "flush",
        "commit",
    ]
    # 100 was the first record, 101 its marker.
    assert (outcome.resent, outcome.tails[KEY].offsets) == (0, [102, 103, 104])


def test_an_offset_foretold_wrongly_is_never_committed(bench: Bench) -> None:
    """A zombie's aborted record lies before ours: abort, and the second time wait for the journal."""
    bench.fold(event(1))
    bench.commit()
    bench.producer.next["t.journal"] += 2
    next_overlay(bench, range(2, 4))
    outcome = bench.commit()
    assert isinstance(outcome, Committed)
    # 104, 105 and their abort marker went by.
    assert (outcome.resent, outcome.tails[KEY].offsets) == (1, [107, 108])
    assert history.decode_tail(rows.tail_of(bench.store.row(KEY) or b"")).offsets == [107, 108]


def test_f_every_partition_written_for_has_an_offset_even_unchanged(bench: Bench) -> None:
    bench.fold(event(1))
    bench.overlay.part(9, 7, 42, 17).claim = True
    assert isinstance(bench.commit(), Committed)
    sent = {
        (tp.topic, tp.partition): (tp.offset, CommitMeta.parse(tp.metadata)) for tp in bench.producer.offsets
    }
    assert sent == {
        ("t.inbox", PARTITION): (1, CommitMeta("t-a", 6, 2, 8, 0)),
        ("t.batches", PARTITION): (0, CommitMeta("t-a", 6, 2, 8, 0)),
        ("t.inbox", 9): (42, CommitMeta("t-a", 5, 2, 8, 0)),
        ("t.batches", 9): (17, CommitMeta("t-a", 5, 2, 8, 0)),
    }


def test_f_who_is_refused_has_written_nothing(bench: Bench) -> None:
    """The offsets go first: what a zombie may not commit never reaches a topic of another's partition."""
    bench.fold(event(1))
    bench.producer.script = {"offsets": [kafka_error(KafkaError.UNKNOWN_MEMBER_ID, txn_requires_abort=True)]}
    assert isinstance(bench.commit(), Aborted)
    assert bench.producer.calls == ["begin", "offsets", "abort"]


@pytest.mark.parametrize(
    ("known", "deleted", "events"), [(0, False, 63), (0, False, 129), (130, True, 0), (130, True, 65)]
)
def test_m_the_metadata_promises_what_is_then_written(
    bench: Bench, known: int, deleted: bool, events: int
) -> None:
    """Goal: the changelogs' ends go out before the records. Method: count the records afterwards."""
    folded = [event(number) for number in range(1, max(events, 1) + 1)]
    bench.fold(*folded, *([None] if deleted else []))
    touched = bench.overlay.parts[PARTITION].touched[KEY]
    touched.entry.tail = history.extend(history.EMPTY, range(known))[0]
    touched.deleted, touched.events = deleted, list(range(events))
    assert isinstance(bench.commit(), Committed)
    written = [topic for topic, _, _, _ in bench.producer.produced]
    then = CommitMeta("t-a", 5 + written.count("t.state"), 2 + written.count("t.history"), 8, 0)
    assert [CommitMeta.parse(tp.metadata) for tp in bench.producer.offsets] == [then, then]


def test_f_metadata_without_a_membership_is_never_sent(bench: Bench) -> None:
    bench.fold(event(1))
    bench.metadata = [NOBODY]
    outcome = bench.commit()
    assert isinstance(outcome, Aborted)
    assert "not a member" in outcome.reason
    assert "offsets" not in bench.producer.calls
    assert bench.producer.calls[-1] == "abort"
    assert bench.store.frontier() is None


def test_r_a_stale_epoch_is_a_bug_not_a_case(bench: Bench) -> None:
    bench.fold(event(1))
    bench.table.epochs[PARTITION] = 8
    with pytest.raises(InvariantViolation, match="revoke barrier"):
        bench.commit()
    assert bench.producer.calls == []


def test_a_what_timed_out_is_called_again_and_never_aborted(bench: Bench) -> None:
    bench.fold(event(1))
    again = kafka_error(KafkaError._TIMED_OUT, retriable=True)
    bench.producer.script = {"commit": [again, again, None], "offsets": [again, None], "begin": [again, None]}
    assert isinstance(bench.commit(), Committed)
    assert bench.producer.calls.count("commit") == 3
    assert "abort" not in bench.producer.calls


def test_a_an_outcome_that_stays_unknown_ends_the_worker_without_a_disk_write(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_module, "COMMIT_SECONDS_MAX", 0.0)
    bench.fold(event(1))
    bench.producer.script = {"commit": [kafka_error(KafkaError._TIMED_OUT, retriable=True)] * 3}
    with pytest.raises(UnavailableError, match="outcome of a commit is still unknown"):
        bench.commit()
    assert "abort" not in bench.producer.calls
    assert bench.store.frontier() is None


def test_a_a_moved_generation_is_sent_again_with_fresh_metadata(bench: Bench) -> None:
    bench.fold(event(1))
    bench.producer.script = {
        "offsets": [kafka_error(KafkaError.ILLEGAL_GENERATION, txn_requires_abort=True), None]
    }
    outcome = bench.commit()
    assert isinstance(outcome, Committed)
    assert outcome.resent == 1
    assert order(bench.producer.calls).count("begin") == 2
    assert bench.asked[1] > bench.asked[0]
    # Refused before anything was written: not even a marker went by.
    assert history.decode_tail(rows.tail_of(bench.store.row(KEY) or b"")).offsets == [100]


def test_a_but_not_when_a_partition_was_reassigned_meanwhile(bench: Bench) -> None:
    bench.fold(event(1))
    refused = kafka_error(KafkaError.ILLEGAL_GENERATION, txn_requires_abort=True)

    class Reassign(FakeProducer):
        def abort_transaction(self, timeout: float) -> None:
            super().abort_transaction(timeout)
            bench.table.epochs[PARTITION] = 8

    bench.transactor._producer = bench.producer = Reassign()  # type: ignore[assignment]
    bench.producer.script = {"offsets": [refused]}
    assert isinstance(bench.commit(), Aborted)


def test_a_a_lost_membership_aborts_and_discards(bench: Bench) -> None:
    bench.fold(event(1))
    bench.producer.script = {"offsets": [kafka_error(KafkaError.UNKNOWN_MEMBER_ID, txn_requires_abort=True)]}
    assert isinstance(bench.commit(), Aborted)
    assert bench.producer.calls[-1] == "abort"
    assert bench.store.frontier() is None


def test_a_a_name_taken_by_another_process_is_final(bench: Bench) -> None:
    bench.fold(event(1))
    bench.producer.script = {"offsets": [kafka_error(KafkaError.FENCED_INSTANCE_ID, txn_requires_abort=True)]}
    with pytest.raises(FencedError):
        bench.commit()


def test_a_a_name_taken_by_ourselves_is_sent_again(bench: Bench) -> None:
    """We left the group and joined anew while the commit was on its way: the member id it carried is our old
    one."""
    bench.fold(event(1))
    anew = MEMBER.replace(b"member-1", b"member-2")
    bench.metadata = [MEMBER, anew]
    bench.producer.accepts = {MEMBER, anew}
    bench.producer.script = {"offsets": [kafka_error(KafkaError.FENCED_INSTANCE_ID, txn_requires_abort=True)]}
    outcome = bench.commit()
    assert isinstance(outcome, Committed)
    assert outcome.resent == 1


@pytest.mark.parametrize("step_name", ["begin", "produce t.journal", "flush", "offsets", "commit"])
def test_a_fenced_is_final_wherever_it_shows(bench: Bench, step_name: str) -> None:
    bench.fold(event(1))
    bench.producer.script = {step_name: [kafka_error(KafkaError._FENCED, fatal=True)]}
    with pytest.raises(FencedError, match="took over this transactional id"):
        bench.commit()
    assert bench.store.frontier() is None


def test_a_fenced_inside_a_system_error_is_fenced_all_the_same(bench: Bench) -> None:
    """confluent-kafka raises a fatal error out of flush, and Python makes a SystemError of it (seen)."""
    bench.fold(event(1))
    wrapped = SystemError("returned a result with an exception set")
    wrapped.__cause__ = kafka_error(KafkaError._FENCED, fatal=True)
    bench.producer.script = {"flush": [wrapped]}
    with pytest.raises(FencedError):
        bench.commit()


@pytest.mark.parametrize("final", [True, False])
def test_a_an_error_that_the_client_lost_is_what_the_abort_says(bench: Bench, final: bool) -> None:
    """confluent-kafka lost a fatal error on its way out of flush (seen: a fenced worker under `verify
    faults` ended as if refold were at fault). Fenced where the abort says so, else aborted."""
    bench.fold(event(1))
    lost = SystemError(
        "<method 'flush' of 'cimpl.Producer' objects> returned NULL without setting an exception"
    )
    bench.producer.script = {"flush": [lost]}
    if final:
        bench.producer.script["abort"] = [kafka_error(KafkaError._FENCED, fatal=True)]
        with pytest.raises(FencedError):
            bench.commit()
    else:
        assert isinstance(bench.commit(), Aborted)


def test_a_an_abort_that_fails_is_final(bench: Bench) -> None:
    bench.fold(event(1))
    bench.producer.script = {
        "offsets": [kafka_error(KafkaError.UNKNOWN_MEMBER_ID, txn_requires_abort=True)],
        "abort": [kafka_error(KafkaError._STATE)],
    }
    with pytest.raises(FencedError, match="abort failed"):
        bench.commit()


def test_a_missing_permission_names_what_is_needed(bench: Bench) -> None:
    bench.fold(event(1))
    bench.producer.script = {
        "commit": [kafka_error(KafkaError.TOPIC_AUTHORIZATION_FAILED, txn_requires_abort=True)]
    }
    with pytest.raises(PermissionDenied, match="topology render acls"):
        bench.commit()


def test_a_another_writers_record_between_ours_is_sent_again(bench: Bench) -> None:
    """Offsets of the journal are counted, so they must be proved contiguous."""
    bench.fold(event(1), event(2), event(3))
    bench.producer.interleave = 1
    outcome = bench.commit()
    assert isinstance(outcome, Committed)
    assert outcome.resent == 1
    assert outcome.tails[KEY].offsets == [105, 106, 107]


def test_a_full_queue_is_waited_for(bench: Bench) -> None:
    bench.fold(event(1))
    bench.producer.full = 3
    assert isinstance(bench.commit(), Committed)
    assert bench.producer.calls.count("poll") == 3


def test_a_failed_disk_write_after_the_commit_is_reported(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.fold(event(1))

    def full(_batch: Any) -> None:
        raise StorageError("no space left")

    monkeypatch.setattr(bench.store, "write", full)
    outcome = bench.commit()
    assert isinstance(outcome, Committed)
    assert list(outcome.failures) == [PARTITION]


def test_a_full_block_of_history_is_written_with_the_commit_that_fills_it(bench: Bench) -> None:
    bench.fold(*(event(number) for number in range(1, 71)))
    assert isinstance(bench.commit(), Committed)
    blocks = [(key, value) for topic, _, key, value in bench.producer.produced if topic == "t.history"]
    assert [key for key, _ in blocks] == [b"acme/s1#00000000"]
    assert list(history.decode_block(blocks[0][1] or b"")) == list(range(100, 164))
    assert bench.store.block(KEY, 0) == blocks[0][1]
    assert history.decode_tail(rows.tail_of(bench.store.row(KEY) or b"")).offsets == list(range(164, 170))


def test_a_deleted_session_leaves_tombstones(bench: Bench) -> None:
    bench.fold(event(1), None)
    touched = bench.overlay.parts[PARTITION].touched[KEY]
    old, _ = history.extend(history.EMPTY, range(130))
    touched.entry.tail = old
    assert isinstance(bench.commit(), Committed)
    gone = [(topic, key) for topic, _, key, value in bench.producer.produced if value is None]
    assert gone == [
        ("t.history", b"acme/s1#00000000"),
        ("t.history", b"acme/s1#00000001"),
        ("t.state", KEY),
    ]
    assert bench.store.row(KEY) is None
