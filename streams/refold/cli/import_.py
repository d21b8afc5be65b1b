"""``refold import``: recorded conversations of other tools become sessions, sent by the SDK.

Running it again, also after a crash half-way, adds nothing twice: event ids come from the content, what an
existing session already holds is looked up in its journal first (the fold's own memory of foreign event ids
is a window), and what is still under way is absorbed by that window.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from refold.cli.clients import opened
from refold.cli.options import BootstrapOption, JsonOption, PrefixOption, settings_for
from refold.cli.output import Output
from refold.errors import InvalidRecord, TransientError, UnavailableError, UsageError
from refold.formats.counts import Counts
from refold.formats.sources import SOURCES, NewEvent, Reading, Source, SourceSession, detect, source_named

if TYPE_CHECKING:
    from refold.client import Receipt, Refold

#: Sessions written at once. One session's events go one after another, a round trip each (about 2 ms), so
#: this is what fills the connection: 32 of them reach what one worker folds, with 32 sessions in memory.
CONCURRENCY_DEFAULT: Final = 32
CONCURRENCY_MAX: Final = 1_000
#: Seconds between two lines of progress.
PROGRESS_S: Final = 2.0
#: Rejected events shown one by one; all are counted.
REJECTED_SHOWN_MAX: Final = 20
#: Names of sessions shown; a name can hold a digest that nobody can guess.
SESSIONS_SHOWN_MAX: Final = 10
#: An event is durable before it is ruled on, so a worker that restarts (30 s session timeout) is waited for.
RULING_TIMEOUT_S: Final = 120.0

app = typer.Typer(add_completion=False)


@dataclass(slots=True)
class Outcome:
    """What became of the events. ``known``: already in the session's journal, so not sent."""

    known: int = 0
    sent: int = 0
    rulings: Counter[str] = field(default_factory=Counter)
    rejected: list[dict[str, Any]] = field(default_factory=list)
    sessions_done: int = 0

    def reject(self, session: str, event: NewEvent, code: str | None, reason: str | None) -> None:
        self.rulings["rejected"] += 1
        if len(self.rejected) < REJECTED_SHOWN_MAX:
            self.rejected.append(
                {
                    "session": session,
                    "type": event.type,
                    "event_id": event.event_id,
                    "code": code,
                    "reason": reason,
                }
            )


@app.command(help="Bring transcripts of other tools in. Running it twice adds nothing twice.")
def import_(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Files, plain or gzip.")],
    format_: Annotated[
        str, typer.Option("--format", metavar="NAME", help=f"auto, or one of: {', '.join(SOURCES)}.")
    ] = "auto",
    tenant: Annotated[
        str | None, typer.Option("--tenant", help="Tenant of the new sessions. Default: the settings'.")
    ] = None,
    session_prefix: Annotated[
        str, typer.Option("--session-prefix", help="Put before every session id.")
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read and count only; nothing is sent.")] = False,
    durable: Annotated[
        bool,
        typer.Option(
            "--durable", help="Do not look at existing sessions or wait for rulings: needs no worker."
        ),
    ] = False,
    replace_surrogates: Annotated[
        bool, typer.Option("--replace-surrogates", help="Put U+FFFD for lone surrogates, and count them.")
    ] = False,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, max=CONCURRENCY_MAX)
    ] = CONCURRENCY_DEFAULT,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    output = Output(as_json)
    if "/" in session_prefix:
        raise UsageError("--session-prefix has a slash, which separates tenant and session in a record's key")
    reading = Reading(replace_surrogates=replace_surrogates)
    plan = [(path, detect(path) if format_ == "auto" else source_named(format_)) for path in files]
    for path, source in plan:
        output.note(f"{path}: {source.name}")
    counts, outcome = Counts(), Outcome()
    started = time.monotonic()
    names: list[str] = []
    sessions = _sessions(plan, reading, counts, session_prefix, names)
    if dry_run:
        for _ in sessions:
            pass
    else:
        from refold.client import Refold

        settings = settings_for(bootstrap=bootstrap, prefix=prefix)
        client = opened(Refold(settings, tenant=tenant), settings)
        asyncio.run(_publish(client, sessions, session_prefix, concurrency, durable, outcome, output))
    summary = _summary(plan, counts, outcome, reading, names, dry_run, time.monotonic() - started)
    _tell(output, summary)
    output.result(summary)
    if outcome.rulings["rejected"]:
        raise typer.Exit(InvalidRecord.exit_code)


def _sessions(
    plan: list[tuple[Path, Source]], reading: Reading, counts: Counts, prefix: str, names: list[str]
) -> Iterator[SourceSession]:
    """The files' sessions one by one, counted; the first names are put into ``names``."""
    for path, source in plan:
        for session in source.read(path, reading):
            counts.add_session((event.type, event.payload) for event in session.events)
            counts.events += session.belongs is not None
            if len(names) < SESSIONS_SHOWN_MAX:
                names.append(prefix + session.session)
            yield session


async def _publish(
    client: AbstractAsyncContextManager[Refold],
    sessions: Iterator[SourceSession],
    prefix: str,
    concurrency: int,
    durable: bool,
    outcome: Outcome,
    output: Output,
) -> None:
    """Write all sessions, ``concurrency`` at a time. The first failure stops the others and is raised."""
    async with client as rf:
        turns = asyncio.Lock()
        shown = time.monotonic()

        async def work() -> None:
            nonlocal shown
            while True:
                async with turns:  # One reader of the files: they are read as fast as they are written.
                    source = next(sessions, None)
                if source is None:
                    return
                await _write(rf, source, prefix, durable, outcome)
                outcome.sessions_done += 1
                if time.monotonic() - shown > PROGRESS_S:
                    shown = time.monotonic()
                    output.note(f"{outcome.sessions_done} sessions, {outcome.sent} events sent")

        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(concurrency):
                    group.create_task(work())
        except BaseExceptionGroup as failures:
            raise first_of(failures) from None


def first_of(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that stopped the others: the CLI reports one cause, not a group of its consequences."""
    cause: BaseException = failures
    while isinstance(cause, BaseExceptionGroup):
        cause = cause.exceptions[0]
    return cause


async def _write(rf: Refold, source: SourceSession, prefix: str, durable: bool, outcome: Outcome) -> None:
    from refold.client.refusal import NotSent
    from refold.core.envelope import Actor, SessionLink

    name = prefix + source.session
    session = rf.session(name)
    known = frozenset[str]() if durable else await _known_events(rf, name)
    receipts = []
    for event in source.events:
        if event.event_id in known:
            outcome.known += 1
            continue
        link = event.link and SessionLink(event.link.kind, prefix + event.link.session, None, event.link.call)
        try:
            receipt = await session.publish(
                event.type,
                event.payload,
                event_id=event.event_id,
                event_time_ms=event.event_time_ms,
                actor=Actor(event.actor),
                link=link,
            )
        except NotSent as refused:
            outcome.reject(name, event, refused.ruling.code, refused.ruling.reason)
            continue
        outcome.sent += 1
        receipts.append((event, receipt))
    for event, receipt in receipts if not durable else ():
        await _ruled(name, event, receipt, outcome)
    if source.belongs is not None and source.parent is not None:
        await _link(rf, prefix + source.parent, source.belongs, prefix, durable, outcome)


async def _ruled(name: str, event: NewEvent, receipt: Receipt, outcome: Outcome) -> None:
    ruling = await receipt.ruling(RULING_TIMEOUT_S)
    if ruling.status == "rejected":
        outcome.reject(name, event, ruling.code, ruling.reason)
    else:
        outcome.rulings[ruling.status] += 1


async def _link(
    rf: Refold, parent: str, event: NewEvent, prefix: str, durable: bool, outcome: Outcome
) -> None:
    """Let the parent say that a child belongs to it, unless it does. The parent may be imported later: this
    is then its first event."""
    from refold.core.envelope import Actor

    session = rf.session(parent)
    payload = {**event.payload, "session": prefix + event.payload["session"]}
    if not durable:
        view = await session.state(min_seq=0)
        rows = [] if view is None else view.children
        named = [row for row in rows if row["session"] == payload["session"]]
        if named and payload["call"] in (named[0]["call"], None):
            outcome.known += 1
            return
    receipt = await session.publish(
        event.type,
        payload,
        event_id=event.event_id,
        event_time_ms=event.event_time_ms,
        actor=Actor(event.actor),
    )
    outcome.sent += 1
    if not durable:
        await _ruled(parent, event, receipt, outcome)


async def _known_events(rf: Refold, name: str) -> frozenset[str]:
    """Ids of the events the session already holds."""
    session = rf.session(name)
    try:
        state = await session.state(min_seq=0)
    except TransientError as error:
        raise UnavailableError(
            f"cannot look at session {name}: {error}. Import with --durable to only write."
        ) from None
    if state is None:
        return frozenset()
    return frozenset([event.event_id async for event in session.events()])


def _summary(
    plan: list[tuple[Path, Source]],
    counts: Counts,
    outcome: Outcome,
    reading: Reading,
    names: list[str],
    dry_run: bool,
    seconds: float,
) -> dict[str, Any]:
    return {
        "files": [{"file": str(path), "format": source.name} for path, source in plan],
        "sessions": names,
        "conversations": counts.conversations,
        "messages": counts.messages,
        "tool_calls": counts.tool_calls,
        "tool_results": counts.tool_results,
        "kept_records": counts.kept_records,
        "events": counts.events,
        "already_there": outcome.known,
        "sent": outcome.sent,
        "accepted": outcome.rulings["accepted"],
        "duplicates": outcome.rulings["duplicate"],
        "rejected": outcome.rulings["rejected"],
        "rejections": outcome.rejected,
        "replaced_surrogates": reading.replaced,
        "dry_run": dry_run,
        "seconds": round(seconds, 3),
    }


def _tell(output: Output, summary: dict[str, Any]) -> None:
    output.say(
        f"{summary['conversations']} conversations: {summary['messages']} messages, "
        f"{summary['tool_calls']} tool calls, "
        f"{summary['tool_results']} tool results, {summary['kept_records']} kept records"
    )
    if summary["dry_run"]:
        output.say(f"{summary['events']} events; nothing was sent (--dry-run)")
    else:
        output.say(
            f"{summary['events']} events: {summary['already_there']} already there, {summary['sent']} sent "
            f"({summary['accepted']} accepted, {summary['duplicates']} duplicates, "
            f"{summary['rejected']} rejected)"
        )
    if summary["sessions"]:
        more = ", …" if summary["conversations"] > len(summary["sessions"]) else ""
        output.say(f"sessions: {', '.join(summary['sessions'])}{more}")
    for one in summary["rejections"]:
        output.note(
            f"rejected: {one['session']} {one['type']} {one['event_id']}: {one['code']}: {one['reason']}"
        )
    if summary["replaced_surrogates"]:
        output.say(f"{summary['replaced_surrogates']} lone surrogates were replaced by U+FFFD")
