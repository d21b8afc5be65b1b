"""What a database holds of a batch, read with plain statements over a connection of its own."""

from __future__ import annotations

from refold.ops.evals.extras import extra
from refold.ops.evals.proof.judging import Count, Observed, Row


async def observe_tables(dsn: str, batch: str) -> Observed:
    connection = await extra("asyncpg").connect(dsn)
    try:
        if await connection.fetchval("SELECT to_regclass('refold_eval_result')") is None:
            return Observed()
        found = await connection.fetch(
            "SELECT sample, position, status, attempts, result::text"
            " FROM refold_eval_result WHERE batch = $1",
            batch,
        )
        cursors = await connection.fetch(
            "SELECT samples, done, failed FROM refold_eval_cursor WHERE batch = $1", batch
        )
    finally:
        connection.terminate()
    rows = [Row(*record) for record in found]
    # The table's key forbids a second row of a sample; that there is none is counted all the same.
    seen = Observed(cursor=Count(*cursors[0]) if len(cursors) == 1 else None)
    for row in rows:
        if row.sample in seen.rows:
            seen.history += [row._replace(status="done"), row]
        seen.rows[row.sample] = row
    return seen


async def remove(dsn: str, batch: str) -> None:
    """The batch's rows; the tables stay."""
    connection = await extra("asyncpg").connect(dsn)
    try:
        if await connection.fetchval("SELECT to_regclass('refold_eval_cursor')") is not None:
            await connection.execute("DELETE FROM refold_eval_cursor WHERE batch = $1", batch)
    finally:
        connection.terminate()
