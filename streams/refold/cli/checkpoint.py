"""``refold checkpoint``: look at checkpoints in their store, prove them, fetch one, delete old ones.

No broker and no worker is needed: only the store. Exit codes: ``verify`` 1 when a checkpoint is damaged; 66
when there is none; 69 when the store does not answer; 74 when none could be fetched whole; 78 when no store
is set.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from refold.cli.options import JsonOption, PrefixOption, settings_for
from refold.cli.output import Output
from refold.errors import ConfigError, NotFound, StorageError, UsageError

if TYPE_CHECKING:
    from refold.engine.checkpoints.manifest import Manifest
    from refold.engine.checkpoints.remote import Remote
    from refold.settings import Settings

EXIT_DAMAGED: Final = 1

UrlOption = Annotated[
    str | None,
    typer.Option("--url", help="The store. Default: worker.checkpoint_url (REFOLD_WORKER__CHECKPOINT_URL)."),
]
PartitionOption = Annotated[
    int | None, typer.Option("--partition", min=0, help="Only this partition. Default: all in the store.")
]
IdOption = Annotated[str | None, typer.Option("--id", help="This checkpoint, as `list` prints it.")]

app = typer.Typer(help="Checkpoints in their store: list, verify, restore, prune.", no_args_is_help=True)


@app.command("list")
def list_(
    url: UrlOption = None,
    partition: PartitionOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """List checkpoints by partition, newest first. Reads manifests only."""
    _, remote = _open(url, prefix)
    rows = [
        _row(remote, number, checkpoint)
        for number in _partitions(remote, partition)
        for checkpoint in remote.checkpoints(number)
    ]
    out = Output(as_json)
    if rows and not as_json:
        out.table(
            (
                "partition",
                "checkpoint",
                "created",
                "state",
                "inbox",
                "batches",
                "files",
                "bytes",
                "by",
                "",
            ),
            (
                (
                    row["partition"],
                    row["checkpoint"],
                    _time(row["created_ms"]),
                    row.get("state_next"),
                    row.get("inbox_next"),
                    row.get("batches_next"),
                    row.get("files"),
                    row.get("bytes"),
                    row.get("writer"),
                    row.get("error"),
                )
                for row in rows
            ),
        )
    out.say(f"{len(rows)} checkpoints in {remote.place}")
    out.result({"place": remote.place, "checkpoints": rows})


@app.command()
def verify(
    url: UrlOption = None,
    partition: PartitionOption = None,
    id_: IdOption = None,
    every: Annotated[
        bool, typer.Option("--all", help="All checkpoints, not only each partition's newest.")
    ] = False,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """Read every file of the newest checkpoint of each partition and compare length and SHA-256."""
    from refold.engine.checkpoints.check import damage

    _, remote = _open(url, prefix)
    out = Output(as_json)
    rows: list[dict[str, Any]] = []
    good: set[str] = set()
    for number in _partitions(remote, partition):
        ids = _chosen(remote, number, id_, partition)
        for checkpoint in ids if every or id_ else ids[:1]:
            found = damage(remote, number, checkpoint, good, lambda text: out.note(text))
            rows.append({"partition": number, "checkpoint": checkpoint, "damage": found})
            out.say(f"partition {number} {checkpoint}: {'; '.join(found) if found else 'whole'}")
    if not rows:
        raise NotFound(f"no checkpoint to verify in {remote.place}")
    damaged = sum(bool(row["damage"]) for row in rows)
    out.say(f"{len(rows)} checkpoints verified, {damaged} damaged")
    out.result({"place": remote.place, "verified": len(rows), "damaged": damaged, "checkpoints": rows})
    if damaged:
        raise typer.Exit(EXIT_DAMAGED)


@app.command()
def restore(
    partition: Annotated[int, typer.Option("--partition", min=0, help="Which partition.")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="A directory that does not exist yet.")],
    url: UrlOption = None,
    id_: IdOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fetch a checkpoint as a RocksDB directory: the newest whole one, or the one named by --id.

    A worker does this by itself. As DIR, <data dir>/<prefix>/p<partition, 5 digits> makes a stopped worker
    start from it: it is judged as any local copy (rules T and Z) and caught up from the changelogs.
    """
    from refold.engine.checkpoints.fetch import fetch

    _, remote = _open(url, prefix)
    if to.exists():
        raise UsageError(f"{to} exists: name a directory that does not, or move it away")
    out = Output(as_json)
    last: Exception | None = None
    for checkpoint in _chosen(remote, partition, id_, partition):
        aside = to.with_name(f"{to.name}.fetching")
        try:
            manifest = remote.manifest(partition, checkpoint)
            fetch(remote, manifest, aside, done=lambda entry: out.note(f"{entry.name}: {entry.length} bytes"))
        except (StorageError, NotFound) as error:
            out.note(f"warning: {checkpoint} is skipped: {error}")
            last = error
            continue
        aside.rename(to)
        out.say(f"{checkpoint} of partition {partition}: {manifest.length} bytes in {to}")
        out.result({"to": str(to), **_details(manifest, checkpoint)})
        return
    if last is None:
        raise NotFound(f"no checkpoint of partition {partition} in {remote.place}")
    raise StorageError(
        f"no checkpoint of partition {partition} in {remote.place} is whole; the last one tried: {last}. A"
        " worker restores the partition from the changelogs"
    )


@app.command()
def prune(
    url: UrlOption = None,
    partition: PartitionOption = None,
    keep: Annotated[
        int | None, typer.Option("--keep", min=1, help="Kept per partition. Default: worker.checkpoint_keep.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be deleted.")] = False,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete checkpoints beyond the newest ones, and files no checkpoint names.

    Safe while workers run: a file goes only when it is older than any upload can last (an hour).
    """
    from refold.engine.checkpoints.publish import prune as delete

    settings, remote = _open(url, prefix)
    out = Output(as_json)
    rows = []
    for number in _partitions(remote, partition):
        done = delete(
            remote,
            number,
            keep=keep or settings.worker.checkpoint_keep,
            now_ms=time.time_ns() // 1_000_000,
            dry_run=dry_run,
        )
        if done.refused is not None:
            out.note(f"warning: partition {number} is left alone: {done.refused}")
        rows.append(
            {
                "partition": number,
                "checkpoints": list(done.manifests),
                "files": len(done.files),
                "bytes": done.bytes,
                "refused": done.refused,
            }
        )
        verb = "would delete" if dry_run else "deleted"
        out.say(
            f"partition {number}: {verb} {len(done.manifests)} checkpoints, {len(done.files)} files,"
            f" {done.bytes} bytes"
        )
    out.result({"place": remote.place, "dry_run": dry_run, "partitions": rows})


def _open(url: str | None, prefix: str | None) -> tuple[Settings, Remote]:
    from refold.engine.checkpoints.remote import Remote

    settings = settings_for(prefix=prefix, worker__checkpoint_url=url)
    if settings.worker.checkpoint_url is None:
        raise ConfigError(
            "no checkpoint store is set: name one with --url or REFOLD_WORKER__CHECKPOINT_URL"
            " (docs/operating/checkpoints.md)"
        )
    return settings, Remote(settings.worker.checkpoint_url, settings.topic_prefix)


def _partitions(remote: Remote, partition: int | None) -> list[int]:
    return remote.partitions() if partition is None else [partition]


def _chosen(remote: Remote, number: int, wanted: str | None, partition: int | None) -> list[str]:
    """Ids of a partition, newest first; only the wanted one where one is."""
    ids = remote.checkpoints(number)
    if wanted is None:
        return ids
    if wanted in ids:
        return [wanted]
    if partition is not None:
        raise NotFound(f"no checkpoint {wanted} of partition {number} in {remote.place}")
    return []


def _row(remote: Remote, number: int, checkpoint: str) -> dict[str, Any]:
    from refold.engine.checkpoints.manifest import created_ms

    try:
        return _details(remote.manifest(number, checkpoint), checkpoint)
    except (StorageError, NotFound) as error:
        return {
            "partition": number,
            "checkpoint": checkpoint,
            "created_ms": created_ms(checkpoint),
            "error": str(error),
        }


def _details(manifest: Manifest, checkpoint: str) -> dict[str, Any]:
    at = manifest.frontier
    return {
        "partition": manifest.partition,
        "checkpoint": checkpoint,
        "created_ms": manifest.created_ms,
        "writer": manifest.writer,
        "inbox_next": at.inbox_next,
        "batches_next": at.batches_next,
        "state_next": at.state_next,
        "history_next": at.history_next,
        "generations_next": at.generations_next,
        "applied_ms": at.applied_ms,
        "files": len(manifest.files),
        "bytes": manifest.length,
        "key_filter_bytes": 0 if manifest.keys is None else manifest.keys.length,
    }


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")
