"""Mark: which of the blobs in question does any retained record name?

A record is looked at as bytes. A reference is 64 hex digits in the clear in every record that refold or an
application writes (an Avro string, a JSON text, a fork's base inside an event), so every run of hex digits is
compared, whatever it means. Too much may be kept; nothing that is named can be missed because its schema is
not known here.

What is not named yet when its topic is read was stored shortly before: the grace covers it (``sweeping``).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final

from confluent_kafka import Message

from refold.client.bulk import batches
from refold.client.positions import Position
from refold.errors import UsageError
from refold.topology.names import TopicNames

DIGEST_CHARS: Final = 64
_HEX_RUN: Final = re.compile(rb"[0-9a-f]{64,}")

#: A line of progress per so many records.
PROGRESS_RECORDS: Final = 100_000

#: A list of digests to keep is read whole.
KEEP_BYTES_MAX: Final = 256 * 1024 * 1024


def unmark(candidates: set[bytes], data: bytes) -> None:
    """Take out of ``candidates`` (hex digits) what ``data`` names."""
    for run in _HEX_RUN.finditer(data):
        text = run.group()
        for at in range(len(text) - DIGEST_CHARS + 1):
            candidates.discard(text[at : at + DIGEST_CHARS])


def topics_of(prefix: str) -> tuple[str, ...]:
    """Every topic whose records may name a blob: events on their way, refused, accepted; states; results;
    tokens, side rows, and what waits for somebody. Events first: what is read before it is accepted is found
    where it was, what is accepted before it is read is found in the journal behind."""
    names = TopicNames(prefix)
    return (
        names.inbox,
        names.rejected,
        names.journal,
        names.state,
        names.evals,
        names.batches,
        names.generations,
        names.review,
        names.work,
    )


async def unmark_topics(
    config: dict[str, Any],
    prefixes: Iterable[str],
    candidates: set[bytes],
    progress: Callable[[str], None],
) -> int:
    """Read every topic of the applications to its end; how many records. Raises ConfigError for a topic that
    is not there: then nothing is known, and nothing may be swept."""
    records = 0
    for prefix in prefixes:
        for topic in topics_of(prefix):
            before = records
            async with aclosing(batches(config, topic, Position(topic, {}), follow=False)) as source:
                async for batch in source:
                    for _, message in batch:
                        _take(candidates, message)
                        records += 1
                        if records % PROGRESS_RECORDS == 0:
                            progress(f"{records} records read, {len(candidates)} blobs not named yet")
            progress(f"{topic}: {records - before} records")
    return records


def _take(candidates: set[bytes], message: Message) -> None:
    for data in (message.value(), message.key()):
        if data is not None and len(data) >= DIGEST_CHARS:
            unmark(candidates, data)
    for _, content in message.headers() or ():
        if content is not None and len(content) >= DIGEST_CHARS:
            unmark(candidates, content if isinstance(content, bytes) else content.encode())


def unmark_file(candidates: set[bytes], path: Path) -> None:
    """What a text names, in whatever form. Raises UsageError for a file that cannot be read."""
    try:
        if path.stat().st_size > KEEP_BYTES_MAX:
            raise UsageError(f"{path} has more than {KEEP_BYTES_MAX} bytes: split it")
        unmark(candidates, path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
