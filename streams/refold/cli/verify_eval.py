"""``refold verify eval``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli.options import BootstrapOption, JsonOption, settings_for
from refold.cli.output import Output
from refold.cli.verify_cluster import EXIT_DIFFERENCE, cluster
from refold.errors import UsageError

if TYPE_CHECKING:
    from refold.settings import Settings


class SinkKind(StrEnum):
    state = "state"
    postgres = "postgres"


def eval_(
    samples: Annotated[int, typer.Option(min=20, help="Samples of the batch.")] = 1_000,
    kills: Annotated[int, typer.Option(min=0, help="Runners that are killed.")] = 10,
    sink: Annotated[SinkKind, typer.Option(help="Where results go.")] = SinkKind.state,
    concurrency: Annotated[int, typer.Option(min=1, max=64, help="Samples at once.")] = 8,
    seed: Annotated[int, typer.Option(help="Decides when and where runners die.")] = 1,
    sabotage: Annotated[
        str | None,
        typer.Option(help="Break one rule; the run must exit 1: cursor-first, redo-done, skip-failed."),
    ] = None,
    dsn: Annotated[
        str | None,
        typer.Option("--dsn", metavar="URL", help="Of sink postgres. Default: a PostgreSQL of our own."),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Leave topics or rows, calls and logs for inspection.")
    ] = False,
    bootstrap: BootstrapOption = None,
    as_json: JsonOption = False,
) -> None:
    """Kill the runners of a batch evaluation again and again; count.

    Half of the deaths are between the steps of a commit, and one runner is
    fenced by another. Each sample must have one result, the cursor must
    count exactly the results beside it, and only what was in flight may
    have been run again. The count uses plain clients.

    Without --bootstrap (and REFOLD_BOOTSTRAP), or --dsn, what is needed is
    started for the run and removed with it.
    """
    from refold.ops.evals.proof.plan import ProofPlan
    from refold.ops.evals.proof.run import run_proof

    out = Output(as_json)
    plan = ProofPlan(seed, samples, kills, concurrency, sink.value, sabotage)
    plan.check()  # what is wrong with the call is said before anything is started for it
    with _place(sink, bootstrap, dsn, out) as (settings, database):
        outcome = run_proof(plan, settings, database, out.note, keep=keep)
    row = outcome.as_json()
    out.say(f"results          {row['results']} of {row['samples']} samples")
    out.say(f"deaths           {row['kills']}, {row['kills_in_commits']} of them within a commit")
    out.say(f"fenced           {row['fenced']}")
    again = f"{row['calls_repeated']} repeated (at most {row['calls_repeated_max']})"
    out.say(f"calls            {row['calls']}, {again}")
    out.say(f"mismatches       {row['mismatches']}")
    for line in outcome.told:
        out.say(f"  {line}")
    out.result(row)
    if not outcome.clean:
        raise typer.Exit(EXIT_DIFFERENCE)


@contextlib.contextmanager
def _place(
    sink: SinkKind, bootstrap: str | None, dsn: str | None, out: Output
) -> Iterator[tuple[Settings | None, str | None]]:
    """Settings of a Kafka, or the address of a database."""
    if sink is SinkKind.state:
        if dsn is not None:
            raise UsageError("--dsn is for --sink postgres: name that too, or leave it out.")
        with cluster(bootstrap, out) as (address, _):
            yield settings_for(bootstrap=address), None
    elif dsn is not None:
        yield None, dsn
    else:
        from refold.ops.evals.proof.server import Server

        out.note("no --dsn: starting a PostgreSQL for this run")
        with Server() as server:
            yield None, server.dsn
