"""``refold verify``: prove the guarantees on this machine or your cluster.

Exit codes: 0 everything as expected, 1 any difference (also with ``--sabotage``, where that is the point),
others as in :mod:`refold.errors`.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

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
    is_theirs,
)
from refold.cli.verify_eval import eval_
from refold.cli.verify_faults import faults
from refold.cli.verify_runs import runs
from refold.cli.verify_storm import storm
from refold.cli.verify_usage import usage
from refold.errors import UsageError

if TYPE_CHECKING:
    from refold.ops.verify.chaos import Outcome
    from refold.ops.verify.nodes import Nodes

#: Where brokers go away: longer than leaders take to move, and than a killed broker is away that comes back
#: at once; no longer than one takes to be missed (9 s) and replaced, so that all members are lost then.
SESSION_TIMEOUT_MS_BROKERS: Final = 10_000
#: A broken rule shows with the first deaths; a longer run would only be a longer wait for exit 1.
SABOTAGE_SECONDS_MAX: Final = 20.0

app = typer.Typer(help="Prove the guarantees on this machine or your cluster.", no_args_is_help=True)


@app.callback()
def root() -> None:
    """Prove the guarantees on this machine or your cluster."""


@app.command()
def chaos(
    seed: Annotated[int, typer.Option(help="Decides traffic, deaths and victims.")] = 1,
    seconds: Annotated[float, typer.Option(min=5, help="How long traffic and deaths go on.")] = 60.0,
    workers: Annotated[int, typer.Option(min=2, help="Worker processes.")] = 2,
    sessions: Annotated[int, typer.Option(min=1, help="Sessions the traffic is spread over.")] = 120,
    rate: Annotated[int, typer.Option(min=1, help="Records per second.")] = 300,
    kills_per_minute: Annotated[int, typer.Option(min=1, help="Deaths per minute.")] = 20,
    partitions: Annotated[int, typer.Option(min=2, help="Partitions of the run's own topics.")] = 8,
    session_timeout_ms: SessionTimeoutOption = None,
    sabotage: Annotated[
        str | None,
        typer.Option(
            help="Break one rule; the run (20 s at most) must then exit 1: skip-dedup, disk-before-commit, "
            "offsets-before-produce, fold-misrouted."
        ),
    ] = None,
    broker_restarts: Annotated[
        bool,
        typer.Option(
            "--broker-restarts",
            help="Restart brokers and move leaders beside the deaths, on three nodes of our own.",
        ),
    ] = False,
    broker_restart_command: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="For --broker-restarts on your own cluster: restarts the broker with the id {node}.",
        ),
    ] = None,
    reducers: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE",
            help="Workers fold its reducers, traffic has events of theirs, parts are compared.",
        ),
    ] = None,
    reducers_then: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE",
            help="The same reducers in their next version: what workers run from half time on.",
        ),
    ] = None,
    keep: KeepOption = False,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Traffic, deaths, then every session compared with an independent oracle.

    Without --bootstrap (and REFOLD_BOOTSTRAP) a Kafka is started for the run and removed with it; with
    --broker-restarts one of three nodes.
    """
    from refold.ops.verify.chaos import run_chaos
    from refold.ops.verify.parts import load_module
    from refold.ops.verify.plan import ChaosPlan

    out = Output(as_json)
    if reducers_then is not None and reducers is None:
        raise UsageError("--reducers-then is the next version of --reducers: give both.")
    if reducers is not None:
        load_module(reducers_then or reducers)  # what is wrong with it is said before a broker is started
    with _brokers(bootstrap, out, broker_restarts, broker_restart_command) as (address, embedded, nodes):
        settings = settings_for(bootstrap=address)
        default = default_timeout_ms(embedded)
        if broker_restarts:
            default = SESSION_TIMEOUT_MS_BROKERS
        if sabotage is not None:
            default = SESSION_TIMEOUT_MS_SABOTAGE
        plan = ChaosPlan(
            seed=seed,
            seconds=seconds if sabotage is None else min(seconds, SABOTAGE_SECONDS_MAX),
            workers=workers,
            sessions=sessions,
            rate=rate,
            kills_per_minute=kills_per_minute,
            partitions=partitions,
            session_timeout_ms=session_timeout_ms or default,
            sabotage=sabotage,
            broker_restarts=broker_restarts,
            reducers=reducers,
            reducers_then=reducers_then,
        )
        outcome = run_chaos(plan, settings, out.note, keep=keep, nodes=nodes)
    _show(out, outcome)
    out.result(outcome.as_json())
    if not outcome.clean:
        raise typer.Exit(EXIT_DIFFERENCE)


@app.command()
def effects(
    seed: Annotated[int, typer.Option(help="Decides tools, failures, deaths and victims.")] = 1,
    conversations: Annotated[
        int, typer.Option(min=1, max=200, help="Conversations, of the 200 of the data set.")
    ] = 200,
    seconds: Annotated[
        float, typer.Option(min=5, help="How long deaths may go on; the rest is then played without.")
    ] = 170.0,
    agents: Annotated[int, typer.Option(min=2, max=16, help="Agent processes.")] = 4,
    kills_per_boundary: Annotated[
        int | None, typer.Option(min=1, help="Deaths of agents at each of the 8 boundaries. Default: 6.")
    ] = None,
    agent: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:OBJECT",
            help="Your agent instead of refold's own. See refold.ops.effects.protocol.",
        ),
    ] = None,
    sabotage: Annotated[
        str | None,
        typer.Option(
            help="Break one rule; the run must then exit 1: rerun-unknown, no-lease, "
            "lookup-not-authoritative, result-before-effect, unstable-key."
        ),
    ] = None,
    session_timeout_ms: SessionTimeoutOption = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave topics, ledger, data and logs for inspection.")
    ] = False,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Kill agents and workers at every boundary of tool calls; compare the outside world's ledger.

    Each operation must have happened once, or be known to be unknown and wait for a person.

    Without --bootstrap (and REFOLD_BOOTSTRAP) a Kafka is started for the run and removed with it.
    """
    from refold.ops.effects.plan import plan_for
    from refold.ops.effects.run import check_plan, run_effects

    out = Output(as_json)
    plan = plan_for(
        seed=seed,
        conversations=conversations,
        seconds=seconds,
        agents=agents,
        kills_per_boundary=kills_per_boundary,
        agent=agent,
        sabotage=sabotage,
    )
    check_plan(plan)  # what is wrong with the call is said before a broker is started for it
    with cluster(bootstrap, out) as (address, embedded):
        plan = replace(plan, session_timeout_ms=session_timeout_ms or default_timeout_ms(embedded))
        outcome = run_effects(plan, settings_for(bootstrap=address), out.note, keep=keep)
    outcome.show(out)
    out.result(outcome.as_json())
    if not outcome.clean:
        raise typer.Exit(EXIT_DIFFERENCE)


app.command("eval")(eval_)
app.command()(faults)
app.command()(storm)
app.command()(usage)
app.command()(runs)


@contextlib.contextmanager
def _brokers(
    bootstrap: str | None, out: Output, restarts: bool, command: str | None
) -> Iterator[tuple[str | None, bool, Nodes | None]]:
    """As :func:`cluster`, and what can be restarted of it. Raises UsageError where nothing can."""
    if command is not None and not restarts:
        raise UsageError("--broker-restart-command says how --broker-restarts restarts a broker: give both.")
    if not restarts:
        with cluster(bootstrap, out) as (address, embedded):
            yield address, embedded, None
        return
    from refold.ops.verify.nodes import CommandNodes, EmbeddedNodes

    if is_theirs(bootstrap):
        if command is None:
            raise UsageError(
                "--broker-restarts would have to restart the brokers of a cluster that is not ours. Leave"
                " --bootstrap (and REFOLD_BOOTSTRAP) out to use three nodes of our own, or say how with"
                " --broker-restart-command 'COMMAND {node}'."
            )
        from confluent_kafka.admin import AdminClient

        kafka = settings_for(bootstrap=bootstrap).kafka_config("admin")
        yield bootstrap, False, CommandNodes(command, AdminClient({"log_level": 2, **kafka}))
        return
    if command is not None:
        raise UsageError("--broker-restart-command is for your own cluster: name it with --bootstrap.")
    from refold.broker import EmbeddedCluster

    with tempfile.TemporaryDirectory(prefix="refold-verify-kafka-") as directory:
        out.note("no --bootstrap: starting a Kafka of three nodes for this run")
        with EmbeddedCluster(Path(directory), nodes=3) as three:
            yield three.bootstrap, True, EmbeddedNodes(three)


def _show(out: Output, outcome: Outcome) -> None:
    row = outcome.as_json()
    rto = row["rto_ms"]
    out.say(f"events           {row['events']}")
    out.say(f"deaths           {row['kills']}, {row['kills_in_flight']} with folded, uncommitted events")
    out.say(f"aborted commits  {row['aborted_commits']}")
    out.say(f"fenced zombies   {row['fenced_zombies']}")
    if outcome.plan.broker_restarts:
        out.say(f"broker restarts  {row['broker_restarts']}, {row['leader_moves']} leaders moved")
    out.say(f"recovery         p50 {rto['p50']} ms, p99 {rto['p99']} ms, max {rto['max']} ms")
    if outcome.plan.reducers is not None:
        out.say(f"reducers' parts  {row['parts']}, {row['parts_upcast']} of them folded by both versions")
    out.say(f"lost events      {row['rpo_events']}")
    out.say(f"mismatches       {row['mismatches']}")
    out.say(f"regressions      {row['regressions']}")
    for line in (*outcome.verdict.differences, *(f"not shown: {text}" for text in outcome.not_shown)):
        out.say(f"  {line}")
