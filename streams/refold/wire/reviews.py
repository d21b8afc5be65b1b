"""Records of the review topic: ReviewItem <-> bytes, and their keys."""

from __future__ import annotations

from typing import Final

from refold.core.reviews import ReviewItem
from refold.errors import InvalidRecord
from refold.wire.codec import decode, encode

SUBJECT: Final = "refold.ReviewItem"


def encode_review(item: ReviewItem) -> bytes:
    """The framed record."""
    return encode(SUBJECT, item._asdict())


def decode_review(value: bytes) -> ReviewItem:
    """The item in a record of the review topic. Raises InvalidRecord."""
    record = decode(value, expect=SUBJECT).record
    if record["kind"] not in ("unknown", "approval", "run"):
        raise InvalidRecord("undecodable", f"the bytes are no {SUBJECT} record: no such kind")
    return ReviewItem(**record)


def review_key(session_key: bytes, name: str) -> bytes:
    """The key of an item, from ``tenant/session`` and what waits: an operation id, or RUN_REVIEW and a run's.
    Not to be split: operation ids may hold a ``#``."""
    return session_key + b"#" + name.encode()
