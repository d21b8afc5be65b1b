"""The tables of sink ``postgres``, and their statements. Made where they are not there; never changed.

``refold_eval_cursor`` has one row per batch. Its lock orders the runners of a batch: a claim raises the
epoch, a commit first updates the row *of its own epoch*, so a fenced runner updates nothing and knows.
"""

from __future__ import annotations

from typing import Final

#: A lock of our own, so that two first runners do not both create: "refold ev" as a number.
CREATE_LOCK: Final = 0x7265666F_6C644556 >> 1

CREATE: Final = """
CREATE TABLE IF NOT EXISTS refold_eval_cursor (
    batch          text    PRIMARY KEY,
    samples_digest text    NOT NULL,
    samples        bigint  NOT NULL,
    source         text    NOT NULL,
    runner         text    NOT NULL,
    params         json    NOT NULL,
    epoch          bigint  NOT NULL,
    done           bigint  NOT NULL,
    failed         bigint  NOT NULL,
    through        bigint  NOT NULL,
    created_ms     bigint  NOT NULL,
    updated_ms     bigint  NOT NULL
);
CREATE TABLE IF NOT EXISTS refold_eval_result (
    batch          text    NOT NULL REFERENCES refold_eval_cursor (batch) ON DELETE CASCADE,
    sample         text    NOT NULL,
    position       bigint  NOT NULL,
    status         text    NOT NULL CHECK (status IN ('done', 'failed')),
    attempts       integer NOT NULL,
    params         json    NOT NULL,
    result         json,
    result_ref     json,
    error_code     text,
    error          text,
    started_ms     bigint  NOT NULL,
    finished_ms    bigint  NOT NULL,
    latency_ms     bigint  NOT NULL,
    epoch          bigint  NOT NULL,
    PRIMARY KEY (batch, sample),
    UNIQUE (batch, position)
);
"""

CURSOR_COLUMNS: Final = (
    "batch, samples_digest, samples, source, runner, params::text, created_ms, updated_ms, epoch, done,"
    " failed, through"
)

CLAIM: Final = """
INSERT INTO refold_eval_cursor (batch, samples_digest, samples, source, runner, params, created_ms,
                                updated_ms, epoch, done, failed, through)
VALUES ($1, $2, $3, $4, $5, $6::text::json, $7, $8, 1, 0, 0, 0)
ON CONFLICT (batch) DO UPDATE SET epoch = refold_eval_cursor.epoch + 1
RETURNING epoch
"""

#: Of our own epoch only.
ADVANCE: Final = """
UPDATE refold_eval_cursor
SET done = $3, failed = $4, through = $5, updated_ms = $6, runner = $7
WHERE batch = $1 AND epoch = $2
"""

#: A done result is never replaced: then the row count says so.
PUT: Final = """
INSERT INTO refold_eval_result (batch, sample, position, status, attempts, params, result, result_ref,
                                error_code, error, started_ms, finished_ms, latency_ms, epoch)
VALUES ($1, $2, $3, $4, $5, $6::text::json, $7::text::json, $8::text::json, $9, $10, $11, $12, $13, $14)
ON CONFLICT (batch, sample) DO UPDATE SET
    status = excluded.status, attempts = excluded.attempts, params = excluded.params,
    result = excluded.result, result_ref = excluded.result_ref, error_code = excluded.error_code,
    error = excluded.error, started_ms = excluded.started_ms, finished_ms = excluded.finished_ms,
    latency_ms = excluded.latency_ms, epoch = excluded.epoch
WHERE refold_eval_result.status <> 'done'
RETURNING 1
"""

KNOWN: Final = "SELECT sample, status = 'done', attempts FROM refold_eval_result WHERE batch = $1"

CURSOR: Final = f"SELECT {CURSOR_COLUMNS} FROM refold_eval_cursor WHERE batch = $1"  # noqa: S608

CURSORS: Final = f"SELECT {CURSOR_COLUMNS} FROM refold_eval_cursor ORDER BY batch"  # noqa: S608

RESULTS: Final = """
SELECT batch, sample, position, status, attempts, params::text, started_ms, finished_ms, latency_ms,
       result::text, result_ref::text, error_code, error, epoch
FROM refold_eval_result WHERE batch = $1 ORDER BY position
"""
