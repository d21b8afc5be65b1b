"""Sink ``postgres``: one database transaction per chunk, by the runner whose epoch the cursor's row has."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

from refold.errors import (
    ConfigError,
    InvariantViolation,
    NotFound,
    PermissionDenied,
    RefoldError,
    UnavailableError,
)
from refold.ops.evals.extras import extra
from refold.ops.evals.limits import DATABASE_TIMEOUT_S, EXPORT_ROWS
from refold.ops.evals.points import broken, reach
from refold.ops.evals.rules import Known, Stored
from refold.ops.evals.sinks import tables
from refold.ops.evals.sinks.sink import fenced
from refold.wire.evals import EvalCursor, EvalResult

T = TypeVar("T")


class Database:
    """One connection, opened when it is used. Its errors come out as ours, each with a way out."""

    def __init__(self, dsn: str | None) -> None:
        self._dsn = dsn
        self._connection: Any = None

    async def use(self, work: Callable[[Any], Awaitable[T]], doing: str) -> T:
        asyncpg = extra("asyncpg")
        try:
            if self._connection is None:
                self._connection = await asyncpg.connect(
                    self._dsn,
                    timeout=DATABASE_TIMEOUT_S,
                    command_timeout=DATABASE_TIMEOUT_S,
                    server_settings={"application_name": "refold-eval"},
                )
            return await work(self._connection)
        except ValueError as error:
            # Before asyncpg's own: what it says of a wrong address is one of them too.
            raise ConfigError(f"--dsn, or PGHOST and its like: {error}.") from None
        except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError) as error:
            raise explained(error, doing) from None

    async def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            # Not close(): nothing of ours is open, and a server that is away must not hold us up.
            connection.terminate()


class PostgresSink:
    """``dsn`` None: what PGHOST and its like say."""

    def __init__(self, batch: str, dsn: str | None) -> None:
        self._batch = batch
        self._database = Database(dsn)
        self._epoch = 0

    async def look(self) -> Stored:
        async def work(connection: Any) -> Stored:
            if not await exists(connection):
                return Stored()
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                return await self._read(connection)

        return await self._database.use(work, "looking for the batch")

    async def claim(self, first: EvalCursor) -> Stored:
        async def work(connection: Any) -> Stored:
            await create(connection)
            async with connection.transaction():
                # Waits for a commit of the former runner that is under way: its row is locked.
                row = await connection.fetchrow(tables.CLAIM, *tuple(first)[:8])
                self._epoch = row["epoch"]
            return await self._read(connection)

        return await self._database.use(work, "taking the batch")

    async def commit(self, results: Sequence[EvalResult], cursor: EvalCursor) -> None:
        async def work(connection: Any) -> None:
            if broken("cursor-first"):
                async with connection.transaction():
                    await self._advance(connection, cursor)
                reach("between")
                async with connection.transaction():
                    await self._put(connection, results)
                return
            async with connection.transaction():
                # The cursor first: its row lock is what makes the runners take turns.
                await self._advance(connection, cursor)
                reach("begun")
                await self._put(connection, results)
                reach("results")
                reach("cursor")
            reach("committed")

        await self._database.use(work, "committing results (whether they are, is not known)")

    async def close(self) -> None:
        await self._database.close()

    async def _read(self, connection: Any) -> Stored:
        row = await connection.fetchrow(tables.CURSOR, self._batch)
        stored = Stored(None if row is None else EvalCursor(*row))
        for sample, done, attempts in await connection.fetch(tables.KNOWN, self._batch):
            stored.samples[sample] = Known(done, attempts)
        return stored

    async def _advance(self, connection: Any, cursor: EvalCursor) -> None:
        said = await connection.execute(
            tables.ADVANCE,
            self._batch,
            self._epoch,
            cursor.done,
            cursor.failed,
            cursor.through,
            cursor.updated_ms,
            cursor.runner,
        )
        if said != "UPDATE 1":
            raise fenced(self._batch)

    async def _put(self, connection: Any, results: Sequence[EvalResult]) -> None:
        for row in results:
            if await connection.fetchval(tables.PUT, *_values(row)) is None:
                raise InvariantViolation(
                    f"sample {row.sample!r} of batch {self._batch!r} is done already and was done again (E2);"
                    " nothing of this chunk was written. Please report this."
                )


class PostgresSource:
    """Reading what is committed; see :class:`refold.ops.evals.sinks.sink.Source`."""

    def __init__(self, dsn: str | None) -> None:
        self._database = Database(dsn)

    async def cursors(self) -> list[EvalCursor]:
        async def work(connection: Any) -> list[EvalCursor]:
            if not await exists(connection):
                return []
            return [EvalCursor(*row) for row in await connection.fetch(tables.CURSORS)]

        return await self._database.use(work, "listing batches")

    async def cursor(self, batch: str) -> EvalCursor | None:
        async def work(connection: Any) -> EvalCursor | None:
            if not await exists(connection):
                return None
            row = await connection.fetchrow(tables.CURSOR, batch)
            return None if row is None else EvalCursor(*row)

        return await self._database.use(work, "looking for the batch")

    async def results(self, batch: str) -> AsyncIterator[EvalResult]:
        # The transaction spans the whole reading: one state of the batch.
        begun = await self._database.use(self._begin, "reading results")
        rows = await self._database.use(lambda c: c.cursor(tables.RESULTS, batch), "reading results")
        while fetched := await self._database.use(lambda _: rows.fetch(EXPORT_ROWS), "reading results"):
            for row in fetched:
                yield _result(row)
        await begun.rollback()

    async def close(self) -> None:
        await self._database.close()

    async def _begin(self, connection: Any) -> Any:
        transaction = connection.transaction(isolation="repeatable_read", readonly=True)
        await transaction.start()
        return transaction


async def exists(connection: Any) -> bool:
    return await connection.fetchval("SELECT to_regclass('refold_eval_result')") is not None


async def create(connection: Any) -> None:
    """Both tables, where they are not there. Needs the right to create only then."""
    if await exists(connection):
        return
    async with connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", tables.CREATE_LOCK)
        await connection.execute(tables.CREATE)


def _values(row: EvalResult) -> tuple[Any, ...]:
    return (
        row.batch,
        row.sample,
        row.position,
        row.status,
        row.attempts,
        row.params,
        None if row.result is None else row.result.decode(),
        None if row.result_ref is None else json.dumps(row.result_ref),
        row.error_code,
        row.error,
        row.started_ms,
        row.finished_ms,
        row.latency_ms,
        row.epoch,
    )


def _result(row: Any) -> EvalResult:
    values = list(row)
    values[9] = None if values[9] is None else values[9].encode()
    values[10] = None if values[10] is None else json.loads(values[10])
    return EvalResult(*values)


def explained(error: Exception, doing: str) -> RefoldError:
    """Ours for PostgreSQL's, by its SQLSTATE class."""
    state = str(getattr(error, "sqlstate", "") or "")
    text = f"{doing}: PostgreSQL: {str(error).strip() or type(error).__name__}"
    if state[:2] == "28" or state == "42501":
        return PermissionDenied(f"{text}. Check user, password and rights (CREATE on the schema, once).")
    if state == "3D000":
        return NotFound(f"{text}. Create the database, or name another with --dsn.")
    if state[:2] in ("42", "22", "23"):
        return ConfigError(f"{text}. Are the tables refold_eval_* another program's? Use another database.")
    return UnavailableError(
        f"{text}. Start it, or name it with --dsn or PGHOST. What is committed stays: run again with"
        " --resume.",
        retry_after_s=1.0,
    )
