"""Every limit of the SDK, named with its unit."""

from __future__ import annotations

from typing import Final

#: Events handed to Kafka and not yet acknowledged, over all sessions. At 2 KB each 40 MB; appends beyond it
#: wait their turn instead of growing memory.
IN_FLIGHT_EVENTS_MAX: Final = 20_000

#: Events of one session queued behind the one in flight. A session is sent one event at a time (see
#: ``ordering``), so a longer queue is a producer that outruns its own session by seconds.
SESSION_QUEUE_EVENTS_MAX: Final = 10_000

#: How long librdkafka collects a batch, where it is used. 0: what comes while five requests are in flight is
#: one batch anyway, and waiting costs every append a millisecond and more. Measured on two busy cores, 1 ms
#: against 0: one session alone 570 to 690 events/s against 2 750 to 3 970; at a steady 1 000 events/s the
#: acknowledgement comes after 1.8 to 2.7 ms against 0.3 to 0.5, with no more CPU on either side.
LINGER_MS: Final = 0

#: How long the delivery thread sleeps in one poll. It wakes at once when something was delivered.
POLL_S: Final = 0.1

#: Rulings kept that nobody has asked for yet: 200 bytes each, 6.5 MB, 30 s at 1 000 events/s. Older ones are
#: asked for one by one.
RULINGS_KEPT_MAX: Final = 32_768

#: While waiting for a ruling the owner is asked directly this often, so that a partition that moved to a new
#: owner behind an open stream is noticed.
RULING_RECHECK_S: Final = 1.0

#: Direct ruling look-ups at once; after a reconnect all outstanding ones are asked.
RULING_LOOKUPS_MAX: Final = 32

#: Long polls for rulings on events without a stamp (caller-given event ids). Each holds a connection to its
#: owner, which takes 2048 waiters over all clients; further ones wait here.
RULING_LONG_POLLS_MAX: Final = 256

#: A ruling stream that says nothing for this long (it sends a blank line every second) is taken for dead.
STREAM_SILENCE_S: Final = 5.0

#: Default of ``receipt.ruling(timeout=…)``: a take-over (session timeout 30 s) and a restore fit.
RULING_TIMEOUT_S: Final = 60.0

#: Two group descriptions are at least this far apart, however many requests ask for one.
ROUTE_REFRESH_MIN_S: Final = 0.25

#: For so long "held by an open transaction" is asked again before it counts as "not committed yet": a busy
#: worker's offsets are held for most of the time, each time for some 10 ms.
HELD_S_MAX: Final = 0.5

#: A cached route is used for this long without being confirmed by an answer.
ROUTE_AGE_MAX_S: Final = 60.0

#: An owner waits no longer than this for one request (``wait_ms``); who has more time asks again.
OWNER_WAIT_MS_MAX: Final = 30_000

#: Pause between two attempts when an owner does not answer and says nothing about when it will.
RETRY_PAUSE_S: Final = 0.2

#: Workers asked for a standby's answer, besides the owner: one or two standbys are what fleets keep, and one
#: more for a group that has just changed.
STANDBYS_ASKED_MAX: Final = 3

#: How long one worker is waited for where a standby's answer will do.
STALE_ATTEMPT_S: Final = 1.0

#: A worker that did not answer such a request is asked last for this long.
SILENT_S: Final = 5.0

#: One worker's list of its partitions (`refold session where`).
PARTITIONS_TIMEOUT_S: Final = 2.0

#: Two records of one session closer together than this in the journal are read in one sweep: a swept record
#: costs 1 us, a seek 0.3 ms. Measured for 50 events, sweep against seeks: 200 records apart 10 against 17 ms,
#: 400 apart 17 against 14, 800 apart 33 against 17, 1 600 apart 84 against 33.
SWEEP_GAP_RECORDS_MAX: Final = 300

#: One history request: 500 pairs of about 20 bytes of JSON.
HISTORY_PAGE_EVENTS: Final = 500

#: Fetch size of an index seek. A journal record is 0.5 to 2 KB and the broker always returns at least one
#: whole batch, however large (the worker keeps them small); more than a batch is read, unpacked and thrown
#: away. Measured for 50 seeks: 23 ms with 16 or 64 KiB, 52 with 256 KiB.
SEEK_FETCH_BYTES: Final = 16 * 1024

#: Fetch size of a scan over a partition.
SCAN_FETCH_BYTES: Final = 1024 * 1024

#: From so many seeks on, two readers share them.
SEEKS_SPLIT: Final = 8

#: Idle journal readers kept open. Each holds a few sockets and threads.
IDLE_READERS_MAX: Final = 2

#: No progress of a bounded read for this long is an error: the broker is gone, or a transaction blocks the
#: last stable offset (its timeout is 10 s, the broker's scan another 10).
READ_STALL_S: Final = 30.0

#: Records per poll of the bulk readers.
BULK_RECORDS: Final = 500

#: Longest accepted answer of an owner: a state record is below 1 MB by contract.
ANSWER_BYTES_MAX: Final = 16 * 1024 * 1024
