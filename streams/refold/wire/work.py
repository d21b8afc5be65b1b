"""Records of the work topic: WorkItem <-> bytes, and their keys."""

from __future__ import annotations

from typing import Final

from refold.core.work import WorkItem
from refold.errors import InvalidRecord
from refold.wire.codec import decode, encode

SUBJECT: Final = "refold.WorkItem"


def encode_work(item: WorkItem) -> bytes:
    """The framed record."""
    return encode(SUBJECT, item._asdict())


def decode_work(value: bytes) -> WorkItem:
    """The item in a record of the work topic. Raises InvalidRecord."""
    record = decode(value, expect=SUBJECT).record
    if record["kind"] not in ("run", "summary"):
        raise InvalidRecord("undecodable", f"the bytes are no {SUBJECT} record: no such kind")
    return WorkItem(**record)


def work_key(session_key: bytes, name: str) -> bytes:
    """The key of an item, from ``tenant/session`` and a run id or ``@summary``."""
    return session_key + b"#" + name.encode()


def split_work_key(key: bytes) -> tuple[bytes, str]:
    """(session key, name): the inverse of :func:`work_key`; a run id holds no ``#``. Raises InvalidRecord."""
    session_key, mark, name = key.rpartition(b"#")
    if not mark or not session_key or not name:
        raise InvalidRecord("bad_key", "the key is not tenant/session#run")
    try:
        return session_key, name.decode()
    except UnicodeDecodeError:
        raise InvalidRecord("bad_key", "the key is not UTF-8") from None
