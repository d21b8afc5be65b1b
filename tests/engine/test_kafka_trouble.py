"""What librdkafka reports when a cluster or a membership is in trouble, and what the engine makes of it. No
broker: the reports are built."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, Consumer, KafkaError, KafkaException, TopicPartition

from refold.engine import clients, group, members, preflight
from refold.engine.config import EngineConfig
from refold.engine.kafkaerrors import Verdict, verdict
from refold.engine.kafkalog import EVERY_S, LATE_S, KafkaLogFilter
from refold.engine.poll import Poller
from refold.errors import FencedError, PermissionDenied, UnavailableError

# --- fenced ----------------------------------------------------------------------------------------------

FENCED = (KafkaError._FATAL, KafkaError._FENCED, KafkaError.FENCED_INSTANCE_ID)


class _Report:
    """A consumer's error event, as ``poll`` returns it."""

    def __init__(self, code: int) -> None:
        self._error = KafkaError(code, "Static consumer fenced by other consumer with same group.instance.id")

    def error(self) -> KafkaError:
        return self._error

    def topic(self) -> None:
        return None


class _OneReport:
    """Enough of a consumer for a poller to run on: one error event, then nothing."""

    def __init__(self, code: int) -> None:
        self._reports = [_Report(code)]

    def subscribe(self, *_: Any, **__: Any) -> None: ...

    def poll(self, _: float) -> _Report | None:
        return self._reports.pop() if self._reports else None

    def consume(self, *_: Any) -> list[Any]:
        return []

    def close(self) -> None: ...


class _Failures:
    def __init__(self) -> None:
        self.first: Future[BaseException] = Future()

    def failed(self, error: BaseException) -> None:
        self.first.set_result(error)


@pytest.mark.parametrize("code", FENCED)
def test_a_consumer_that_reports_it_is_fenced_ends_the_process(code: int) -> None:
    """The code decides: ``fatal()`` is false for what librdkafka reports as an event."""
    assert not _Report(code).error().fatal()
    failures = _Failures()
    poller = Poller(
        _OneReport(code),  # type: ignore[arg-type]
        "inbox",
        failures,  # type: ignore[arg-type]
        bootstrap="nowhere",
        log=logging.getLogger("test"),
    )
    poller.start()
    try:
        error = failures.first.result(60)
    finally:
        poller.stop(60)
    assert isinstance(error, FencedError)
    assert error.exit_code == 76
    assert "REFOLD_WORKER__INSTANCE" in str(error)


class _Owner(_Failures):
    """Settles at once."""

    def revoked(self, _: Any) -> None: ...
    def lost(self, _: Any) -> None: ...


class _FencedInCallback:
    """A consumer that says so in the calls that a rebalance callback makes."""

    def __init__(self, code: int) -> None:
        self._raised = KafkaException(KafkaError(code, "fenced"))

    def subscribe(self, *_: Any, **__: Any) -> None: ...

    def incremental_assign(self, *_: Any) -> None:
        raise self._raised

    incremental_unassign = incremental_assign


@pytest.mark.parametrize("callback", ["_on_assign", "_on_revoke", "_on_lost"])
@pytest.mark.parametrize("code", FENCED)
def test_one_that_finds_out_in_a_rebalance_callback_says_the_same(code: int, callback: str) -> None:
    """Goal: status 76 and the way out, not an unexpected error with status 70."""
    failures, consumer = _Owner(), _FencedInCallback(code)
    poller = Poller(
        consumer,  # type: ignore[arg-type]
        "inbox",
        failures,  # type: ignore[arg-type]
        bootstrap="nowhere",
        log=logging.getLogger("test"),
    )
    getattr(poller, callback)(consumer, [])
    error = failures.first.result(0)
    assert isinstance(error, FencedError)
    assert "REFOLD_WORKER__INSTANCE" in str(error)


@pytest.mark.parametrize("code", FENCED)
def test_a_the_same_in_a_transaction(code: int) -> None:
    assert verdict(KafkaError(code)) is Verdict.FATAL


# --- a partition that is begun while a rebalance begins ----------------------------------------------------


class _Shaken:
    """A consumer that does not seek, and serves a rebalance at the next poll."""

    def __init__(self, code: int) -> None:
        self._code = code
        self.rebalance: Callable[[], None] = lambda: None
        self.calls: list[tuple[str, int, int]] = []

    def consumer_group_metadata(self) -> Any:
        member = Consumer({"bootstrap.servers": "127.0.0.1:1", "group.id": "g", "log_level": 0})
        try:
            return member.consumer_group_metadata()
        finally:
            member.close()

    def seek(self, where: TopicPartition) -> None:
        self._note("seek", [where])
        raise KafkaException(KafkaError(self._code, "Failed to seek"))

    def consume(self, *_: Any) -> list[Any]:
        self.rebalance()
        return []

    def incremental_assign(self, partitions: list[TopicPartition]) -> None:
        self._note("assign", partitions)

    def incremental_unassign(self, partitions: list[TopicPartition]) -> None:
        self._note("unassign", partitions)

    def pause(self, _: Any) -> None: ...
    def resume(self, _: Any) -> None: ...
    def get_watermark_offsets(self, *_: Any, **__: Any) -> None: ...

    def _note(self, call: str, partitions: list[TopicPartition]) -> None:
        self.calls += [(call, where.partition, where.offset) for where in partitions]


class _Assigned(_Owner):
    def __init__(self) -> None:
        super().__init__()
        self.epochs: dict[int, int] = {}

    def next_epoch(self) -> int:
        return 7

    def assigned(self, partitions: Any) -> None:
        self.epochs.update(partitions)


def _begun(consumer: _Shaken, *, revoked: bool) -> list[tuple[str, int, int]]:
    """What is asked of the consumer when partition 0 is begun at offset 2135."""
    engine = _Assigned()
    poller = Poller(
        consumer,  # type: ignore[arg-type]
        "inbox",
        engine,  # type: ignore[arg-type]
        bootstrap="nowhere",
        log=logging.getLogger("test"),
    )
    given = [TopicPartition("inbox", 0)]
    poller._on_assign(consumer, given)  # type: ignore[arg-type]
    if revoked:
        consumer.rebalance = lambda: poller._on_revoke(consumer, given)  # type: ignore[arg-type]
    consumer.calls.clear()
    poller._begin(0, engine.epochs[0], 1, 2135, False)
    assert not engine.first.done()
    return consumer.calls


UNSOUGHT = (KafkaError._STATE, KafkaError._TIMED_OUT, KafkaError._OUTDATED)


@pytest.mark.parametrize("code", UNSOUGHT)
def test_a_seek_that_did_not_take_place_is_an_assignment_after_the_rebalance(code: int) -> None:
    """Goal: a worker that begins a partition in the moment of a rebalance goes on (it ended with status 64:
    "Failed to seek to offset 2135: Local: Outdated")."""
    calls = _begun(_Shaken(code), revoked=False)
    assert calls == [("seek", 0, 2135), ("unassign", 0, OFFSET_INVALID), ("assign", 0, 2135)]


@pytest.mark.parametrize("code", UNSOUGHT)
def test_one_of_a_partition_that_the_rebalance_takes_is_dropped(code: int) -> None:
    calls = _begun(_Shaken(code), revoked=True)
    assert calls == [("seek", 0, 2135), ("unassign", 0, OFFSET_INVALID)]


# --- the group's description -------------------------------------------------------------------------------


class _Admin:
    """Answers with the given outcomes, one per call."""

    def __init__(self, *outcomes: Any) -> None:
        self._outcomes = list(outcomes)

    def describe_consumer_groups(self, names: list[str], **_: Any) -> dict[str, Future[Any]]:
        future: Future[Any] = Future()
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, int):
            future.set_exception(KafkaException(KafkaError(outcome)))
        else:
            future.set_result(outcome)
        return {names[0]: future}


class _Empty:
    members = ()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group, "SETTLING_POLL_S", 0.001)


@pytest.mark.usefixtures("impatient")
def test_status_and_start_wait_for_a_broker_that_has_just_started() -> None:
    loading = (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS)
    assert members.look(_Admin(*loading, _Empty), "p", "b") == []  # type: ignore[arg-type]
    assert preflight.refuse_second(CONFIG, _Admin(*loading, _Empty)) is None  # type: ignore[arg-type]


def test_a_group_that_does_not_exist_has_no_members() -> None:
    assert members.look(_Admin(KafkaError.GROUP_ID_NOT_FOUND), "p", "b") == []  # type: ignore[arg-type]


@pytest.mark.usefixtures("impatient")
def test_a_coordinator_that_never_loads_is_an_error_in_the_end() -> None:
    with pytest.raises(KafkaException):
        group.describe(_Admin(*[KafkaError.NOT_COORDINATOR] * 3), "g", -1.0)  # type: ignore[arg-type]


def test_other_errors_are_said_at_once() -> None:
    with pytest.raises(UnavailableError, match="describing the group p: no broker"):
        preflight.refuse_second(CONFIG, _Admin(KafkaError._TRANSPORT))  # type: ignore[arg-type]
    denied = _Admin(KafkaError.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(PermissionDenied, match="needs Describe on group p"):
        preflight.refuse_second(CONFIG, denied)  # type: ignore[arg-type]


# --- the port of a former life -----------------------------------------------------------------------------

CONFIG = EngineConfig(kafka={"bootstrap.servers": "b"}, prefix="p", instance="a", data_dir=Path("unused"))


@pytest.mark.parametrize(
    ("former", "port"),
    [
        ("http://127.0.0.1:4711", 4711),
        ("http://10.0.0.1:4711", 0),
        ("http://127.0.0.1", 0),
        ("http://127.0.0.1:x", 0),
        ("http://[", 0),
        ("", 0),
        (None, 0),
    ],
)
def test_a_free_port_is_that_of_the_former_life_on_this_address(former: str | None, port: int) -> None:
    assert preflight.former_port(CONFIG, former) == port


def test_a_given_port_or_url_is_kept() -> None:
    former = "http://127.0.0.1:4711"
    assert preflight.former_port(replace(CONFIG, http_port=80), former) == 80
    assert preflight.former_port(replace(CONFIG, advertised_url="http://x"), former) == 0


# --- librdkafka's log lines --------------------------------------------------------------------------------

REFUSED = "localhost:9092/1: Connect to ipv4#127.0.0.1:9092 failed: Connection refused (after 0ms in state)"
ABORTED = "Current transaction failed in state InTransaction: Broker: Specified group generation id is not"
CREDENTIALS = "localhost:9092/1: SASL authentication error: Authentication failed"


class _Lines:
    """A logger like the clients', what it let through, and its clock."""

    def __init__(self, level: int = logging.INFO) -> None:
        self.now = 0.0
        self.logger = logging.Logger("test-librdkafka", level)
        self.logger.addFilter(KafkaLogFilter(lambda: self.now))
        self.records: list[logging.LogRecord] = []
        handler = logging.Handler()
        handler.emit = self.records.append  # type: ignore[method-assign]
        self.logger.addHandler(handler)

    def log(self, facility: str, text: str, level: int = logging.ERROR) -> None:
        """As confluent-kafka calls a logger."""
        self.logger.log(level, "%s [%s] %s", facility, "rdkafka#consumer-1", text)


def test_a_broker_that_is_down_is_one_warning_in_five_seconds() -> None:
    lines = _Lines()
    for _ in range(100):
        lines.log("FAIL", REFUSED)
    lines.now += EVERY_S
    lines.log("FAIL", REFUSED)
    assert [record.levelname for record in lines.records] == ["WARNING", "WARNING"]
    assert [getattr(record, "suppressed", 0) for record in lines.records] == [0, 99]
    lines.now += EVERY_S
    lines.log("FAIL", REFUSED)
    assert not hasattr(lines.records[-1], "suppressed")


def test_what_does_not_pass_by_itself_stays_an_error_and_is_not_hidden_by_what_does() -> None:
    lines = _Lines()
    lines.log("FAIL", REFUSED)
    lines.log("FAIL", CREDENTIALS)
    lines.log("TXNERR", f"{ABORTED} valid (ILLEGAL_GENERATION)")
    lines.log("TXNERR", "Current transaction failed: Topic authorization failed (TOPIC_AUTHORIZATION_FAILED)")
    lines.now += EVERY_S
    lines.log("ADDOFFSETS", "TxnCoordinator: Failed to add offsets to transaction: Local: Timed out")
    lines.log("ADDOFFSETS", "TxnCoordinator: Failed to add offsets: Group authorization failed")
    levels = [record.levelname for record in lines.records]
    assert levels == ["WARNING", "ERROR", "WARNING", "ERROR", "WARNING", "ERROR"]


def test_in_an_outage_that_was_said_lines_about_connections_are_withheld_and_no_others() -> None:
    lines = _Lines()
    [told] = [item for item in lines.logger.filters if isinstance(item, KafkaLogFilter)]
    told.outage(True)
    for _ in range(20):
        lines.now += EVERY_S
        lines.log("FAIL", REFUSED)
        lines.log("FAIL", "localhost:9092/1: Disconnected: connection closed by peer", logging.INFO)
    assert lines.records == []
    lines.log("FAIL", CREDENTIALS)
    lines.log("TXNERR", "Current transaction failed: 9 message(s) failed delivery (_INCONSISTENT)")
    assert [record.levelname for record in lines.records] == ["ERROR", "WARNING"]
    told.outage(False)
    lines.now += LATE_S / 2
    lines.log("FAIL", REFUSED)
    assert len(lines.records) == 2, "it was said before, and handed over late"
    lines.now += LATE_S
    lines.log("FAIL", REFUSED)
    assert [record.levelname for record in lines.records] == ["ERROR", "WARNING", "WARNING"]


def test_fatal_lines_are_all_shown_and_debug_ones_if_asked_for() -> None:
    for level, shown in ((logging.INFO, 3), (logging.DEBUG, 6)):
        lines = _Lines(level)
        for _ in range(3):
            lines.log("FATAL", "Fatal error: fenced", logging.CRITICAL)
            lines.log("FETCH", "fetched", logging.DEBUG)
        assert len(lines.records) == shown
        assert sum(record.levelname == "CRITICAL" for record in lines.records) == 3


def test_the_clients_log_through_the_filter() -> None:
    assert any(isinstance(item, KafkaLogFilter) for item in clients.LIBRDKAFKA.filters)


@pytest.mark.parametrize("short", ["state", "history", "generations"])
def test_z_a_copy_is_as_old_as_the_changelog_that_forgets_first(
    monkeypatch: pytest.MonkeyPatch, short: str
) -> None:
    """Goal: one local copy has rows of all three; a tombstone that is gone from any of them is missed."""
    topics = CONFIG.topics
    names = [topics.state, topics.history, topics.generations, topics.review, topics.work]
    names += [topics.inbox, topics.journal, topics.rejected, topics.batches]
    config = {
        name: {"cleanup.policy": "compact", "delete.retention.ms": "9000000" if name.endswith(short) else "x"}
        for name in names
    }
    for name in (topics.state, topics.history, topics.generations):
        if not name.endswith(short):
            config[name]["delete.retention.ms"] = "86400000"
    monkeypatch.setattr(preflight, "_describe", lambda *_: ({n: n for n in names}, dict.fromkeys(names, 4)))
    monkeypatch.setattr(preflight, "_configs", lambda *_: config)
    assert preflight.examine(CONFIG, None).topics.delete_retention_ms == 9_000_000  # type: ignore[arg-type]
