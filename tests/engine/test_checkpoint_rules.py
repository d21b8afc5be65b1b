"""What a checkpoint is, which are kept, which is chosen, when one is due: without a disk."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.checkpoint_world import KEYS, NOW, PREFIX, frontier
from refold.engine.checkpoints import manifest as manifests
from refold.engine.checkpoints.manifest import DIGEST_DIGITS, Entry, Manifest, NewerFormat, decode
from refold.engine.checkpoints.retention import (
    MANIFEST_AGE_MS_MAX,
    PRUNE_AGE_MS,
    UPLOAD_SECONDS_MAX,
    Held,
    Stored,
    prunable,
    reusable,
)
from refold.engine.checkpoints.schedule import FIRST_PART_MIN, RETRY_S, Schedule
from refold.engine.checkpoints.source import ahead
from refold.errors import StorageError

FILES = (Entry("CURRENT", "a" * 64, 16), Entry("000007.sst", "b" * 64, 4_096))
WHOLE = Manifest(PREFIX, 3, NOW, "w", frontier(5), {"refold.SessionSnapshot": 2}, FILES)


def stored_as(row: dict[str, Any]) -> tuple[str, bytes]:
    data = json.dumps(row).encode()
    return f"{NOW:013d}-{hashlib.sha256(data).hexdigest()[:DIGEST_DIGITS]}", data


# --- manifest --------------------------------------------------------------------------------------------


def test_a_manifest_is_read_as_it_was_written() -> None:
    checkpoint, data = WHOLE.encode()
    assert manifests.is_id(checkpoint)
    assert manifests.created_ms(checkpoint) == NOW
    assert decode(checkpoint, data) == WHOLE
    assert WHOLE.length == 4_112


def test_any_changed_byte_of_a_manifest_is_noticed() -> None:
    checkpoint, data = WHOLE.encode()
    for at in range(len(data)):
        with pytest.raises(StorageError, match="damaged"):
            decode(checkpoint, data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(StorageError, match="damaged"):
        decode(checkpoint, data[:-1])


@pytest.mark.parametrize(
    "change",
    [
        {"files": []},
        {"files": [{"name": "../CURRENT", "sha256": "a" * 64, "length": 1}]},
        {"files": [{"name": "CURRENT", "sha256": "../../x", "length": 1}]},
        {"files": [{"name": "CURRENT", "sha256": "a" * 64, "length": -1}]},
        {"files": [{"name": "CURRENT", "sha256": "a" * 64, "length": 1}] * 2},
        {"files": [{"name": "CURRENT"}]},
        {"frontier": {"state_next": 1}},
        {"surprise": 1},
        {"format": "x"},
    ],
)
def test_what_a_manifest_may_not_say_is_refused_although_its_digest_fits(change: dict[str, Any]) -> None:
    """Goal: no name of a manifest leads out of the directory. Method: manifests with a right digest."""
    _, data = WHOLE.encode()
    with pytest.raises(StorageError):
        decode(*stored_as({**json.loads(data), **change}))


def test_a_manifest_of_a_newer_refold_is_told_apart() -> None:
    _, data = WHOLE.encode()
    with pytest.raises(NewerFormat):
        decode(*stored_as({**json.loads(data), "format": manifests.FORMAT + 1, "new": True}))


def test_rows_in_a_schema_this_build_does_not_know_are_not_opened() -> None:
    known = manifests.known_schemas()
    assert set(known) == set(manifests.SUBJECTS)
    assert not manifests.unknown_schema(dataclasses.replace(WHOLE, schemas=known), known)
    newer = {**known, "refold.HistoryBlock": known["refold.HistoryBlock"] + 1}
    assert manifests.unknown_schema(dataclasses.replace(WHOLE, schemas=newer), known)
    assert manifests.unknown_schema(dataclasses.replace(WHOLE, schemas={**known, "refold.New": 1}), known)


# --- retention -------------------------------------------------------------------------------------------


def held(age_ms: int, *files: str, readable: bool = True, newer: bool = False) -> Held:
    created = NOW - age_ms
    return Held(f"{created:013d}-{'0' * 32}", created, created, frozenset(files) if readable else None, newer)


def test_the_newest_k_stay_and_with_them_what_they_name() -> None:
    old = Stored(10, NOW - PRUNE_AGE_MS - 1)
    all_held = [held(n * 60_000, f"f{n}", "shared") for n in range(5)]
    plan = prunable(all_held, {**{f"f{n}": old for n in range(5)}, "shared": old}, keep=3, now_ms=NOW)
    assert plan.manifests == (all_held[4].checkpoint, all_held[3].checkpoint)
    assert plan.files == ("f3", "f4")
    assert plan.bytes == 20


@pytest.mark.parametrize(("age_ms", "gone"), [(PRUNE_AGE_MS + 1, True), (PRUNE_AGE_MS, False), (None, False)])
def test_a_file_nobody_names_goes_only_when_no_upload_can_still_want_it(
    age_ms: int | None, gone: bool
) -> None:
    stored = Stored(1, None if age_ms is None else NOW - age_ms)
    assert prunable([held(0, "named")], {"loose": stored}, keep=1, now_ms=NOW).files == (
        ("loose",) if gone else ()
    )


def test_a_day_is_the_limit_but_the_newest_stays() -> None:
    ages = [MANIFEST_AGE_MS_MAX + n for n in (1, 2, 3)]
    plan = prunable([held(age) for age in ages], {}, keep=3, now_ms=NOW)
    assert plan.manifests == (held(ages[2]).checkpoint, held(ages[1]).checkpoint)


def test_a_damaged_manifest_does_not_count_and_goes_by_age() -> None:
    fresh, stale = held(1, readable=False), held(PRUNE_AGE_MS + 1, readable=False)
    whole = [held(10, "a"), held(20, "b")]
    plan = prunable([fresh, stale, *whole], {}, keep=2, now_ms=NOW)
    assert plan.manifests == (stale.checkpoint,)


def test_a_store_a_newer_refold_writes_to_is_left_alone() -> None:
    old = Stored(1, 0)
    plan = prunable([held(0, newer=True), held(9, "a"), held(99, "b")], {"x": old}, keep=1, now_ms=NOW)
    assert (plan.manifests, plan.files) == ((), ())
    assert plan.refused is not None


@given(
    st.lists(
        st.tuples(
            st.integers(0, 2 * MANIFEST_AGE_MS_MAX),
            st.frozensets(st.sampled_from("abcdefgh")),
            st.booleans(),
        ),
        max_size=8,
        unique_by=lambda row: row[0],
    ),
    st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 3 * PRUNE_AGE_MS)),
    st.integers(1, 4),
)
def test_whatever_is_in_the_store_the_kept_stay_whole(
    rows: list[tuple[int, frozenset[str], bool]], ages: dict[str, int], keep: int
) -> None:
    """Goal: retention never deletes a file of a checkpoint it leaves, nor the newest readable one."""
    all_held = [held(age, *files, readable=readable) for age, files, readable in rows]
    files = {name: Stored(1, NOW - age) for name, age in ages.items()}
    plan = prunable(all_held, files, keep=keep, now_ms=NOW)
    left = [one for one in all_held if one.checkpoint not in plan.manifests and one.files is not None]
    for one in left:
        assert one.files is not None
        assert not one.files & set(plan.files)
    assert len(left) <= keep
    readable = [one for one in all_held if one.files is not None]
    assert not readable or max(readable, key=lambda one: one.checkpoint) in left
    # A second run finds nothing more.
    files = {name: stored for name, stored in files.items() if name not in plan.files}
    again = prunable(
        [one for one in all_held if one.checkpoint not in plan.manifests], files, keep=keep, now_ms=NOW
    )
    assert (again.manifests, again.files) == ((), ())


def test_an_uploader_reuses_only_what_no_pruner_can_take_meanwhile() -> None:
    """Goal: what is named without being sent is whole and stays. Method: a file at every age; the rule of
    pruning must not hold for it before the upload has ended."""
    newest = frozenset({"named"})
    ancient = Stored(7, 0)
    assert reusable("named", 7, {"named": ancient}, newest, NOW)
    assert not reusable("named", 8, {"named": ancient}, newest, NOW)
    assert not reusable("named", 7, {}, newest, NOW)
    assert not reusable("loose", 7, {"loose": ancient}, newest, NOW)
    assert not reusable("loose", 7, {"loose": Stored(7, None)}, newest, NOW)
    for age_ms in range(0, 2 * PRUNE_AGE_MS, 60_000):
        loose = {"loose": Stored(7, NOW - age_ms)}
        if reusable("loose", 7, loose, newest, NOW):
            end = NOW + UPLOAD_SECONDS_MAX * 1_000
            assert prunable([held(0, "named")], loose, keep=1, now_ms=end).files == ()


# --- choice ----------------------------------------------------------------------------------------------


def test_how_far_ahead_counts_all_three_changelogs() -> None:
    assert ahead(frontier(100), frontier(100)) == 0
    assert ahead(frontier(5), frontier(2)) == 3 * (KEYS + 2)
    assert ahead(frontier(2), frontier(5)) == -3 * (KEYS + 2)


# --- schedule --------------------------------------------------------------------------------------------


def test_the_first_is_spread_the_next_follow_the_interval() -> None:
    schedule = Schedule(100.0, 1_000, seed=1)
    owned = [(n, n + 10, 5) for n in range(50)]
    assert schedule.due(0.0, owned) == []
    assert schedule.due(100 * FIRST_PART_MIN - 0.1, owned) == []
    half = schedule.due(62.0, owned)
    assert 10 < len(half) < 40
    assert sorted(schedule.due(100.0, owned)) == list(range(50))
    schedule.done(7, 100.0, 5)
    # Nothing committed since: nothing to take, and nothing old.
    assert 7 not in schedule.due(500.0, owned)
    assert schedule.age_s(7, 500.0, 5) == 0.0
    moved = [(n, epoch, 6) for n, epoch, _ in owned]
    assert 7 not in schedule.due(199.9, moved)
    assert 7 in schedule.due(200.0, moved)
    assert schedule.age_s(7, 200.0, 6) == 100.0


def test_many_events_do_not_wait_for_the_interval_and_failures_do_not_repeat_at_once() -> None:
    schedule = Schedule(1_000.0, 50, seed=1)
    schedule.due(0.0, [(1, 1, 0)])
    schedule.done(1, 0.0, 0)
    assert schedule.due(1.0, [(1, 1, 49)]) == []
    assert schedule.due(2.0, [(1, 1, 50)]) == [1]
    schedule.failed(1, 2.0)
    assert schedule.due(3.0, [(1, 1, 500)]) == []
    assert schedule.due(2.0 + RETRY_S, [(1, 1, 500)]) == [1]


def test_a_partition_that_left_and_came_back_begins_anew() -> None:
    schedule = Schedule(100.0, 50, seed=1)
    schedule.due(0.0, [(1, 1, 0)])
    schedule.done(1, 0.0, 0)
    assert schedule.due(1.0, []) == []
    assert schedule.due(2.0, [(1, 2, 900)]) == []
    assert schedule.due(102.0, [(1, 2, 900)]) == [1]
