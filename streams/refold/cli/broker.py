"""``refold broker``: a real Kafka on this machine, from Python packages alone.

Exit codes of ``status``: 0 it runs and answers, 3 it does not run, 4 it runs but does not answer; of several
nodes: 0 all do, 3 none runs, 4 some do not run or do not answer.
Everything else follows :mod:`refold.errors`.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from refold.errors import NotFound, UsageError

EXIT_NOT_RUNNING: Final = 3
EXIT_NOT_ANSWERING: Final = 4

app = typer.Typer(
    help="A Kafka on this machine, for trying and tests; needs no Java, Maven or Docker.",
    no_args_is_help=True,
)
node = typer.Typer(help="One node of a cluster (`broker up --nodes 3`).", no_args_is_help=True)
app.add_typer(node, name="node")

Directory = Annotated[
    Path, typer.Option("--dir", help="All its data and logs.", envvar="REFOLD_BROKER_DIR", file_okay=False)
]
Json = Annotated[bool, typer.Option("--json", help="One object on one line, the last of stdout.")]
DEFAULT_DIRECTORY: Final = Path(".refold/broker")

#: Beside a demo's broker (``refold.demo.stack``, whose imports need more than a broker does).
DEMO_FILE: Final = "stack.json"

#: Test runs of others may have many.
OTHERS_SHOWN_MAX: Final = 3


@app.command()
def up(
    directory: Directory = DEFAULT_DIRECTORY,
    port: Annotated[
        int | None, typer.Option(help="Client port. Default: the previous one, else a free one.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any broker property, repeatable."),
    ] = None,
    jaas: Annotated[
        Path | None,
        typer.Option(help="JAAS file: clients must authenticate (SASL_PLAINTEXT) and ACLs are enforced."),
    ] = None,
    heap_mib: Annotated[
        int | None, typer.Option(help="JVM heap in MiB. Default: 512, of several nodes 384 each.")
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes", help="Several nodes with three copies of each topic. Default: as it was, or one."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Start it and return when it is usable. Already running: print its address."""
    from refold.broker import EmbeddedBroker
    from refold.broker.cluster import is_cluster
    from refold.broker.java import HEAP_MIB_DEFAULT

    if nodes not in (None, 1) or is_cluster(directory):
        if port is not None or jaas is not None:
            raise UsageError("--port and --jaas are for a single broker: leave --nodes out, or them.")
        _up_nodes(directory, nodes, _parse(changes or []), heap_mib, as_json)
        return
    began = time.monotonic()
    broker = EmbeddedBroker(
        directory,
        port=port,
        properties=_parse(changes or []),
        jaas=_read(jaas),
        heap_mib=heap_mib or HEAP_MIB_DEFAULT,
        detached=True,
    )
    started = broker.start()
    seconds = round(time.monotonic() - began, 2)
    if started:
        _tell_others(directory)
    if as_json:
        _print_json({
            "bootstrap": broker.bootstrap,
            "internal_bootstrap": broker.internal_bootstrap,
            "pid": broker.pid,
            "started": started,
            "seconds": seconds,
            "directory": str(broker.directory),
            "log": str(broker.log_path),
        })  # fmt: skip
        return
    how = f"started in {seconds} s" if started else "was already running"
    typer.echo(f"broker at {broker.bootstrap} ({how}, pid {broker.pid})")
    if broker.internal_bootstrap != broker.bootstrap:
        typer.echo(f"  admin  {broker.internal_bootstrap} (no credentials, super user, loopback only)")
    typer.echo(f"  log    {broker.log_path}")
    typer.echo(f"  use    export REFOLD_BOOTSTRAP={broker.bootstrap}")


def _up_nodes(
    directory: Path, nodes: int | None, properties: dict[str, str], heap_mib: int | None, as_json: bool
) -> None:
    from refold.broker import EmbeddedCluster

    began = time.monotonic()
    cluster = EmbeddedCluster(directory, nodes=nodes, properties=properties, heap_mib=heap_mib, detached=True)
    started = cluster.start()
    seconds = round(time.monotonic() - began, 2)
    if started:
        _tell_others(directory)
    if as_json:
        _print_json({
            "bootstrap": cluster.bootstrap,
            "started": started,
            "nodes": cluster.numbers,
            "seconds": seconds,
            "directory": str(cluster.directory),
        })  # fmt: skip
        return
    how = f"nodes {_listed(started)} started in {seconds} s" if started else "all were already running"
    typer.echo(f"{len(cluster.numbers)} nodes at {cluster.bootstrap} ({how})")
    typer.echo(f"  logs   {cluster.node_directory(1).with_name('node-*')}/broker.log")
    typer.echo(f"  use    export REFOLD_BOOTSTRAP={cluster.bootstrap}")


@node.command("stop")
def node_stop(
    number: Annotated[int, typer.Argument(metavar="N", help="Which, from 1.")],
    directory: Directory = DEFAULT_DIRECTORY,
    as_json: Json = False,
) -> None:
    """Stop one node in order; the others take its partitions over. Not running is fine."""
    from refold.broker import EmbeddedCluster

    stopped = EmbeddedCluster(directory, detached=True).stop_node(number)
    if as_json:
        _print_json({"node": number, "stopped": stopped})
    else:
        typer.echo(f"node {number} {'stopped' if stopped else 'was not running'}")


@node.command("start")
def node_start(
    number: Annotated[int, typer.Argument(metavar="N", help="Which, from 1.")],
    directory: Directory = DEFAULT_DIRECTORY,
    as_json: Json = False,
) -> None:
    """Start one node and return when the cluster has it back. Already running is fine."""
    from refold.broker import EmbeddedCluster

    started = EmbeddedCluster(directory, detached=True).start_node(number)
    if as_json:
        _print_json({"node": number, "started": started})
    else:
        typer.echo(f"node {number} {'started' if started else 'was already running'}")


@app.command()
def down(
    directory: Directory = DEFAULT_DIRECTORY,
    wipe: Annotated[bool, typer.Option("--wipe", help="Delete its data and logs too.")] = False,
    as_json: Json = False,
) -> None:
    """Stop it and keep the data. Not running is fine."""
    from refold.broker import EmbeddedBroker, EmbeddedCluster
    from refold.broker.cluster import is_cluster

    if is_cluster(directory):
        cluster = EmbeddedCluster(directory, detached=True)
        stopped = bool(cluster.stop())
        if wipe:
            cluster.wipe()
    elif not directory.exists():  # taking the turn would create it
        stopped = False
    else:
        broker = EmbeddedBroker(directory, detached=True)
        stopped = broker.stop()
        if wipe:
            broker.wipe()
    if not stopped:
        _tell_others(directory)
    if as_json:
        _print_json({"stopped": stopped, "wiped": wipe, "directory": str(directory.absolute())})
        return
    typer.echo(f"broker in {directory} {'stopped' if stopped else 'was not running'}")
    if wipe:
        typer.echo("  data and logs deleted")


@app.command()
def status(directory: Directory = DEFAULT_DIRECTORY, as_json: Json = False) -> None:
    """Say whether it runs. Exit 0: yes, 3: no, 4: it runs but does not answer."""
    from refold.broker import inspect
    from refold.broker.cluster import is_cluster

    if is_cluster(directory):
        _status_nodes(directory, as_json)
        return
    seen = inspect(directory)
    if not seen.running:
        _tell_others(directory)
    if as_json:
        _print_json(asdict(seen))
    elif not seen.running:
        typer.echo(f"no broker runs in {directory}")
    else:
        trouble = "" if seen.answering else f", but does not answer: see {seen.log}"
        typer.echo(f"broker at {seen.bootstrap} (pid {seen.pid}){trouble}")
    if not seen.running:
        raise typer.Exit(EXIT_NOT_RUNNING)
    if not seen.answering:
        raise typer.Exit(EXIT_NOT_ANSWERING)


def _status_nodes(directory: Path, as_json: bool) -> None:
    from refold.broker import EmbeddedCluster

    cluster = EmbeddedCluster(directory, detached=True)
    seen = cluster.status()
    if as_json:
        rows = [{"node": number, **asdict(one)} for number, one in seen.items()]
        _print_json({"bootstrap": cluster.bootstrap, "nodes": rows, "directory": str(cluster.directory)})
    else:
        typer.echo(f"{len(seen)} nodes at {cluster.bootstrap}")
        for number, one in seen.items():
            if not one.running:
                typer.echo(f"  node {number}  does not run")
            else:
                trouble = "" if one.answering else f", but does not answer: see {one.log}"
                typer.echo(f"  node {number}  {one.bootstrap} (pid {one.pid}){trouble}")
    if not any(one.running for one in seen.values()):
        raise typer.Exit(EXIT_NOT_RUNNING)
    if not all(one.answering for one in seen.values()):
        raise typer.Exit(EXIT_NOT_ANSWERING)


def _tell_others(directory: Path) -> None:
    """On stderr: who looks for a broker, or makes one, may mean one that runs already."""
    from refold.broker.others import others

    found = others(directory)
    for other in found[:OTHERS_SHOWN_MAX]:
        begin = f"another broker runs at {other.bootstrap}, in {other.directory}"
        if other.owner is not None:
            typer.echo(
                f"{begin}: it belongs to {other.owner.command} (pid {other.owner.pid}), and ends with it",
                err=True,
            )
            continue
        of_demo = other.directory.parent
        stop = (
            f"refold demo --down --dir {of_demo}"
            if (of_demo / DEMO_FILE).exists()
            else f"refold broker down --dir {other.directory}"
        )
        typer.echo(
            f"{begin}: to use it, export REFOLD_BOOTSTRAP={other.bootstrap}; to stop it, {stop}",
            err=True,
        )
    if len(found) > OTHERS_SHOWN_MAX:
        typer.echo(f"and {len(found) - OTHERS_SHOWN_MAX} more", err=True)


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


def _parse(changes: list[str]) -> dict[str, str]:
    properties = {}
    for change in changes:
        name, separator, value = change.partition("=")
        if not separator or not name.strip():
            raise UsageError(f"--set {change!r} is not KEY=VALUE, as in --set message.max.bytes=2097152.")
        properties[name.strip()] = value.strip()
    return properties


def _read(jaas: Path | None) -> str | None:
    try:
        return None if jaas is None else jaas.read_text("utf-8")
    except OSError as error:
        raise NotFound(f"cannot read the JAAS file {jaas}: {error.strerror}.") from error


def _print_json(row: dict[str, Any]) -> None:
    typer.echo(json.dumps(row))
