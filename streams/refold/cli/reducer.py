"""``refold reducer``: the parts that your own reducers fold, and what to do about one that stands still.

States are never printed; ``session show --json`` has them.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from refold.cli.clients import with_client
from refold.cli.options import (
    LIST_LIMIT_DEFAULT,
    LIST_LIMIT_MAX,
    BootstrapOption,
    JsonOption,
    OnlyTenantOption,
    PrefixOption,
    ReducersOption,
    TenantOption,
    load_reducers,
)
from refold.cli.output import Output
from refold.cli.telling import login
from refold.errors import RefoldError, UsageError

if TYPE_CHECKING:
    from refold.cli.reducer_parts import Part
    from refold.client import Refold

EXIT_LEFT: Final = 1

app = typer.Typer(help="Parts of sessions folded by your own reducers: list, release.", no_args_is_help=True)


@app.callback()
def root() -> None:
    """Parts of sessions folded by your own reducers."""


@app.command("list")
def list_(
    name: Annotated[str | None, typer.Option("--name", help="Only of this reducer.")] = None,
    quarantined: Annotated[bool, typer.Option("--quarantined", help="Only parts that stand still.")] = False,
    reducers: ReducersOption = None,
    tenant: OnlyTenantOption = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=LIST_LIMIT_MAX, help="Rows shown.")
    ] = LIST_LIMIT_DEFAULT,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """List parts, all sessions; with the modules, also what sessions of before a reducer do not have."""
    from refold.cli.reducer_parts import all_parts

    known = load_reducers(reducers)

    async def work(rf: Refold) -> list[Part]:
        return [
            part
            async for part in all_parts(rf, known)
            if (name is None or part.name == name)
            and (not quarantined or part.stands)
            and (tenant is None or part.tenant == tenant)
        ]

    found = sorted(with_client(bootstrap, prefix, None, work), key=lambda p: (p.name, p.tenant, p.session))
    shown = found[:limit]
    out = Output(as_json)
    columns = ("reducer", "tenant", "session", "version", "seq", "status", "error", "bytes")
    rows = [(p.name, p.tenant, p.session, p.version, p.seq, p.status, p.error, p.state_bytes) for p in shown]
    if not as_json and shown:
        out.table(columns, rows)
    counts = Counter(part.status for part in found)
    out.say(", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "no parts")
    if len(found) > len(shown):
        out.note(f"showing {len(shown)} of {len(found)}; narrow it with --name, --tenant, --quarantined")
    out.result(
        {
            "total": len(found),
            "by_status": dict(sorted(counts.items())),
            "parts": [dict(zip(columns, row, strict=True)) for row in rows],
        }
    )


@app.command()
def release(
    name: Annotated[str, typer.Argument(metavar="REDUCER", help="The reducer's name.")],
    session: Annotated[str | None, typer.Argument(metavar="[SESSION]", help="One session.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every session whose part stands still or is missing.")
    ] = False,
    refold: Annotated[
        bool, typer.Option("--refold", help="With --all: also parts that go on, after a change of the code.")
    ] = False,
    reason: Annotated[str | None, typer.Option("--reason", help="Kept in the journal.")] = None,
    by: Annotated[str | None, typer.Option("--by", help="Who releases it. Default: your user name.")] = None,
    reducers: ReducersOption = None,
    tenant: TenantOption = None,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """Fold a reducer's part anew from the journal and let it go on from there.

    Needs the reducer's module in the version that the workers have. Safe to run again. Exits 1 where a part
    could not be released.
    """
    from refold.cli.reducer_parts import all_parts, release_part

    if (session is None) == (not everything):
        raise UsageError("say which session to release, or --all.")
    if refold and not everything:
        raise UsageError("--refold is for --all: a session that is named is folded anew in any case.")
    known = load_reducers(reducers)
    if known is None or name not in known.by_name:
        there = "none" if known is None else ", ".join(known.by_name)
        raise UsageError(
            f"there is no reducer {name!r} in the modules ({there}): name its module with --reducers."
        )
    out = Output(as_json)
    author = by or login("releases it")

    async def work(rf: Refold) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        if session is not None:
            targets = [rf.session(session)]
        else:
            targets = [
                rf.session(part.session, tenant=part.tenant)
                async for part in all_parts(rf, known)
                if part.name == name and (part.stands or refold) and tenant in (None, part.tenant)
            ]
        done: list[dict[str, Any]] = []
        left: list[dict[str, Any]] = []
        for chat in targets:
            try:
                receipt = await release_part(chat, known, name, by=author, reason=reason)
            except RefoldError as error:
                if session is not None:
                    raise
                left.append({"tenant": chat.tenant, "session": chat.id, "error": str(error)})
                continue
            ruling = await receipt.ruling()
            done.append({"tenant": chat.tenant, "session": chat.id, "seq": ruling.seq})
        return done, left

    done, left = with_client(bootstrap, prefix, tenant, work)
    for row in left:
        out.say(f"{row['tenant']}/{row['session']}: {row['error']}")
    out.say(f"{name}: {len(done)} parts released, {len(left)} left")
    out.result({"reducer": name, "released": done, "left": left})
    if left:
        raise typer.Exit(EXIT_LEFT)
