"""``refold run``: open runs of durable agents; look at one, stop it, let another version or another try have
it.

``list`` and ``show`` do not print what a run was given or what came of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
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
from refold.cli.run_words import waits_for
from refold.cli.telling import iso, login
from refold.errors import UsageError

if TYPE_CHECKING:
    from refold.client import Refold
    from refold.client.agents.handle import RunHandle
    from refold.client.receipts import Receipt

STATES: Final = ("ready", "leased", "waiting", "review")

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="As printed by list.")]
ReasonOption = Annotated[str | None, typer.Option("--reason", help="Why; kept in the journal.")]
ByOption = Annotated[
    str | None, typer.Option("--by", help="Who says so; kept in the journal. Default: your login.")
]

app = typer.Typer(
    help="Runs of durable agents: list, show, stop, move-pin, retry, fail.", no_args_is_help=True
)


@app.command("list")
def list_(
    agent: Annotated[str | None, typer.Option("--agent", help="Only runs of this agent.")] = None,
    state: Annotated[
        str | None, typer.Option("--state", help="Only these: ready, leased, waiting or review.")
    ] = None,
    tenant: OnlyTenantOption = None,
    session: Annotated[str | None, typer.Option("--session", help="Only of this session.")] = None,
    limit: OldestOption = LIST_LIMIT_DEFAULT,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """List open runs, oldest first: who holds them, or what they wait for."""
    from refold.cli.run_items import open_runs

    if state is not None and state not in STATES:
        raise UsageError(f"--state {state!r}: there are {', '.join(STATES)}.")
    found = [
        item
        for item in with_client(bootstrap, prefix, None, open_runs)
        if (agent is None or item.agent == agent)
        and (state is None or item.state == state)
        and (tenant is None or item.tenant == tenant)
        and (session is None or item.session == session)
    ]
    shown = found[:limit]
    out = Output(as_json)
    if not as_json and shown:
        out.table(
            ("since", "state", "waits for", "tenant", "session", "run", "agent", "pin", "epoch", "holder"),
            (
                (
                    iso(i.since_ms),
                    i.state,
                    waits_for(i.state, i.reason, i.holder),
                    i.tenant,
                    i.session,
                    i.run,
                    i.agent,
                    i.pin,
                    i.epoch,
                    i.holder,
                )
                for i in shown
            ),
        )
    by_state = Counter(item.state for item in found)
    counts = ", ".join(f"{name} {by_state[name]}" for name in STATES if by_state[name])
    out.say(f"{len(found)} open: {counts}" if found else "no run is open")
    if len(found) > len(shown):
        out.note(f"showing {len(shown)} of {len(found)}; narrow it with --agent, --state, --session")
    out.result(
        {
            "total": len(found),
            "by_state": dict(sorted(by_state.items())),
            "runs": [item._asdict() for item in shown],
        }
    )


@app.command()
def show(
    session: SessionArgument,
    run: RunArgument,
    payload: Annotated[
        bool, typer.Option("--payload", help="Also print summaries: by default an output's beginning.")
    ] = False,
    tenant: TenantOption = None,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one run and its steps: states, attempts, what was read; never inputs and outputs.

    Of a run that is over the steps are shown as they were when it ended: the state keeps none, they are
    folded from the journal.
    """
    from refold.cli.run_items import in_words, look_at

    async def work(rf: Refold) -> dict[str, Any]:
        return await look_at(rf, session, run, payload)

    told = with_client(bootstrap, prefix, tenant, work)
    out = Output(as_json)
    if not as_json:
        out.table(("field", "value"), in_words(told))
        out.say()
        out.table(
            ("step", "state", "attempt", "effect", "reads", "summary or error"),
            (
                (
                    s["step"],
                    s["state"],
                    s["attempt"],
                    s["effect"],
                    ", ".join(s["reads"]),
                    s["error"] or s["summary"],
                )
                for s in told["steps"]
            ),
        )
    if not told["steps"]:
        over = told["state"] in ("completed", "failed", "stopped")
        if over and told["steps_as_of"] is None:
            out.note(
                "its steps are gone: the state drops them when a run ends, and the journal no longer has the"
                " session's beginning, from which they could be folded"
            )
        else:
            out.note("no step was recorded" if over else "no step was recorded yet")
    out.result(told)


@app.command()
def stop(
    session: SessionArgument,
    run: RunArgument,
    reason: ReasonOption = None,
    by: ByOption = None,
    yes: YesOption = False,
    tenant: TenantOption = None,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """End a run where it is. The process that executes it stops within a moment."""
    out = Output(as_json)
    out.confirm(f"Run {run!r} ends and cannot be gone on with.", yes=yes)
    _say(
        out,
        f"{run} is stopped",
        session,
        run,
        lambda handle: handle.stop(reason, by=by or login()),
        (bootstrap, prefix, tenant),
    )


@app.command("move-pin")
def move_pin(
    session: SessionArgument,
    run: RunArgument,
    version: Annotated[
        str | None, typer.Argument(metavar="[VERSION]", help="The version that is to run it.")
    ] = None,
    any_version: Annotated[bool, typer.Option("--any", help="Whichever version takes it next.")] = False,
    reason: ReasonOption = None,
    by: ByOption = None,
    tenant: TenantOption = None,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let another version of its agent go on with a run. Not while a process holds it."""
    if (version is None) is not any_version:
        raise UsageError("name one VERSION, or --any.")
    _say(
        Output(as_json),
        f"{run} is pinned to {version}" if version else f"{run} is pinned to no version",
        session,
        run,
        lambda handle: handle.move_pin(version, by=by or login(), reason=reason),
        (bootstrap, prefix, tenant),
    )


@app.command()
def retry(
    session: SessionArgument,
    run: RunArgument,
    rerun: Annotated[
        list[str] | None,
        typer.Option("--rerun", metavar="STEP", help="This step runs again, effect and all. Repeatable."),
    ] = None,
    reason: ReasonOption = None,
    by: ByOption = None,
    tenant: TenantOption = None,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """Let a run that waits for a person go on; its failed steps are tried again."""
    _say(
        Output(as_json),
        f"{run} is ready again",
        session,
        run,
        lambda handle: handle.retry(rerun=rerun or (), by=by or login(), reason=reason),
        (bootstrap, prefix, tenant),
    )


@app.command()
def fail(
    session: SessionArgument,
    run: RunArgument,
    reason: ReasonOption = None,
    by: ByOption = None,
    tenant: TenantOption = None,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """End a run that waits for a person as failed."""
    _say(
        Output(as_json),
        f"{run} has failed",
        session,
        run,
        lambda handle: handle.resolve("fail", by=by or login(), reason=reason),
        (bootstrap, prefix, tenant),
    )


def _say(
    out: Output,
    text: str,
    session: str,
    run: str,
    work: Callable[[RunHandle], Awaitable[Receipt]],
    where: tuple[str | None, str | None, str | None],
) -> None:
    """Do it, wait for the ruling, say ``text``. Raises NotFound where there is no such session or run."""
    from refold.client import Refused

    async def ruled(rf: Refold) -> int | None:
        handle = rf.run(session, run)
        try:
            return (await (await work(handle)).ruling()).seq
        except Refused as refused:
            if refused.ruling.code == "unknown_run":
                # Says which of the two is not there, the session or the run.
                await handle.row()
            raise

    seq = with_client(*where, ruled)
    out.say(f"{text} (seq {seq})")
    out.result({"seq": seq})
