"""A chunk in any of the forms it arrives in -> payloads: the provider's JSON objects.

An object of an SDK (anything with ``model_dump``) is taken as what was sent: fields that were not are left
out. Mappings are taken as they are, text and bytes as (a piece of) the body.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from enum import Enum
from typing import Any, Final

from refold.errors import InvalidRecord, UsageError
from refold.formats.parts import encode_base64
from refold.formats.streams.eventstream import Frames, is_frames
from refold.formats.streams.sse import Lines

Payload = dict[str, Any]
_ENDED: Final = object()


class Chunks:
    """Payloads of one stream, in the order they came."""

    __slots__ = ("_frames", "_lines")

    def __init__(self) -> None:
        self._lines = Lines()
        self._frames: Frames | None = None

    @property
    def done(self) -> bool:
        """Whether ``[DONE]`` came."""
        return self._lines.done

    @property
    def fresh(self) -> bool:
        """Whether no text or bytes came yet."""
        return self._lines.fresh and self._frames is None

    def read(self, chunk: Any) -> list[Payload]:
        """The payloads that are whole with this chunk.

        Raises UsageError for a chunk of another kind, InvalidRecord for a broken body.
        """
        if isinstance(chunk, Mapping):
            return [dict(chunk)]
        if isinstance(chunk, str):
            return self._lines.feed(_utf8(chunk))
        if isinstance(chunk, bytes | bytearray | memoryview):
            return self._bytes(bytes(chunk))
        if hasattr(chunk, "model_dump"):
            return [plain(chunk)]
        raise UsageError(
            f"a chunk of type {type(chunk).__name__} is none of: dict, SDK object with model_dump, text, "
            "bytes. Feed the chunks of the stream one by one, as the SDK gives them"
        )

    def _bytes(self, data: bytes) -> list[Payload]:
        if self.fresh and is_frames(data):
            self._frames = Frames()
        return self._lines.feed(data) if self._frames is None else self._frames.feed(data)


def _utf8(text: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidRecord(
            "lone_surrogate", "the body of the stream has a lone surrogate, for which no UTF-8 exists"
        ) from None


def plain(chunk: Any) -> Payload:
    """What the provider sent, of an SDK's object.

    Not by its JSON mode: Google's models write bytes (signatures) in another base64 alphabet than they came
    in.
    """
    try:
        value = chunk.model_dump(by_alias=True, exclude_unset=True)
    except TypeError:  # Not pydantic's: an object with a model_dump of its own.
        value = chunk.model_dump()
    if not isinstance(value, Mapping):
        raise UsageError(f"model_dump of {type(chunk).__name__} gives no mapping")
    return {str(key): _json(item) for key, item in value.items()}


def _json(value: Any) -> Any:
    """A dumped value as JSON has it: base64 for bytes, an enum's value, a time as ISO 8601 with Z."""
    if isinstance(value, Mapping):
        return {str(key): _json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_json(item) for item in value]
    if isinstance(value, bytes):
        return encode_base64(value)
    if isinstance(value, Enum):
        return value.value
    return value.isoformat().replace("+00:00", "Z") if isinstance(value, datetime) else value


async def chunks_of(stream: AsyncIterable[Any] | Iterable[Any]) -> AsyncIterator[Any]:
    """The chunks of a stream, async or not.

    The next chunk of a blocking iterator is waited for in a thread of the stream's own: those that asyncio
    shares are a handful, and a model may be silent for a minute. Lists are gone through at once.
    """
    if isinstance(stream, AsyncIterable):
        async for chunk in stream:
            yield chunk
    elif isinstance(stream, list | tuple):
        for chunk in stream:
            yield chunk
    elif isinstance(stream, str | bytes | Mapping) or not isinstance(stream, Iterable):
        raise UsageError(
            f"{type(stream).__name__} is no stream of chunks: pass an iterable or async iterable of them"
        )
    else:
        source, loop = iter(stream), asyncio.get_running_loop()
        context = contextvars.copy_context()
        thread = ThreadPoolExecutor(1, "refold-stream")
        try:
            while (
                chunk := await loop.run_in_executor(thread, lambda: context.run(next, source, _ENDED))
            ) is not _ENDED:
                yield chunk
        finally:
            thread.shutdown(wait=False, cancel_futures=True)
