"""Every limit of the HTTP port, named with its unit. The port shares the fold's event loop: all are small."""

from __future__ import annotations

from typing import Final

#: Open ruling streams at once. Each is one producer process; 256 producers x 1 MiB buffers bounds the memory
#: at 256 MiB only if every one of them stopped reading at the same time.
STREAMS_MAX: Final = 256

#: Bytes queued for one ruling stream whose reader is slow. A line is about 60 bytes, so 1 MiB is 17 000
#: rulings, 17 s at 1 000 events/s. Beyond it the stream is closed; the client asks one by one.
STREAM_BUFFER_BYTES_MAX: Final = 1024 * 1024

#: A blank line at least this often, so that both sides notice a dead peer within a few seconds.
STREAM_HEARTBEAT_S: Final = 1.0

#: Time for one write to a stream to be taken by the peer's socket before the stream is closed.
STREAM_WRITE_TIMEOUT_S: Final = 10.0

#: Requests that may wait (min_seq, ruling) at once. A waiter costs a task and a future, about 5 KiB: 10 MiB.
WAITERS_MAX: Final = 2048

#: Longest wait_ms. Above it clients ask again, so that a stop is never held up by a waiter.
WAIT_MS_MAX: Final = 30_000

#: Wait before a session's first look when the caller gives min_seq without wait_ms.
WAIT_MS_DEFAULT: Final = 2_000

#: Most (seq, offset) pairs in one history answer: 24 bytes of JSON each, 120 KB, under 1 ms to encode.
HISTORY_LIMIT_MAX: Final = 5_000
HISTORY_LIMIT_DEFAULT: Final = 500

#: The port only takes GET: a body is a mistake.
REQUEST_BODY_BYTES_MAX: Final = 4096

#: Characters of an unknown path that its 404 repeats.
PATH_SHOWN_CHARS_MAX: Final = 200

#: Producer ids on the ruling stream; the envelope's own ids are shorter.
PRODUCER_ID_CHARS_MAX: Final = 256

#: How long `stop()` waits for requests in flight. Streams are ended at once.
STOP_GRACE_S: Final = 2.0
