"""Bad settings and surroundings: one message that names cause and way out, a non-zero exit, no traceback.

What other suites show already is not repeated: topics that are missing or wrong, the port, the name and the
directory of another worker in tests/engine/test_startup.py, settings in tests/settings, the broker's own
start in tests/broker, missing rights in tests/cli/test_missing_rights.py.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from confluent_kafka import Producer
from rocksdict import Options, Rdict

import forked
from badinput.registry import NEWER_ID, newer_body, serving
from engine.cluster import Cluster, wait_for
from engine.traffic import TENANT, message_event
from engine.workers import Worker, wait_ruled
from refold.core.slots import make_key
from refold.testing.kafka import Kafka
from refold.topology import Topology
from refold.wire.envelope import encode_envelope
from refold.wire.framing import frame
from refold.wire.journal import decode_journal

pytestmark = [pytest.mark.broker, pytest.mark.slow]

#: Nothing listens on port 1 of loopback.
NOBODY = "127.0.0.1:1"

#: A message on a terminal, not a page.
ERROR_CHARACTERS_MAX = 700

#: 60 MB of states.
EVENTS_MAX = 2_000


@dataclass(frozen=True, slots=True)
class End:
    code: int
    stderr: str

    @property
    def error(self) -> str:
        """The one error, after whatever was logged before it."""
        assert "Traceback" not in self.stderr, self.stderr
        before, found, text = self.stderr.partition("error: ")
        assert found, self.stderr
        assert before == "" or before.endswith("\n")
        assert "error: " not in text
        assert len(text) < ERROR_CHARACTERS_MAX, text
        return text


def refold(*arguments: str, **more: str) -> End:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")}
    done = forked.run(
        [*forked.REFOLD, *arguments],
        timeout=240,
        env={**kept, "NO_COLOR": "1", "COLUMNS": "200", "REFOLD_WORKER__START_JITTER_MS_MAX": "0", **more},
    )
    return End(done.returncode, done.stderr)


def worker(kafka: Kafka, prefix: str, directory: Path, *arguments: str, **more: str) -> End:
    """``refold worker run`` that is to end by itself."""
    where = ("--bootstrap", kafka.bootstrap, "--prefix", prefix, "--data-dir", str(directory))
    return refold("worker", "run", *where, *arguments, **more)


def new_prefix(kafka: Kafka, partitions: int) -> str:
    """A prefix whose topics are as they should be."""
    prefix = f"around-{uuid.uuid4().hex[:8]}"
    Topology.load(prefix, partitions=partitions).apply(kafka.bootstrap)
    return prefix


UNREACHABLE = {
    "worker status": "the workers' group",
    "session show s-1": "looking for topic",
    "session fold --all": "looking for topic",
    "rejected show 0/1": "looking for",
    "verify chaos --seconds 10": "metadata",
}


@pytest.fixture(scope="module")
def ends(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> dict[str, End]:
    """Every start that must fail, side by side, because most of them wait for something."""
    prefix, base = new_prefix(kafka, 1), tmp_path_factory.mktemp("starts")
    locked = new_prefix(kafka, 1)
    database = base / "locked" / locked / "p00000"
    database.parent.mkdir(parents=True)
    (base / "file").write_text("not a directory")
    held = Rdict(str(database), Options(raw_mode=True))
    starts: dict[str, Callable[[], End]] = {
        "setting": lambda: worker(kafka, prefix, base / "a", REFOLD_WORKER__SESSION_TIMEOUT_MS="soon"),
        "processes": lambda: worker(kafka, "nowhere", base / "c", "--processes", "2"),
        "no directory": lambda: worker(kafka, prefix, base / "file" / "data"),
        "database": lambda: worker(kafka, locked, base / "locked", "--instance", "w"),
    }
    for command in UNREACHABLE:
        data = str(base / command.replace(" ", "-").replace("/", "-"))
        starts[command] = partial(
            refold, *command.split(), REFOLD_BOOTSTRAP=NOBODY, REFOLD_WORKER__DATA_DIR=data
        )
    with ThreadPoolExecutor(8) as pool:
        # Those that wait longest first.
        found = {name: pool.submit(start) for name, start in reversed(starts.items())}
        made = {name: future.result() for name, future in found.items()}
    held.close()
    assert database.exists()
    assert not list(database.parent.glob("*.aside"))
    return made


@pytest.mark.parametrize("command", UNREACHABLE)
def test_no_broker(ends: Mapping[str, End], command: str) -> None:
    """Goal: 69 for every kind of command, the address and two ways out named, nothing else printed."""
    end = ends[command]
    assert end.code == 69, end
    for text in (NOBODY, "refold broker up", "--bootstrap", UNREACHABLE[command]):
        assert text in end.error
    assert "%3|" not in end.stderr


@pytest.mark.parametrize(
    ("start", "code", "cause", "way_out"),
    [
        ("setting", 78, "REFOLD_WORKER__SESSION_TIMEOUT_MS=soon", "refold settings"),
        ("no directory", 74, "cannot be used (Not a directory)", "--data-dir"),
        # Another program has one partition's DB open (a backup, a look inside).
        ("database", 74, "/p00000 is locked by another process", "--data-dir"),
    ],
)
def test_a_worker_that_cannot_start_says_why(
    ends: Mapping[str, End], start: str, code: int, cause: str, way_out: str
) -> None:
    """Goal: one message, the exit code of its class."""
    end = ends[start]
    assert end.code == code, end
    assert cause in end.error
    assert way_out in end.error


def test_several_processes_that_cannot_start_end_together(ends: Mapping[str, End]) -> None:
    """Goal: the supervisor does not start again what would end the same way."""
    end = ends["processes"]
    assert end.code == 78
    assert "Traceback" not in end.stderr
    assert "refold topology apply" in end.stderr


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], Path]]:
    """A file system of so many MiB; needs root."""
    mounted: list[Path] = []

    def make(mebibytes: int) -> Path:
        path = tmp_path / f"disk-{mebibytes}"
        path.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs", str(path)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            pytest.skip("a small file system cannot be mounted: no mount command")
        if done.returncode != 0:
            pytest.skip(f"a small file system cannot be mounted here: {done.stderr.strip()}")
        mounted.append(path)
        return path

    yield make
    for path in mounted:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(disk: Path) -> Path:
    """Take all the space that is left."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 65_536)
        except OSError:
            return filler


def test_the_disk_is_full_at_the_start(kafka: Kafka, small_disk: Callable[[int], Path]) -> None:
    disk, prefix = small_disk(1), new_prefix(kafka, 1)
    (disk / prefix).mkdir()
    (disk / prefix / "worker.lock").touch()
    fill(disk)
    end = worker(kafka, prefix, disk, "--instance", "w-full")
    assert end.code == 74
    assert "no space left on the disk" in end.error
    assert "REFOLD_WORKER__DATA_DIR" in end.error


def test_the_disk_fills_up_while_the_worker_runs(
    kafka: Kafka, small_disk: Callable[[int], Path], tmp_path: Path
) -> None:
    """Goal: the worker ends and says why; what it had accepted is there when there is space again."""
    cluster = Cluster(kafka.bootstrap, new_prefix(kafka, 1), partitions=1)
    disk = small_disk(40)
    made = Worker(cluster, disk, "w", session_timeout_ms=6_000)
    made.log_path = tmp_path / "w.log"
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "compression.type": "lz4"})
    sent = []
    with made:
        made.wait_live(1)
        filler = fill(disk)
        # RocksDB writes a file when memtables of 8 MiB are full; the write after that says that it failed.
        while made.alive and len(sent) < EVENTS_MAX:
            for number in range(len(sent), len(sent) + 50):
                env = message_event(number, f"s{number}", text="x" * 30_000)
                producer.produce(cluster.topics.inbox, encode_envelope(env), make_key(TENANT, env.session), 0)
                sent.append(env.event_id)
            assert producer.flush(120) == 0
            wait_for("a commit", lambda: cluster.committed().get(0) == len(sent) or not made.alive)
        end = End(made.wait_end(), "error: " + made.log().partition("error: ")[2])
    assert end.code == 74, made.tail()
    assert "no space left on the disk" in end.error
    assert "Nothing is lost" in end.error
    filler.unlink()
    with made:
        made.wait_live(1)
        wait_ruled(cluster)
        assert made.stop() == 0
    accepted = [
        decode_journal(message.value()).env.event_id for message in cluster.read(cluster.topics.journal)
    ]
    assert accepted == sent


def test_a_registry_that_does_not_answer(kafka: Kafka, tmp_path: Path) -> None:
    """Goal: a record whose schema cannot be looked up is not rejected: the worker ends and says why.

    Method: the same worker again with a registry that answers; the record is accepted.
    """
    cluster = Cluster(kafka.bootstrap, new_prefix(kafka, 1), partitions=1)
    env = message_event(1, "s-1")
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    value = frame(NEWER_ID) + newer_body(env)
    producer.produce(cluster.topics.inbox, value, make_key(TENANT, env.session), 0)
    assert producer.flush(120) == 0
    closed = f"http://{NOBODY}"
    end = worker(kafka, cluster.prefix, tmp_path / "a", "--instance", "w", REFOLD_REGISTRY_URL=closed)
    assert end.code == 69, end
    assert closed in end.error
    assert "registry_url" in end.error
    with serving() as url, Worker(cluster, tmp_path, "w", REFOLD_REGISTRY_URL=url) as made:
        made.wait_live(1)
        wait_ruled(cluster)
        assert made.stop() == 0
    [accepted] = cluster.read(cluster.topics.journal)
    assert decode_journal(accepted.value()).env.event_id == env.event_id
    assert cluster.read(cluster.topics.rejected) == []
