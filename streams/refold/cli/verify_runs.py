"""``refold verify runs``."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from refold.cli.options import BootstrapOption, JsonOption, settings_for
from refold.cli.output import Output
from refold.cli.verify_cluster import (
    EXIT_DIFFERENCE,
    KeepOption,
    SessionTimeoutOption,
    cluster,
    default_timeout_ms,
)

#: A broken rule shows with the first deaths.
SABOTAGE_RUNS_MAX: Final = 60


def runs(
    seed: Annotated[int, typer.Option(help="Decides retries, durations, deaths and victims.")] = 1,
    runs: Annotated[int, typer.Option(min=1, help="Runs of the agent.")] = 200,
    agents: Annotated[int, typer.Option(min=2, max=16, help="Agent processes.")] = 3,
    workers: Annotated[int, typer.Option(min=1, help="Worker processes.")] = 2,
    every: Annotated[float, typer.Option(min=0.5, help="Seconds between two deaths.")] = 2.0,
    lease: Annotated[float, typer.Option(min=1, help="Lease of a run, seconds.")] = 3.0,
    session_timeout_ms: SessionTimeoutOption = None,
    sabotage: Annotated[
        str | None,
        typer.Option(
            help="Break one rule; the run (60 runs at most) must then exit 1: lookup-not-authoritative, "
            "unstable-key, effect-outside-step, take-refused."
        ),
    ] = None,
    keep: KeepOption = False,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Durable agents while their processes are killed, frozen and replaced, and workers die too.

    Every run must end, none be executed by two processes at once, and no
    effect happen twice. Hand-overs are measured from the death to the next
    accepted lease.

    Without --bootstrap (and REFOLD_BOOTSTRAP) a Kafka is started for the run and removed with it.
    """
    from refold.ops.runs.plan import RunsPlan
    from refold.ops.runs.run import run_runs

    out = Output(as_json)
    plan = RunsPlan(
        seed=seed,
        runs=runs if sabotage is None else min(runs, SABOTAGE_RUNS_MAX),
        agents=agents,
        workers=workers,
        every_s=every,
        lease_s=lease,
        sabotage=sabotage,
    )
    with cluster(bootstrap, out) as (address, embedded):
        plan = plan.with_session_timeout(session_timeout_ms or default_timeout_ms(embedded))
        outcome = run_runs(plan, settings_for(bootstrap=address), out.note, keep=keep)
    row = outcome.as_json()
    out.say(f"runs             {row['completed']} of {row['runs']} completed, {row['leases']} leases")
    out.say(f"deaths           {row['kills']} killed, {row['freezes']} frozen, {row['worker_kills']} workers")
    out.say(f"rolling deploy   exits {row['deploy_exits']}")
    out.say(f"executed by two  {row['together']}")
    out.say(f"effects          {row['doubled_effects']} doubled, {row['lost_effects']} lost")
    took = f"p50 {row['hand_over_p50_s']} s, p99 {row['hand_over_p99_s']} s"
    out.say(f"hand-overs       {row['hand_overs']}: {took} (lease {row['lease_s']:g} s)")
    out.say(f"mismatches       {row['mismatches']}")
    for line in [*row["unfinished"], *row["differences"]]:
        out.say(f"  {line}")
    out.result(row)
    if not outcome.clean:
        raise typer.Exit(EXIT_DIFFERENCE)
