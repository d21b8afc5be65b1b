"""Providers' token streams -> deltas -> the final message.

::

    parser = parser_for("auto")
    async for chunk in chunks_of(stream):
        for delta in parser.feed(chunk): ...
    body = parser.finish(message_id="m1")

``base`` says what every parser promises (P1 to P5), ``detect`` how ``auto`` decides, ``overlap`` how a
broken-off text is gone on with. The final message is put together in the provider's own shape and read by
the mapper of :mod:`refold.formats`, so :func:`message_out` gives that shape back.
"""

from __future__ import annotations

from refold.formats.streams.base import StreamParser
from refold.formats.streams.chunks import chunks_of
from refold.formats.streams.delta import Delta, StreamError
from refold.formats.streams.detect import FORMATS, format_of, parser_for
from refold.formats.streams.out import message_out
from refold.formats.streams.overlap import skip_prefix, trim_overlap

__all__ = [
    "FORMATS",
    "Delta",
    "StreamError",
    "StreamParser",
    "chunks_of",
    "format_of",
    "message_out",
    "parser_for",
    "skip_prefix",
    "trim_overlap",
]
