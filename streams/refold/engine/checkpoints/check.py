"""Is a stored checkpoint whole? Every file is read and compared; nothing is written."""

from __future__ import annotations

from collections.abc import Callable

from refold.engine.checkpoints.remote import Remote
from refold.errors import NotFound, StorageError


def damage(
    remote: Remote, partition: int, checkpoint: str, good: set[str], say: Callable[[str], None]
) -> list[str]:
    """What is wrong with a checkpoint, in sentences; empty when it is whole. ``good``: addresses of files
    read before, which checkpoints share; added to. Blocks. Raises :class:`UnavailableError`."""
    try:
        manifest = remote.manifest(partition, checkpoint)
    except (NotFound, StorageError) as error:
        return [str(error)]
    found = []
    for number, entry in enumerate(manifest.files, 1):
        if entry.sha256 in good:
            continue
        say(f"partition {partition} {checkpoint}: {number}/{len(manifest.files)} {entry.name}")
        try:
            remote.get_file(partition, entry, None, lambda: False)
        except (NotFound, StorageError) as error:
            found.append(str(error))
        else:
            good.add(entry.sha256)
    if manifest.keys is not None and manifest.keys.sha256 not in good:
        say(f"partition {partition} {checkpoint}: {manifest.keys.name}")
        try:
            remote.key_filter(manifest)
        except (NotFound, StorageError) as error:
            found.append(str(error))
        else:
            good.add(manifest.keys.sha256)
    return found
