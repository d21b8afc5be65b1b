"""Which checkpoints and files may be deleted: pure, so that it is tested to the edge.

- The newest ``keep`` readable checkpoints stay, and of those none older than a day but the newest: by rule Z
  an older one is of use only while there is nothing to catch up with.
- A file goes when no remaining manifest names it *and* it is older than an upload can last. An uploader
  reuses only files of the newest manifest and files younger than one upload, and looks again after it has
  published (:mod:`publish`), so that a pruner in another process cannot take what a new manifest names.
- A store that holds manifests of a newer format is left alone: which files those name is not known here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

#: An upload that lasts longer is given up: 20 minutes at 50 MB/s are 60 GB. What it has uploaded is reused.
UPLOAD_SECONDS_MAX: Final = 1_200

#: Three uploads: one that runs, one that reuses the files of a failed one, and one for clocks that differ.
PRUNE_AGE_MS: Final = 3 * UPLOAD_SECONDS_MAX * 1_000

#: The default of delete.retention.ms: beyond it rule Z refuses what has a tail.
MANIFEST_AGE_MS_MAX: Final = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Stored:
    """An object as listed. ``modified_ms``: by the store's clock, ``None`` where it does not tell."""

    length: int
    modified_ms: int | None


@dataclass(frozen=True, slots=True)
class Held:
    """A manifest as found. ``files``: addresses it names, ``None`` when it is not readable."""

    checkpoint: str
    created_ms: int
    modified_ms: int | None
    files: frozenset[str] | None
    newer: bool = False


@dataclass(frozen=True, slots=True)
class Prunable:
    """To delete, in this order: first all ``manifests``, then all ``files``."""

    manifests: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    bytes: int = 0
    refused: str | None = None


def prunable(held: Sequence[Held], files: Mapping[str, Stored], *, keep: int, now_ms: int) -> Prunable:
    if any(one.newer for one in held):
        return Prunable(refused="it holds checkpoints of a newer refold")
    newest_first = sorted(held, key=lambda one: one.checkpoint, reverse=True)
    readable = [one for one in newest_first if one.files is not None]
    kept = {one.checkpoint for one in readable[:keep] if now_ms - one.created_ms <= MANIFEST_AGE_MS_MAX}
    kept.update(one.checkpoint for one in readable[:1])
    for one in newest_first:
        if one.files is None and not old(one.modified_ms, now_ms):
            # Perhaps still being written, by a store that shows half a file.
            kept.add(one.checkpoint)
    named: set[str] = set()
    for one in readable:
        if one.checkpoint in kept and one.files is not None:
            named |= one.files
    gone = sorted(
        name for name, stored in files.items() if name not in named and old(stored.modified_ms, now_ms)
    )
    return Prunable(
        manifests=tuple(one.checkpoint for one in reversed(newest_first) if one.checkpoint not in kept),
        files=tuple(gone),
        bytes=sum(files[name].length for name in gone),
    )


def reusable(
    name: str, length: int, files: Mapping[str, Stored], newest: frozenset[str], now_ms: int
) -> bool:
    """Whether an uploader may name a stored file without sending it: it is whole, and no pruner will take it
    before this upload has ended."""
    stored = files.get(name)
    if stored is None or stored.length != length:
        return False
    young = stored.modified_ms is not None and now_ms - stored.modified_ms < UPLOAD_SECONDS_MAX * 1_000
    return name in newest or young


def old(modified_ms: int | None, now_ms: int) -> bool:
    """Longer ago than any upload that still runs; ``None``, where the store does not tell, never is."""
    return modified_ms is not None and now_ms - modified_ms > PRUNE_AGE_MS
