"""A fleet in the middle of a rollout: some processes are of the release before and write state records of the
version before.

Modelled: what the older release *writes*, wherever it could have written it (version 2 of the snapshot has
no runs, timers and whatever came with them). It reads and decides like the newer one, so a session goes from
hand to hand between the two.
"""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Final

from refold.core.session import Session
from refold.wire.codec import decode
from refold.wire.schemas import registry
from refold.wire.snapshot import SUBJECT, decode_session, encode_snapshot

from .kernel import Kernel

OLD_VERSION: Final = 2


def older(value: bytes) -> bytes | None:
    """A state record as the release before wrote it; ``None`` where it could not have."""
    entry = registry().get(SUBJECT, OLD_VERSION)
    record = decode(value, expect=SUBJECT).record
    known = {field["name"] for field in entry.schema["fields"]}
    if any(content for name, content in record.items() if name not in known):
        return None
    pieces = [entry.frame]
    entry.write(pieces.append, {name: record[name] for name in known} | {"version": OLD_VERSION})
    return b"".join(pieces)


@lru_cache(maxsize=1_024)
def _newer(value: bytes) -> bytes:
    return encode_snapshot(decode_session(value))


def newest(value: bytes | None) -> bytes | None:
    """The record as the newest release writes it: what is compared byte for byte."""
    if value is None or not value.startswith(registry().get(SUBJECT, OLD_VERSION).frame):
        return value
    return _newer(value)


class Builds:
    """``encode_snapshot`` of whichever process calls."""

    def __init__(self, kernel: Kernel, happened: Counter[str]) -> None:
        self._kernel = kernel
        self._happened = happened

    def encode_snapshot(self, session: Session) -> bytes:
        value = encode_snapshot(session)
        process = self._kernel.caller
        written = older(value) if process is not None and process.old_build else None
        if written is None:
            return value
        self._happened["written by an old build"] += 1
        return written
