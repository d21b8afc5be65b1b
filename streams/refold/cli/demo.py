"""``refold demo``: two hundred conversations with tools while workers and agents die; the stack stays up.

Exit codes: 0 every session is as in an uninterrupted run, 1 any difference (or too few kills that hit
something), others as in :mod:`refold.errors`.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from refold.cli.options import JsonOption, settings_for
from refold.cli.output import Output

EXIT_DIFFERENCE: Final = 1
DIRECTORY: Final = Path(".refold/demo")
REPORT: Final = Path(".refold/demo-report.json")
#: A whole run promises this many deaths that hit folded, uncommitted events.
IN_FLIGHT_MIN: Final = 5
#: Below this length the promise of five kills is not made: they are 11 s apart.
FULL_RUN_S: Final = 60.0


class OpeningChoice(StrEnum):
    WITH = "with"
    ONLY = "only"
    SKIP = "skip"


app = typer.Typer(add_completion=False)


@app.command()
def demo(
    sessions: Annotated[
        int | None, typer.Option(min=1, max=200, help="Conversations. Default: all 200.")
    ] = None,
    seconds: Annotated[float, typer.Option(min=10, help="How long they are spread over.")] = 90.0,
    workers: Annotated[int, typer.Option(min=2, help="Worker processes.")] = 2,
    bootstrap: Annotated[
        str | None,
        typer.Option("--bootstrap", metavar="HOST:PORT", help="Use this Kafka. Default: start one."),
    ] = None,
    directory: Annotated[Path, typer.Option("--dir", help="Broker data, worker data, logs.")] = DIRECTORY,
    report: Annotated[
        Path, typer.Option("--report", help="Where the report goes; none with --opening only.")
    ] = REPORT,
    take_down: Annotated[
        bool, typer.Option("--down", help="Stop the stack an earlier demo left up.")
    ] = False,
    opening: Annotated[
        OpeningChoice,
        typer.Option(help="The readable part before the conversations: with them, alone, or not at all."),
    ] = OpeningChoice.WITH,
    leave_up: Annotated[
        bool, typer.Option("--up/--no-up", help="Leave the stack running when the demo is over.")
    ] = True,
    as_json: JsonOption = False,
) -> None:
    """An answer, a refund and a letter survive kill -9; then tool conversations on a real Kafka while workers
    are killed in the middle of commits and agents in the middle of calls; every session is compared.
    """
    from refold.demo import stack as stacks

    out = Output(as_json)
    directory = directory.absolute()
    if take_down:
        stopped = stacks.down(directory, out.note)
        out.say("stopped" if stopped else f"nothing of a demo runs (looked in {directory})")
        out.result({"stopped": stopped})
        return
    if opening is OpeningChoice.ONLY:
        _opening_only(out, directory, bootstrap, workers)
        return
    _play(
        out, directory, report, bootstrap, sessions, seconds, workers,
        opening=opening is OpeningChoice.WITH, leave_up=leave_up,
    )  # fmt: skip


def _play(
    out: Output,
    directory: Path,
    report: Path,
    bootstrap: str | None,
    sessions: int | None,
    seconds: float,
    workers: int,
    *,
    opening: bool,
    leave_up: bool,
) -> None:
    from refold.demo.run import commands_to_try, run_demo, show_opening
    from refold.demo.stack import Stack

    stack = Stack.up(directory, settings_for(), bootstrap, workers, out.note)
    try:
        out.note(f"broker at {stack.settings.kafka.bootstrap}, registry at {stack.registry_url}")
        seen = asyncio.run(show_opening(stack, out.note)) if opening else None
        if seen is not None:
            out.note("")
        result = asyncio.run(run_demo(stack, sessions=sessions, seconds=seconds, say=out.note, opening=seen))
        result.write(report)
    except BaseException:
        stack.stop()
        raise
    result.show(out)
    out.say(f"report: {report}")
    enough = seconds < FULL_RUN_S or result.in_flight >= IN_FLIGHT_MIN
    if not enough:
        out.say(f"only {result.in_flight} kills hit folded, uncommitted events; {IN_FLIGHT_MIN} are needed")
    if leave_up:
        out.say("")
        out.say("The stack stays up (`refold demo --down` stops it). Try:")
        for line in commands_to_try(stack, _executable()):
            out.say(f"  {line}")
    else:
        stack.stop()
    out.result(result.as_json())
    if not (result.clean and enough):
        raise typer.Exit(EXIT_DIFFERENCE)


def _opening_only(out: Output, directory: Path, bootstrap: str | None, workers: int) -> None:
    """The opening on a stack of its own, which is stopped at its end."""
    from refold.demo.run import show_opening
    from refold.demo.stack import Stack

    stack = Stack.up(directory, settings_for(), bootstrap, workers, out.note)
    try:
        seen = asyncio.run(show_opening(stack, out.note))
    finally:
        stack.stop()
    for line in seen.wrong:
        out.say(f"not so: {line}")
    out.result(seen.as_json())
    if seen.wrong:
        raise typer.Exit(EXIT_DIFFERENCE)


def _executable() -> Path:
    """``refold`` as the reader can type it here: by name when it is on PATH, else relative to this
    directory.
    """
    beside = Path(sys.executable).with_name("refold")
    found = shutil.which("refold")
    if found is not None and Path(found).resolve() == beside.resolve():
        return Path("refold")
    return beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside
