"""``refold settings``: every setting, its value and where it came from; secrets masked."""

from __future__ import annotations

from typing import Annotated

import typer

from refold.cli.options import BootstrapOption, JsonOption, settings_for
from refold.cli.output import Output

app = typer.Typer(add_completion=False)


@app.command()
def show(
    bootstrap: BootstrapOption = None,
    changed: Annotated[bool, typer.Option("--changed", help="Only what differs from the default.")] = False,
    reference: Annotated[
        bool, typer.Option("--reference", help="Print docs/reference/settings.md instead.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Print every setting with its value and source. Secrets are masked."""
    from refold import settings_report

    if reference:
        print(settings_report.reference(), end="")
        return
    out = Output(as_json)
    rows = [
        row
        for row in settings_report.rows(settings_for(bootstrap=bootstrap))
        if not changed or row["source"] != "default"
    ]
    if not as_json:
        out.table(
            ("setting", "value", "source", "variable"),
            ((row["name"], row["value"], row["source"], row["env"]) for row in rows),
        )
    out.result(
        {row["name"]: {"value": row["value"], "source": row["source"], "env": row["env"]} for row in rows}
    )
