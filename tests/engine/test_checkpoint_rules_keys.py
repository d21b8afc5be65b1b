"""The key filter: never wrong about what is there, seldom about what is not, the same bytes everywhere."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.checkpoint_world import KEYS, PARTITION, World
from refold.engine.checkpoints import keys as making
from refold.engine.checkpoints import manifest as manifests
from refold.engine.checkpoints.check import damage
from refold.engine.checkpoints.keyfilter import (
    BITS_MIN,
    BITS_PER_KEY,
    KEYS_MAX,
    Builder,
    KeyFilter,
    bits_for,
    decode,
)
from refold.engine.checkpoints.keys import write_filter
from refold.engine.checkpoints.manifest import DIGEST_DIGITS
from refold.errors import StorageError, UnavailableError


def made(keys: list[bytes], state_next: int = 7) -> KeyFilter:
    builder = Builder(len(keys))
    for key in keys:
        builder.add(key)
    return builder.done(state_next)


@given(st.lists(st.binary(min_size=1, max_size=80), unique=True, max_size=200))
def test_what_was_added_is_always_held(keys: list[bytes]) -> None:
    found = made(keys)
    assert all(found.holds(key) for key in keys)


@given(st.lists(st.binary(min_size=1, max_size=40), unique=True, max_size=50), st.randoms())
def test_the_bytes_are_a_function_of_the_set(keys: list[bytes], chance: object) -> None:
    """Goal: an unchanged set of sessions is an unchanged file, which is not sent again."""
    shuffled = list(keys)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    assert made(keys) == made(shuffled)


@pytest.mark.parametrize("count", [0, 1, 30, 400, 20_000])
def test_at_most_one_in_a_hundred_others_is_held(count: int) -> None:
    """Deterministic: the same 20 000 foreign keys against filters of every size. 0.82 % by the formula."""
    found = made([b"a/session-%d" % n for n in range(count)])
    wrong = sum(found.holds(b"b/other-%d" % n) for n in range(20_000))
    assert wrong <= 200
    assert found.keys == count


def test_its_size_is_what_the_arithmetic_says() -> None:
    assert bits_for(1_000_000) == 10_000_000
    assert bits_for(0) == BITS_MIN
    assert bits_for(KEYS_MAX) // 8 == KEYS_MAX * BITS_PER_KEY // 8 == 50_000_000
    with pytest.raises(ValueError, match="up to"):
        Builder(KEYS_MAX + 1)


def test_another_process_finds_the_same_bits(tmp_path: Path) -> None:
    """Goal: nothing hangs on PYTHONHASHSEED or the machine."""
    program = """
import sys
from pathlib import Path
from refold.engine.checkpoints.keyfilter import Builder
builder = Builder(500)
for key in {b"a/%d" % n for n in range(500)}:
    builder.add(key)
builder.write(Path(sys.argv[1]))
"""
    for seed in ("1", "2"):
        path = tmp_path / seed
        env = {**os.environ, "PYTHONHASHSEED": seed}
        subprocess.run([sys.executable, "-c", program, str(path)], check=True, env=env, timeout=180)
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
    assert decode((tmp_path / "1").read_bytes(), 3) == made([b"a/%d" % n for n in range(500)], 3)


@pytest.mark.parametrize("harm", ["empty", "cut", "longer", "magic", "version", "probes"])
def test_what_is_no_filter_is_refused(tmp_path: Path, harm: str) -> None:
    builder = Builder(3)
    builder.add(b"a/1")
    builder.write(tmp_path / "f")
    data = bytearray((tmp_path / "f").read_bytes())
    match harm:
        case "empty":
            data = bytearray()
        case "cut":
            data = data[:-1]
        case "longer":
            data += b"\0"
        case "magic":
            data[0] ^= 1
        case "version":
            data[4] += 1
        case "probes":
            data[5] = 0
    with pytest.raises(StorageError, match="key filter"):
        decode(bytes(data), 0)


# --- in a checkpoint -------------------------------------------------------------------------------------


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    opened = World(tmp_path)
    yield opened
    opened.close()


def test_a_checkpoint_brings_its_filter_and_the_same_keys_are_not_sent_twice(world: World) -> None:
    """Goal: the manifest names it, a reader gets it with the place it is of; deleted sessions are not in it.
    Method: two checkpoints of the same sessions, a third with one more and one less."""
    world.go_on(5)
    first = world.remote.manifest(PARTITION, str(world.publish().checkpoint))
    world.go_on(5)
    second = world.remote.manifest(PARTITION, str(world.publish().checkpoint))
    assert first.keys is not None
    assert first.keys == second.keys
    assert first.keys not in first.files
    for manifest in (first, second):
        found = world.remote.key_filter(manifest)
        assert found is not None
        assert found.state_next == manifest.frontier.state_next
        assert found.keys == KEYS
        assert all(found.holds(b"a/%d" % n) for n in range(KEYS))
    batch = world.batch()
    batch.delete_state(b"a/0")
    batch.put_state(b"b/new", b"row")
    world.number += 1
    world.commit(batch)
    third = world.remote.manifest(PARTITION, str(world.publish().checkpoint))
    assert third.keys != second.keys
    found = world.remote.key_filter(third)
    assert found is not None
    assert found.holds(b"b/new")
    assert not found.holds(b"a/0")


def test_a_manifest_without_a_filter_stays_readable(world: World) -> None:
    """Goal: checkpoints of the format before filters are used as before. Method: the bytes of format 1."""
    world.go_on(5)
    manifest = world.remote.manifest(PARTITION, str(world.publish().checkpoint))
    _, data = manifest.encode()
    row = json.loads(data)
    del row["keys"]
    old = json.dumps({**row, "format": 1}).encode()
    checkpoint = f"{manifest.created_ms:013d}-{hashlib.sha256(old).hexdigest()[:DIGEST_DIGITS]}"
    found = manifests.decode(checkpoint, old)
    assert found.keys is None
    assert found.files == manifest.files
    assert world.remote.key_filter(found) is None


@pytest.mark.parametrize("harm", ["changed", "cut", "missing"])
def test_verify_and_readers_notice_a_bad_filter(world: World, harm: str) -> None:
    world.go_on(5)
    checkpoint = str(world.publish().checkpoint)
    manifest = world.remote.manifest(PARTITION, checkpoint)
    assert manifest.keys is not None
    assert damage(world.remote, PARTITION, checkpoint, set(), lambda _: None) == []
    path = world.file(manifest.keys.sha256)
    data = path.read_bytes()
    if harm == "missing":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if harm == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
    (found,) = damage(world.remote, PARTITION, checkpoint, set(), lambda _: None)
    assert "keys.filter" in found
    # The next checkpoint of the same sessions sends it again only where it is not whole.
    world.go_on()
    again = world.remote.manifest(PARTITION, str(world.publish().checkpoint))
    assert again.keys == manifest.keys
    if harm != "changed":
        assert world.remote.key_filter(again) is not None


def test_too_many_sessions_make_a_checkpoint_without_a_filter(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(making, "KEYS_MAX", KEYS - 1)
    world.go_on(5)
    assert world.remote.manifest(PARTITION, str(world.publish().checkpoint)).keys is None


def test_it_is_made_in_pieces_and_ends_when_the_worker_stops(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: half of one core at most, and no wait at a stop. Method: chunks of 10 of the 40 keys."""
    monkeypatch.setattr(making, "CHUNK_KEYS", 10)
    world.go_on(2)
    world.store.checkpoint(tmp_path / "c")
    slept: list[float] = []
    assert write_filter(tmp_path / "c", world.memory, tmp_path / "f", sleep=slept.append)
    assert len(slept) == 2 * KEYS // 10
    checks = []

    def check() -> None:
        checks.append(1)
        if len(checks) == 3:
            raise UnavailableError("stops")

    with pytest.raises(UnavailableError, match="stops"):
        write_filter(tmp_path / "c", world.memory, tmp_path / "g", check)
    assert not (tmp_path / "g").exists()
