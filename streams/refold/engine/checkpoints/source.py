"""What a restore asks: is there a checkpoint that is worth more than what is on this disk?

Rules T and Z hold as for a local copy, by the same judgement (``distrust``, the restorer's own): another
topic id, another row format, ahead of the group or the changelogs, older than ``delete.retention.ms`` - 1 h:
not used. A checkpoint with a missing or damaged file is skipped with a warning and the next older one is
tried. The local DB is only replaced by a whole one: downloaded aside, every file verified, opened, its
frontier compared with the manifest's, then renamed. A store that does not answer costs a warning: the
changelogs have everything.

Runs on a restore thread; blocks, but never within a call of the store (:mod:`fetching`).
"""

from __future__ import annotations

import itertools
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from refold.engine.admission import Pace
from refold.engine.checkpoints.fetch import fetch
from refold.engine.checkpoints.fetching import LOOK_S, Fetching
from refold.engine.checkpoints.keyfilter import KeyFilter
from refold.engine.checkpoints.manifest import Manifest, known_schemas, unknown_schema
from refold.engine.checkpoints.remote import Remote, sync_directory
from refold.engine.metrics import Metrics
from refold.engine.rows import Frontier
from refold.engine.store import Memory, Store, stored_frontier
from refold.errors import NotFound, RefoldError, StorageError, UnavailableError

#: A local copy that is behind by less than this is caught up from the changelogs: they are read at 130 k
#: records/s (measured), so this is 0.4 s, about what listing, a manifest and a small download take on an
#: object store.
AHEAD_RECORDS_MIN: Final = 50_000

#: End of the name of a download's directory, until it is whole.
FETCHED: Final = ".fetched"

#: A download that lasts longer than this, and than the pace of restores makes it last, is given up. Whether
#: it is still young enough for rule Z is judged again when it is there.
FETCH_SECONDS_MAX: Final = 1_200.0

#: Manifests looked at per restore. Retention keeps 3 by default, 100 at most is a setting.
MANIFESTS_MAX: Final = 20


#: How long a restore that is hot first waits for its checkpoint before it serves the partition without: a
#: small one from a near store is there by then, and the partition is served once and for all.
PATIENCE_S: Final = 0.5

#: So long after one was not there in time nobody waits: 64 partitions would be served 32 s later.
SLOW_S: Final = 60.0

#: Checkpoints that are fetched while their partitions are served, at once; as many as restores by default.
FETCHES_MAX: Final = 2


class CheckpointSource:
    """One per worker; :meth:`better` may be called from several threads, for different partitions."""

    def __init__(self, remote: Remote, memory: Memory, *, metrics: Metrics, log: Any) -> None:
        """``metrics`` is called from restore threads."""
        self._remote = remote
        self._memory = memory
        self._metrics = metrics
        self._log = log
        #: Of all restores of the worker; set by the restorer.
        self.pace: Pace | None = None
        #: By partition: what a restore has left on its way.
        self._under_way: dict[int, Fetching] = {}
        #: By partition: what the last fetch for a restore that is hot first has found, until it is taken.
        self._filters: dict[int, KeyFilter] = {}
        self._slots = threading.BoundedSemaphore(FETCHES_MAX)
        self._slow_until = float("-inf")
        self._names = itertools.count(1)

    def key_filter(
        self, partition: int, distrust: Callable[[Frontier], str | None]
    ) -> tuple[Manifest, KeyFilter] | None:
        """The newest checkpoint that the rules allow and whose key filter is whole, and that filter; ``None``
        where there is none or the store does not answer. Counts and warns as :meth:`better` does; blocks."""
        known = known_schemas()
        try:
            for checkpoint in self._remote.checkpoints(partition)[:MANIFESTS_MAX]:
                try:
                    manifest = self._remote.manifest(partition, checkpoint)
                    if unknown_schema(manifest, known) or distrust(manifest.frontier) is not None:
                        continue
                    found = self._remote.key_filter(manifest)
                except (StorageError, NotFound) as error:
                    self._skip(partition, checkpoint, "filter", error)
                    continue
                if found is not None:
                    return manifest, found
        except UnavailableError as error:
            self._log.warning("checkpoints_unreachable", partition=partition, error=str(error))
        return None

    def better(
        self,
        partition: int,
        store: Store,
        local: Frontier,
        distrust: Callable[[Frontier], str | None],
        cancelled: Callable[[], bool],
        *,
        hot: bool = False,
    ) -> tuple[Store, Frontier]:
        """The DB to go on with: ``store`` (open, as far as ``local``), or the one that has replaced it, open.
        ``hot``: not to be waited for; then it may be :meth:`under_way`, and the next call is for what came.

        Raises :class:`Cancelled` and, once the local DB had to make room, :class:`StorageError`; then none is
        open.
        """
        try:
            ahead_min = AHEAD_RECORDS_MIN if local.inbox_next >= 0 or not store.empty() else 1
            fetching = self._under_way.get(partition) or self._begin(
                partition, store.path, local, ahead_min, distrust, hot
            )
            if not fetching.wait(cancelled, self._patience_s() if hot else None):
                self._slow_until = time.monotonic() + SLOW_S
                return store, local
            if fetching.filter is not None:
                self._filters[partition] = fetching.filter
            found = fetching.result()
            if found is not None and (why := distrust(found.frontier)) is not None:
                # It has waited for us, and is judged as of now.
                fetching.end()
                self._skip(partition, fetching.checkpoint, why)
                found = None
            self._under_way.pop(partition, None)
        except (UnavailableError, NotFound) as error:
            self.forget(partition)
            self._metrics.count("refold_checkpoint_restores_total", outcome="unreachable")
            self._log.warning("checkpoints_unreachable", partition=partition, error=str(error))
            return store, local
        except BaseException:
            self.forget(partition)
            # Nobody else would close it, and a second try in this process would find it locked.
            store.close(flush=False)
            raise
        if found is None:
            self._metrics.count("refold_checkpoint_restores_total", outcome="none")
            return store, local
        path = store.path
        store.close(flush=False)
        try:
            shutil.rmtree(path, ignore_errors=True)
            fetching.to.rename(path)
            sync_directory(path.parent)
        except OSError as error:
            fetching.end()
            raise StorageError(
                f"a checkpoint cannot be put in the place of {path} ({error.strerror}): check the disk and"
                " its permissions. Nothing is lost: the changelogs have everything"
            ) from None
        self._metrics.count("refold_checkpoint_restores_total", outcome="used")
        opened = Store(path, self._memory)
        return opened, found.frontier

    def under_way(self, partition: int) -> Fetching | None:
        """What :meth:`better` has not waited for."""
        return self._under_way.get(partition)

    def proof(self, partition: int) -> KeyFilter | None:
        """Once, after :meth:`better` with ``hot``: the filter of the newest checkpoint that the rules allow,
        where it was met on the way. Does not block."""
        return self._filters.pop(partition, None)

    def forget(self, partition: int) -> None:
        """What is under way is not wanted any more. Returns at once."""
        self._filters.pop(partition, None)
        fetching = self._under_way.pop(partition, None)
        if fetching is not None:
            fetching.end()

    def _patience_s(self) -> float:
        return 0.0 if time.monotonic() < self._slow_until else PATIENCE_S

    def _begin(
        self,
        partition: int,
        path: Path,
        local: Frontier,
        ahead_min: int,
        distrust: Callable[[Frontier], str | None],
        hot: bool,
    ) -> Fetching:
        def work(fetching: Fetching) -> Manifest | None:
            if not hot:
                return self._found(partition, local, ahead_min, distrust, fetching)
            while not self._slots.acquire(timeout=LOOK_S):
                fetching.moved()
                if fetching.stopped():
                    return None
            try:
                proof = self.key_filter(partition, distrust)
                fetching.filter = None if proof is None else proof[1]
                fetching.moved()
                return self._found(partition, local, ahead_min, distrust, fetching)
            finally:
                self._slots.release()

        # A name of its own: one before may hang in the store and still write to its directory.
        to = path.with_name(f"{path.name}.{next(self._names)}{FETCHED}")
        made = self._under_way[partition] = Fetching(to, work)
        return made

    def _found(
        self,
        partition: int,
        local: Frontier,
        ahead_min: int,
        distrust: Callable[[Frontier], str | None],
        fetching: Fetching,
    ) -> Manifest | None:
        """The newest checkpoint that may be used and is worth it, downloaded and verified."""
        known = known_schemas()
        for checkpoint in self._remote.checkpoints(partition)[:MANIFESTS_MAX]:
            fetching.moved()
            if fetching.stopped():
                return None
            try:
                manifest = self._remote.manifest(partition, checkpoint)
            except (StorageError, NotFound) as error:
                self._skip(partition, checkpoint, "manifest", error)
                continue
            if ahead(manifest.frontier, local) < ahead_min:
                continue
            why = "schemas" if unknown_schema(manifest, known) else distrust(manifest.frontier)
            if why is not None:
                self._skip(partition, checkpoint, why)
                continue
            fetching.checkpoint, fetching.state_next = checkpoint, manifest.frontier.state_next
            if not self._fetched(manifest, checkpoint, fetching):
                fetching.state_next = None
                continue
            why = distrust(manifest.frontier)
            if why is not None:
                # The download took its time.
                self._skip(partition, checkpoint, why)
                continue
            return manifest
        return None

    def _fetched(self, manifest: Manifest, checkpoint: str, fetching: Fetching) -> bool:
        started, to = time.monotonic(), fetching.to
        try:
            pace = self.pace
            paced_s = 0.0 if pace is None or not pace.bytes_per_s else manifest.length / pace.bytes_per_s
            until = started + FETCH_SECONDS_MAX + paced_s
            fetch(
                self._remote,
                manifest,
                to,
                stopped=lambda: fetching.stopped() or time.monotonic() > until,
                pace=pace,
                moved=fetching.moved,
            )
            if stored_frontier(to, self._memory) != manifest.frontier:
                raise StorageError(f"the DB of checkpoint {checkpoint} is not at the place its manifest says")
        except NotFound as error:
            self._skip(manifest.partition, checkpoint, "missing", error)
            return False
        except StorageError as error:
            self._skip(manifest.partition, checkpoint, "damaged", error)
            return False
        except InterruptedError:
            if fetching.stopped():
                raise
            raise UnavailableError(
                f"the download of checkpoint {checkpoint} took longer than"
                f" {FETCH_SECONDS_MAX + paced_s:.0f} s: the changelogs are read instead"
            ) from None
        except OSError as error:
            self._skip(manifest.partition, checkpoint, "disk", StorageError(f"{to}: {error.strerror}"))
            return False
        self._metrics.count("refold_checkpoint_bytes_total", manifest.length, outcome="fetched")
        self._log.info(
            "checkpoint_fetched",
            partition=manifest.partition,
            checkpoint=checkpoint,
            bytes=manifest.length,
            files=len(manifest.files),
            state_next=manifest.frontier.state_next,
            seconds=round(time.monotonic() - started, 3),
        )
        return True

    def _skip(self, partition: int, checkpoint: str, reason: str, error: RefoldError | None = None) -> None:
        self._metrics.count("refold_checkpoint_skips_total", reason=reason)
        self._log.warning(
            "checkpoint_skipped",
            partition=partition,
            checkpoint=checkpoint,
            reason=reason,
            error=None if error is None else str(error),
        )


def ahead(remote: Frontier, local: Frontier) -> int:
    """How many changelog records the checkpoint is ahead of the local copy."""
    return (
        (remote.state_next - local.state_next)
        + (remote.history_next - local.history_next)
        + (remote.generations_next - local.generations_next)
    )
