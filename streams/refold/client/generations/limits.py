"""Every limit of the generation SDK, named with its unit."""

from __future__ import annotations

from typing import Final

# --- recording ---------------------------------------------------------------------------------------

#: Two batches of one generation begin at least this far apart: at most 40 per second, where a model gives 50
#: to 200 tokens per second. The first token after a pause is not held back at all.
BATCH_INTERVAL_S: Final = 0.025

#: Batches of a client's generations go out together, at least this far apart; the first after a quiet time
#: at once. Fifty generations at 20 batches a second are fifteen a stroke, one request per partition; without
#: it, one request and several wake-ups of a thread each.
STROKE_S: Final = 0.015

#: librdkafka collects a stroke instead of sending its first batch alone. A stroke takes a millisecond, more
#: on a busy machine. Its thread's CPU per batch, measured on one: 67 us with 0 ms, 25 with 2, 14 with 5.
BATCH_LINGER_MS: Final = 5

#: Batches and heartbeats handed to librdkafka: ``RUNNING_MAX`` generations have one batch each on the way,
#: the rest is room for heartbeats while Kafka does not answer. With batches of 4 KiB 16 MiB.
BATCHES_IN_FLIGHT_MAX: Final = 4_096

#: Content of one batch. A fast provider's 25 ms are below 4 KiB; 64 KiB stay far below the topic's 1 MiB with
#: framing, and a longer delta is cut (data may be cut anywhere).
BATCH_BYTES_MAX: Final = 64 * 1024

#: Deltas of one batch: 64 bytes of framing each at most, 128 KiB.
BATCH_DELTAS_MAX: Final = 2_048

#: Content taken from the provider and not durable yet, per generation. Beyond it the provider is not read:
#: with 100 generations 25 MiB while Kafka does not answer.
UNSENT_BYTES_MAX: Final = 256 * 1024

#: A provider's chunks that wait for the next stroke to be parsed. Beyond it, as in a stream that is read from
#: a file, they are parsed where they come, so that what they hold counts against ``UNSENT_BYTES_MAX``.
SAID_MAX: Final = 8

#: Chunks that are durable and not yet taken by the loop over ``g.record``; beyond it sending waits. 200 bytes
#: each, 0.8 MB; 40 s of a model's tokens, so that a worker that is away (no lease can be renewed, no chunk
#: handed out) does not stop what followers see.
CHUNKS_WAITING_MAX: Final = 4_096

#: Content of one generation, kept to compose its message: 100 running ones hold at most 400 MiB. A model's
#: longest answer is below 1 MiB.
GENERATION_BYTES_MAX: Final = 4 * 1024 * 1024

#: Pause before a batch that was not acknowledged is sent again, doubled each time.
RESEND_PAUSE_S: Final = 0.1
RESEND_PAUSE_S_MAX: Final = 2.0

#: Answers running in one client at once. Each holds a task, a provider connection and its unsent content.
RUNNING_MAX: Final = 256

#: After a stop the answer may go on this long outside ``g.record`` (close a file, log) before it is
#: cancelled.
STOP_GRACE_S: Final = 5.0

#: How long a closing client lets its answers come to an end. The rest is taken over by another process.
DRAIN_S: Final = 5.0

#: How long the last batches may take to be acknowledged when the client closes.
CLOSE_FLUSH_S: Final = 1.0

#: Tries of an event that says how a generation ended, for refusals that time mends (``batches_missing``).
FINISH_TRIES_MAX: Final = 5
FINISH_PAUSE_S: Final = 0.5

#: How long the first and last events of a generation wait for their ruling: a take-over between workers
#: (session timeout 30 s) and a restore fit.
RULING_WAIT_S: Final = 60.0

# --- leases ------------------------------------------------------------------------------------------

LEASE_S_DEFAULT: Final = 5.0

#: Below it renewals (three per lease) meet ordinary pauses of an event loop.
LEASE_S_MIN: Final = 0.5
LEASE_S_MAX: Final = 3_600.0

#: Renewals per lease: two may fail before the lease is over.
RENEWALS_PER_LEASE: Final = 3

# --- following ---------------------------------------------------------------------------------------

#: Frames kept per followed generation for all its followers together; who is further behind reads the topic.
#: 256 KiB are a long answer whole.
RING_BYTES_MAX: Final = 256 * 1024

#: The same over all generations of a client: with more than 256 followed at once each keeps less.
RINGS_BYTES_MAX: Final = 64 * 1024 * 1024

#: Even with very many a ring holds a few frames.
RING_BYTES_MIN: Final = 4 * 1024

#: What one frame costs beside its text: objects of about 400 bytes.
FRAME_OVERHEAD_BYTES: Final = 400

#: Frames a follower takes from the ring before it lets others run.
FRAMES_PER_TURN_MAX: Final = 64

#: Items that arrive while the beginning of a generation is still being read; beyond it what is read extends.
PENDING_ITEMS_MAX: Final = 1_024

#: Followers of one client: a cursor of about 2 KB each.
FOLLOWERS_MAX: Final = 10_000

#: A generation nobody follows any more is kept this long, for the browser that reconnects.
LINGER_S: Final = 10.0

#: Reads of the topic at once, over all followers that are behind or begin.
BACKFILLS_MAX: Final = 4

#: Content of one such read; then the follower takes it before more is read.
BACKFILL_PAGE_BYTES: Final = 256 * 1024

#: Ranges longer than this (in offsets) are read with large fetches.
BACKFILL_SEEK_RECORDS_MAX: Final = 2_000

#: One wait of the hub's thread for records.
HUB_POLL_S: Final = 0.05

#: Records the hub's thread hands over at once, and how many such hand-overs may wait for the event loop: a
#: loop that is busy holds 2 000 records of it, not more.
HUB_RECORDS: Final = 500
HUB_BATCHES_MAX: Final = 4

#: How long the broker holds a fetch of the hub at the log's end.
HUB_FETCH_WAIT_MS: Final = 50
HUB_FETCH_BYTES: Final = 256 * 1024

#: Who generates hears of a stop after at most these two: the broker holds a fetch, the thread a look.
EAR_FETCH_WAIT_MS: Final = 100
EAR_PAUSE_S: Final = 0.1

#: Memory librdkafka may fill ahead of the hub.
HUB_QUEUED_KBYTES_MAX: Final = 32 * 1024

#: How long the owner is asked to wait for the beginning of a generation that has just been accepted, and how
#: long a follower asks in all before it says that the generation is unknown or that nobody answers.
LOOKUP_WAIT_MS: Final = 1_000
LOOKUP_S_MAX: Final = 30.0

# --- SSE and acks ------------------------------------------------------------------------------------

HEARTBEAT_S_DEFAULT: Final = 15.0

#: What a browser waits before it reconnects.
RECONNECT_MS: Final = 1_000

#: Acks of one follower are at least this far apart, except the last one.
ACK_INTERVAL_S: Final = 1.0

#: Acks handed to Kafka and not acknowledged, over all followers: an ack is a hint, a newer one replaces it.
ACKS_IN_FLIGHT_MAX: Final = 1_000

# --- supervising -------------------------------------------------------------------------------------

#: How far back a supervisor looks for generations whose process died before it started.
LOOKBACK_S_DEFAULT: Final = 900.0

#: Open generations a supervisor watches: 400 bytes each, 40 MB. The oldest go; whoever follows them finds
#: their state all the same.
WATCHED_MAX: Final = 100_000

#: Take-overs on the way at once, until their answers run. Each is a few requests and a random pause of up to
#: ``JITTER_S_MAX``, so ``RUNNING_MAX`` answers of a process that died are asked for in four rounds of those.
TAKEOVERS_MAX: Final = 64

#: Supervisors of a fleet wait up to this long, each its own random time, before they ask for a lease.
JITTER_S_MAX: Final = 0.3

#: Pause before a lease is asked for again when it was held or nobody answered.
CLAIM_PAUSE_S: Final = 0.25
CLAIM_PAUSE_S_MAX: Final = 5.0

#: How often due generations are looked for.
SUPERVISE_TICK_S: Final = 0.1
