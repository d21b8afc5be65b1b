"""``refold verify usage``."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from refold.cli.options import BootstrapOption, JsonOption, settings_for
from refold.cli.output import Output
from refold.cli.verify_cluster import (
    EXIT_DIFFERENCE,
    SESSION_TIMEOUT_MS_SABOTAGE,
    KeepOption,
    SessionTimeoutOption,
    cluster,
    default_timeout_ms,
)

#: A broken rule shows with the first repeats.
SABOTAGE_EVENTS_MAX: Final = 20_000


def usage(
    seed: Annotated[int, typer.Option(help="Decides usage, clocks, deaths and victims.")] = 1,
    events: Annotated[int, typer.Option(min=100, help="UsageRecorded events.")] = 1_000_000,
    kills: Annotated[int, typer.Option(min=0, help="Deaths of workers, spread over the events.")] = 8,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 2,
    sessions: Annotated[int, typer.Option(min=1, help="Sessions the usage is recorded in.")] = 120,
    partitions: Annotated[int, typer.Option(min=1, help="Partitions of the run's own topics.")] = 8,
    session_timeout_ms: SessionTimeoutOption = None,
    sabotage: Annotated[
        str | None,
        typer.Option(
            help="Break one rule; the run (20 000 events at most) must then exit 1: skip-dedup, "
            "disk-before-commit, offsets-before-produce."
        ),
    ] = None,
    keep: KeepOption = False,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Usage with repeats, rewinds and wrong clocks while workers die; every row counted again.

    Then once more after a restart, and after a restore from the changelog alone.

    Without --bootstrap (and REFOLD_BOOTSTRAP) a Kafka is started for the run and removed with it.
    """
    from refold.ops.usage.plan import UsagePlan
    from refold.ops.usage.run import run_usage

    out = Output(as_json)
    if sabotage is not None:
        events = min(events, SABOTAGE_EVENTS_MAX)
        session_timeout_ms = session_timeout_ms or SESSION_TIMEOUT_MS_SABOTAGE
    with cluster(bootstrap, out) as (address, embedded):
        plan = UsagePlan(
            seed=seed,
            events=events,
            kills=kills,
            workers=workers,
            sessions=sessions,
            partitions=partitions,
            session_timeout_ms=session_timeout_ms or default_timeout_ms(embedded),
            sabotage=sabotage,
        )
        outcome = run_usage(plan, settings_for(bootstrap=address), out.note, keep=keep)
    row = outcome.as_json()
    out.say(f"events           {row['events']}, of {row['sent']} records sent ({row['repeats']} repeats)")
    out.say(f"deaths           {row['kills']}, {row['kills_in_flight']} with folded, uncommitted events")
    out.say(f"fenced zombies   {row['fenced_zombies']}")
    again = f"{row['restarted_rows']} after a restart, {row['restored_rows']} restored"
    out.say(f"rows             {row['rows']}, {again}")
    out.say(f"late, future     {row['late']}, {row['future']}")
    out.say(f"mismatches       {row['mismatches']}")
    for line in outcome.findings.told:
        out.say(f"  {line}")
    out.result(row)
    if not outcome.clean:
        raise typer.Exit(EXIT_DIFFERENCE)
