"""Every limit of batch evaluation, with its unit in its name."""

from __future__ import annotations

from typing import Final

#: A batch's ids and digests are held in memory while it runs: about 200 bytes a sample, 400 MB at this limit.
SAMPLES_MAX: Final = 2_000_000

#: One sample. It goes to the runner whole; larger inputs are references in it.
SAMPLE_BYTES_MAX: Final = 16 * 1024 * 1024

#: Percent-encoded three times as long at most, it is part of a Kafka key.
SAMPLE_ID_BYTES_MAX: Final = 256

#: Part of a transactional id and of keys.
BATCH_ID_CHARS_MAX: Final = 100

#: Repeated in every result, so that each stands for itself.
PARAMS_BYTES_MAX: Final = 64 * 1024

#: Results above it are references, whatever ``blobs.inline_bytes_max`` says: with parameters, ids and an
#: error a record stays below half of the topic's 1 MiB.
RESULT_INLINE_BYTES_MAX: Final = 256 * 1024

#: Of an error's text; the whole is in the runner's own log.
ERROR_CHARS_MAX: Final = 2_000
ERROR_CODE_CHARS_MAX: Final = 100

#: Results of one transaction. 64 of 256 KiB are 16 MiB, well below librdkafka's queue.
CHUNK_RESULTS_MAX: Final = 64

#: The first result of a chunk waits so long for others. A slot takes its next sample when its result is
#: committed, so this is added to each sample's time; a model call takes a hundred times as long.
CHUNK_MS_MAX: Final = 50

CONCURRENCY_DEFAULT: Final = 8
CONCURRENCY_MAX: Final = 1_000

#: Further attempts within one run of the command.
RETRIES_MAX: Final = 20

#: Between attempts: doubled each time.
RETRY_WAIT_S: Final = 0.2
RETRY_WAIT_S_MAX: Final = 30.0

#: How long SIGTERM waits for running samples.
DRAIN_S_DEFAULT: Final = 60.0

#: One call of librdkafka's transaction API before it is called again, and for how long.
CALL_TIMEOUT_S: Final = 5.0
COMMIT_SECONDS_MAX: Final = 60.0

#: What a dead runner left open is aborted by the broker after this at the latest; its successor ends it at
#: once. It only delays readers of other batches in the same partition.
TRANSACTION_TIMEOUT_MS: Final = 10_000

#: Statement and connection time-outs of PostgreSQL; waiting for a row lock is in it.
DATABASE_TIMEOUT_S: Final = 30.0

#: Results fetched at once by an export.
EXPORT_ROWS: Final = 500

#: Progress where there is no terminal: one line so often.
PROGRESS_LINE_S: Final = 10.0

#: The rate is that of so many seconds.
RATE_WINDOW_S: Final = 30.0
