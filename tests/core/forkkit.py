"""Forks for tests: a base as the SDK makes it, and an inbox that begins with it."""

from __future__ import annotations

from typing import Any

from refold.core import initial
from refold.core.forkbase import strip
from refold.core.session import Session
from refold.wire.snapshot import decode_session, encode_snapshot

from .build import TENANT, Inbox, event

FORK = "fork-1"


def base_session(session: Session) -> Session:
    base = decode_session(encode_snapshot(session))
    strip(base)
    return base


def forked(origin: Session, base: Session | bytes | None = None, **fields: Any) -> tuple[str, dict[str, Any]]:
    made = base_session(origin) if base is None else base
    data = made if isinstance(made, bytes) else encode_snapshot(made)
    return event(
        "SessionForked", **{"source": origin.session, "source_seq": origin.seq, "base": data, **fields}
    )


def fork(source: Inbox, name: str = FORK) -> Inbox:
    inbox = Inbox(initial(TENANT, name))
    inbox.clock = source.clock
    return inbox.ok(forked(source.session))
