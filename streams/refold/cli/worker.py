"""``refold worker``: run workers, or see who runs.

``refold worker`` is ``refold worker run``. Exit codes as in :mod:`refold.errors`; 0 after a graceful stop.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from refold.cli.options import BootstrapOption, EnvironmentOption, JsonOption, PrefixOption, settings_for
from refold.cli.output import Output
from refold.cli.waiting import waiting

if TYPE_CHECKING:
    from refold.settings import Settings

app = typer.Typer(add_completion=False, help="Run workers: fold the inbox into journal and state.")

#: The column ``ready``: what the probe says; a dead member stays listed until its session has timed out.
READY: Final = {True: "yes", False: "no", None: "does not answer"}

ProcessesOption = Annotated[
    int, typer.Option("--processes", min=1, max=256, help="Worker processes; one uses one core.")
]
DataDirOption = Annotated[
    Path | None, typer.Option("--data-dir", help="RocksDB directories. Default: REFOLD_WORKER__DATA_DIR.")
]
InstanceOption = Annotated[
    str | None,
    typer.Option("--instance", help="Name of this worker, unique among live ones. Default: the host's."),
]
HostOption = Annotated[str | None, typer.Option("--http-host", help="Address of the HTTP port.")]
PortOption = Annotated[
    int | None, typer.Option("--http-port", min=0, max=65_535, help="HTTP port; 0 = a free one.")
]
SabotageOption = Annotated[
    str | None, typer.Option("--sabotage", help="Break one rule on purpose (tests, verify). Never in prod.")
]


def _run(settings: Settings, processes: int) -> None:
    # Nothing that is imported is garbage. A worker turns it on again when it has started (Collector.start); a
    # supervisor starts processes and waits.
    gc.disable()
    from refold.telemetry.plain import load_structlog

    load_structlog()
    from refold.engine import supervisor, worker
    from refold.engine.config import EngineConfig
    from refold.telemetry.logging import configure

    configure(fmt=settings.logging.format, level=settings.logging.level, environment=settings.environment)
    # Both read the settings now, so that a wrong one is said once and before any process starts.
    config = EngineConfig.from_settings(settings)
    if processes == 1:
        worker.run(config)
    raise typer.Exit(supervisor.Supervisor(settings, processes, supervisor.command()).run())


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    processes: ProcessesOption = 1,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    environment: EnvironmentOption = None,
    data_dir: DataDirOption = None,
    instance: InstanceOption = None,
    http_host: HostOption = None,
    http_port: PortOption = None,
    sabotage: SabotageOption = None,
) -> None:
    """Run workers: fold the inbox into journal and state."""
    if context.invoked_subcommand is None:
        run(
            processes=processes,
            bootstrap=bootstrap,
            prefix=prefix,
            environment=environment,
            data_dir=data_dir,
            instance=instance,
            http_host=http_host,
            http_port=http_port,
            sabotage=sabotage,
        )


@app.command()
def run(
    processes: ProcessesOption = 1,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    environment: EnvironmentOption = None,
    data_dir: DataDirOption = None,
    instance: InstanceOption = None,
    http_host: HostOption = None,
    http_port: PortOption = None,
    sabotage: SabotageOption = None,
) -> None:
    """Run until SIGTERM or Ctrl-C; then finish what is folded, commit it and leave."""
    settings = settings_for(
        bootstrap=bootstrap,
        prefix=prefix,
        environment=environment,
        worker__data_dir=data_dir,
        worker__instance=instance,
        worker__http_host=http_host,
        worker__http_port=http_port,
        worker__sabotage=sabotage,
    )
    if processes > 1:
        # Children read the environment and the file: flags of this command must reach them.
        _export(
            bootstrap=bootstrap,
            prefix=prefix,
            environment=environment,
            http_host=http_host,
            sabotage=sabotage,
        )
    _run(settings, processes)


def _export(**flags: str | None) -> None:
    import os

    from refold.cli.options import ROOT

    names = {
        "bootstrap": "REFOLD_BOOTSTRAP",
        "prefix": "REFOLD_TOPIC_PREFIX",
        "environment": "REFOLD_ENVIRONMENT",
        "http_host": "REFOLD_WORKER__HTTP_HOST",
        "sabotage": "REFOLD_WORKER__SABOTAGE",
    }
    for flag, value in flags.items():
        if value is not None:
            os.environ[names[flag]] = value
    if ROOT.config is not None:
        os.environ["REFOLD_CONFIG"] = str(ROOT.config)


@app.command()
def drain(
    max_seconds: Annotated[
        float | None,
        typer.Option(
            "--max-seconds",
            min=0,
            max=3_600,
            help="Then it ends as if killed; nothing is lost. Default: worker.drain_seconds_max.",
        ),
    ] = None,
    leave: Annotated[
        bool,
        typer.Option(
            "--leave",
            help="Leave the group: partitions move at once. For a worker that does not come back.",
        ),
    ] = False,
    prefix: PrefixOption = None,
    data_dir: DataDirOption = None,
    instance: Annotated[
        str | None,
        typer.Option("--instance", help="Which worker of the data directory. Default: whoever runs there."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Stop a worker of this machine gracefully, as SIGTERM does, and wait. Exit 75: its time was over."""
    from refold.draining import CUT_SHORT
    from refold.engine.drain import Order
    from refold.engine.draining import drain as drain_workers

    settings = settings_for(prefix=prefix, worker__data_dir=data_dir)
    out = Output(as_json)
    seconds = settings.worker.drain_seconds_max if max_seconds is None else max_seconds
    ends = drain_workers(
        settings.worker.data_dir, settings.topic_prefix, instance, Order(seconds, leave), out.note
    )
    rows: list[dict[str, Any]] = []
    for end in ends:
        outcome = "unknown" if end.ended is None else end.ended.outcome
        taken = None if end.ended is None else end.ended.seconds
        rows.append({"instance": end.instance, "outcome": outcome, "seconds": taken})
        out.say(f"{end.instance}: {outcome}" + ("" if taken is None else f" after {taken:.1f} s"))
    out.result({"workers": rows})
    if any(row["outcome"] != "drained" for row in rows):
        raise typer.Exit(CUT_SHORT)


@app.command()
def status(
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    partitions: Annotated[
        bool, typer.Option("--partitions", help="A line per partition: state, since when, progress, lag.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Members of the workers' group, what they own, and whether they answer."""
    from confluent_kafka.admin import AdminClient

    from refold.engine.draining import left_here
    from refold.engine.members import REQUEST_TIMEOUT_S, look

    settings = settings_for(bootstrap=bootstrap, prefix=prefix)
    out = Output(as_json)
    with waiting(settings.kafka.bootstrap, REQUEST_TIMEOUT_S):
        members = look(
            # What goes wrong is said once, by the error; librdkafka would say it once per try.
            AdminClient({"log_level": 2, **settings.kafka_config("admin")}),
            settings.topic_prefix,
            settings.kafka.bootstrap,
        )
    rows: list[dict[str, Any]] = [member.row() for member in members]
    timeout_s = settings.worker.session_timeout_ms / 1000
    left = left_here(settings.worker.data_dir, settings.topic_prefix)
    for row in rows:
        ended = left.get(row["instance"]) if row["ready"] is None else None
        row["expires_s_max"] = None if ended is None else max(0.0, round(ended + timeout_s - time.time(), 1))
    if not rows:
        out.say(f"no worker is a member of group {settings.topic_prefix}; start one with `refold worker run`")
    else:
        out.table(
            ("instance", "url", "partitions", "ready"),
            [(r["instance"], r["url"], ",".join(map(str, r["partitions"])), READY[r["ready"]]) for r in rows],
        )
    for row in rows:
        if row["ready"] is None:
            out.note(_silent(row, timeout_s))
    if partitions and rows:
        out.say()
        out.table(
            ("partition", "instance", "state", "for", "progress", "position", "committed", "lag", "behind"),
            sorted(
                (
                    state["partition"],
                    row["instance"],
                    # A worker of an earlier version does not say it.
                    f"{state['state']}, served" if _early(state) else state["state"],
                    f"{state['seconds']:.0f} s",
                    f"{state['progress']:.0%}",
                    state["position"],
                    state["committed"],
                    state["lag"],
                    # Of a standby; a worker of an earlier version does not say it.
                    state.get("behind"),
                )
                for row in rows
                for state in row["states"]
            ),
        )
    out.result({"group": settings.topic_prefix, "members": rows})


def _silent(row: Mapping[str, Any], timeout_s: float) -> str:
    """Why a member may not answer, and what comes of it. The group does not say since when it is silent."""
    name, seconds = row["instance"], row["expires_s_max"]
    if seconds is not None:
        return (
            f"{name} has stopped; the group keeps its place for {seconds:.0f} s more at most"
            " (worker.session_timeout_ms). Started again before, it goes on with its partitions; then the"
            " others take them over (`refold worker drain --leave` gives them up at once)"
        )
    return (
        f"{name} does not answer: it has stopped, and the group keeps its place until {timeout_s:.0f} s after"
        " that (worker.session_timeout_ms), or its URL cannot be reached from here"
    )


def _early(state: Mapping[str, Any]) -> bool:
    """A partition that serves what it knows while it is restored (worker.hot_first)."""
    return state["state"] == "restoring" and bool(state.get("served"))
