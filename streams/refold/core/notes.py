"""What the ruling on an accepted event tells its writer besides the seq: that it names what the session does
not hold. The event is taken all the same, because what it names may come later (B3, L6); but a mistyped id
looks the same, and shows nowhere in the context.

A note is no part of the state and of no record: the owner tells it while it remembers the ruling.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias

from refold.core.events import Event, MessageAppended, ToolCallCompleted
from refold.core.ledger import find_outcome_call
from refold.core.messages import place_of
from refold.core.results import match_results
from refold.core.session import Session
from refold.core.tree import tree_message

Note: TypeAlias = Literal["no_call", "no_parent"]

#: Wire contract like the reject codes: a note is never renamed or given another meaning.
NOTES: Final[Mapping[Note, str]] = {
    "no_call": "the session has no call of the id that a result names: until one comes, no model is shown"
    " that result, and one that names its call by a call id alone is given up with the next user message",
    "no_parent": "the session's state does not hold the parent: where its journal has no such message either,"
    " nothing that was said before is in the context",
}


def note_on(session: Session, event: Event) -> Note | None:
    """Of an event that is going to be accepted; the session is as it was before. Changes nothing."""
    if type(event) is MessageAppended:
        if event.results:
            own = {call.call_id for call in event.calls}
            for part, call in match_results(session, event.results):
                if call is None and part.call_id not in own:
                    return "no_call"
        if event.parent_id:
            place = place_of(session, event.parent_id)
            # "": under a pinned message that begins the session.
            if place and place != session.head and tree_message(session, place) is None:
                return "no_parent"
        return None
    # Failures are a kind of it.
    if not isinstance(event, ToolCallCompleted):
        return None
    return None if find_outcome_call(session, event.operation_id, event.call_id) else "no_call"
