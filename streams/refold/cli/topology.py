"""``refold topology``: topics as data.

Exit codes: ``plan`` 0 the cluster agrees, 2 there is a diff (anything refused included); ``validate`` 78 when
a rule is violated; ``apply`` 78 when something was refused, and then nothing was changed.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from refold.cli.options import (
    BootstrapOption,
    EnvironmentOption,
    JsonOption,
    PartitionsOption,
    PrefixOption,
    settings_for,
)
from refold.cli.output import Output

if TYPE_CHECKING:
    from refold.topology.plan import Plan

EXIT_DIFF: Final = 2
ENVIRONMENTS: Final = ("dev", "test", "prod")

app = typer.Typer(help="Topics as data: validate, plan, apply, render.", no_args_is_help=True)


class Format(StrEnum):
    DOCS = "docs"
    ACLS = "acls"
    LOCK = "lock"


@app.command()
def validate(
    prefix: PrefixOption = None,
    partitions: PartitionsOption = None,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Check the specification against its rules, without a cluster."""
    from refold.errors import ConfigError
    from refold.topology import Topology
    from refold.topology.validate import problems

    settings = settings_for(prefix=prefix, partitions=partitions, environment=environment)
    topology = Topology.of(settings)
    found = problems(topology)
    out = Output(as_json)
    if not found:
        out.say(
            f"valid: {len(topology.topics)} topics, {topology.partitions} partitions,"
            f" {topology.environment.name}"
        )
    rows = [{"rule": problem.rule, "where": problem.where, "text": problem.text} for problem in found]
    out.result({"valid": not found, "problems": rows})
    if found:
        raise ConfigError("the topology is not valid:\n  " + "\n  ".join(str(problem) for problem in found))


@app.command()
def plan(
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    partitions: PartitionsOption = None,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show how the cluster differs from the specification. Changes nothing; exit 2 when there is a diff."""
    from refold.topology import Topology

    settings = settings_for(
        bootstrap=bootstrap, prefix=prefix, partitions=partitions, environment=environment
    )
    result = Topology.of(settings).plan(settings)
    out = Output(as_json)
    _show(out, result)
    if result.refused:
        out.say("refused differences stop `refold topology apply`")
    elif result.changes:
        given = (
            ("bootstrap", bootstrap),
            ("prefix", prefix),
            ("partitions", partitions),
            ("environment", environment),
        )
        options = "".join(f" --{name} {value}" for name, value in given if value is not None)
        same = f" and the same{options}" if options else ""
        out.say(f"{len(result.changes)} changes; carry them out with `refold topology apply`{same}")
    else:
        out.say("the cluster agrees")
    out.result(result.as_json())
    if result.differs:
        raise typer.Exit(EXIT_DIFF)


@app.command()
def apply(
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    partitions: PartitionsOption = None,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create missing topics and change safe configurations. Idempotent; never loses state."""
    from refold.topology import Topology

    settings = settings_for(
        bootstrap=bootstrap, prefix=prefix, partitions=partitions, environment=environment
    )
    done = Topology.of(settings).apply(settings)
    out = Output(as_json)
    _show(out, done)
    out.say(f"{len(done.changes)} changes made" if done.changes else "nothing to do: the cluster agrees")
    out.result({**done.as_json(), "differs": False, "applied": len(done.changes)})


@app.command()
def render(
    what: Annotated[Format, typer.Argument(help="docs, acls (arguments of kafka-acls.sh) or lock.")],
    prefix: PrefixOption = None,
    partitions: PartitionsOption = None,
    environment: EnvironmentOption = None,
) -> None:
    """Print the specification as a documentation page, as ACL commands or as the lock file."""
    from refold.topology import Topology
    from refold.topology import render as renderers

    if what is Format.DOCS:
        # The page is the same whatever this machine's settings are.
        print(renderers.markdown([Topology.load(environment=name) for name in ENVIRONMENTS]), end="")
        return
    topology = Topology.of(settings_for(prefix=prefix, partitions=partitions, environment=environment))
    if what is Format.ACLS:
        print("\n".join(renderers.acls(topology)))
    else:
        print(renderers.lock_text(topology), end="")


def _show(out: Output, result: Plan) -> None:
    for line in (*map(str, result.changes), *result.refusals()):
        out.say(line)
    for warning in result.warnings:
        out.note(f"warning: {warning}")
