"""Every way a partition's directory can be bad: found, set aside with its reason, rebuilt. Real RocksDB."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from rocksdict import Options, Rdict

from engine.changelog_world import PARTITION, World
from refold.engine import rows
from refold.engine.store import Batch, Memory, Store, UnreadableStore


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path, monkeypatch)
    made.restore()
    made.live_on(60)
    yield made
    made.close()


def ssts(path: Path) -> list[Path]:
    found = sorted(path.glob("*.sst"))
    assert found, "there is a file to harm"
    return found


def flip(path: Path, begin: int, end: int) -> None:
    """Change every byte of a part of a file, in place."""
    with path.open("r+b") as file:
        file.seek(begin)
        data = file.read(end - begin)
        file.seek(begin)
        file.write(bytes(byte ^ 0x5A for byte in data))


# --- what the rules refuse -------------------------------------------------------------------------------


def test_a_warm_copy_is_used_as_it_is(world: World) -> None:
    """The control: without harm nothing is set aside and only the tail is read."""
    world.close()
    world.live_on(5)
    restored = world.restore()
    assert restored.set_aside is None
    assert 0 < restored.records < len(world.logs.state.entries)
    assert world.found() == world.expected
    assert not world.aside.exists()


def test_a_disk_that_is_ahead_of_the_group(world: World) -> None:
    """Goal: offsets set back (or a disk from a branch that was never committed) do not leave sessions from
    the future. Method: a batch that no commit precedes, flushed, then a start."""
    assert world.store is not None
    batch = Batch()
    batch.put_state(b"a/never", rows.pack(1, b"", b"never committed"))
    batch.frontier(world.frontier(inbox_next=world.cluster.inbox_next + 1))
    world.store.write(batch)
    assert world.restore().set_aside == "ahead"
    assert world.found() == world.expected


def test_a_disk_that_is_ahead_of_its_changelog(world: World) -> None:
    """Goal: a changelog that lost its end (an unclean election) counts, not what the disk remembers of it."""
    assert world.store is not None
    batch = Batch()
    batch.put_state(b"a/lost", rows.pack(1, b"", b"lost by the log"))
    batch.frontier(world.frontier(state_next=world.logs.state.end + 1))
    world.store.write(batch)
    assert world.restore().set_aside == "ahead"
    assert world.found() == world.expected


@pytest.mark.parametrize("which", ["state_id", "history_id", "generations_id"])
def test_a_topic_of_the_same_name_that_is_another(world: World, which: str) -> None:
    names: dict[str, Any] = {which: "recreated"}
    facts = replace(world.facts, **names)
    assert world.restore(facts).set_aside == "other_topic"
    assert world.found() == world.expected
    # The new copy names the topic it is of: the next start uses it.
    assert world.restore(facts).set_aside is None


# --- files -----------------------------------------------------------------------------------------------


def cut(name: str) -> Callable[[Path], None]:
    def harm(path: Path) -> None:
        (found, *_) = sorted(path.glob(name))
        found.write_bytes(found.read_bytes()[: found.stat().st_size // 2])

    return harm


def empty(name: str) -> Callable[[Path], None]:
    def harm(path: Path) -> None:
        (path / name).write_bytes(b"")

    return harm


def footer(path: Path) -> None:
    for sst in ssts(path):
        flip(sst, sst.stat().st_size - 60, sst.stat().st_size)


def all_blocks(path: Path) -> None:
    """Data, index and filter alike: the place that the DB is at cannot be read any more."""
    for sst in ssts(path):
        flip(sst, 0, sst.stat().st_size - 60)


def no_sst(path: Path) -> None:
    ssts(path)[0].unlink()


def no_manifest(path: Path) -> None:
    for found in path.glob("MANIFEST-*"):
        found.unlink()


def flipped_manifest(path: Path) -> None:
    (found,) = path.glob("MANIFEST-*")
    flip(found, 20, found.stat().st_size)


def current_elsewhere(path: Path) -> None:
    (path / "CURRENT").write_text("MANIFEST-999999\n")


@pytest.mark.parametrize(
    "harm",
    [
        pytest.param(cut("*.sst"), id="half-written file"),
        pytest.param(footer, id="footer changed"),
        pytest.param(all_blocks, id="blocks changed"),
        pytest.param(no_sst, id="file missing"),
        pytest.param(cut("MANIFEST-*"), id="manifest cut"),
        pytest.param(flipped_manifest, id="manifest changed"),
        pytest.param(no_manifest, id="manifest missing"),
        pytest.param(empty("CURRENT"), id="CURRENT empty"),
        pytest.param(current_elsewhere, id="CURRENT names what is not there"),
        pytest.param(cut("CURRENT"), id="CURRENT cut"),
    ],
)
def test_files_that_cannot_be_read_are_set_aside_and_the_copy_rebuilt(
    world: World, harm: Callable[[Path], None]
) -> None:
    """Goal: whatever happened to the files, the worker starts, says `damaged`, and has everything. Also: the
    look at how much is missing, before the restore (jitter), does not end the worker over it."""
    world.close()
    harm(world.path)
    assert 0.0 <= world.restorer().missing(PARTITION) <= 1.0
    restored = world.restore()
    assert restored.set_aside == "damaged"
    assert world.found() == world.expected
    assert world.aside.is_dir()
    assert ("local_store_set_aside", {"partition": PARTITION, "reason": "damaged"}) in world.told.events
    assert world.restore().set_aside is None


@pytest.mark.parametrize("name", ["BLOCKS", "unlocked", "no space"])
def test_the_directorys_name_does_not_keep_a_damaged_copy_in_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Goal: as above where the data directory is called what RocksDB says of other troubles."""
    world = World(tmp_path / name, monkeypatch)
    world.restore()
    world.live_on()
    world.close()
    no_manifest(world.path)
    assert world.restore().set_aside == "damaged"
    assert world.found() == world.expected
    world.close()


def test_a_bad_block_under_a_note_leads_to_the_same(world: World) -> None:
    """Goal: the note of a validation is read after the copy was judged, and may lie in another file."""
    assert world.store is not None
    world.store.flush()
    world.store.put_note(rows.VALIDATED_KEY, rows.Validated(world.facts.state_id, 0).encode())
    world.store.flush()
    (newest,) = ssts(world.path)[-1:]
    whose = world.store.note(rows.PARTITION_KEY)
    assert whose is not None
    world.store.put_note(rows.PARTITION_KEY, whose)
    world.live_on(2)
    world.close()
    at = newest.read_bytes().index(b"state_topic")
    flip(newest, at, at + 5)
    restored = world.restore()
    assert restored.set_aside == "damaged"
    assert world.found() == world.expected


def test_what_is_found_only_when_the_tail_is_written_leads_to_the_same(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: RocksDB notices damage when it compacts as well, and then refuses writes. Method: the first write
    of the restore fails as it does then."""
    world.close()
    world.live_on(3)
    write, failures = Store.write, ["Corruption: block checksum mismatch"]

    def fails(self: Store, batch: Batch) -> None:
        if failures:
            raise UnreadableStore(failures.pop(), self.path)
        write(self, batch)

    monkeypatch.setattr(Store, "write", fails)
    assert world.restore().set_aside == "damaged"
    assert world.found() == world.expected
    assert "local_store_unreadable" in [event for event, _ in world.told.events]


# --- somebody else's -------------------------------------------------------------------------------------


def web_site(path: Path) -> None:
    path.mkdir()
    (path / "index.html").write_text("another app's")
    (path / "assets").mkdir()


def a_file(path: Path) -> None:
    path.write_text("another app's")


def other_db(path: Path) -> None:
    db = Rdict(str(path), Options(raw_mode=True))
    db[b"another"] = b"app's"
    db.close()


def other_prefix(path: Path) -> None:
    """A copy of the partition of the same number, of another deployment whose topics were never deleted: it
    even names the same topic ids, as after a restore of a machine's image."""
    store = Store(path, Memory())
    batch = Batch()
    batch.put_state(b"a/1", rows.pack(1, b"", b"another deployment's"))
    batch.frontier(rows.Frontier("ts", "th", "tg", 1, 0, 1, 0, 0, 2_000_000_000_000))
    store.write(batch)
    store.put_note(rows.PARTITION_KEY, b"other/%d" % PARTITION)
    store.close()


@pytest.mark.parametrize("harm", [web_site, a_file, other_db, other_prefix])
def test_another_apps_directory_is_moved_away_whole_and_not_written_to(
    world: World, harm: Callable[[Path], None]
) -> None:
    world.close()
    shutil.rmtree(world.path)
    harm(world.path)
    assert world.restorer().missing(PARTITION) > 0.9
    assert world.restore().set_aside == "foreign"
    assert world.found() == world.expected
    assert world.aside.exists()
    if harm is web_site:
        assert sorted(one.name for one in world.aside.iterdir()) == ["assets", "index.html"]
    if harm is a_file:
        assert world.aside.read_text() == "another app's"


def test_the_copy_of_another_partition_is_not_taken_for_this_ones(world: World) -> None:
    """Goal: directories exchanged by hand. Both name the same topics; what they hold is of other sessions."""
    world.close()
    other = world.path.with_name("p00004")
    world.path.rename(other)
    store = Store(other, world.memory)
    assert store.note(rows.PARTITION_KEY) == b"t/3"
    store.put_note(rows.PARTITION_KEY, b"t/4")
    store.close()
    other.rename(world.path)
    assert world.restore().set_aside == "foreign"
    assert world.found() == world.expected


def test_an_empty_directory_and_a_db_killed_before_its_first_flush_are_new(world: World) -> None:
    world.close()
    shutil.rmtree(world.path)
    world.path.mkdir()
    assert world.restore().set_aside is None
    assert world.found() == world.expected
    world.close()
    shutil.rmtree(world.path)
    Store(world.path, world.memory).close()
    assert world.restore().set_aside is None
    assert world.found() == world.expected


# --- reads -----------------------------------------------------------------------------------------------


def test_a_block_that_cannot_be_read_is_never_an_absent_session(world: World) -> None:
    """Goal: a wrong block raises and is told, on every way of reading; the rest of the DB goes on."""
    world.close()
    for sst in ssts(world.path):
        flip(sst, 0, sst.stat().st_size // 2)
    store = Store(world.path, world.memory)
    told: list[UnreadableStore] = []
    store.on_unreadable = told.append
    good = bad = 0

    def reads(read: Callable[[], object]) -> object:
        try:
            return read()
        except UnreadableStore as error:
            return error

    for full_key, row in world.expected.items():
        if not full_key.startswith(rows.STATE):
            continue
        found = reads(partial(store.row, full_key[1:]))
        good += found == row
        bad += found in told[-1:]
        found = reads(partial(store.with_generation, full_key[1:], b"x#g"))
        assert found == (row, None) or found in told[-1:]
    assert bad > 0
    assert good + bad == sum(key.startswith(rows.STATE) for key in world.expected)
    for look in (store.keys, store.blank):
        with pytest.raises(UnreadableStore, match="cannot be read"):
            look()
    store.close(flush=False)
