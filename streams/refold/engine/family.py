"""Children follow their parent (rule Y4): the transaction that closes or deletes a session appends the same
event to its children's inboxes, on whatever partition those are.

The event's id names the parent's seq, so making it again makes the same bytes, and a child takes it once. The
outputs belong to the parent's event, and are taken back with it (``Output.session``).
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

from refold.core.children import followers
from refold.core.envelope import Envelope
from refold.core.events import Event, SessionClosed, SessionDeleted
from refold.core.life import is_closed
from refold.core.policystate import Child
from refold.core.run_events import TimerFired
from refold.core.session import Session
from refold.core.slots import make_key
from refold.engine import recordheaders
from refold.engine.made import WORKER
from refold.engine.overlay import Output
from refold.engine.stepview import StepView
from refold.wire.codec import encode
from refold.wire.envelope import encode_envelope

#: What may close or delete a session.
_ENDING: Final[frozenset[type]] = frozenset({SessionClosed, SessionDeleted, TimerFired})

#: Of the parent key's SHA-256, in an event id.
_HASH_DIGITS: Final = 16

_REASONS: Final = {
    "SessionClosed": "the parent session was closed",
    "SessionDeleted": "the parent session was deleted",
}


class Family(NamedTuple):
    """A session's children, and whether it was closed, before an event."""

    children: list[Child]
    closed: bool


def before(session: Session, event: Event) -> Family | None:
    """None: nothing follows from this event, whatever it does."""
    if not session.children or type(event) not in _ENDING:
        return None
    children = followers(session.children)
    return Family(children, is_closed(session)) if children else None


def outputs(
    view: StepView, key: bytes, was: Family, session: Session, seq: int, time_ms: int, cause: str
) -> tuple[Output, ...]:
    """``session``: after event ``seq``, whose id is ``cause``."""
    if session.exists:
        if was.closed or not is_closed(session):
            return ()
        kind = "SessionClosed"
    else:
        kind = "SessionDeleted"
    payload = encode(f"refold.event.{kind}", {"reason": _REASONS[kind]})
    digest = hashlib.sha256(key).hexdigest()[:_HASH_DIGITS]
    headers = recordheaders.journal(None, kind)
    found = []
    for child in was.children:
        env = Envelope(
            event_id=f"link/{seq}/{digest}",
            tenant=session.tenant,
            session=child.session,
            type=kind,
            event_time_ms=time_ms,
            actor=WORKER,
            causation_id=cause,
            payload=payload,
        )
        where = make_key(session.tenant, child.session)
        found.append(
            Output(view.topics.inbox, view.partition_of(where), where, encode_envelope(env), headers, key)
        )
    return tuple(found)
