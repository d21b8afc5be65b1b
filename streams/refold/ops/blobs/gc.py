"""``refold blobs gc``: remove what no retained record names and is older than the grace (rule O7).

O7  1. List: blobs that are older than the grace. 2. Mark: read every topic that may name one, to its end as
    of the start, ``read_committed``; what is named is none of them any more. 3. Sweep: remove the others,
    each only if it was not touched since. A failure at any point removes nothing more.

Memory is bounded: at most CANDIDATES_MAX blobs are looked at in one pass over the topics; a store with more
takes several.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from refold.ops.blobs.marking import DIGEST_CHARS, unmark_file, unmark_topics
from refold.ops.blobs.sweeping import Stored, Sweeper
from refold.wire.blobs import BlobStore

#: A digest, its length and a set's slot: about 250 bytes each, 250 MB.
CANDIDATES_MAX: Final = 1_000_000

PROGRESS_BLOBS: Final = 10_000


@dataclass(slots=True)
class Collected:
    """``unreferenced``: named by no record and older than the grace; ``removed`` of them (0 in a dry run).
    ``young``: not looked at. ``touched``: named anew while the topics were read."""

    blobs: int = 0
    young: int = 0
    referenced: int = 0
    unreferenced: int = 0
    unreferenced_bytes: int = 0
    removed: int = 0
    removed_bytes: int = 0
    touched: int = 0
    left_aside: int = 0
    records: int = 0
    passes: int = 0

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


async def collect(
    store: BlobStore,
    config: dict[str, Any],
    prefixes: Sequence[str],
    *,
    grace_s: float,
    dry_run: bool,
    keep: Sequence[Path] = (),
    progress: Callable[[str], None],
    candidates_max: int = CANDIDATES_MAX,
) -> Collected:
    """Raises ConfigError for a missing topic, StorageError, TransientError. What went before stays gone."""
    done = Collected()
    sweeper = Sweeper(store)
    # Taken before anything is listed or read.
    older_than_s = time.time() - grace_s
    listing = _passes(sweeper, older_than_s, done, candidates_max)
    while (chosen := await asyncio.to_thread(next, listing, None)) is not None:
        done.passes += 1
        candidates = {name.encode() for name in chosen if len(name) == DIGEST_CHARS}
        left = [name for name in chosen if len(name) != DIGEST_CHARS]
        asked = len(candidates)
        if asked:
            progress(f"pass {done.passes}: {asked} blobs older than the grace; reading the topics")
            done.records += await unmark_topics(config, prefixes, candidates, progress)
            for path in keep:
                unmark_file(candidates, path)
        done.referenced += asked - len(candidates)
        doomed = sorted(name.decode() for name in candidates)
        done.unreferenced += len(doomed)
        done.unreferenced_bytes += sum(chosen[name].length for name in doomed)
        done.left_aside += len(left)
        if dry_run:
            continue
        await asyncio.to_thread(_sweep, sweeper, [*doomed, *left], chosen, older_than_s, done, progress)
    return done


def _passes(
    sweeper: Sweeper, older_than_s: float, done: Collected, candidates_max: int
) -> Iterator[dict[str, Stored]]:
    chosen: dict[str, Stored] = {}
    for shard in sweeper.shards():
        for blob in sweeper.blobs(shard):
            done.blobs += len(blob.name) == DIGEST_CHARS
            if blob.modified_s > older_than_s:
                done.young += 1
                continue
            chosen[blob.name] = blob
            if len(chosen) >= candidates_max:
                yield chosen
                chosen = {}
    if chosen:
        yield chosen


def _sweep(
    sweeper: Sweeper,
    names: Sequence[str],
    chosen: dict[str, Stored],
    older_than_s: float,
    done: Collected,
    progress: Callable[[str], None],
) -> None:
    for number, name in enumerate(names, 1):
        if not sweeper.remove(name, older_than_s):
            done.touched += 1
        elif len(name) == DIGEST_CHARS:
            done.removed += 1
            done.removed_bytes += chosen[name].length
        if number % PROGRESS_BLOBS == 0:
            progress(f"{number} of {len(names)} blobs swept")
