"""``refold session fork``, ``switch`` and ``prune``: operations on whole sessions (rules O1, O3, O6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from refold.cli.clients import with_client
from refold.cli.options import (
    BootstrapOption,
    JsonOption,
    PrefixOption,
    SessionArgument,
    TenantOption,
    YesOption,
    load_reducers,
)
from refold.cli.output import Output
from refold.errors import UsageError
from refold.missing import no_session

if TYPE_CHECKING:
    from refold.client import Receipt, Refold


def fork(
    session: SessionArgument,
    name: Annotated[str | None, typer.Option("--as", help="Id of the new session. Default: made.")] = None,
    at: Annotated[int | None, typer.Option("--at", min=1, help="As of this seq. Default: now.")] = None,
    tenant: TenantOption = None,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """Begin a new session as a copy of another one, now or as of a seq. The source is not changed.

    Open calls, generations and runs stay with the source. Content kept outside stays where it is.
    """
    load_reducers(None)

    async def work(rf: Refold) -> dict[str, Any]:
        made = await rf.session(session).fork(name, at=at)
        view = await made.state()
        link = None if view is None else view.data["link"]
        seq = None if link is None else link["seq"]
        return {"session": made.id, "source": session, "source_seq": seq}

    done = with_client(bootstrap, prefix, tenant, work)
    out = Output(as_json)
    out.say(f"session {done['session']} begins as {session} was at seq {done['source_seq']}")
    out.result(done)


def switch(
    session: SessionArgument,
    head: Annotated[str, typer.Argument(metavar="MESSAGE", help="Last message of the path.")],
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Make the window from the journal if the state lost the path.")
    ] = False,
    tenant: TenantOption = None,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """Make the path that ends in a message the active one."""
    from refold.client import Refused

    async def work(rf: Refold) -> dict[str, Any]:
        chat = rf.session(session)
        try:
            receipt = await chat.switch_branch(head, rebuild=rebuild, wait="accepted")
        except Refused:
            if await chat.state(min_seq=0) is None:
                raise no_session(chat.tenant, chat.id) from None
            raise
        return await _ruled(session, receipt)

    done = with_client(bootstrap, prefix, tenant, work)
    out = Output(as_json)
    said = "was active already" if done["status"] == "duplicate" else f"is active since seq {done['seq']}"
    out.say(f"the path to {head} {said}")
    out.result(done)


def prune(
    session: SessionArgument,
    branches: Annotated[
        list[str] | None, typer.Option("--branch", help="Last message of a path to drop; repeatable.")
    ] = None,
    all_branches: Annotated[
        bool, typer.Option("--all-branches", help="Drop all paths that are not active.")
    ] = False,
    ended: Annotated[
        bool, typer.Option("--ended", help="Drop rows of calls, generations and runs that have ended.")
    ] = False,
    facts: Annotated[list[str] | None, typer.Option("--fact", help="A fact to drop; repeatable.")] = None,
    by: Annotated[str | None, typer.Option("--by", help="Who asks for it; kept in the journal.")] = None,
    reason: Annotated[str | None, typer.Option("--reason", help="Kept in the journal.")] = None,
    yes: YesOption = False,
    tenant: TenantOption = None,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """Take out of a session's state what it no longer needs. The journal keeps it.

    What an open call, generation or run refers to stays: named it is refused, else passed over.
    """
    if not (branches or all_branches or ended or facts):
        raise UsageError("say what to prune: --branch, --all-branches, --ended, --fact.")
    out = Output(as_json)
    out.confirm(f"Prune the state of session {session!r}?", yes=yes)

    async def work(rf: Refold) -> dict[str, Any]:
        chat = rf.session(session)
        before = await chat.state(min_seq=0)
        if before is None:
            raise no_session(chat.tenant, chat.id)
        receipt = await chat.prune(
            branches=branches or (),
            all_branches=all_branches,
            ended=ended,
            facts=facts or (),
            by=by,
            reason=reason,
        )
        after = await chat.state()
        sizes = {
            "bytes_before": len(before.raw),
            "bytes": 0 if after is None else len(after.raw),
        }
        return {**await _ruled(session, receipt), **sizes}

    done = with_client(bootstrap, prefix, tenant, work)
    if done["status"] == "duplicate":
        out.say(f"session {session}: there is nothing to prune")
    else:
        out.say(
            f"session {session} pruned at seq {done['seq']}: {done['bytes_before']} bytes of state, "
            f"now {done['bytes']}"
        )
    out.result(done)


async def _ruled(session: str, receipt: Receipt) -> dict[str, Any]:
    """What became of an event that is in effect: a refusal was raised (Refused, exit code 65)."""
    ruling = await receipt.ruling()
    return {"session": session, "status": ruling.status, "seq": ruling.seq}
