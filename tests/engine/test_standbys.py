"""Two workers that keep copies of each other's partitions: stale reads, a death, promotion, rule Z."""

from __future__ import annotations

import asyncio
import json
import signal
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from engine.check import differences
from engine.cluster import Cluster, wait_for
from engine.traffic import Traffic
from engine.workers import Worker, wait_ruled
from refold.cli.main import app
from refold.client import Refold, SnapshotView
from refold.core.slots import SlotMap
from refold.engine import rows
from refold.engine.store import Memory, Store
from refold.errors import UsageError
from refold.testing.kafka import Kafka

pytestmark = pytest.mark.broker


@pytest.fixture
def cluster(kafka: Kafka, topic_prefix: str) -> Cluster:
    return Cluster(kafka.bootstrap, topic_prefix.rstrip("-"))


def worker(cluster: Cluster, directory: Path, name: str) -> Worker:
    return Worker(cluster, directory, name, session_timeout_ms=4_000, REFOLD_WORKER__STANDBY_REPLICAS="1")


def events(one: Worker, name: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in one.log().splitlines() if line.startswith("{")]
    return [row for row in rows if row["event"] == name]


def url(one: Worker) -> str:
    return str(events(one, "worker_started")[-1]["url"])


def get(address: str) -> tuple[int, dict[str, str], bytes]:
    try:
        with urllib.request.urlopen(address, timeout=30) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as refused:
        return refused.code, dict(refused.headers), refused.read()


def copies(one: Worker) -> dict[int, dict[str, Any]]:
    rows = json.loads(get(f"{url(one)}/healthz/partitions")[2])["partitions"]
    return {row["partition"]: row for row in rows if row["state"] == "standby"}


def wait_copied(one: Worker, other: Worker) -> None:
    """Everything that is committed by now is in the worker's copies of all that the other owns."""
    since = time.monotonic()

    def whole() -> bool:
        asked = time.monotonic()
        found = copies(one)
        return set(found) == other.live() and all(
            row["behind"] == 0 and row["age_s"] is not None and asked - row["age_s"] > since
            for row in found.values()
        )

    wait_for(f"{one.name} to have copies of what {other.name} owns", whole, every=0.1)


def wait_shared(cluster: Cluster, *workers: Worker) -> None:
    """Each has its share of the partitions, live."""

    def shared() -> bool:
        live = [one.live() for one in workers]
        return all(live) and sum(map(len, live)) == cluster.partitions

    wait_for("the partitions to be shared", shared, every=0.1)


def newest_state(cluster: Cluster) -> dict[bytes, tuple[int, bytes]]:
    found = {}
    for message in cluster.read(cluster.topics.state):
        found[message.key()] = (message.partition(), message.value())
    return {key: (partition, value) for key, (partition, value) in found.items() if value is not None}


def test_a_standby_answers_labelled_and_takes_over_with_the_tail_alone(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Goal: S2 to S4. Method: an owner killed inside a transaction; what the survivor says of its copies
    before, what it read from the changelogs when it took over, and the oracle's topics in the end."""
    cluster.create()
    traffic = Traffic(cluster)
    with worker(cluster, tmp_path, "a") as a, worker(cluster, tmp_path, "b") as b:
        wait_shared(cluster, a, b)
        for _ in range(3):
            traffic.send(200)
            wait_ruled(cluster)
        of_a = undisturbed(cluster, a, b)
        stored = newest_state(cluster)
        name = next(key.decode().split("/")[1] for key, (number, _) in stored.items() if number in of_a)
        wait_for("the owner's own answer", lambda: not asyncio.run(stale_read(cluster, name)).stale)
        seen = len(events(b, "partitions_assigned"))
        a.arm("after_produce", "kill")
        traffic.send(100)
        assert a.wait_end() == -signal.SIGKILL
        of_a = a.live()
        said = asyncio.run(stale_read(cluster, name))
        if len(events(b, "partitions_assigned")) == seen:
            # Nobody else could have answered than a copy, or the topic where that was too slow.
            assert said.stale
        b.wait_live(4)
        taken = {row["partition"]: row for row in events(b, "partition_live") if row["partition"] in of_a}
        everything = len(cluster.read(cluster.topics.state))
        assert set(taken) == of_a
        assert sum(row["records"] for row in taken.values()) * 5 < everything
        wait_for("no copy of what it owns", lambda: copies(b) == {})
        assert events(b, "local_store_set_aside") == []
        traffic.send(100)
        wait_ruled(cluster)
        for key, (partition, value) in newest_state(cluster).items():
            if partition in of_a:
                assert get(f"{url(b)}/v1/sessions/{key.decode()}")[2] == value

        # Whoever comes back becomes a standby of what it does not get, and the copies follow the partitions.
        a.start()
        wait_shared(cluster, a, b)
        traffic.send(100)
        wait_ruled(cluster)
        wait_copied(b, a)
        wait_copied(a, b)
        for one in (a, b):
            one.signal(signal.SIGTERM)
        assert (a.wait_end(), b.wait_end()) == (0, 0)
    stored = newest_state(cluster)
    for one in (a, b):
        assert rows_of(one, cluster) == {key: value for key, (_, value) in stored.items()}
    assert differences(cluster, traffic.sent) == []


def undisturbed(cluster: Cluster, a: Worker, b: Worker) -> set[int]:
    """:func:`reads`, played again where a rebalance came between; what ``a`` owns then."""
    for left in (2, 1, 0):
        wait_shared(cluster, a, b)
        before = [len(events(one, "partitions_assigned")) for one in (a, b)]
        of_a = a.live()
        try:
            reads(cluster, a, b, of_a)
            return of_a
        except AssertionError:
            if not left or [len(events(one, "partitions_assigned")) for one in (a, b)] == before:
                raise
    raise AssertionError("unreachable")


def reads(cluster: Cluster, a: Worker, b: Worker, of_a: set[int]) -> None:
    """What each of the two says of the other's sessions, and what the commands say of both."""
    wait_copied(b, a)
    wait_copied(a, b)
    for key, (partition, value) in list(newest_state(cluster).items())[:8]:
        path = f"/v1/sessions/{key.decode()}"
        other, owner = (b, a) if partition in of_a else (a, b)
        status, headers, body = get(f"{url(other)}{path}?stale=ok")
        assert (status, body, headers["X-Served-By"]) == (200, value, "standby")
        assert headers["Refold-Behind"] == "0"
        assert int(headers["Refold-Position"]) > 0
        assert float(headers["Refold-Age"]) >= 0
        assert get(f"{url(other)}{path}")[0] == 421
        assert get(f"{url(other)}{path}?stale=ok&min_seq=1")[0] == 421
        status, headers, body = get(f"{url(owner)}{path}?stale=ok")
        assert (status, body, headers["X-Served-By"]) == (200, value, "active")
    nobody = next(n for n in range(99) if SlotMap(4).partition(b"acme/no%d" % n) in of_a)
    status, headers, _ = get(f"{url(b)}/v1/sessions/acme/no{nobody}?stale=ok")
    assert (status, headers["X-Served-By"]) == (404, "standby")

    where = command(cluster, "session", "where", "s1", "--tenant", "acme", "--json")
    assert where["owner"] == ("a" if where["partition"] in of_a else "b")
    assert where["state"] == "live"
    (copy,) = where["standbys"]
    assert {copy["instance"], where["owner"]} == {"a", "b"}
    assert copy["behind"] >= 0
    members = command(cluster, "worker", "status", "--partitions", "--json")["members"]
    states = {(row["partition"], row["state"]) for member in members for row in member["states"]}
    assert states == {(number, state) for number in range(4) for state in ("live", "standby")}


async def stale_read(cluster: Cluster, session: str) -> SnapshotView:
    """What the SDK gets where a copy will do."""
    async with Refold(bootstrap=cluster.bootstrap, topic_prefix=cluster.prefix, tenant="acme") as rf:
        chat = rf.session(session)
        with pytest.raises(UsageError, match="min_seq"):
            await chat.state(stale=True, min_seq=1)
        view = await chat.state(stale=True)
        assert view is not None
        assert view.stale or view.staleness is None
        context = await chat.context(stale=True)
        assert context.stale or context.staleness is None
        return view


def rows_of(one: Worker, cluster: Cluster) -> dict[bytes, bytes]:
    """Every session in the worker's directories: its own partitions' and those that it has copied."""
    found = {}
    for number in range(cluster.partitions):
        store = Store(one.data_dir / cluster.prefix / f"p{number:05d}", Memory())
        try:
            keys = store.keys()
            found.update({key: rows.snapshot_of(store.row(key) or b"") for key in keys})
        finally:
            store.close(flush=False)
    return found


def command(cluster: Cluster, *arguments: str) -> dict[str, Any]:
    env = {"REFOLD_BOOTSTRAP": cluster.bootstrap, "REFOLD_TOPIC_PREFIX": cluster.prefix}
    done = CliRunner().invoke(app, list(arguments), env=env, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer
