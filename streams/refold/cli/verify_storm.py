"""``refold verify storm``: a fleet restarts together with cold disks, on this machine or simulated."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from refold.cli.options import BootstrapOption, JsonOption, settings_for
from refold.cli.output import Output
from refold.cli.verify_cluster import EXIT_DIFFERENCE, cluster
from refold.errors import UsageError

if TYPE_CHECKING:
    from refold.ops.storm.model import FleetModel
    from refold.ops.storm.plan import StormPlan

REAL: Final = "Real workers"
SIMULATED: Final = "With --simulate"


def storm(
    seed: Annotated[int, typer.Option(help="Decides texts, lengths, hot sessions and jitter.")] = 1,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Worker processes. Default: 3; simulated 500.")
    ] = None,
    partitions: Annotated[
        int | None, typer.Option(min=1, help="Partitions. Default: 6; simulated 1000.")
    ] = None,
    hot_partitions: Annotated[
        int | None, typer.Option(min=0, help="Partitions that hot sessions are on. Default 0: all.")
    ] = None,
    cap_bytes_per_s: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Bytes per second and worker in the arms with a cap. Default: what --capped-seconds needs;"
            " simulated 2000000.",
        ),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Small, without the arm without a cap.", rich_help_panel=REAL)
    ] = False,
    sessions: Annotated[
        int | None, typer.Option(min=1, help="Sessions. Default: 12000.", rich_help_panel=REAL)
    ] = None,
    events: Annotated[
        int | None,
        typer.Option(min=1, help="Events per session before. Default: 10.", rich_help_panel=REAL),
    ] = None,
    hot_share: Annotated[
        float | None,
        typer.Option(min=0.0, max=1.0, help="Of the sessions. Default: 0.1.", rich_help_panel=REAL),
    ] = None,
    new_share: Annotated[
        float | None,
        typer.Option(
            min=0.0, max=1.0, help="New sessions, in hot ones. Default: 0.05.", rich_help_panel=REAL
        ),
    ] = None,
    rate: Annotated[
        int | None,
        typer.Option(min=1, help="Events per second during it. Default: 40.", rich_help_panel=REAL),
    ] = None,
    capped_seconds: Annotated[
        float | None,
        typer.Option(
            min=1, help="How long reading everything takes with the cap. Default: 30.", rich_help_panel=REAL
        ),
    ] = None,
    session_timeout_ms: Annotated[
        int | None,
        typer.Option(min=1_000, help="The group's. Default: 30000.", rich_help_panel=REAL),
    ] = None,
    sabotage: Annotated[
        str | None,
        typer.Option(
            help="Break one rule; the run (small, one arm) must then exit 1: skip-dedup, lose-state.",
            rich_help_panel=REAL,
        ),
    ] = None,
    keep: Annotated[
        bool,
        typer.Option("--keep", help="Leave topics, data and logs for inspection.", rich_help_panel=REAL),
    ] = False,
    bootstrap: BootstrapOption = None,
    simulate: Annotated[
        bool,
        typer.Option("--simulate", help="Play a fleet of any size on a simulated clock."),
    ] = False,
    bytes_per_partition: Annotated[
        float | None, typer.Option(help="Default: 64000000.", rich_help_panel=SIMULATED)
    ] = None,
    record_bytes: Annotated[
        int | None, typer.Option(help="Default: 1600.", rich_help_panel=SIMULATED)
    ] = None,
    records_per_s_core: Annotated[
        float | None,
        typer.Option(help="What one restore takes in. Default: 130000.", rich_help_panel=SIMULATED),
    ] = None,
    cores: Annotated[
        int | None, typer.Option(help="Of each worker. Default: 2.", rich_help_panel=SIMULATED)
    ] = None,
    brokers: Annotated[int | None, typer.Option(help="Default: 6.", rich_help_panel=SIMULATED)] = None,
    broker_bytes_per_s: Annotated[
        float | None,
        typer.Option(help="What one broker can send. Default: 1000000000.", rich_help_panel=SIMULATED),
    ] = None,
    start_s: Annotated[
        float | None,
        typer.Option(help="From start to assignment. Default: 3.", rich_help_panel=SIMULATED),
    ] = None,
    takeover_s: Annotated[
        float | None,
        typer.Option(help="Of a restore, what is not reading. Default: 0.15.", rich_help_panel=SIMULATED),
    ] = None,
    hot_sessions: Annotated[
        int | None, typer.Option(help="Default: 20000.", rich_help_panel=SIMULATED)
    ] = None,
    hot_tail: Annotated[
        float | None,
        typer.Option(
            help="How far from the changelog's end a hot session's last record is, on average, as a fraction."
            " Default: 0.02.",
            rich_help_panel=SIMULATED,
        ),
    ] = None,
    core_partitions: Annotated[
        int | None, typer.Option(help="Named in restore_first. Default: 0.", rich_help_panel=SIMULATED)
    ] = None,
    hot_first: Annotated[
        bool | None,
        typer.Option(
            "--hot-first/--no-hot-first", help="In the polite arm. Default: on.", rich_help_panel=SIMULATED
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Directory for report.json and chart.svg.", file_okay=False)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Restart a whole fleet with cold disks: without a cap, with it, and with it politely.

    Shows what it asks of the brokers, when hot sessions are live, and that every session is as it should be.
    Without --bootstrap (and REFOLD_BOOTSTRAP) a Kafka is started for the run and removed with it.
    """
    from refold.ops.storm.model import FleetModel
    from refold.ops.storm.plan import plan_for

    both = {
        "workers": workers,
        "partitions": partitions,
        "hot_partitions": hot_partitions,
        "cap_bytes_per_s": cap_bytes_per_s,
    }
    real = {
        "sessions": sessions,
        "events": events,
        "hot_share": hot_share,
        "new_share": new_share,
        "rate": rate,
        "capped_seconds": capped_seconds,
        "session_timeout_ms": session_timeout_ms,
    }
    simulated = {
        "bytes_per_partition": bytes_per_partition,
        "record_bytes": record_bytes,
        "records_per_s_core": records_per_s_core,
        "cores": cores,
        "brokers": brokers,
        "broker_bytes_per_s": broker_bytes_per_s,
        "start_s": start_s,
        "takeover_s": takeover_s,
        "hot_sessions": hot_sessions,
        "hot_tail": hot_tail,
        "core_partitions": core_partitions,
        "hot_first": hot_first,
    }
    output = Output(as_json)
    if simulate:
        others = {"quick": quick or None, "sabotage": sabotage, "keep": keep or None, "bootstrap": bootstrap}
        _refuse({**real, **others}, "--simulate has no workers")
        model = FleetModel(seed=seed, **_given({**both, **simulated}))
        _simulate(model, out, output)
        return
    _refuse(simulated, "only with --simulate")
    _run(plan_for(quick=quick, sabotage=sabotage, seed=seed, **both, **real), out, output, bootstrap, keep)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


def _refuse(options: dict[str, Any], why: str) -> None:
    if names := sorted(_given(options)):
        raise UsageError(f"--{names[0].replace('_', '-')}: {why}")


def _run(plan: StormPlan, directory: Path | None, out: Output, bootstrap: str | None, keep: bool) -> None:
    from refold.ops.storm import report
    from refold.ops.storm.run import run_storm

    with cluster(bootstrap, out) as (address, _embedded):
        outcome = run_storm(plan, settings_for(bootstrap=address), out.note, keep=keep)
    if directory is not None:
        title = f"{plan.workers} workers, {plan.sessions} sessions: cold restart"
        svg = report.chart(title, [(one.arm.name, one.rate, one.hot) for one in outcome.results])
        outcome.files = report.write(directory, outcome.as_json(), svg)
    outcome.show(out)
    out.result(outcome.as_json())
    if not outcome.clean:
        raise typer.Exit(EXIT_DIFFERENCE)


def _simulate(model: FleetModel, directory: Path | None, out: Output) -> None:
    from refold.ops.storm import report
    from refold.ops.storm.curves import Live
    from refold.ops.storm.simulate import simulate, simulated_report

    found = simulate(model)
    result = simulated_report(model, found)
    curves = [(one.arm.name, one.rate, Live(one.hot, model.hot_sessions)) for one in found]
    if directory is not None:
        title = f"simulated: {model.workers} workers, {model.partitions} partitions, cold restart"
        result["files"] = report.write(directory, result, report.chart(title, curves))
    report.show_arms(out, result["arms"])
    report.show_ratios(out, result["ratios"])
    report.show_curve(out, [(name, live) for name, _, live in curves])
    out.result(result)
