"""Where a generation lies and how it stands: asked of the session's owner, else read from the topic."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Message

from refold.client.generations.limits import LOOKUP_S_MAX, LOOKUP_WAIT_MS
from refold.client.owners import NoOwnerAnswers
from refold.core.limits import ID_BYTES_MAX
from refold.errors import NotFound, UnavailableError
from refold.wire.batches import decode_progress, generation_key

if TYPE_CHECKING:
    from refold.client.connection import Connection
    from refold.client.session import Session

#: Between two looks at the topic while no owner answers, doubled each time.
PAUSE_S: Final = 0.2
PAUSE_S_MAX: Final = 2.0


@dataclass(frozen=True, slots=True)
class Place:
    """``first``: offset of the begin of the present text. ``row`` is the session's row, ``None`` when the
    session no longer holds one. ``asked``: whether an owner said so; else there is no row here."""

    partition: int
    first: int
    attempt: int
    text_attempt: int
    produced: int
    ended: str
    finish: str | None
    provider_response_id: str | None
    usage: dict[str, int]
    row: dict[str, Any] | None = None
    asked: bool = False


async def row_of(connection: Connection, session: Session, generation: str) -> dict[str, Any] | None:
    """The session's row as committed, without waiting; ``None`` when there is none.

    Raises NoOwnerAnswers.
    """
    found = await connection.owners.generation(
        session.partition,
        session.tenant,
        session.id,
        generation,
        wait_ms=0,
        timeout_s=connection.request_timeout_s,
    )
    return None if found is None else found.get("row")


async def place_of(connection: Connection, session: Session, generation: str) -> Place:
    """Raises NotFound for a generation nobody knows (any more), UnavailableError when nobody can be asked."""
    if "#" in generation or len(generation.encode("utf-8", "replace")) > ID_BYTES_MAX:
        # Ids come out of addresses, where anybody may write anything.
        raise NotFound("no generation has such an id")
    loop = asyncio.get_running_loop()
    deadline = loop.time() + LOOKUP_S_MAX
    pause = PAUSE_S
    while True:
        try:
            answer = await connection.owners.generation(
                session.partition,
                session.tenant,
                session.id,
                generation,
                wait_ms=LOOKUP_WAIT_MS,
                timeout_s=connection.request_timeout_s + LOOKUP_WAIT_MS / 1000,
            )
        except NoOwnerAnswers:
            if (found := await _from_topic(connection, session, generation)) is not None:
                return found
            if loop.time() > deadline:
                raise
            # An empty group is said at once, and each look at the topic reads a partition.
            await asyncio.sleep(pause)
            pause = min(2 * pause, PAUSE_S_MAX)
            continue
        if answer is None:
            raise NotFound(
                f"generation {generation} of {session.tenant}/{session.id} is not known: it was "
                "never started, or the session holds newer ones only"
            )
        if answer.get("progress") is not None:
            return _place(session.partition, answer["progress"], answer.get("row"))
        if loop.time() > deadline:
            raise UnavailableError(
                f"the beginning of generation {generation} was not folded within {LOOKUP_S_MAX:g} s: its "
                "worker is behind",
                retry_after_s=1.0,
            )


def _place(partition: int, progress: dict[str, Any], row: dict[str, Any] | None) -> Place:
    before, now = progress["usage_before"], progress["usage"]
    return Place(
        partition,
        int(progress["first_offset"]),
        int(progress["attempt"]),
        int(progress["text_attempt"]),
        int(progress["produced"]),
        str(progress["ended"]),
        progress.get("finish"),
        progress.get("provider_response_id") or (row or {}).get("provider_response_id"),
        {name: int(before.get(name, 0)) + int(now.get(name, 0)) for name in {*before, *now}},
        row,
        asked=True,
    )


async def _from_topic(connection: Connection, session: Session, generation: str) -> Place | None:
    """The newest generation record, by reading its partition of the compacted topic."""
    wanted = generation_key(session.key, generation)
    topic, partition = connection.names.generations, session.partition
    found: bytes | None = None

    def visit(message: Message) -> bool:
        nonlocal found
        if message.key() == wanted:
            found = message.value()
        return True

    def read(reader: Any) -> None:
        first, _ = reader.end(topic, partition)
        reader.sweep(topic, partition, first, visit)

    await connection.readers.scan(read)
    if found is None:
        return None
    progress = decode_progress(found)
    return Place(
        partition,
        progress.first_offset,
        progress.attempt,
        progress.text_attempt,
        progress.produced,
        progress.ended,
        progress.finish,
        progress.provider_response_id,
        progress.usage_total._asdict(),
    )
