"""``refold usage``: what a subject used of which model lately, from the owners of all partitions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from refold.cli.clients import with_client
from refold.cli.options import BootstrapOption, JsonOption, PrefixOption, TenantOption
from refold.cli.output import Output
from refold.errors import UnavailableError

if TYPE_CHECKING:
    from refold.client import Refold
    from refold.client.usage.reads import UsageNow

TIMEOUT_S_DEFAULT: Final = 10.0

app = typer.Typer(help="What a subject used of which model lately: show.", no_args_is_help=True)


@app.callback()
def root() -> None:
    """What a subject used of which model lately."""


@app.command()
def show(
    subject: Annotated[str, typer.Argument(metavar="SUBJECT", help="Whose usage.")],
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Of which model. Default: all.")] = "*",
    tenant: TenantOption = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds that partitions which restore are waited for.")
    ] = TIMEOUT_S_DEFAULT,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """Sums of the last minute, hour and day, requests under way, and totals; by model and together.

    Exit code 69 when a partition did not answer: what is shown lacks it.
    """

    async def work(rf: Refold) -> tuple[UsageNow, str]:
        usage = rf.usage(subject, model)
        return await usage.now(timeout=timeout), usage.session.tenant

    out = Output(as_json)
    now, shown_tenant = with_client(bootstrap, prefix, tenant, work)
    found = report(now)
    if not as_json:
        _table(out, found)
        out.say(f"{found['sum']['late']['minute']} records late, {found['sum']['future']} from the future")
    if not found["models"] and not now.missing:
        out.note(
            f"nothing is known of {subject!r} in tenant {shown_tenant!r}: it never used this model, not for"
            " two days, or it is another tenant's (--tenant)"
        )
    if now.missing:
        out.note(f"partitions {list(now.missing)} did not answer: they restore, or no worker owns them")
    out.result({"tenant": shown_tenant, "subject": subject, "model": model, **found})
    if now.missing:
        raise typer.Exit(UnavailableError.exit_code)


def report(now: UsageNow) -> dict[str, Any]:
    """What the command prints: the sum of all models, and each by its name."""
    from refold.wire.usageanswer import summary

    rows = now.all_rows()
    models = sorted({row.model for row in rows})
    return {
        "now_ms": now.now_ms,
        "sum": summary(rows, now.now_ms),
        "models": {name: summary((r for r in rows if r.model == name), now.now_ms) for name in models},
        "missing": list(now.missing),
    }


def _table(out: Output, found: dict[str, Any]) -> None:
    def lines(name: str, summary: dict[str, Any]) -> list[tuple[Any, ...]]:
        windows = [*summary["windows"].items(), ("total", summary["totals"])]
        return [
            (name if at == 0 else None, window, *counts.values(), summary["active"] if at == 0 else None)
            for at, (window, counts) in enumerate(windows)
        ]

    named = dict(found["models"])
    if len(named) != 1:
        named["(all)"] = found["sum"]
    out.table(
        ("model", "window", "requests", "input", "output", "cached", "reasoning", "under way"),
        (line for name, summary in named.items() for line in lines(name, summary)),
    )
