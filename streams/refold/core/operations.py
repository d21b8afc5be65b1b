"""Which module an event of a session operation belongs to."""

from __future__ import annotations

from refold.core.forks import apply_forked, rule_forked
from refold.core.operationevents import ContextRestored, OperationEvent, SessionForked
from refold.core.pruning import apply_pruned, rule_pruned
from refold.core.restoring import apply_restored, rule_restored
from refold.core.rulings import Duplicate, Rejected
from refold.core.session import Session


def rule_operation(session: Session, event: OperationEvent) -> Duplicate | Rejected | None:
    if isinstance(event, SessionForked):
        return rule_forked(session, event)
    if isinstance(event, ContextRestored):
        return rule_restored(session, event)
    return rule_pruned(session, event)


def apply_operation(session: Session, seq: int, event: OperationEvent) -> None:
    if isinstance(event, SessionForked):
        apply_forked(session, seq, event)
    elif isinstance(event, ContextRestored):
        apply_restored(session, event)
    else:
        apply_pruned(session, seq, event)
