"""``refold registry``: the schemas as files, and as a read-only Confluent-compatible endpoint.

Exit codes beside those of :mod:`refold.errors`: ``check`` exits 1 when it finds something.
"""

from __future__ import annotations

import asyncio
import signal
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from refold.cli.options import JsonOption, settings_for
from refold.cli.output import Output
from refold.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from refold.wire.schemas import SchemaRegistry

EXIT_FOUND: Final = 1

#: Addresses that nobody outside this machine reaches.
LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})

app = typer.Typer(help="Schemas: list, check, lock, serve, register.", no_args_is_help=True)

SchemasOption = Annotated[
    Path | None,
    typer.Option(
        "--schemas", help="Schema directory. Default: the installed one.", file_okay=False, exists=True
    ),
]


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port; 0 = a free one.", min=0, max=65535)] = 8081,
    prefix: Annotated[
        str | None, typer.Option("--prefix", help="Topic prefix, for PREFIX.state-value and so on.")
    ] = None,
    allow_insecure_remote: Annotated[
        bool, typer.Option("--allow-insecure-remote", help="Listen beyond loopback without authentication.")
    ] = False,
    schemas: SchemasOption = None,
    as_json: JsonOption = False,
) -> None:
    """Serve the schemas read-only until stopped (Ctrl-C or SIGTERM)."""
    if host not in LOOPBACK and not allow_insecure_remote:
        raise UsageError(
            f"{host} is reachable from other machines and this endpoint has no authentication: listen on "
            "127.0.0.1, or add --allow-insecure-remote where the network is yours (it can only be read)"
        )
    topic_prefix = prefix if prefix is not None else settings_for().topic_prefix
    asyncio.run(_serve(_registry(schemas), topic_prefix, host, port, Output(as_json)))


async def _serve(registry: SchemaRegistry, prefix: str, host: str, port: int, out: Output) -> None:
    from aiohttp import web

    from refold.wire.registry_server import RegistryServer

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    runner = web.AppRunner(RegistryServer(registry, prefix=prefix).application(), access_log=None)
    await runner.setup()
    try:
        try:
            await web.TCPSite(runner, host, port).start()
        except OSError as error:
            raise ConfigError(
                f"cannot listen on {host}:{port} ({error.strerror or error}): choose another --port, "
                "or 0 for a free one"
            ) from None
        address = runner.addresses[0]
        shown = f"[{address[0]}]" if ":" in address[0] else address[0]
        url = f"http://{shown}:{address[1]}"
        out.say(f"{len(registry.entries)} schemas of {len(registry.subjects)} subjects on {url}")
        out.result({"url": url, "subjects": len(registry.subjects), "schemas": len(registry.entries)})
        await stop.wait()
    finally:
        await runner.cleanup()


@app.command("list")
def list_(schemas: SchemasOption = None, as_json: JsonOption = False) -> None:
    """Every subject with its newest version and id."""
    registry = _registry(schemas)
    out = Output(as_json)
    rows = []
    for subject, info in registry.subjects.items():
        versions = registry.versions(subject)
        rows.append(
            {
                "subject": subject,
                "version": versions[-1].version,
                "id": versions[-1].id,
                "guid": str(versions[-1].guid),
                "versions": [entry.version for entry in versions],
                "topic": info.topic,
                "owner": info.owner,
                "description": info.description,
            }
        )
    columns = ("subject", "version", "id", "topic", "owner", "description")
    out.table(columns, [[row[column] for column in columns] for row in rows])
    out.say(f"{len(registry.reserved)} names are reserved for event types without a schema yet.")
    out.result({"subjects": rows, "reserved": sorted(registry.reserved)})


@app.command()
def check(schemas: SchemasOption = None, as_json: JsonOption = False) -> None:
    """Compare files with the lock, and versions with older ones; exit 1 when something is wrong."""
    from refold.wire.compat import check_subjects
    from refold.wire.schemafiles import load_schema_files, schema_root
    from refold.wire.schemalock import find_drift, read_lock
    from refold.wire.splices import check_splices

    files = load_schema_files(schemas or schema_root())
    drift = find_drift(files, read_lock(files.root)) + check_splices(files)
    findings = check_subjects(files)
    out = Output(as_json)
    for difference in drift:
        out.say(f"{difference.kind}: {difference.text}")
    for finding in findings:
        versions = f"{finding.subject} {finding.old_version} -> {finding.new_version}"
        out.say(f"{finding.rule}: {versions}, {finding.path}: {finding.text}")
    if not drift and not findings:
        out.say(f"{len(files.versions)} schemas of {len(files.subjects)} subjects: nothing wrong")
    out.result(
        {
            "ok": not drift and not findings,
            "subjects": len(files.subjects),
            "versions": len(files.versions),
            "drift": [asdict(difference) for difference in drift],
            "incompatibilities": [asdict(finding) for finding in findings],
        }
    )
    if drift or findings:
        raise typer.Exit(EXIT_FOUND)


@app.command()
def lock(schemas: SchemasOption = None, as_json: JsonOption = False) -> None:
    """Give every new subject version an id, for ever. Refuses changed and incompatible ones."""
    from refold.wire.compat import check_subjects
    from refold.wire.schemafiles import load_schema_files, schema_root
    from refold.wire.schemalock import append_pins, read_lock, write_lock
    from refold.wire.splices import check_splices

    root = schemas or schema_root()
    if root.parent.name == "_data":
        raise UsageError(
            f"{root} is the installed copy; in a checkout: refold registry lock --schemas schemas"
        )
    files = load_schema_files(root)
    old = read_lock(root)
    new = append_pins(files, old)
    for finding in check_subjects(files):
        raise ConfigError(
            f"{finding.subject} version {finding.new_version} is not compatible with version "
            f"{finding.old_version}: {finding.path}: {finding.text}"
        )
    for difference in check_splices(files):
        raise ConfigError(difference.text)
    if new != old:
        write_lock(root, new)
    added = new[len(old) :]
    out = Output(as_json)
    for pin in added:
        out.say(f"{pin.subject} version {pin.version}: id {pin.id}")
    if not added:
        out.say("nothing new to lock")
    out.result(
        {
            "added": [{"subject": p.subject, "version": p.version, "id": p.id} for p in added],
            "schemas": len(new),
        }
    )


@app.command()
def register(
    url: Annotated[
        str | None, typer.Option(help="Registry. Default: REFOLD_REGISTRY_URL or the settings file.")
    ] = None,
    schemas: SchemasOption = None,
    as_json: JsonOption = False,
) -> None:
    """Put the pinned schemas into a Confluent-compatible registry, with their ids where it allows that."""
    from refold.wire.confluent import ConfluentRegistry

    target = url if url is not None else settings_for().registry_url
    if target is None:
        raise UsageError("which registry? Give --url or set registry_url")
    registry = _registry(schemas)
    done = ConfluentRegistry(target, registry).register(registry.entries)
    out = Output(as_json)
    out.table(
        ("subject", "version", "outcome", "id"), [(r.subject, r.version, r.outcome, r.id) for r in done]
    )
    others = sum(1 for r in done if r.outcome == "other_id")
    if others:
        out.say(
            f"{others} schemas have ids of the registry's own: refold writes the pinned ids, so plain "
            "readers need `refold registry serve`, or a registry with an import mode."
        )
    out.result({"registered": [asdict(r) for r in done], "other_id": others})


def _registry(schemas: Path | None) -> SchemaRegistry:
    from refold.wire.schemas import load_registry
    from refold.wire.schemas import registry as installed

    return installed() if schemas is None else load_registry(schemas)
