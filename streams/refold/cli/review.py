"""``refold review``: what waits for a person: calls that need approval or of which nobody can tell what came
of them, and runs whose step failed for good.

``list`` never prints what a call was asked to do; ``show --arguments`` does.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from refold.cli.clients import with_client
from refold.cli.options import (
    LIST_LIMIT_DEFAULT,
    BootstrapOption,
    JsonOption,
    OldestOption,
    OnlyTenantOption,
    PrefixOption,
    SessionArgument,
    TenantOption,
    YesOption,
)
from refold.cli.output import Output
from refold.cli.telling import iso, login
from refold.errors import UsageError

if TYPE_CHECKING:
    from refold.cli.review_ruling import Ruling
    from refold.cli.review_runs import RunVerb
    from refold.client import Refold
    from refold.core.reviews import ReviewItem

KINDS: Final = ("unknown", "approval", "run")

RULE_ONE_WAY: Final = (
    "rule exactly one way: --done RESULT, --failed REASON, --not-done, --approve or --deny; "
    "a run: --retry or --fail."
)

OperationArgument = Annotated[str, typer.Argument(metavar="OPERATION", help="As printed by list.")]

app = typer.Typer(help="Calls and runs that wait for a person: list, show, resolve.", no_args_is_help=True)


@app.command("list")
def list_(
    kind: Annotated[str | None, typer.Option("--kind", help="Only these: unknown, approval or run.")] = None,
    tool: Annotated[
        str | None, typer.Option("--tool", help="Only calls of this tool, or runs of this agent.")
    ] = None,
    tenant: OnlyTenantOption = None,
    session: Annotated[str | None, typer.Option("--session", help="Only of this session.")] = None,
    limit: OldestOption = LIST_LIMIT_DEFAULT,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """List calls and runs that wait for a person, oldest first; never what they were asked to do."""
    from refold.cli.review_items import waiting_items

    if kind is not None and kind not in KINDS:
        raise UsageError(f"--kind {kind!r}: there are unknown, approval and run.")
    found = [
        item
        for item in with_client(bootstrap, prefix, None, waiting_items)
        if (kind is None or item.kind == kind)
        and (tool is None or item.tool == tool)
        and (tenant is None or item.tenant == tenant)
        and (session is None or item.session == session)
    ]
    shown = found[:limit]
    out = Output(as_json)
    if not as_json and shown:
        out.table(
            ("since", "kind", "tenant", "session", "operation", "tool", "attempt", "reason"),
            (
                (iso(i.since_ms), i.kind, i.tenant, i.session, i.operation_id, i.tool, i.attempt, i.reason)
                for i in shown
            ),
        )
    by_kind = Counter(item.kind for item in found)
    counts = ", ".join(f"{name} {count}" for name, count in sorted(by_kind.items()))
    out.say(f"{len(found)} waiting: {counts}" if found else "nothing waits")
    if len(found) > len(shown):
        out.note(f"showing {len(shown)} of {len(found)}; narrow it with --kind, --tool, --session")
    out.result(
        {
            "total": len(found),
            "by_kind": dict(sorted(by_kind.items())),
            "items": [_as_json(item) for item in shown],
        }
    )


@app.command()
def show(
    session: SessionArgument,
    operation: OperationArgument,
    arguments: Annotated[
        bool, typer.Option("--arguments", help="Also print what the call was asked to do.")
    ] = False,
    tenant: TenantOption = None,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one waiting call: its key at the external system, who ran it, and its events so far. Of a waiting
    run: its steps, and which of them failed how."""
    from refold.cli.review_items import WAITING, arguments_of, history_of, waiting_row
    from refold.cli.review_runs import told_of, waiting_run
    from refold.client.tools.keys import idempotency_key

    async def work(rf: Refold) -> dict[str, Any]:
        chat = rf.session(session)
        run = await waiting_run(chat, operation)
        if run is not None:
            return told_of(chat, run)
        row = await waiting_row(chat, operation)
        attempt = row["attempt"]
        told: dict[str, Any] = {
            "tenant": chat.tenant,
            "session": chat.id,
            "operation_id": operation,
            "kind": WAITING[row["state"]],
            "tool": row["tool"],
            "effect": row["effect"] or None,
            "call_id": row["call_id"],
            "message_id": row["message_id"],
            "attempt": attempt,
            "key": idempotency_key(operation, attempt) if attempt else None,
            "holder": row["holder"],
            "reason": row["error"],
            "history": await history_of(chat, operation, row["intended_seq"]),
        }
        if arguments:
            told["arguments"] = await arguments_of(chat, row)
        return told

    told = with_client(bootstrap, prefix, tenant, work)
    out = Output(as_json)
    if not as_json:
        plain = {name: value for name, value in told.items() if name not in ("history", "arguments", "steps")}
        out.table(("field", "value"), plain.items())
        out.say()
        if "steps" in told:
            columns = ("step", "state", "attempt", "effect", "why")
            out.table(columns, ([step[name] for name in columns] for step in told["steps"]))
        else:
            out.table(
                ("seq", "time", "event", "attempt", "who", "why"),
                (
                    (h["seq"], iso(h["time_ms"]), h["event"], h["attempt"], h["who"], h["why"])
                    for h in told["history"]
                ),
            )
        if "arguments" in told:
            out.say(f"\narguments: {told['arguments']}")
        out.say(f"\nto rule: refold review resolve {session} {operation} {_options(told['kind'])}")
    out.result(told)


@app.command()
def resolve(
    session: SessionArgument,
    operation: OperationArgument,
    done: Annotated[
        str | None,
        typer.Option("--done", metavar="RESULT", help="It took effect; the model is given this result."),
    ] = None,
    failed: Annotated[
        str | None,
        typer.Option("--failed", metavar="REASON", help="It took no effect, and is not tried again."),
    ] = None,
    not_done: Annotated[
        bool, typer.Option("--not-done", help="It took no effect, and may run as the next attempt.")
    ] = False,
    approve: Annotated[bool, typer.Option("--approve", help="It may run.")] = False,
    deny: Annotated[bool, typer.Option("--deny", help="It may not run.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="A run: its failed steps are tried again.")] = False,
    fail: Annotated[bool, typer.Option("--fail", help="A run: it has failed.")] = False,
    reason: Annotated[str | None, typer.Option("--reason", help="Why; kept in the journal.")] = None,
    by: Annotated[
        str | None, typer.Option("--by", help="Who rules; kept in the journal. Default: your login.")
    ] = None,
    yes: YesOption = False,
    tenant: TenantOption = None,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """Rule on one waiting call or run. The journal keeps who ruled, how and why.

    With --not-done the call runs again. Make sure before:
    whoever ran it is gone (its holder), and the external system will not
    execute its key any more. `refold review show` names both.
    """
    from refold.cli.review_ruling import resolve as run_resolve

    out = Output(as_json)
    if retry or fail:
        if retry is fail or done is not None or failed is not None or not_done or approve or deny:
            raise UsageError(RULE_ONE_WAY)
        verb: RunVerb = "retry" if retry else "fail"
        _resolve_run(session, operation, verb, by, reason, out, (bootstrap, prefix, tenant))
        return
    ruling = _ruling(done, failed, not_done, approve, deny, by, reason)
    if ruling.verb == "not_done":
        out.confirm(f"Call {operation!r} will run again. Is it certain that it took no effect?", yes=yes)

    async def work(rf: Refold) -> dict[str, Any]:
        return await run_resolve(rf.session(session), operation, ruling)

    made = with_client(bootstrap, prefix, tenant, work)
    then = {
        "approve": "approved: it runs when its agent asks for it next",
        "deny": "denied: it does not run, and the model is told",
        "done": "done: the result is in the session",
        "failed": "failed: it took no effect, and the model is told",
        "not_done": f"not done: it may run as attempt {made['attempt'] + 1} when its agent asks for it next",
    }
    out.say(f"{operation} {then[ruling.verb]} (seq {made['seq']}, by {made['by']})")
    out.result(made)


def _resolve_run(
    session: str,
    run: str,
    verb: RunVerb,
    by: str | None,
    reason: str | None,
    out: Output,
    where: tuple[str | None, str | None, str | None],
) -> None:
    from refold.cli.review_runs import resolve_run

    who = by or login()

    async def work(rf: Refold) -> dict[str, Any]:
        return await resolve_run(rf.session(session), run, verb, who, reason)

    made = with_client(*where, work)
    then = "is ready again: its failed steps are tried again" if verb == "retry" else "has failed"
    out.say(f"{run} {then} (seq {made['seq']}, by {made['by']})")
    out.result(made)


def _ruling(
    done: str | None,
    failed: str | None,
    not_done: bool,
    approve: bool,
    deny: bool,
    by: str | None,
    reason: str | None,
) -> Ruling:
    from refold.cli.review_ruling import Ruling, Verb

    given: list[tuple[Verb, str | None]] = []
    if done is not None:
        given.append(("done", done))
    if failed is not None:
        given.append(("failed", failed))
    flags: tuple[tuple[bool, Verb], ...] = ((not_done, "not_done"), (approve, "approve"), (deny, "deny"))
    given += [(verb, None) for wanted, verb in flags if wanted]
    if len(given) != 1:
        raise UsageError(RULE_ONE_WAY)
    verb, text = given[0]
    return Ruling(verb, text, by or login(), reason)


def _options(kind: str) -> str:
    if kind == "run":
        return "--retry | --fail [--reason TEXT]"
    if kind == "approval":
        return "--approve | --deny [--reason TEXT]"
    return "--done RESULT | --failed REASON | --not-done [--reason TEXT]"


def _as_json(item: ReviewItem) -> dict[str, Any]:
    return {name: value for name, value in item._asdict().items() if name != "arguments"}
