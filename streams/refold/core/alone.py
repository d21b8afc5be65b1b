"""What is wrong with an event whatever the state of its session: a writer asks before it sends.

The fold's own rules, asked about a session that has nothing yet. What such a session is refused for its ids,
sizes and values, every session is refused for. The converse does not hold: some rules first ask for the row
an event speaks of, so what passes here may still be refused.
"""

from __future__ import annotations

from typing import Final

from refold.core.calls import bad_start
from refold.core.decide import rule_any, rule_envelope
from refold.core.envelope import Envelope
from refold.core.events import Event, ToolCallStarted
from refold.core.rulings import Rejected
from refold.core.session import initial

#: Of these types the codes below never depend on a session. (A fork's base and a reducer's part do.)
TYPES: Final = frozenset(
    {
        "MessageAppended",
        "ContextSummarized",
        "FactSet",
        "FactRemoved",
        "SessionOpened",
        "SessionConfigured",
        "ToolCallIntended",
        "ToolCallStarted",
        "ToolCallCompleted",
        "ToolCallFailed",
        "GenerationStarted",
        "RunStarted",
        "UsageRecorded",
        "UsageAdmitted",
        "UsageReleased",
    }
)
CODES: Final = frozenset({"bad_id", "bad_value", "bad_json", "too_large"})


def wrong_alone(env: Envelope, event: Event | None) -> Rejected | None:
    """``event``: the decoded payload of one of ``TYPES``; ``None``: only the envelope is looked at."""
    wrong = rule_envelope(env)
    if wrong is not None or event is None:
        return wrong
    if isinstance(event, ToolCallStarted):
        found = bad_start(event)
    else:
        ruled = rule_any(initial(env.tenant, env.session), event, 0)
        found = ruled if isinstance(ruled, Rejected) else None
    return found if found is not None and found.code in CODES else None
