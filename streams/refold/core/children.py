"""Sessions that belong to this one: rule Y4 (docs/concepts/context-policy.md).

Y4  A child session answers a call of its parent and has a context of its own; ``ChildLinked`` in the parent's
    journal says so, once per session; a link that was made before anybody knew the call may learn it.
    Closing and deleting follow the link of a child, not that of a fork: whoever carries out the effects
    appends the same event to the children, in the transaction of the parent's. Rows stay as long as the
    session: who is not in the list is not deleted with it. So a list that is full refuses, and forgets
    nobody.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, cast

from refold.core.limits import CHILD_ROW_BYTES, CHILDREN_BYTES_MAX, CHILDREN_MAX
from refold.core.messages import bad_id, bad_reference
from refold.core.policystate import CHILD_KINDS, Child, ChildKind
from refold.core.rulings import Duplicate, Rejected
from refold.core.session import Session
from refold.core.sessionevents import ChildLinked
from refold.core.slots import KEY_BYTES_MAX

#: What an event does to the children.
Following: TypeAlias = Literal["SessionClosed", "SessionDeleted"]


def child_bytes(child: Child | ChildLinked) -> int:
    """What a row counts as."""
    call = child.call or ""
    return len(child.session.encode()) + len(call.encode()) + CHILD_ROW_BYTES


def rule_child(session: Session, event: ChildLinked) -> Duplicate | Rejected | None:
    wrong = bad_id(event.session, "the linked session")
    if wrong is None and event.call is not None:
        wrong = bad_reference(event.call, "the linked call")
    if wrong is not None:
        return wrong
    if len(f"{session.tenant}/{event.session}".encode()) > KEY_BYTES_MAX:
        return Rejected("bad_id", f"with the tenant, the linked session's id is above {KEY_BYTES_MAX} bytes")
    if event.kind not in CHILD_KINDS:
        return Rejected("bad_value", f"the kind of a link must be one of {', '.join(CHILD_KINDS)}")
    if event.session == session.session:
        return Rejected("bad_value", "a session is not its own child")
    for child in session.children:
        if child.session == event.session:
            if child.kind == event.kind and event.call in (child.call, None):
                return Duplicate(child.seq)
            if child.kind == event.kind and child.call is None:
                return _rule_room(session, event, child)
            return Rejected("conflict", f"the session was linked otherwise at seq {child.seq}")
    return _rule_room(session, event, None)


def _rule_room(session: Session, event: ChildLinked, instead: Child | None) -> Rejected | None:
    """Room for the row, in the place of ``instead``."""
    kept = [child for child in session.children if child is not instead]
    used = sum([child_bytes(child) for child in kept])
    if len(kept) >= CHILDREN_MAX or used + child_bytes(event) > CHILDREN_BYTES_MAX:
        return Rejected("children_full", f"{len(kept)} sessions are linked to this one")
    return None


def apply_child(session: Session, seq: int, event: ChildLinked) -> None:
    # A new list: who looked at the old one before an event compares with it after.
    session.children = [
        *[child for child in session.children if child.session != event.session],
        Child(event.session, cast("ChildKind", event.kind), event.call, seq),
    ]
    session.enc_tail = None


def followers(children: list[Child]) -> list[Child]:
    """Those that are closed and deleted with their parent."""
    return [child for child in children if child.kind == "child"]
