"""``refold broker``: a real Kafka on this machine, from Python packages alone.

Exit codes of ``status``: 0 it runs and answers, 3 it does not run, 4 it runs but does not answer.
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
    help="A single-node Apache Kafka on 127.0.0.1: no Java, Maven or Docker needed.", no_args_is_help=True
)

Directory = Annotated[
    Path, typer.Option("--dir", help="All its data and logs.", envvar="REFOLD_BROKER_DIR", file_okay=False)
]
Json = Annotated[bool, typer.Option("--json", help="One object on one line, the last of stdout.")]
DEFAULT_DIRECTORY: Final = Path(".refold/broker")


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
    heap_mib: Annotated[int, typer.Option(help="JVM heap in MiB.")] = 512,
    as_json: Json = False,
) -> None:
    """Start it and return when it is usable. Already running: print its address."""
    from refold.broker import EmbeddedBroker

    began = time.monotonic()
    broker = EmbeddedBroker(
        directory,
        port=port,
        properties=_parse(changes or []),
        jaas=_read(jaas),
        heap_mib=heap_mib,
        detached=True,
    )
    started = broker.start()
    seconds = round(time.monotonic() - began, 2)
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


@app.command()
def down(
    directory: Directory = DEFAULT_DIRECTORY,
    wipe: Annotated[bool, typer.Option("--wipe", help="Delete its data and logs too.")] = False,
    as_json: Json = False,
) -> None:
    """Stop it and keep the data. Not running is fine."""
    from refold.broker import EmbeddedBroker

    if not directory.exists():  # taking the turn would create it
        stopped = False
    else:
        broker = EmbeddedBroker(directory, detached=True)
        stopped = broker.stop()
        if wipe:
            broker.wipe()
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

    seen = inspect(directory)
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
