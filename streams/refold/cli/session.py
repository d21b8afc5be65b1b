"""``refold session``: look at one session, prove its state, release it, delete it.

``show``, ``events --payload`` and ``export`` print what people wrote: that is what they are asked for.
Nothing else here does.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from contextlib import aclosing
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from refold.cli.clients import with_client
from refold.cli.options import (
    BootstrapOption,
    JsonOption,
    PrefixOption,
    ReducersOption,
    SessionArgument,
    TenantOption,
    YesOption,
    load_reducers,
)
from refold.cli.output import Output
from refold.cli.run_words import row_waits_for, steps_counted
from refold.cli.session_operations import fork as fork_session
from refold.cli.session_operations import prune, switch
from refold.cli.telling import iso
from refold.errors import NotFound, UsageError
from refold.missing import no_parent, no_session

if TYPE_CHECKING:
    from refold.client import Refold, SessionEvent, SnapshotView

#: ``show`` prints this much of each message; ``--json`` and ``export`` print all.
PREVIEW_CHARS_MAX: Final = 100
#: Pause between two looks of ``events --follow``.
FOLLOW_POLL_S: Final = 0.5

EXIT_DIFFERENT: Final = 1

app = typer.Typer(
    help="One session: show, events, export, fold, where, fork, switch, prune, release, delete.",
    no_args_is_help=True,
)
app.command("fork")(fork_session)
app.command()(switch)
app.command()(prune)


@app.command()
def show(
    session: SessionArgument,
    at: Annotated[
        int | None, typer.Option("--at", min=1, help="As of this seq, folded from the journal.")
    ] = None,
    tenant: TenantOption = None,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a session's committed state: the next model call's messages, answers, calls, runs, facts."""
    from refold.wire.owner import OPAQUE_FIELDS, json_ready

    async def work(rf: Refold) -> tuple[SnapshotView, str | None]:
        chat = rf.session(session)
        view = await chat.state(min_seq=0) if at is None else await chat.at(at)
        if view is None:
            raise no_session(chat.tenant, chat.id)
        missing = None
        if not view.data["context"]["complete"]:
            # A journal without its beginning cannot tell.
            with contextlib.suppress(NotFound):
                missing = (await chat.completed(view))["context"]["missing_parent"]
        return view, missing

    if at is not None:
        load_reducers(None)
    view, missing = with_client(bootstrap, prefix, tenant, work)
    out = Output(as_json)
    if as_json:
        public = {name: value for name, value in view.data.items() if name not in OPAQUE_FIELDS}
        shown = json_ready(public)
        for part, row in zip(shown["reduced"], view.data["reduced"], strict=True):
            part["state"] = json.loads(row["state"])
        # Of the same name as the count in `context`.
        waiting = [asdict(result) for result in view.waiting_results]
        out.result(
            {
                **shown,
                "waiting_results": waiting,
                "bytes": len(view.raw),
                "stale": view.stale,
                "missing_parent": missing,
            }
        )
        return
    _print_state(out, view, missing)


def _print_state(out: Output, view: SnapshotView, missing: str | None) -> None:
    data, context = view.data, view.data["context"]
    if view.stale:
        out.note("no worker answered: read from the state topic")
    out.say(f"{view.tenant}/{view.session}  seq {view.seq}  {view.status}  {len(view.raw)} bytes")
    if data["link"] is not None:
        of = "a fork" if data["link"]["kind"] == "fork" else "a child"
        out.say(f"{of} of {data['link']['session']}, as of seq {data['link']['seq']}")
    out.say(f"created {iso(data['created_at_ms'])}, changed {iso(data['updated_at_ms'])} (session time)")
    for (topic, partition), next_offset in view.frontier.items():
        out.say(f"folded up to {topic}[{partition}] offset {next_offset}")
    if context["summary"] and context["summary_active"]:
        out.say(f"\nsummary of all up to seq {context['summary']['through_seq']}:")
        out.say(f"  {_short(context['summary']['text'])}")
    if context["uncovered"]:
        out.say(
            f"\n{context['uncovered']} earlier messages left the window and no summary covers them: "
            "`refold session export` has them"
        )
    if missing is not None:
        out.say(
            "\n"
            + no_parent(view.session, missing, [branch["head_message_id"] for branch in data["branches"]])
        )
    out.say("\nmessages:")
    out.table(
        ("seq", "role", "id", "content"),
        (
            (m["seq"], m["role"], m["message_id"], _content(m))
            for m in [*context["system"], *context["recent_messages"]]
        ),
    )
    if data["tools"]:
        out.say("\ntool calls:")
        out.table(
            ("operation", "tool", "state", "attempt", "result"),
            (
                (r["operation_id"], r["tool"], r["state"], r["attempt"], _short(r["result_summary"] or ""))
                for r in data["tools"]
            ),
        )
    if context["waiting_results"]:
        out.say(
            "\ntool results outside the context: no call has their id, or its message has not come "
            "(`refold session events --payload` has what they say):"
        )
        out.table(
            ("seq", "message", "operation", "call", "state"),
            ((r.seq, r.message_id, r.operation_id, r.call_id, r.state) for r in view.waiting_results),
        )
    if data["generations"]:
        out.say("\ngenerations (answers under way, and the last that ended):")
        out.table(
            ("generation", "state", "attempt", "generator", "message", "holder"),
            (
                (g["generation_id"], g["state"], g["attempt"], g["generator"], g["message_id"], g["holder"])
                for g in data["generations"]
            ),
        )
    if data["runs"]:
        out.say(f"\nruns (open, and the last that ended; `refold run show {view.session} RUN` says more):")
        out.table(
            ("run", "agent", "state", "steps", "waits for"),
            (
                (r["run_id"], r["agent"], r["state"], steps_counted(r["steps"]), row_waits_for(r))
                for r in data["runs"]
            ),
        )
    if data["facts"]:
        out.say("\nfacts:")
        out.table(("name", "value"), ((f["name"], _short(f["value"])) for f in data["facts"]))
    if data["children"]:
        out.say("\nchild sessions and forks:")
        out.table(
            ("session", "kind", "call", "since seq"),
            ((c["session"], c["kind"], c["call"] or "", c["seq"]) for c in data["children"]),
        )
    if data["reduced"]:
        out.say("\nreducers:")
        out.table(
            ("reducer", "version", "seq", "status", "error", "bytes"),
            (
                (r["name"], r["version"], r["seq"], r["status"], r["error"] or "", len(r["state"]))
                for r in data["reduced"]
            ),
        )
    if data["branches"]:
        heads = ", ".join(branch["head_message_id"] for branch in data["branches"])
        out.say(f"\nother branches end at: {heads}")


@app.command()
def events(
    session: SessionArgument,
    after: Annotated[int, typer.Option("--after", min=0, help="Only events with a higher seq.")] = 0,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="At most so many.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Wait for more; one line each, until ^C.")] = False,
    payload: Annotated[bool, typer.Option("--payload", help="Also print what the events say.")] = False,
    tenant: TenantOption = None,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """List a session's accepted events from the journal, by seeking: type, event id, and what it is about.

    `ids` are those that the event names: message_id, operation_id, generation_id. With --json one object
    that holds them all; with --json --follow one object per line and event.
    """
    out = Output(as_json)
    rows: list[dict[str, Any]] = []

    def take(event: SessionEvent) -> None:
        row = _event_row(event, payload)
        if not as_json:
            line = f"{row['seq']:>6}  {iso(row['time_ms'])}  {row['type']:<26}  {row['event_id']}"
            ids = "".join(f"  {name}={value}" for name, value in row["ids"].items())
            out.say(line + (_said(row) if payload else ids))
        elif follow:
            import orjson

            out.document(orjson.dumps(row))
        else:
            rows.append(row)

    async def work(rf: Refold) -> int:
        last, left = after, limit
        chat = rf.session(session)
        known = False
        while True:
            async with aclosing(chat.events(last, left)) as source:
                async for event in source:
                    take(event)
                    last = event.seq
                    left = None if left is None else left - 1
            if not known and last == after and await chat.state(min_seq=0) is None:
                if not follow:
                    raise no_session(chat.tenant, chat.id)
                out.note(f"session {session} has no events yet")
            known = True
            if not follow or left == 0:
                return last
            await asyncio.sleep(FOLLOW_POLL_S)

    last = with_client(bootstrap, prefix, tenant, work)
    if not follow and last == after:
        out.note(f"no event of {session} after seq {after}")
    if not follow:
        out.result({"session": session, "events": rows, "last_seq": last})


def _event_row(event: SessionEvent, payload: bool) -> dict[str, Any]:
    from refold.wire.owner import json_ready

    env, known = event.envelope, event.payload
    row: dict[str, Any] = {
        "seq": event.seq,
        "type": event.type,
        "event_id": event.event_id,
        "ids": _ids(known),
        "time_ms": event.time_ms,
        "event_time_ms": env.event_time_ms,
        "actor": None if env.actor is None else env.actor._asdict(),
        "producer": env.producer_id,
        "bytes": len(env.raw),
        "journal": [event.journal_partition, event.journal_offset],
        "inbox": [event.inbox_partition, event.inbox_offset],
    }
    if payload:
        row["payload"] = json_ready(env.payload if known is None else known)
    return row


def _ids(known: dict[str, Any] | None) -> dict[str, str]:
    """What an event is about, by the fields of its payload; nothing of a type this reader does not know."""
    named = {} if known is None else known
    return {name: value for name, value in named.items() if name.endswith("_id") and value}


def _said(row: dict[str, Any]) -> str:
    """Payload and actor for a person: JSON that stands in ``extra`` (a ruling's reason) is readable."""
    import orjson

    said = row["payload"]
    if isinstance(said, dict) and isinstance(extra := said.get("extra"), dict):
        with contextlib.suppress(KeyError, ValueError):
            said = {**said, "extra": orjson.loads(base64.b64decode(extra["base64"]))}
    actor = row["actor"]
    by = f"  by {actor['kind']} {actor['id']}" if actor is not None and actor["id"] else ""
    return f"{by}  {orjson.dumps(said).decode()}"


@app.command()
def export(
    session: SessionArgument,
    format: Annotated[  # noqa: A002 - the flag's name
        str, typer.Option("--format", help="source, openai, anthropic, otel or raw.")
    ] = "openai",
    to: Annotated[Path | None, typer.Option("--to", help="Write to this file. Default: stdout.")] = None,
    tenant: TenantOption = None,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """Export a whole session, one JSON document per line.

    source: exactly what was imported. openai, anthropic, otel: the active path as that provider takes it.
    raw: the context in refold's own messages. Content kept in the blob store is fetched and checked.
    """
    from refold.cli.session_export import FORMATS
    from refold.cli.session_export import export as documents_of

    if format not in FORMATS:
        raise UsageError(f"--format {format}: there are {', '.join(FORMATS)}.")
    if as_json and to is None:
        raise UsageError("--json needs --to FILE: without it the export itself goes to stdout.")

    async def work(rf: Refold) -> list[bytes]:
        return await documents_of(rf.session(session), format, rf.connection.blobs)

    documents = with_client(bootstrap, prefix, tenant, work)
    out = Output(as_json)
    if to is None:
        for document in documents:
            out.document(document)
        return
    to.write_bytes(b"".join(document + b"\n" for document in documents))
    out.say(f"{len(documents)} documents written to {to}")
    out.result({"session": session, "format": format, "documents": len(documents), "file": str(to)})


@app.command()
def fold(
    session: Annotated[str | None, typer.Argument(metavar="[SESSION]", help="One session.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every session.")] = False,
    reducers: ReducersOption = None,
    tenant: TenantOption = None,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fold the journal again and compare with the stored state, byte for byte. Exits 1 on any difference."""
    from refold.cli.session_fold import fold_all, fold_one

    if (session is None) == (not everything):
        raise UsageError("say which session to fold, or --all.")
    out = Output(as_json)
    load_reducers(reducers)

    async def work(rf: Refold) -> Any:
        if session is not None:
            return await fold_one(rf, session)
        return await fold_all(rf, progress=out.note)

    report = with_client(bootstrap, prefix, tenant, work)
    for difference in report.differences:
        out.say(f"{difference.key}: {difference.what}")
    if report.more_differences:
        out.say(f"… and {report.more_differences} more")
    out.say(
        f"{report.sessions} sessions, {report.events} events folded: {report.equal} equal, "
        f"{report.sessions - report.equal} different"
    )
    for name, count in sorted(report.left_out.items()):
        out.say(
            f"reducer {name}: its part of {count} sessions was not compared (--reducers, reducer release)"
        )
    out.result(report.as_json())
    if report.sessions != report.equal:
        raise typer.Exit(EXIT_DIFFERENT)


@app.command()
def where(
    session: SessionArgument,
    tenant: TenantOption = None,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say which partition a session belongs to, which worker owns it, and who keeps copies of it.

    The id decides, so it answers for a session that does not exist (yet) too.
    """
    from refold.cli.session_where import where as find

    async def work(rf: Refold) -> dict[str, Any]:
        return await find(rf.session(session), rf.connection.owners)

    found = with_client(bootstrap, prefix, tenant, work)
    out = Output(as_json)
    owner = f"{found['owner']} at {found['url']}" if found["owner"] else "no worker"
    state = f" ({found['state'] or 'does not answer'})" if found["owner"] else ""
    out.say(f"{found['session']}: partition {found['partition']}, owned by {owner}{state}")
    for copy in found["standbys"]:
        age = "being made" if copy["age_s"] is None else f"{copy['age_s']:.1f} s old"
        out.say(f"standby: {copy['instance']} at {copy['url']}, {copy['behind']} records behind, {age}")
    out.result(found)


@app.command()
def release(
    session: SessionArgument,
    reason: Annotated[str | None, typer.Option("--reason", help="Kept in the journal.")] = None,
    by: Annotated[str | None, typer.Option("--by", help="Who releases it; kept in the journal.")] = None,
    tenant: TenantOption = None,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """Release a quarantined session: replay its parked events in order, then let new ones through.

    Safe to run again after an interruption: what was replayed is recognised.
    """
    from refold.cli.session_release import release as run_release

    out = Output(as_json)

    async def work(rf: Refold) -> dict[str, Any]:
        return await run_release(rf, session, by=by, reason=reason, progress=out.note)

    done = with_client(bootstrap, prefix, tenant, work)
    out.say(
        f"released: {done['replayed']} parked events replayed, {done['accepted']} accepted, "
        f"{done['duplicates']} already in, {done['refused']} refused"
    )
    for code, count in done["refused_by_code"].items():
        out.say(f"  {code}: {count}")
    out.result(done)


@app.command()
def delete(
    session: SessionArgument,
    reason: Annotated[str | None, typer.Option("--reason", help="Kept in the journal.")] = None,
    yes: YesOption = False,
    tenant: TenantOption = None,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """Forget a session's state. The journal keeps its events; the next event begins a new session."""
    out = Output(as_json)
    out.confirm(f"Delete the state of session {session!r}?", yes=yes)
    from refold.client import Refused

    async def work(rf: Refold) -> dict[str, Any]:
        chat = rf.session(session)
        receipt = await chat.delete(reason)
        ruling = await receipt.ruling()
        if ruling.status == "duplicate":
            raise no_session(chat.tenant, chat.id)
        if not ruling.in_effect:
            raise Refused(receipt.event_id, ruling)
        return {"session": session, "status": ruling.status, "seq": ruling.seq, "code": ruling.code}

    done = with_client(bootstrap, prefix, tenant, work)
    out.say(f"session {session} deleted at seq {done['seq']}")
    out.result(done)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= PREVIEW_CHARS_MAX else line[: PREVIEW_CHARS_MAX - 1] + "…"


def _content(message: Any) -> str:
    """One line of a message in the public shape of a snapshot, where a part's ``data`` is decoded already."""
    if message["elided"]:
        return f"({message['elided']['length']} bytes, in the journal at seq {message['seq']})"
    return _short(" ".join(_part(part) for part in message["content"]))


def _part(part: Any) -> str:
    data = part["data"]
    if part["type"] == "tool_call" and isinstance(data, dict):
        return f"{data['name']}({data['arguments']})"
    if part["type"] == "tool_result" and isinstance(data, dict):
        return f"{data['call_id']} -> {' '.join(_part(inner) for inner in data['content'])}"
    return part["text"] if part["text"] is not None else f"[{part['type']}]"
