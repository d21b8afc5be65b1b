"""``refold agent run module:agent``: serve an agent as a process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from refold.cli.options import BootstrapOption, EnvironmentOption, PrefixOption, settings_for
from refold.errors import UsageError
from refold.ops.targets import find_target

if TYPE_CHECKING:
    from refold.client.agents import Agent

app = typer.Typer(help="Serve durable agents: run.", no_args_is_help=True)


@app.callback()
def root() -> None:
    """Serve durable agents."""


@app.command()
def run(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:AGENT", help="The module, and the agent's name in it.")
    ],
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, max=1_000, help="Runs at once in this process.")
    ] = 8,
    max_seconds: Annotated[
        float,
        typer.Option(
            "--max-seconds",
            min=0,
            max=86_400,
            help="How long SIGTERM waits for running steps; then they begin again elsewhere.",
        ),
    ] = 60.0,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    environment: EnvironmentOption = None,
) -> None:
    """Take runs of one agent and execute them, until SIGTERM or Ctrl-C.

    Then no further run is taken, running steps reach their end and are
    recorded, and the runs go to other processes. Exit status: 0 drained,
    75 the time was over, 128 + signal after a second one.
    """
    from refold.client.agents.process import run_process
    from refold.telemetry.logging import configure

    settings = settings_for(bootstrap=bootstrap, prefix=prefix, environment=environment)
    configure(fmt=settings.logging.format, level=settings.logging.level, environment=settings.environment)
    agent = find_agent(target)
    raise typer.Exit(run_process(agent, settings, concurrency=concurrency, max_seconds=max_seconds))


def find_agent(target: str) -> Agent:
    """``module:agent``. Raises UsageError for what is none; what the module raises is its own."""
    from refold.client.agents import Agent

    module_name, name, module, found = find_target(target, "MODULE:AGENT", "myapp.agents:reporter")
    if not isinstance(found, Agent):
        named = sorted(key for key, value in vars(module).items() if isinstance(value, Agent))
        raise UsageError(
            f"{module_name} has no agent {name!r}"
            + (f"; it has {', '.join(named)}." if named else ": make one with refold.Agent(...).")
        )
    return found
