"""Records of the batches topic and of the generations topic: bytes <-> values of ``refold.core.progress``.

``decode_item`` is asked for every batch, by the worker and by every follower: one dictionary look-up finds
the compiled reader. Values are checked by ``advance``, which is the same everywhere; here only the shape is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from refold.core.progress import Ack, Batch, Delta, Item, Marker, Progress, TokenUsage
from refold.errors import InvalidRecord
from refold.wire.codec import decode, encode
from refold.wire.varint import INT_MAX, INT_MIN, zlong

BATCH: Final = "refold.GenerationBatch"
ACK: Final = "refold.GenerationAck"
MARKER: Final = "refold.GenerationMarker"
RECORD: Final = "refold.GenerationRecord"

#: Between the session's key and the generation's id. Session ids may hold one, generation ids may not.
SEPARATOR: Final = b"#"

_ENDED: Final = ("", "finished", "failed", "stopped")


def decode_item(value: bytes | None) -> Item:
    """The batch, ack or marker in ``value``.

    Raises InvalidRecord: as ``codec.decode`` does, and unknown_subject for a record of another subject.
    """
    decoded = decode(value)
    make = _MAKE.get(decoded.subject)
    if make is None:
        raise InvalidRecord(
            "unknown_subject", f"the record is of subject {decoded.subject}, expected {', '.join(_MAKE)}"
        )
    return make(decoded.record)


def _batch(r: dict[str, Any]) -> Batch:
    usage = r["usage"]
    return Batch(
        r["generation"],
        r["attempt"],
        r["seq"],
        tuple([Delta(d["kind"], d["part"], d["data"], d["call_id"], d["name"]) for d in r["deltas"]]),
        r["finish"],
        None if usage is None else _usage(usage),
        r["usage_mode"],
        r["provider_response_id"],
        r["sent_ms"],
        r["extra"],
    )


def _usage(r: dict[str, Any]) -> TokenUsage:
    return TokenUsage(r["input"], r["output"], r["cached"], r["reasoning"])


def _ack(r: dict[str, Any]) -> Ack:
    return Ack(r["generation"], r["attempt"], r["client"], r["seq"])


def _marker(r: dict[str, Any]) -> Marker:
    return Marker(**r)


_MAKE: Final[dict[str, Callable[[dict[str, Any]], Item]]] = {BATCH: _batch, ACK: _ack, MARKER: _marker}


def encode_item(item: Item) -> bytes:
    """The framed record. Raises UsageError naming a wrong field, InvalidRecord("lone_surrogate")."""
    if isinstance(item, Batch):
        usage = item.usage
        return encode(
            BATCH,
            {
                "generation": item.generation,
                "attempt": item.attempt,
                "seq": item.seq,
                "deltas": [
                    {"kind": kind, "part": part, "data": data, "call_id": call_id, "name": name}
                    for kind, part, data, call_id, name in item.deltas
                ],
                "finish": item.finish,
                "usage": None if usage is None else usage._asdict(),
                "usage_mode": item.usage_mode,
                "provider_response_id": item.provider_response_id,
                "sent_ms": item.sent_ms,
                "extra": item.extra,
            },
        )
    return encode(
        ACK if isinstance(item, Ack) else MARKER, {name: getattr(item, name) for name in item.__slots__}
    )


class BatchWriter:
    """Batches of one attempt, the ordinary ones by hand: what a recorder spends most of its time on.

    Ordinary is a batch of plain deltas, without finish reason, usage or anything else. The bytes are those of
    :func:`encode_item`, which also writes whatever is not ordinary, and everything should the newest schema
    end differently from what is known here.
    """

    __slots__ = ("_attempt", "_generation", "_head")

    def __init__(self, generation: str, attempt: int) -> None:
        self._generation = generation
        self._attempt = attempt
        empty = encode_item(Batch(generation, attempt, 0))
        known = empty.endswith(b"\0\0" + _BEFORE_SENT + b"\0\0")
        #: Frame, generation and attempt; empty when nothing is to be written by hand.
        self._head = empty[: -len(_BEFORE_SENT) - 4] if known else b""

    def encode(
        self,
        seq: int,
        deltas: tuple[Delta, ...],
        finish: str | None,
        usage: TokenUsage | None,
        usage_mode: str,
        provider_response_id: str | None,
        sent_ms: int,
        extra: bytes | None,
    ) -> bytes:
        """As ``encode_item(Batch(generation, attempt, ...))``."""
        if (
            self._head
            and deltas
            and finish is None
            and usage is None
            and provider_response_id is None
            and extra is None
            and usage_mode == "total"
        ):
            pieces = [self._head, zlong(seq), zlong(len(deltas))]
            for kind, part, data, call_id, name in deltas:
                start = _KINDS.get(kind)
                if start is None or call_id is not None or name is not None:
                    break
                if part.__class__ is not int or not INT_MIN <= part <= INT_MAX:
                    break  # refused there by its name
                pieces += (start, zlong(part), zlong(len(data)), data, b"\0\0")
            else:
                pieces += (b"\0", _BEFORE_SENT, zlong(sent_ms), b"\0")
                return b"".join(pieces)
        return encode_item(
            Batch(
                self._generation,
                self._attempt,
                seq,
                deltas,
                finish,
                usage,
                usage_mode,
                provider_response_id,
                sent_ms,
                extra,
            )
        )


#: No finish, no usage, usage_mode "total", no provider_response_id.
_BEFORE_SENT: Final = b"\0\0" + zlong(5) + b"total" + b"\0"

_KINDS: Final = {
    kind: zlong(len(kind)) + kind.encode() for kind in ("text", "reasoning", "refusal", "tool_call", "other")
}


# --- the generation's own record -------------------------------------------------------------------------


def encode_progress(generation_id: str, progress: Progress) -> bytes:
    """The framed GenerationRecord."""
    record: dict[str, Any] = {name: getattr(progress, name) for name in Progress.__slots__}
    record["generation"] = generation_id
    record["usage"] = progress.usage._asdict()
    record["usage_before"] = progress.usage_before._asdict()
    record["acks"] = [
        {"client": client, "seq": seq, "time_ms": time_ms} for client, (seq, time_ms) in progress.acks.items()
    ]
    return encode(RECORD, record)


def decode_progress(value: bytes) -> Progress:
    """The progress in a GenerationRecord; the inverse of :func:`encode_progress`. Raises InvalidRecord."""
    record = decode(value, expect=RECORD).record
    if record["ended"] not in _ENDED:
        raise InvalidRecord("undecodable", f"the bytes are no {RECORD} record: no such end")
    progress = Progress()
    record["usage"] = _usage(record["usage"])
    record["usage_before"] = _usage(record["usage_before"])
    record["acks"] = {a["client"]: (a["seq"], a["time_ms"]) for a in record["acks"]}
    for name in Progress.__slots__:
        setattr(progress, name, record[name])
    return progress


def generation_key(session_key: bytes, generation_id: str) -> bytes:
    """The key of a generation's record, from ``tenant/session``."""
    return session_key + SEPARATOR + generation_id.encode()


def split_generation_key(key: bytes) -> tuple[bytes, str]:
    """(key of the session, generation id). Raises InvalidRecord("bad_key")."""
    session_key, found, generation_id = key.rpartition(SEPARATOR)
    if not found or not session_key or not generation_id:
        raise InvalidRecord("bad_key", "the key is not tenant/session#generation")
    try:
        return session_key, generation_id.decode()
    except UnicodeDecodeError:
        raise InvalidRecord("bad_key", "the generation id in the key is not UTF-8") from None
