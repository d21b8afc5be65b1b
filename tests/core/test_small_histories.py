"""Every history of four events over a small alphabet: all invariants, and what must never happen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refold.core import Accepted, Session, decide, evolve, initial, well_formed
from refold.core.dedup import ring_find
from refold.core.session import FINAL_STATES
from refold.wire.envelope import decode_envelope, encode_envelope
from refold.wire.events import decode_event
from refold.wire.snapshot import decode_session, encode_snapshot

from .build import (
    SESSION,
    TENANT,
    Inbox,
    call,
    clear_caches,
    event,
    intended,
    message,
    outcome,
    result,
    step,
    text,
)

Make = Callable[[int], tuple[str, dict[str, Any]]]

#: Event number n: new ids by n, references to what may be there.
ALPHABET: dict[str, Make] = {
    "user": lambda n: message(f"m{n}"),
    "call": lambda n: message(f"m{n}", "assistant", [call("c", operation_id="op")]),
    "plain call": lambda n: message(f"m{n}", "assistant", [call("c"), call("d")]),
    "result": lambda n: message(f"m{n}", "tool", [result("c")]),
    "two results": lambda n: message(f"m{n}", "tool", [result("c"), result("d", "e", is_error=True)]),
    "mixed": lambda n: message(f"m{n}", "user", [result("c"), text("and")]),
    "edit": lambda n: message(f"m{n}", replaces=f"m{max(0, n - 1)}"),
    "sibling": lambda n: message(f"m{n}", "assistant", parent_id=f"m{max(0, n - 2)}"),
    "root": lambda n: message(f"m{n}", parent_id=""),
    "system": lambda n: message(f"m{n}", "system"),
    "intended": lambda n: intended("op", "c"),
    "started": lambda n: step("ToolCallStarted", "op"),
    "done": lambda n: outcome("op", "c"),
    "failed": lambda n: outcome(None, "c", failed=True),
    "unknown": lambda n: step("ToolCallOutcomeUnknown", "op"),
    "summary": lambda n: event("ContextSummarized", text="s", through_message_id=f"m{max(0, n - 1)}"),
    "switch": lambda n: event("BranchSwitched", head_message_id=f"m{max(0, n - 2)}"),
    "closed": lambda n: event("SessionClosed"),
    "deleted": lambda n: event("SessionDeleted"),
}
LONGEST = 4


def test_every_history_of_four_events() -> None:
    inbox = Inbox()
    prepared = {}
    for n in range(LONGEST):
        for name, make in ALPHABET.items():
            env = decode_envelope(encode_envelope(inbox.envelope(*make(n), event_id=f"{name}/{n}")))
            prepared[n, name] = (env, decode_event(env))
    # A window of two messages, so that four events reach its edge.
    opened = inbox.envelope("SessionOpened", {"window_messages": 2}, event_id="open")
    opened = decode_envelope(encode_envelope(opened))
    session = initial(TENANT, SESSION)
    evolve(session, 1, 1000, 3, 0, opened, decode_event(opened))
    states: list[tuple[bytes, tuple[str, ...]]] = [(encode_snapshot(session), ())]
    accepted = 0
    for n in range(LONGEST):
        following: list[tuple[bytes, tuple[str, ...]]] = []
        for state, path in states:
            for name in ALPHABET:
                session = decode_session(state) if state else initial(TENANT, SESSION)
                finals = {c.operation_id: c.state for c in session.calls.values() if c.state in FINAL_STATES}
                env, decoded = prepared[n, name]
                ruling = decide(session, env, decoded, 1000)
                if not isinstance(ruling, Accepted):
                    continue
                accepted += 1
                at = (*path, name)
                evolve(session, ruling.seq, ruling.time_ms, 3, n + 1, env, decoded)
                well_formed(session)
                value = encode_snapshot(session) if session.exists else b""
                if n + 1 < LONGEST:
                    following.append((value, at))
                if session.exists:
                    clear_caches(session)
                    assert encode_snapshot(session) == value, at
                    _never(session, decoded, env.event_id, finals, at)
                    again = decide(session, env, decoded, 1000)
                    assert not isinstance(again, Accepted), at
        states = following
    assert accepted > 30_000


def _never(
    session: Session, decoded: Any, event_id: str, finals: dict[str, str], at: tuple[str, ...]
) -> None:
    for operation_id, state in finals.items():
        row = session.calls.get(operation_id)
        # L3: the first final status stays. (A row may have got its real operation id.)
        if row is not None:
            assert row.state == state, at
    # Nothing is lost without a trace: an accepted message is held or remembered.
    if hasattr(decoded, "message_id") and hasattr(decoded, "role"):
        held = decoded.message_id in session.held
        assert held or ring_find(session.message_ids, decoded.message_id) >= 0, at
    # W6: no result is shown twice on the active path.
    shown = [m.answers for m in session.recent if m.from_tool_event]
    assert len(shown) == len(set(shown)), at
    assert ring_find(session.event_ids, event_id) >= 0, at
