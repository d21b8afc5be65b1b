"""``refold blobs``: the store of large payloads."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

import typer

from refold.cli.clients import opened
from refold.cli.options import BootstrapOption, JsonOption, PrefixOption, YesOption, settings_for
from refold.cli.output import Output
from refold.errors import UsageError
from refold.ops.blobs.limits import GRACE_HOURS_DEFAULT, GRACE_HOURS_MIN

app = typer.Typer(help="The store of large payloads: gc.", no_args_is_help=True)


@app.callback()
def root() -> None:
    """The store of large payloads."""


@app.command()
def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go; remove nothing.")] = False,
    grace_hours: Annotated[
        float, typer.Option("--grace-hours", help="Never remove what was stored or named since.")
    ] = GRACE_HOURS_DEFAULT,
    also: Annotated[
        list[str] | None,
        typer.Option("--also-prefix", help="Another application with the same store; repeatable."),
    ] = None,
    keep: Annotated[
        list[Path] | None,
        typer.Option("--keep", help="A text that names digests to keep; repeatable.", exists=False),
    ] = None,
    yes: YesOption = False,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """Remove blobs that no retained record names and that are older than the grace.

    Reads every topic of the application that may name one. Applications that share the store must all be
    named (--also-prefix); what else names blobs, as evaluations in PostgreSQL do, is given by --keep.
    """
    if grace_hours < GRACE_HOURS_MIN:
        raise UsageError(
            f"--grace-hours {grace_hours:g}: at least {GRACE_HOURS_MIN:g}: a blob is older than its event."
        )
    from refold.client import Refold
    from refold.ops.blobs.gc import Collected, collect

    out = Output(as_json)
    settings = settings_for(bootstrap=bootstrap, prefix=prefix)
    if not dry_run:
        out.confirm(f"Remove blobs from {settings.blobs.url} that no record names?", yes=yes)

    async def run() -> Collected:
        async with opened(Refold(settings), settings) as rf:
            connection = rf.connection
            return await collect(
                connection.blobs,
                connection.reader_config,
                [settings.topic_prefix, *(also or ())],
                grace_s=grace_hours * 3600,
                dry_run=dry_run,
                keep=keep or (),
                progress=out.note,
            )

    done = asyncio.run(run())
    verb = "would be removed" if dry_run else "removed"
    out.say(
        f"{done.blobs} blobs, {done.young} younger than the grace, {done.referenced} named by "
        f"{done.records} records; {done.unreferenced if dry_run else done.removed} {verb} "
        f"({done.unreferenced_bytes if dry_run else done.removed_bytes} bytes)"
    )
    if done.touched:
        out.say(f"{done.touched} stay: they were stored again meanwhile")
    asked = {"dry_run": dry_run, "grace_hours": grace_hours, "store": settings.blobs.url}
    out.result({**asked, **done.as_json()})
