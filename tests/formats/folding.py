"""Events through the real fold to a decoded snapshot, so that contexts are tested on what a reader gets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from refold.core.decide import decide
from refold.core.envelope import Actor, Envelope, SessionLink
from refold.core.evolve import evolve
from refold.core.rulings import Accepted, Ruling
from refold.core.session import Session, initial
from refold.formats.sources import NewEvent
from refold.wire.events import decode_event, event_payload
from refold.wire.parts import to_wire
from refold.wire.snapshot import decode_snapshot, encode_snapshot


class Folded:
    """One session; :meth:`append` gives the ruling and applies what was accepted."""

    def __init__(self, session: str = "s") -> None:
        self.state: Session = initial("t", session)
        self._offset = 0

    def append(
        self,
        type_: str,
        payload: Mapping[str, Any],
        *,
        event_id: str | None = None,
        actor: str = "unknown",
        link: SessionLink | None = None,
    ) -> Ruling:
        record = dict(payload)
        if "content" in record:
            record["content"] = [to_wire(part) for part in record["content"]]
        self._offset += 1
        envelope = Envelope(
            event_id or f"e{self._offset}",
            "t",
            self.state.session,
            type_,
            actor=Actor(actor),
            link=link,
            payload=event_payload(type_, record),
        )
        event = decode_event(envelope)
        ruling = decide(self.state, envelope, event, 1_000 + self._offset)
        if isinstance(ruling, Accepted):
            evolve(self.state, ruling.seq, ruling.time_ms, 0, self._offset, envelope, event)
        return ruling

    def add(self, event: NewEvent) -> Ruling:
        return self.append(
            event.type, event.payload, event_id=event.event_id, actor=event.actor, link=event.link
        )

    def snapshot(self) -> dict[str, Any]:
        return decode_snapshot(encode_snapshot(self.state))


def fold_all(events: Iterable[NewEvent], visit: Callable[[int, Folded, Ruling], None]) -> None:
    """Fold imported events one by one; ``visit`` sees the session after each."""
    folded = Folded()
    for at, event in enumerate(events):
        visit(at, folded, folded.add(event))
