"""An event as a reader has it, folded by the code of the worker."""

from __future__ import annotations

from refold.client.events import SessionEvent
from refold.core.events import Event
from refold.core.evolve import evolve
from refold.core.session import Session
from refold.wire.events import decode_event


def fold_event(state: Session, event: SessionEvent, decoded: Event | None = None) -> None:
    """Change ``state`` as the worker did. ``decoded``: what the envelope holds, where the caller has it."""
    evolve(
        state,
        event.seq,
        event.time_ms,
        event.inbox_partition,
        event.inbox_offset,
        event.envelope,
        decode_event(event.envelope) if decoded is None else decoded,
    )
