"""Session operations on a real broker and a real worker: O1 to O7 from the SDK, and the commands."""

from __future__ import annotations

import asyncio
import json
import os
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from client.worker_process import Worker, refold, worker
from refold.cli import main
from refold.client import Refold, Refused, SnapshotView
from refold.errors import ConfigError, NotFound
from refold.ops.blobs.gc import collect
from refold.settings import Settings
from refold.testing.kafka import Kafka
from refold.wire.blobs import sha256_hex

pytestmark = [pytest.mark.broker, pytest.mark.slow]

#: A timer is due within seconds; a very busy machine takes many times that.
FIRED_S_MAX = 120.0


@pytest.fixture(scope="module")
def prefix(kafka: Kafka) -> str:
    name = f"ops-{uuid.uuid4().hex[:8]}"
    refold(kafka.bootstrap, name, "topology", "apply", "--partitions", "2")
    return name


@pytest.fixture(scope="module")
def running(kafka: Kafka, prefix: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    with worker(kafka.bootstrap, prefix, tmp_path_factory.mktemp("workers"), "w-0") as made:
        yield made


@pytest.fixture
async def rf(kafka: Kafka, prefix: str, running: Worker, tmp_path: Path) -> AsyncIterator[Refold]:
    settings = Settings(topic_prefix=prefix, blobs={"url": f"file://{tmp_path}/blobs"})
    async with Refold(settings, bootstrap=kafka.bootstrap) as made:
        yield made


class Command:
    """``refold`` in this process: its imports are paid for already."""

    def __init__(self, capsys: pytest.CaptureFixture[str], bootstrap: str, prefix: str) -> None:
        self._capsys = capsys
        self._options = ["--bootstrap", bootstrap, "--prefix", prefix, "--json"]

    async def __call__(self, *arguments: str, code: int = 0) -> dict[str, Any]:
        """The answer of a command that ends with ``code``."""
        self._capsys.readouterr()
        ended = await asyncio.to_thread(main.run, [*arguments, *self._options])
        said = self._capsys.readouterr()
        assert ended == code, said.err
        found: dict[str, Any] = json.loads(said.out.splitlines()[-1]) if code == 0 else {"error": said.err}
        return found


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], kafka: Kafka, prefix: str) -> Command:
    return Command(capsys, kafka.bootstrap, prefix)


def new_id(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:6]}"


def ids(view: SnapshotView | None) -> list[str]:
    assert view is not None
    return [one["message_id"] for one in view.data["context"]["recent_messages"]]


async def test_o1_o2_o3_forks_former_states_and_lost_paths(rf: Refold, command: Command) -> None:
    """Goal: the state as of a seq is byte for byte what the owner's was; a fork at it goes on by itself and
    reads what no state holds from its source; a path the state has lost comes back with its window."""
    chat = rf.session(new_id("chat"))
    await chat.open(window_messages=4)
    await chat.append("w" * 40_000, role="user", message_id="big")
    for turn in range(3):
        await chat.append(f"question {turn}", role="user", message_id=f"u{turn}")
        last = await chat.append("answer", role="assistant", message_id=f"a{turn}")
    seq = await last.accepted()
    then = await chat.state()
    assert then is not None
    assert then.seq == seq
    await chat.append("from the start", role="user", message_id="edit", parent="")
    for at in range(55):
        latest = await chat.append("more", role="user", message_id=f"x{at}", parent="edit")
    await latest.accepted()
    assert (await chat.at(seq)).raw == then.raw
    with pytest.raises(NotFound, match="it has no state as of seq"):
        await chat.at(10_000)
    assert (await command("session", "show", chat.id, "--at", str(seq)))["seq"] == seq
    missing = await command("session", "show", chat.id, "--at", "9999", code=66)
    assert "it has no state as of seq 9999" in missing["error"]

    name = new_id("fork")
    made = await chat.fork(name, at=seq)
    assert ids(await made.state()) == ids(then)
    assert ids(await (await chat.fork(name, at=seq)).state()) == ids(then), "again: absorbed"
    with pytest.raises(Refused, match="conflict"):
        await chat.fork(name)
    await made.append("only here", role="user", message_id="mine", parent="big", wait="accepted")
    context = await made.context()
    assert [len(str(m["content"])) for m in context.messages] == [40_000, len("only here")]

    with pytest.raises(Refused, match="unknown_message"):
        await chat.switch_branch("a2", wait="accepted")
    await chat.switch_branch("a2", rebuild=True)
    view = await chat.state()
    assert ids(view) == ["u1", "a1", "u2", "a2"]
    assert view is not None
    assert (view.data["context"]["complete"], view.data["context"]["uncovered"]) == (True, 3)
    before = len(view.raw)
    await chat.prune(all_branches=True, by="test")
    pruned = await chat.state()
    assert pruned is not None
    assert not pruned.data["context"]["branch_messages"]
    assert len(pruned.raw) < before
    assert (await command("session", "fold", "--all"))["different"] == 0

    copy = await command("session", "fork", made.id, "--as", new_id("copy"))
    assert (copy["source"], copy["source_seq"]) == (made.id, 2)
    path = await command("session", "switch", copy["session"], "u2", "--rebuild")
    assert path["status"] == "accepted"
    switched = await rf.session(copy["session"]).state(min_seq=path["seq"])
    assert ids(switched) == ["u1", "a1", "u2"]
    assert (await command("session", "prune", copy["session"], "--ended", "--yes"))["status"] == "duplicate"
    refused = await command("session", "prune", copy["session"], "--branch", "nowhere", "--yes", code=65)
    assert "unknown_message" in refused["error"]


async def test_o4_o5_a_busy_session_refuses_and_an_idle_one_is_closed(rf: Refold) -> None:
    """Goal: the policy is the fold's: the ruling says busy, and time alone closes the session."""
    chat = rf.session(new_id("busy"))
    await chat.open(policy={"on_busy": "reject", "ttl_ms": 1_000})
    generation = {"generation_id": "g1", "message_id": "a1", "holder": "h", "generator": "x"}
    await chat.publish("GenerationStarted", {**generation, "lease_ms": 600_000}, wait="accepted")
    with pytest.raises(Refused, match="busy"):
        await chat.append("hello?", role="user", wait="accepted")
    failed = {"generation_id": "g1", "attempt": 1, "code": "gone", "error": None}
    await chat.publish("GenerationFailed", failed)
    deadline = time.monotonic() + FIRED_S_MAX
    while (view := await chat.state(min_seq=0)) is None or view.status != "closed":
        assert time.monotonic() < deadline, "idle time was over long ago"
        await asyncio.sleep(0.1)
    with pytest.raises(Refused, match="session_closed"):
        await chat.append("too late", role="user", wait="accepted")


async def test_o7_gc_keeps_what_events_and_forks_name(
    rf: Refold, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: over real topics: a blob that an event, its fork or an undecided event names stays; a lost one
    goes; one stored again while it was looked for stays."""
    chat = rf.session(new_id("blobs"))
    kept, lost, again = "k" * 70_000, b"lost", b"again"
    await chat.append(kept, role="user", wait="accepted")
    made = await chat.fork()
    store = rf.connection.blobs
    for data in (lost, again):
        store.put(data, media_type="text/plain", field="text")
    names = [sha256_hex(data) for data in (kept.encode(), lost, again)]
    for name in names:
        os.utime(store.path_of(name), (1_000, 1_000))

    monkeypatch.setenv("REFOLD_BLOBS__URL", rf.settings.blobs.url)
    planned = await command("blobs", "gc", "--dry-run", "--grace-hours", "1")
    assert (planned["blobs"], planned["unreferenced"], planned["removed"]) == (3, 2, 0)
    assert "--grace-hours" in (await command("blobs", "gc", "--grace-hours", "0.5", code=64))["error"]

    def progress(line: str) -> None:
        if "rejected" in line:
            store.put(again, media_type="text/plain", field="text")

    done = await collect(
        store,
        rf.connection.reader_config,
        [rf.connection.names.prefix],
        grace_s=3_600.0,
        dry_run=False,
        progress=progress,
    )
    assert (done.referenced, done.removed, done.touched) == (1, 1, 1)
    context = await made.context(load_blobs=True)
    assert context.messages[-1]["content"] == kept
    with pytest.raises(ConfigError, match="does not exist"):
        await collect(
            store,
            rf.connection.reader_config,
            ["no-such-application"],
            grace_s=3_600.0,
            dry_run=False,
            progress=progress,
        )
    assert (await made.context(load_blobs=True)).messages[-1]["content"] == kept
