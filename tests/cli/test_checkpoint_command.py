"""``refold checkpoint`` on a local store: what it says, its JSON, its exit codes. No broker."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.checkpoint_world import PARTITION, PREFIX, World, frontier, seqs
from refold.cli.main import run
from refold.engine.checkpoints.retention import PRUNE_AGE_MS
from refold.engine.store import Store

Call = Callable[..., tuple[int, Any, str]]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    for _ in range(3):
        made.go_on(5)
        made.publish()
    yield made
    made.close()


@pytest.fixture
def checkpoint(world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    monkeypatch.chdir(world.directory)

    def call(*args: str) -> tuple[int, Any, str]:
        """Exit code, the JSON object if there is one, everything on both streams."""
        capsys.readouterr()
        code = run(["checkpoint", *args, "--url", world.url, "--prefix", PREFIX])
        captured = capsys.readouterr()
        lines = captured.out.splitlines()
        found = json.loads(lines[-1]) if "--json" in args and lines else None
        return code, found, captured.out + captured.err

    return call


def file_of(world: World, checkpoint: str) -> Path:
    """A file that only this checkpoint names."""
    others = {
        entry.sha256
        for one in world.remote.checkpoints(PARTITION)
        if one != checkpoint
        for entry in world.remote.manifest(PARTITION, one).files
    }
    only = next(e for e in world.remote.manifest(PARTITION, checkpoint).files if e.sha256 not in others)
    return world.directory / "remote" / PREFIX / f"p{PARTITION:05d}" / "files" / only.sha256


def test_list_shows_them_newest_first_and_damaged_manifests_too(world: World, checkpoint: Call) -> None:
    newest = world.remote.checkpoints(PARTITION)
    code, found, _ = checkpoint("list", "--json")
    assert code == 0
    assert [row["checkpoint"] for row in found["checkpoints"]] == newest
    assert [row["inbox_next"] for row in found["checkpoints"]] == [15, 10, 5]
    assert found["checkpoints"][0]["bytes"] == world.remote.manifest(PARTITION, newest[0]).length
    manifests = world.directory / "remote" / PREFIX / f"p{PARTITION:05d}" / "manifests"
    (manifests / f"{newest[1]}.json").write_text("{}")
    code, _, text = checkpoint("list")
    assert code == 0
    assert newest[2] in text
    assert "damaged" in text
    code, found, _ = checkpoint("list", "--partition", "8", "--json")
    assert (code, found["checkpoints"]) == (0, [])


def test_verify_says_which_file_is_bad_and_exits_1(world: World, checkpoint: Call) -> None:
    newest, _, oldest = world.remote.checkpoints(PARTITION)
    code, found, text = checkpoint("verify", "--all", "--json")
    assert (code, found["verified"], found["damaged"]) == (0, 3, 0)
    assert "CURRENT" in text
    path = file_of(world, oldest)
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert checkpoint("verify")[0] == 0
    code, found, text = checkpoint("verify", "--all", "--json")
    assert (code, found["damaged"]) == (1, 1)
    (bad,) = [row for row in found["checkpoints"] if row["damage"]]
    assert bad["checkpoint"] == oldest
    assert "is not what its manifest names" in bad["damage"][0]
    assert checkpoint("verify", "--partition", str(PARTITION), "--id", newest)[0] == 0
    assert checkpoint("verify", "--partition", str(PARTITION), "--id", oldest)[0] == 1
    assert checkpoint("verify", "--partition", "8")[0] == 66
    assert checkpoint("verify", "--partition", str(PARTITION), "--id", "x")[0] == 66


def test_restore_makes_a_directory_a_worker_can_open(world: World, checkpoint: Call) -> None:
    newest, middle, oldest = world.remote.checkpoints(PARTITION)
    at = ["--partition", str(PARTITION)]
    code, found, text = checkpoint("restore", *at, "--to", "out", "--json")
    assert (code, found["checkpoint"], found["inbox_next"]) == (0, newest, 15)
    assert "bytes" in text
    store = Store(world.directory / "out", world.memory)
    assert store.frontier() == frontier(15)
    assert seqs(store) == {15}
    store.close()
    assert checkpoint("restore", *at, "--to", "out")[0] == 64
    file_of(world, newest).unlink()
    code, found, text = checkpoint("restore", *at, "--to", "older", "--json")
    assert (code, found["checkpoint"]) == (0, middle)
    assert f"{newest} is skipped" in text
    assert checkpoint("restore", *at, "--id", oldest, "--to", "oldest", "--json")[1]["inbox_next"] == 5
    code, _, text = checkpoint("restore", *at, "--id", newest, "--to", "bad")
    assert code == 74
    assert "changelogs" in text
    assert not (world.directory / "bad").exists()
    assert checkpoint("restore", "--partition", "8", "--to", "bad")[0] == 66


def test_prune_keeps_what_it_is_told_and_says_what_it_would_do(
    world: World, checkpoint: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = world.now_ms + PRUNE_AGE_MS + 60_000
    monkeypatch.setattr("refold.cli.checkpoint.time.time_ns", lambda: now_ms * 1_000_000)
    before = world.remote.files(PARTITION)
    code, found, _ = checkpoint("prune", "--keep", "1", "--dry-run", "--json")
    assert code == 0
    (row,) = found["partitions"]
    assert len(row["checkpoints"]) == 2
    assert row["files"] > 0
    assert world.remote.files(PARTITION) == before
    code, found, text = checkpoint("prune", "--keep", "1", "--json")
    assert (code, found["partitions"]) == (0, [row])
    assert "deleted 2 checkpoints" in text
    assert len(world.remote.checkpoints(PARTITION)) == 1
    assert len(world.remote.files(PARTITION)) == len(before) - row["files"]
    assert checkpoint("verify")[0] == 0


def test_without_a_store_the_way_out_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("REFOLD_WORKER__CHECKPOINT_URL", raising=False)
    assert run(["checkpoint", "list"]) == 78
    assert "REFOLD_WORKER__CHECKPOINT_URL" in capsys.readouterr().err
    assert run(["checkpoint", "list", "--url", "nonsense://x"]) == 78
    assert run(["checkpoint", "restore", "--url", "file:///tmp"]) == 64


@pytest.mark.parametrize("verb", ["list", "verify", "restore", "prune"])
def test_help_of_each_verb(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["checkpoint", verb, "--help"]) == 0
    assert "--prefix" in capsys.readouterr().out
