"""Goal: on a real broker a session of the newest range is served and fed while most of its partition is
unread, an old session's event waits and is applied in its turn, and a death in between loses and doubles
nothing.

Method: a restore thread that is held between two ranges by a named point, so that nothing is a race.
"""

from __future__ import annotations

import json
import shutil
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition

from engine.check import differences
from engine.cluster import Cluster, wait_for
from engine.small_ranges_worker import COMMAND, HOT_OFFSETS_MIN, TWO_RANGES
from engine.traffic import TENANT, Sent, message_event
from engine.workers import Worker, wait_ruled
from refold.core.slots import make_key
from refold.engine.commitmeta import CommitMeta
from refold.engine.warming.beyond import Beyond
from refold.testing.kafka import Kafka
from refold.wire.envelope import encode_envelope
from refold.wire.owner import RulingLine

pytestmark = pytest.mark.broker

#: State records. Two lives read two ranges each: some are always left.
SESSIONS = 4 * HOT_OFFSETS_MIN
assert SESSIONS > 2 * TWO_RANGES


@pytest.fixture
def cluster(kafka: Kafka, topic_prefix: str) -> Cluster:
    made = Cluster(kafka.bootstrap, topic_prefix.rstrip("-"), partitions=1)
    made.create()
    return made


class Inbox:
    """Numbered events of sessions that are numbered too."""

    def __init__(self, cluster: Cluster) -> None:
        self._topic = cluster.topics.inbox
        self._producer = Producer(
            {"bootstrap.servers": cluster.bootstrap, "linger.ms": 5, "enable.idempotence": True}
        )
        self._offsets: list[int] = []
        self.sent = Sent()

    def put(self, *sessions: int) -> list[int]:
        """An event of each; their offsets."""
        before = len(self._offsets)
        for session in sessions:
            env = message_event(len(self.sent.accepted), f"s{session}")
            self.sent.accepted.add(env.event_id)
            self.sent.order.setdefault(env.session, []).append(env.event_id)
            key, value = make_key(TENANT, env.session), encode_envelope(env)
            while True:
                try:
                    self._producer.produce(self._topic, value, key, 0, on_delivery=self._delivered)
                    break
                except BufferError:
                    self._producer.poll(0.1)
            self._producer.poll(0)
        assert self._producer.flush(30) == 0
        return sorted(self._offsets[before:])

    def _delivered(self, error: object, message: object) -> None:
        assert error is None
        self._offsets.append(message.offset())  # type: ignore[attr-defined]


def url_of(worker: Worker) -> str:
    return next(
        str(json.loads(line)["url"]) for line in worker.log().splitlines() if '"worker_started"' in line
    )


def status_of(worker: Worker, session: int) -> int:
    """What ``GET`` of the session answers."""
    try:
        with urllib.request.urlopen(
            f"{url_of(worker)}/v1/sessions/{TENANT}/s{session}", timeout=10
        ) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        if refused.code == 503 and not int(refused.headers["Retry-After"]) > 0:
            raise
        return refused.code


def ruling(worker: Worker, offset: int, wait_ms: int) -> RulingLine | None:
    try:
        with urllib.request.urlopen(
            f"{url_of(worker)}/v1/rulings/0/{offset}?wait_ms={wait_ms}", timeout=60
        ) as got:
            return RulingLine.from_bytes(got.read())
    except urllib.error.HTTPError as refused:
        if refused.code != 504:
            raise
        return None


def committed(cluster: Cluster) -> tuple[int, CommitMeta]:
    (tp,) = cluster.offsets.newest([TopicPartition(cluster.topics.inbox, 0)], 10)
    meta = CommitMeta.parse(tp.metadata, tp.offset)
    assert meta is not None
    return tp.offset, meta


def held(worker: Worker, nth: int) -> Worker:
    """Started, and stopped in the restore after its ``nth`` range."""
    worker.hit.unlink(missing_ok=True)
    worker.release.unlink(missing_ok=True)
    worker.environment["REFOLD_POINT"] = f"after_range:hold:{nth}"
    worker.start()
    wait_for(f"{worker.name} to be held", lambda: worker.hit.exists() or not worker.alive, 90.0)
    assert worker.alive, worker.tail()
    return worker


def test_a_hot_session_lives_while_an_old_one_waits(cluster: Cluster, tmp_path: Path) -> None:
    """Goal and method: see the module."""
    inbox = Inbox(cluster)
    inbox.put(*range(SESSIONS))
    worker = Worker(cluster, tmp_path, "a", REFOLD_WORKER__HOT_FIRST="true")
    worker.command = COMMAND
    with worker:
        worker.wait_live(1)
        wait_ruled(cluster, 60.0)
        worker.signal(signal.SIGKILL)
        worker.wait_end()
    shutil.rmtree(worker.data_dir)
    old, hot, new = 0, SESSIONS - 1, SESSIONS
    try:
        held(worker, 2)
        assert worker.live() == set()
        assert (status_of(worker, hot), status_of(worker, old), status_of(worker, new)) == (200, 503, 503)
        offsets = inbox.put(old, hot, new, old, hot)
        # Every hot one's ruling comes, whatever is before it.
        for offset in (offsets[1], offsets[4]):
            found = ruling(worker, offset, 30_000)
            assert found is not None
            assert found.status == "accepted"
        assert ruling(worker, offsets[0], 0) is None
        # A commit that was answered shows in the offsets when its marker has reached them.
        beyond = Beyond(offsets[4] + 1, (offsets[0], offsets[2], offsets[3]))
        wait_for("the offsets of the last commit", lambda: committed(cluster)[1].beyond == beyond, every=0.05)
        assert committed(cluster)[0] == offsets[0]
        worker.signal(signal.SIGKILL)
        worker.wait_end()
        # Its successor, on whatever the disk has kept: what was handled is skipped, the rest still waits.
        held(worker, 2)
        (offset,) = inbox.put(hot)
        found = ruling(worker, offset, 30_000)
        assert found is not None
        assert (found.status, found.seq) == ("accepted", 4)
        assert committed(cluster)[0] == offsets[0]
        worker.release.touch()
        worker.wait_live(1)
        wait_ruled(cluster)
        assert status_of(worker, old) == status_of(worker, new) == 200
        wait_for("a commit without a rest", lambda: committed(cluster)[1].beyond is None, every=0.05)
        assert worker.stop() == 0
    finally:
        if worker.alive and worker.process is not None:
            worker.process.kill()
            worker.process.wait()
    assert differences(cluster, inbox.sent) == []
