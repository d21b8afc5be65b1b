"""What ``refold session export`` writes: one JSON document per line."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Final

import orjson

from refold.client import Session
from refold.formats.export import EXPORT_FORMATS, export_session
from refold.formats.jsonio import dumps
from refold.missing import no_session
from refold.wire.blobs import BlobStore
from refold.wire.owner import json_ready

FORMATS: Final = (*EXPORT_FORMATS, "raw")


async def export(chat: Session, format: str, blobs: BlobStore) -> list[bytes]:  # noqa: A002
    """The documents as JSON text. ``raw``: one document, the context in refold's own messages.

    Content in the blob store is fetched and checked. Raises NotFound for an unknown session, or ``source`` of
    one that was not imported.
    """
    if format == "raw":
        context = await chat.context("raw", min_seq=0, load_blobs=True)
        return [orjson.dumps(json_ready({"seq": context.seq, **context.request}))]
    if format == "source":
        async with aclosing(chat.events()) as source:
            events = [event async for event in source]
    else:
        events = await chat.lineage()
    if not events:
        raise no_session(chat.tenant, chat.id)
    documents = await asyncio.to_thread(export_session, events, format, load=blobs.get)
    # Not orjson: a source may hold what orjson refuses (numbers beyond 64 bits), and comes back as it was.
    return [dumps(document) for document in documents]
