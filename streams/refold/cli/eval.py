"""``refold eval``: a function over a file of samples, and what came of it.

Exit codes beside those of :mod:`refold.errors`: ``run`` exits 1 when samples failed or are left.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Coroutine
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from refold.cli.options import BootstrapOption, EnvironmentOption, JsonOption, PrefixOption, settings_for
from refold.cli.output import Output
from refold.errors import NotFound, UsageError
from refold.ops.evals.limits import CONCURRENCY_DEFAULT, CONCURRENCY_MAX, DRAIN_S_DEFAULT, RETRIES_MAX

if TYPE_CHECKING:
    from refold.ops.evals.run import Ended
    from refold.ops.evals.sinks.sink import Source
    from refold.settings import Settings
    from refold.wire.evals import EvalCursor

T = TypeVar("T")

EXIT_INTERRUPTED: Final = 75

app = typer.Typer(help="Batch evaluation: run, status, list, export.", no_args_is_help=True)


@app.callback()
def root() -> None:
    """Batch evaluation."""


class SinkKind(StrEnum):
    state = "state"
    postgres = "postgres"


class FileKind(StrEnum):
    jsonl = "jsonl"
    csv = "csv"
    parquet = "parquet"


SinkOption = Annotated[
    SinkKind, typer.Option("--sink", help="state: the evals topic. postgres: tables of a database.")
]
DsnOption = Annotated[
    str | None,
    typer.Option(
        "--dsn",
        metavar="URL",
        help="Of sink postgres: postgresql://user@host/database. Default: PGHOST, PGUSER, … as for psql.",
    ),
]
BatchOption = Annotated[str, typer.Option("--batch", metavar="ID", help="The batch.")]


@app.command()
def run(
    samples: Annotated[
        Path,
        typer.Option(
            "--samples",
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="One sample per line: .jsonl or .csv, also .gz; or .parquet.",
        ),
    ],
    runner: Annotated[
        str, typer.Option("--runner", metavar="MODULE:FUNCTION", help="(sample, context) -> result.")
    ],
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, max=CONCURRENCY_MAX, help="Samples at once.")
    ] = CONCURRENCY_DEFAULT,
    batch: Annotated[
        str | None,
        typer.Option("--batch", metavar="ID", help="Default: the file's name and digest."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the batch, or begin it: what is done stays.")
    ] = False,
    only_failed: Annotated[bool, typer.Option("--only-failed", help="Run only what failed before.")] = False,
    retries: Annotated[
        int, typer.Option("--retries", min=0, max=RETRIES_MAX, help="Further attempts of a sample.")
    ] = 0,
    params: Annotated[
        str | None,
        typer.Option(
            "--params", metavar="JSON", help="Model parameters, an object; stored with each result."
        ),
    ] = None,
    id_field: Annotated[
        str, typer.Option("--id-field", metavar="NAME", help="The samples' field with a unique id.")
    ] = "id",
    max_seconds: Annotated[
        float,
        typer.Option(
            "--max-seconds", min=0, max=86_400, help="How long SIGTERM and Ctrl-C wait for what runs."
        ),
    ] = DRAIN_S_DEFAULT,
    sink: SinkOption = SinkKind.state,
    dsn: DsnOption = None,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    environment: EnvironmentOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a function over samples; each result is committed with the cursor.

    Exit status: 0 all done, 1 some failed, 75 stopped before the end (run
    again with --resume), 76 another runner has taken the batch over.
    """
    from refold.ops.evals.process import run_process
    from refold.ops.evals.progress import Progress
    from refold.ops.evals.rules import Request
    from refold.ops.evals.run import Options, batch_id
    from refold.ops.evals.runner import find_runner, parse_params
    from refold.ops.evals.samples import open_samples
    from refold.wire.blobs import BlobStore

    out = Output(as_json)
    settings = settings_for(bootstrap=bootstrap, prefix=prefix, environment=environment)
    given = parse_params(params)
    function = find_runner(runner)
    file = open_samples(samples, id_field)
    name = batch_id(batch, file)
    request = Request(name, runner, samples.name, given, resume, only_failed)
    options = Options(
        concurrency, retries, max_seconds, settings.blobs.inline_bytes_max, BlobStore(settings.blobs.url)
    )
    ended = asyncio.run(
        run_process(
            request,
            function,
            file,
            _sink(name, sink, dsn, settings),
            options,
            Progress(name, out.note),
            out.note,
        )
    )
    _tell(out, ended)
    out.result(ended.as_json())
    raise typer.Exit(ended.exit_code)


@app.command()
def status(
    batch: BatchOption,
    sink: SinkOption = SinkKind.state,
    dsn: DsnOption = None,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """How far one batch is."""
    out = Output(as_json)
    source = _source(sink, dsn, settings_for(bootstrap=bootstrap, prefix=prefix))
    cursor = _run(source, source.cursor(batch))
    if cursor is None:
        raise _no_batch(batch, sink)
    row = _row(cursor)
    out.table(("field", "value"), row.items())
    out.result(row)


@app.command("list")
def list_(
    sink: SinkOption = SinkKind.state,
    dsn: DsnOption = None,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """Every batch, and how far it is."""
    out = Output(as_json)
    source = _source(sink, dsn, settings_for(bootstrap=bootstrap, prefix=prefix))
    rows = [_row(cursor) for cursor in _run(source, source.cursors())]
    columns = ("batch", "samples", "done", "failed", "left", "source", "runner", "updated")
    if rows:
        out.table(columns, [[row[column] for column in columns] for row in rows])
    else:
        out.say(f"no batch in sink {sink.value}")
    out.result({"batches": rows})


@app.command()
def export(
    batch: BatchOption,
    output: Annotated[Path, typer.Option("--output", "-o", metavar="FILE", help="Where to.")],
    file_format: Annotated[
        FileKind | None, typer.Option("--format", help="Default: what the file's name says.")
    ] = None,
    load_blobs: Annotated[
        bool, typer.Option("--load-blobs", help="Fetch results that are references from the blob store.")
    ] = False,
    sink: SinkOption = SinkKind.state,
    dsn: DsnOption = None,
    bootstrap: BootstrapOption = None,
    prefix: PrefixOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a batch's results to one file, in the order of its samples."""
    from refold.ops.evals.export import export as write
    from refold.wire.blobs import BlobStore

    out = Output(as_json)
    settings = settings_for(bootstrap=bootstrap, prefix=prefix)
    kind = file_format or _kind(output)
    source = _source(sink, dsn, settings)

    async def work() -> tuple[EvalCursor | None, int]:
        cursor = await source.cursor(batch)
        if cursor is None:
            return None, 0
        blobs = BlobStore(settings.blobs.url) if load_blobs else None
        return cursor, await write(source.results(batch), output, kind.value, blobs)

    cursor, count = _run(source, work())
    if cursor is None:
        raise _no_batch(batch, sink)
    out.say(f"{count} results of {cursor.samples} samples in {output}")
    out.result({"batch": batch, "results": count, "samples": cursor.samples, "file": str(output)})


def _sink(batch: str, kind: SinkKind, dsn: str | None, settings: Settings) -> Any:
    if kind is SinkKind.postgres:
        from refold.ops.evals.sinks.postgres import PostgresSink

        return PostgresSink(batch, dsn)
    from refold.ops.evals.sinks.state import StateSink
    from refold.ops.evals.sinks.topic import EvalsTopic
    from refold.topology.names import TopicNames

    _no_dsn(dsn)
    names = TopicNames(settings.topic_prefix)
    return StateSink(
        batch,
        topic=EvalsTopic(settings.kafka_config("reader"), names.evals),
        transactional_id=names.eval_transactional_id(batch),
        producer_config=settings.kafka_config("producer"),
    )


def _source(kind: SinkKind, dsn: str | None, settings: Settings) -> Source:
    if kind is SinkKind.postgres:
        from refold.ops.evals.sinks.postgres import PostgresSource

        return PostgresSource(dsn)
    from refold.ops.evals.sinks.statesource import StateSource
    from refold.ops.evals.sinks.topic import EvalsTopic
    from refold.topology.names import TopicNames

    _no_dsn(dsn)
    return StateSource(EvalsTopic(settings.kafka_config("reader"), TopicNames(settings.topic_prefix).evals))


def _no_dsn(dsn: str | None) -> None:
    if dsn is not None:
        raise UsageError("--dsn is for --sink postgres: name that too, or leave it out.")


def _run(source: Source, work: Coroutine[Any, Any, T]) -> T:
    async def whole() -> T:
        try:
            return await work
        finally:
            await source.close()

    return asyncio.run(whole())


def _no_batch(batch: str, kind: SinkKind) -> NotFound:
    return NotFound(f"there is no batch {batch!r} in sink {kind.value}: `refold eval list` shows them.")


def _kind(path: Path) -> FileKind:
    try:
        return FileKind(path.suffix.removeprefix("."))
    except ValueError:
        raise UsageError(f"{path}: name it .jsonl, .csv or .parquet, or say which with --format.") from None


def _row(cursor: EvalCursor) -> dict[str, Any]:
    return {
        "batch": cursor.batch,
        "samples": cursor.samples,
        "done": cursor.done,
        "failed": cursor.failed,
        "left": cursor.samples - cursor.done - cursor.failed,
        "through": cursor.through,
        "source": cursor.source,
        "samples_digest": cursor.samples_digest,
        "runner": cursor.runner,
        "params": cursor.params,
        "runs": cursor.epoch,
        "created": _moment(cursor.created_ms),
        "updated": _moment(cursor.updated_ms),
    }


def _moment(ms: int) -> str:
    return dt.datetime.fromtimestamp(ms / 1000, dt.UTC).isoformat(timespec="seconds")


def _tell(out: Output, ended: Ended) -> None:
    out.say(
        f"batch {ended.batch}: {ended.done} of {ended.samples} done, {ended.failed} failed, {ended.left} left"
    )
    again = f"--batch {ended.batch} --resume"
    if ended.exit_code == EXIT_INTERRUPTED:
        out.note(f"stopped before the end; run the same command with {again}: what is done is not done again")
    elif ended.failed:
        out.note(f"run the same command with --batch {ended.batch} --only-failed to try those again")
    elif ended.left:
        out.note(f"run the same command with {again} for those that were never run")
