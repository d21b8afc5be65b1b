"""Following a generation: frames from the shared track, from the topic where one is behind, until the end.

A follower is a cursor. It survives what its process survives: a lost feed, a moved partition, a worker that
is away; it asks again where the generation lies and goes on after the last frame it gave.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from typing import TYPE_CHECKING, Final

from refold.client.generations.acks import Acker
from refold.client.generations.archive import archived
from refold.client.generations.frames import Cursor, Frame, Transcript, parse_frame_id
from refold.client.generations.ids import check_client
from refold.client.generations.limits import HEARTBEAT_S_DEFAULT
from refold.client.generations.sse import sse_frames
from refold.client.ids import new_id
from refold.errors import NotFound, TransientError, UnavailableError, UsageError

if TYPE_CHECKING:
    from refold.client.generations.places import Place
    from refold.client.generations.service import Generations
    from refold.client.generations.track import Track
    from refold.client.session import Session

#: Pause before a follower asks anew where its generation lies.
PAUSE_S: Final = 0.2


class Follow:
    """``async for frame in follow``, or ``follow.sse()`` for a browser. Made by ``rf.follow``; one loop over
    it at a time. ``client`` names who follows, for acks; give the same name when the same client comes
    back."""

    def __init__(
        self, service: Generations, session: Session, generation: str, after: int, client: str | None
    ) -> None:
        if client is not None:
            check_client(client)
        if after < 0:
            raise UsageError(f"after={after}: a sequence number is not negative")
        self.generation = generation
        self.client = client
        self._service = service
        self._session = session
        self._cursor = Cursor(0, after)

    @property
    def position(self) -> str:
        """The id to go on after, as in ``Last-Event-ID``."""
        return f"{self.generation}:{self._cursor.attempt}:{self._cursor.seq}"

    def seek(self, last_event_id: str | None) -> bool:
        """Go on after a frame's id; false (and no move) when it is none of this generation's."""
        found = None if last_event_id is None else parse_frame_id(last_event_id)
        if found is None or found[0] != self.generation:
            return False
        self._cursor = Cursor(found[1], found[2])
        return True

    def __aiter__(self) -> AsyncIterator[Frame]:
        return self._frames()

    async def ack(self, frame: Frame) -> None:
        """Record that the client has everything up to this frame; returns when that is durable."""
        if self.client is None:
            raise UsageError("acks need a name: rf.follow(..., client=...)")
        await self._service.ack(self._session, self.generation, self.client, frame.seq, attempt=frame.attempt)

    def sse(
        self,
        acks: bool = True,
        last_event_id: str | None = None,
        heartbeat: float = HEARTBEAT_S_DEFAULT,
    ) -> AsyncGenerator[bytes, None]:
        """Server-sent events, ready for any ASGI framework's streaming response.

        ``id:`` is ``generation:attempt:seq``, ``event:`` delta, reset or end, ``data:`` JSON. Give the
        browser's ``Last-Event-ID`` as ``last_event_id``: it goes on after it, and acks it. A frame counts as
        handed over when the framework asks for the next one. After ``end`` the stream ends; the browser's
        page closes its EventSource then.
        """
        self.seek(last_event_id)
        acker = None
        if acks:
            acker = Acker(
                self._service.acks,
                self._session.key,
                self._session.partition,
                self.generation,
                self.client or f"c-{new_id()}",
            )
        return sse_frames(self.events(heartbeat), self._cursor_now, acker)

    def _cursor_now(self) -> Cursor:
        return self._cursor

    async def _frames(self) -> AsyncGenerator[Frame, None]:
        events = self.events(None)
        try:
            async for frame in events:
                if frame is not None:
                    yield frame
        finally:
            await events.aclose()

    async def events(self, heartbeat_s: float | None) -> AsyncGenerator[Frame | None, None]:
        """Frames, and ``None`` when nothing came for ``heartbeat_s``."""
        cursor = self._cursor
        async with self._service.follower():
            while not cursor.ended:
                try:
                    place = await self._service.locate(self._session, self.generation)
                    if not cursor.attempt:
                        cursor.attempt = place.text_attempt
                    if place.ended and cursor.attempt > place.text_attempt:
                        # A place in another text: of a session that was deleted and begun anew, say.
                        cursor.attempt, cursor.seq = place.text_attempt, 0
                        yield Frame("reset", self.generation, cursor.attempt, 0)
                    source = self._settled(place) if place.ended else self._live(place, heartbeat_s)
                    try:
                        async for frame in source:
                            self._saw(frame)
                            yield frame
                    finally:
                        await source.aclose()
                except NotFound:
                    frames = await archived(self._session, self.generation)
                    if frames is None:
                        raise
                    if self._has_part_of(frames):
                        cursor.seq = 0
                        yield Frame("reset", self.generation, cursor.attempt, 0)
                    for frame in frames:
                        for shown in cursor.take(frame):
                            yield shown
                    return
                except (TransientError, UnavailableError):
                    if self._service.closed:
                        raise
                    yield None
                    await asyncio.sleep(PAUSE_S)

    def _has_part_of(self, archived: list[Frame]) -> bool:
        """An archived text is one frame: who has a part of it is told to forget that before it comes."""
        cursor = self._cursor
        return any(
            frame.kind == "delta" and cursor.attempt == frame.attempt and 0 < cursor.seq < frame.seq
            for frame in archived
        )

    def _saw(self, frame: Frame | None) -> None:
        """Who has seen the end reads a state that holds the message: the end is in the topic a moment before
        the owner answers with it."""
        if frame is not None and frame.message_id is not None:
            memory = self._service.connection.memory(self._session.key)
            memory.last_seq = max(memory.last_seq, frame.journal_seq)

    async def _settled(self, place: Place) -> AsyncGenerator[Frame, None]:
        """A generation that ended: read once from the topic, without a place in the live feed."""
        end = await self._service.hub.backfills.end(place.partition)
        transcript = Transcript(self.generation)
        async for _, frame in self._read(place, transcript, place.first, end):
            for shown in self._cursor.take(frame):
                yield shown
            if self._cursor.ended:
                return
        raise TransientError("the end of the generation is not visible yet")

    async def _live(self, place: Place, heartbeat_s: float | None) -> AsyncGenerator[Frame | None, None]:
        hub, key = self._service.hub, self._session.key
        async with hub.track(key, self.generation, place.partition, place.first) as track:
            position = place.first
            while not self._cursor.ended:
                if position < track.ring.complete_from:
                    async for offset, frame in self._behind(track, place):
                        if offset >= position:
                            for shown in self._cursor.take(frame):
                                yield shown
                            position = offset + 1
                    position = max(position, track.ring.complete_from)
                    continue
                found = track.ring.since(position)
                for offset, frame in found:
                    position = offset + 1
                    for shown in self._cursor.take(frame):
                        yield shown
                if found:
                    # A reader that is always ready must not keep the loop from the feed.
                    await asyncio.sleep(0)
                    continue
                if track.failure is not None:
                    raise track.failure
                if track.ended:
                    raise TransientError("the generation has ended, and not where this follower is")
                try:
                    async with asyncio.timeout(heartbeat_s):
                        await track.changed()
                except TimeoutError:
                    yield None

    async def _behind(self, track: Track, place: Place) -> AsyncGenerator[tuple[int, Frame], None]:
        """Everything the ring no longer has, from the topic; up to where the ring begins by then."""
        transcript = Transcript(self.generation)
        at = place.first
        while at < (end := track.ring.complete_from):
            async for offset, frame in self._read(place, transcript, at, end):
                yield offset, frame
            at = end

    async def _read(
        self, place: Place, transcript: Transcript, at: int, end: int
    ) -> AsyncGenerator[tuple[int, Frame], None]:
        backfills = self._service.hub.backfills
        while at < end:
            placed, at = await backfills.page(place.partition, self._session.key, self.generation, at, end)
            for item, offset, append_ms in placed:
                frame = transcript.take(item, offset, append_ms)
                if frame is not None:
                    yield offset, frame
