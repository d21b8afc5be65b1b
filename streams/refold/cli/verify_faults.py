"""``refold verify faults``: one fault of the surroundings at a time, each compared with the oracle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli.options import BootstrapOption, JsonOption, settings_for
from refold.cli.output import Output
from refold.cli.verify_cluster import EXIT_DIFFERENCE, KeepOption, default_timeout_ms, is_theirs

if TYPE_CHECKING:
    from refold.ops.faults.run import Played


def faults(
    only: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Play this scenario only; may be given several times."),
    ] = None,
    show_list: Annotated[
        bool, typer.Option("--list", help="List the scenarios, and which cannot be played here.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Decides the traffic.")] = 1,
    sessions: Annotated[int, typer.Option(min=1, help="Sessions the traffic is spread over.")] = 120,
    rate: Annotated[int, typer.Option(min=1, help="Records per second.")] = 300,
    sabotage: Annotated[
        str | None,
        typer.Option(
            help="Break one rule; the run must exit 1. Found in every scenario: skip-dedup, fold-misrouted"
        ),
    ] = None,
    keep: KeepOption = False,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Network, disk, clock, transactions, leaders: one fault at a time, then everything compared.

    Without --bootstrap (and REFOLD_BOOTSTRAP) a Kafka is started for the run and removed with it. With it,
    scenarios that start brokers of their own are skipped.
    """
    from refold.ops.faults.run import chosen, play
    from refold.ops.verify.plan import ChaosPlan

    out = Output(as_json)
    scenarios = chosen(only or [])
    if show_list:
        reasons = {scenario.name: scenario.unavailable() for scenario in scenarios}
        out.table(
            ("scenario", "injected", "expected", "here"),
            [(s.name, s.injected, s.expected, reasons[s.name] or "can be played") for s in scenarios],
        )
        rows = [
            {"name": s.name, "injected": s.injected, "expected": s.expected, "unavailable": reasons[s.name]}
            for s in scenarios
        ]
        out.result({"scenarios": rows})
        return
    theirs = is_theirs(bootstrap)
    plan = ChaosPlan(
        seed=seed,
        seconds=0,
        sessions=sessions,
        rate=rate,
        session_timeout_ms=default_timeout_ms(embedded=not theirs),
        sabotage=sabotage,
    )
    played = play(scenarios, plan, settings_for(bootstrap=bootstrap) if theirs else None, out.note, keep=keep)
    clean = all(one.clean for one in played)
    _show(out, played)
    out.result({"clean": clean, "seed": seed, "scenarios": [one.as_json() for one in played]})
    if not clean:
        raise typer.Exit(EXIT_DIFFERENCE)


def _show(out: Output, played: list[Played]) -> None:
    table = []
    for one in played:
        row = one.as_json()
        table.append(
            (one.scenario.name, one.status, row.get("seconds"), row.get("events"), row.get("pause_ms_max"))
        )
    out.table(("scenario", "result", "seconds", "events", "longest pause, ms"), table)
    for one in played:
        row = one.as_json()
        skipped = [row["skipped"]] if one.skipped else []
        missed = [f"not shown: {text}" for text in row.get("not_shown", ())]
        for line in (*skipped, *missed, *row.get("differences", ())):
            out.say(f"  {one.scenario.name}: {line}")
