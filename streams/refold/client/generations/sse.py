"""Frames as server-sent events. Comments keep the connection alive; ids make a reconnect exact."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Final

import orjson

from refold.client.generations.acks import Acker
from refold.client.generations.frames import Cursor, Frame
from refold.client.generations.limits import RECONNECT_MS
from refold.errors import NotFound, TransientError, UnavailableError

#: A comment: every proxy passes it on, no browser shows it.
HEARTBEAT: Final = b": still here\n\n"

OPENING: Final = b"retry: %d\n\n" % RECONNECT_MS


def sse_event(frame: Frame) -> bytes:
    """One event. JSON has no line ends, so the data is one line."""
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (
        frame.id.encode(),
        frame.kind.encode(),
        orjson.dumps(frame.data()),
    )


async def sse_frames(
    events: AsyncGenerator[Frame | None, None], cursor: Callable[[], Cursor], acker: Acker | None
) -> AsyncGenerator[bytes, None]:
    """The response's body. A generation nobody knows ends at once, with state ``unknown``: an error response
    would make a browser reconnect for ever. When nobody can be asked the body ends, and it does reconnect."""
    begun_at: tuple[int, int] | None = (cursor().attempt, cursor().seq)
    try:
        yield OPENING
        async for frame in events:
            if acker is not None and begun_at is not None and cursor().attempt:
                # "Connected, no news", or what the client said it has. The attempt is known only now.
                acker.connected(begun_at[0] or cursor().attempt, begun_at[1])
                begun_at = None
            if frame is None:
                yield HEARTBEAT
                continue
            yield sse_event(frame)
            if acker is not None:
                acker.handed_over(frame)
    except NotFound:
        place = cursor()
        yield b'event: end\ndata: {"seq":%d,"text":"","state":"unknown"}\n\n' % place.seq
    except (TransientError, UnavailableError):
        return
    finally:
        if acker is not None:
            acker.flush()
        await events.aclose()
