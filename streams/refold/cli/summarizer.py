"""``refold summarizer run``: write summaries of sessions that want one, as a process."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import orjson
import typer

from refold.cli.options import BootstrapOption, EnvironmentOption, JsonOption, PrefixOption, settings_for
from refold.errors import UsageError
from refold.ops.targets import find_target
from refold.telemetry.plaintext import plain

if TYPE_CHECKING:
    from refold.client.summaries import Summarizer

app = typer.Typer(help="Write summaries of long sessions: run.", no_args_is_help=True)


@app.callback()
def root() -> None:
    """Write summaries of long sessions."""


@app.command()
def run(
    target: Annotated[
        str | None,
        typer.Argument(metavar="[MODULE:OBJECT]", help="A summarizer of your own. Default: the settings'."),
    ] = None,
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, max=256, help="Sessions at once in this process.")
    ] = 4,
    max_seconds: Annotated[
        float,
        typer.Option(
            "--max-seconds", min=0, max=86_400, help="How long SIGTERM waits for summaries under way."
        ),
    ] = 30.0,
    once: Annotated[bool, typer.Option("--once", help="What is wanted now, then end.")] = False,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Summarise every session whose policy asks for it, until SIGTERM or Ctrl-C.

    Any number of these may run. A failed or empty summary changes nothing.
    Logs go to stderr, with --json one object per line; no text of a
    conversation is among them. Exit status: 0 drained, 75 the time was over,
    128 + signal after a second one.
    """
    from refold.client.summaries.process import run_process

    summarizer = None if target is None else find_summarizer(target)
    settings = settings_for(bootstrap=bootstrap, prefix=prefix, environment=environment)
    code, counts = run_process(
        settings,
        say_json if as_json else say_text,
        summarizer=summarizer,
        concurrency=concurrency,
        max_seconds=max_seconds,
        once=once,
    )
    words = {word: counts[word] for word in ("made", "superseded", "nothing", "failed")}
    if as_json:
        typer.echo(orjson.dumps(words).decode())
    else:
        typer.echo(", ".join(f"{count} {word}" for word, count in words.items()))
    raise typer.Exit(code)


def say_text(event: str, fields: dict[str, Any]) -> None:
    shown = " ".join(f"{name}={value}" for name, value in fields.items() if value != "")
    print(plain(f"{event} {shown}"), file=sys.stderr, flush=True)


def say_json(event: str, fields: dict[str, Any]) -> None:
    line = {"event": event, "timestamp": datetime.now(UTC).isoformat(), **fields}
    print(orjson.dumps(line).decode(), file=sys.stderr, flush=True)


def find_summarizer(target: str) -> Summarizer:
    """``module:object``; a class is called without arguments. Raises UsageError for what is no summarizer."""
    found = find_target(target, "MODULE:OBJECT", "myapp.summaries:brief").found
    made: Any = found() if isinstance(found, type) else found
    if not callable(getattr(made, "summarize", None)) or not isinstance(getattr(made, "name", None), str):
        raise UsageError(
            f"{target} is no summarizer: it needs a `name` and `async def summarize(request) -> str`."
        )
    summarizer: Summarizer = made
    return summarizer
