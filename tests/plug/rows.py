"""What a real partition DB holds, row by row, against the folds of the logs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from refold.engine import history, rows
from refold.engine.store import Store
from refold.wire.snapshot import decode_session
from simulation import versions
from simulation.runs import row_of


def every_row(store: Store) -> dict[bytes, bytes]:
    """The whole DB, under full keys."""
    cursor: Any = store._db.iter()
    cursor.seek_to_first()
    found: dict[bytes, bytes] = {}
    while cursor.valid():
        found[bytes(cursor.key())] = bytes(cursor.value())
        cursor.next()
    return found


def differences(
    held: Mapping[bytes, bytes],
    *,
    states: Mapping[bytes, bytes],
    places: Mapping[bytes, list[int]],
    generations: Mapping[bytes, bytes],
) -> list[str]:
    """``states``: snapshot of every session of the partition; ``places``: the journal offsets of its events;
    ``generations``: record by full key. Nothing else may be there, but for the sessions' timers and notes."""
    found: list[str] = []
    wanted: dict[bytes, bytes] = {}
    for key, snapshot in states.items():
        offsets = places[key]
        whole = len(offsets) // history.BLOCK_EVENTS
        for block in range(whole):
            first = block * history.BLOCK_EVENTS
            listed = offsets[first : first + history.BLOCK_EVENTS]
            wanted[rows.BLOCK + history.block_key(key, block)] = history.encode_block(first + 1, listed)
        row = held.get(rows.STATE + key)
        if row is None:
            found.append(f"{key!r} is not there")
            continue
        wanted[rows.STATE + key] = row
        if versions.newest(rows.snapshot_of(row)) != snapshot:
            found.append(f"{key!r} is at seq {rows.seq_of(row)} and is not fold(journal)")
        tail = history.decode_tail(rows.tail_of(row))
        if list(tail.offsets) != offsets[tail.first_seq - 1 :]:
            found.append(f"{key!r}: its open history block names {tail}, the journal has {offsets}")
    wanted |= {rows.SIDE + key: record for key, record in generations.items()}
    for snapshot in states.values():
        wanted |= {rows.SIDE + key: record for key, record in row_of(decode_session(snapshot)).items()}
    kept = (rows.STATE, rows.BLOCK, rows.SIDE)
    there = {key: row for key, row in held.items() if key.startswith(kept)}
    odd = sorted(key for key in there.keys() | wanted.keys() if there.get(key) != wanted.get(key))
    if odd:
        found.append(f"rows differ from the folds: {odd}")
    return found
