"""Payloads as callers write and read them: dicts with :class:`refold.wire.parts.Part` in ``content``.

Offloading is decided here: a text or data field above the inline limit goes to the blob store *before* the
event is sent, and a reference stays. What the fold must read stays inline whatever its size: the records of
tool calls and results (ids and pairing); their inner parts are offloaded one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from refold.core.envelope import Envelope
from refold.errors import InvalidRecord, NotFound, UsageError
from refold.wire.blobs import BlobStore
from refold.wire.codec import decode, encode
from refold.wire.parts import NESTING_KINDS, BlobRef, Part, from_wire, to_wire

EVENT_SUBJECT_PREFIX: Final = "refold.event."

#: Kinds whose record the fold reads.
INLINE_DATA_KINDS: Final = NESTING_KINDS | {"tool_call", "provider_tool_call"}

TEXT_MEDIA_TYPE: Final = "text/plain; charset=utf-8"
RECORD_MEDIA_TYPE: Final = "application/vnd.refold.part+avro"

#: Inputs and outputs of runs and steps: JSON bytes, whose reference is ``<field>_ref``.
VALUE_FIELDS: Final = ("input", "output")
VALUE_MEDIA_TYPE: Final = "application/json"


def encode_payload(event_type: str, payload: Mapping[str, Any]) -> bytes:
    """The framed payload. Raises UsageError naming a wrong field, NotFound for a type without a schema."""
    return encode(EVENT_SUBJECT_PREFIX + event_type, _to_record(payload))


def check_payload(event_type: str, payload: object) -> None:
    """Raises UsageError for what is neither framed bytes nor a dict whose ``content`` holds parts."""
    if isinstance(payload, bytes):
        return
    if not isinstance(payload, Mapping):
        kind = type(payload).__name__
        raise UsageError(f"the payload of {event_type} is a dict or framed bytes, not {kind}")
    content = payload.get("content", ())
    if not isinstance(content, list | tuple) or not all(isinstance(part, Part) for part in content):
        raise UsageError(f"'content' of {event_type} is a list of parts (refold.wire.parts)")


def decode_payload(envelope: Envelope) -> dict[str, Any] | None:
    """The payload in the newest shape of its type, ``None`` when this reader does not know the type."""
    try:
        record = decode(envelope.payload, expect=EVENT_SUBJECT_PREFIX + envelope.type).record
    except NotFound:
        return None
    except InvalidRecord as error:
        if error.code in ("unknown_schema", "unknown_subject", "empty_value", "bad_frame", "bad_magic"):
            return None
        raise
    if "content" in record:
        record["content"] = [from_wire(part) for part in record["content"]]
    return record


def _to_record(payload: Mapping[str, Any]) -> dict[str, Any]:
    record = dict(payload)
    if "content" in record:
        record["content"] = [to_wire(part) for part in record["content"]]
    return record


async def offload(payload: Mapping[str, Any], store: BlobStore, limit: int) -> Mapping[str, Any]:
    """The payload with every field above ``limit`` bytes replaced by a reference whose bytes are durable.

    Raises :class:`refold.errors.StorageError` when the store does not take them: nothing was sent then.
    """
    if not _needs_offload(payload, limit):
        return payload
    return await asyncio.to_thread(_offload, payload, store, limit)


def _needs_offload(payload: Mapping[str, Any], limit: int) -> bool:
    return (
        any(_part_needs(part, limit) for part in payload.get("content", ()))
        or _longer(payload.get("arguments"), limit)
        or _longer(payload.get("record"), limit)
        or any(_longer(payload.get(field), limit) for field in VALUE_FIELDS)
    )


def _part_needs(part: Part, limit: int) -> bool:
    return _longer(part.text, limit) or _longer(part.data, limit)


def _longer(value: object, limit: int) -> bool:
    if isinstance(value, bytes):
        return len(value) > limit
    if isinstance(value, str):
        # A character is one to four bytes: most texts are decided without encoding them.
        return len(value) > limit or (len(value) * 4 > limit and len(_utf8(value)) > limit)
    return False


def _utf8(value: str) -> bytes:
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise InvalidRecord(
            "lone_surrogate", "a text holds half of a surrogate pair: replace it before sending"
        ) from None


def _offload(payload: Mapping[str, Any], store: BlobStore, limit: int) -> Mapping[str, Any]:
    record = dict(payload)
    if "content" in record:
        record["content"] = [offload_part(part, store, limit) for part in record["content"]]
    arguments = record.get("arguments")
    if isinstance(arguments, str) and _longer(arguments, limit):
        record["arguments_ref"] = store.put(_utf8(arguments), media_type="application/json", field="text")
        record["arguments"] = ""
    kept = record.get("record")
    if isinstance(kept, bytes) and len(kept) > limit:
        media_type = str(record.get("media_type") or "application/octet-stream")
        record["ref"] = store.put(kept, media_type=media_type, field="data")
        record["record"] = None
    for field in VALUE_FIELDS:
        value = record.get(field)
        if isinstance(value, bytes) and len(value) > limit:
            record[f"{field}_ref"] = store.put(value, media_type=VALUE_MEDIA_TYPE, field="data")
            record[field] = None
    return record


def offload_part(part: Part, store: BlobStore, limit: int) -> Part:
    """The part with its larger field outside, or with its inner parts' fields outside. Blocks."""
    if part.ref is not None or not _part_needs(part, limit):
        return part
    if part.type in NESTING_KINDS and part.content:
        inner = [offload_part(item, store, limit) for item in part.content]
        return Part(part.type, part.text, {**part.fields, "content": inner}, type_version=part.type_version)
    text = b"" if part.text is None else _utf8(part.text)
    data = b"" if part.data is None or part.type in INLINE_DATA_KINDS else part.data
    if max(len(text), len(data)) <= limit:
        return part
    if len(text) >= len(data):
        ref = BlobRef(**store.put(text, media_type=TEXT_MEDIA_TYPE, field="text"))
        return Part(part.type, None, ref=ref, type_version=part.type_version, data=part.data)
    ref = BlobRef(**store.put(data, media_type=RECORD_MEDIA_TYPE, field="data"))
    return Part(part.type, part.text, ref=ref, type_version=part.type_version)


def _text(data: bytes, ref: BlobRef) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidRecord(
            "bad_text", f"the event says that blob {ref.sha256} is text, but its bytes are not UTF-8"
        ) from None


def load_part(part: Part, store: BlobStore) -> Part:
    """The part with its bytes back in place, inner parts too. Blocks; raises as :meth:`BlobStore.get`."""
    if part.ref is not None:
        data = store.get(asdict(part.ref))
        if part.ref.field == "text":
            part = Part(part.type, _text(data, part.ref), type_version=part.type_version, data=part.data)
        else:
            part = Part(part.type, part.text, type_version=part.type_version, data=data)
    if part.type in NESTING_KINDS and any(_outside(item) for item in part.content):
        inner = [load_part(item, store) for item in part.content]
        return Part(part.type, part.text, {**part.fields, "content": inner}, type_version=part.type_version)
    return part


def _outside(part: Part) -> bool:
    return part.ref is not None or any(_outside(item) for item in part.content)


async def load_parts(parts: Sequence[Part], store: BlobStore) -> list[Part]:
    """All parts with their bytes; touches the store only when one is outside."""
    if not any(_outside(part) for part in parts):
        return list(parts)
    return await asyncio.to_thread(lambda: [load_part(part, store) for part in parts])
