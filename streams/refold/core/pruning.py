"""SessionPruned: what a session no longer needs leaves its state. Rule O6.

O6  Off go, as named: paths that are not active (from their last message up to where something else hangs),
    calls, generations and runs that have ended, facts. What is still referred to stays: messages that an open
    call was asked in or an open generation answers, with all before them; calls that a child session, a run
    or a waiting result belongs to. The journal keeps everything, so the beginning of a path and its content
    can be had again (O2, O3); and with it the blobs.

What was pruned is not remembered like what ended: a result that comes again for a pruned call finds no call.
That there was something is: a row under an id that nobody can give a call stands for the pruned ones, so who
is about to run an operation that has no row knows that the journal has to be asked (the SDK does). It leaves
as the other final rows do (L7).
"""

from __future__ import annotations

from refold.core.answering import answered_by
from refold.core.context import forget_messages
from refold.core.generations import is_open
from refold.core.ledger import bound_calls, is_final, touch
from refold.core.limits import (
    BRANCH_MESSAGES_MAX,
    CLOSED_CALLS_MAX,
    FACTS_MAX,
    PRUNED_CALLS,
    QUIET_TOOLS_BYTES,
)
from refold.core.messages import bad_id, bad_reference, place_of
from refold.core.operationevents import SessionPruned
from refold.core.rulings import Duplicate, Rejected
from refold.core.runlife import drop
from refold.core.session import Call, Session
from refold.core.tree import prune_trunks


def rule_pruned(session: Session, event: SessionPruned) -> Duplicate | Rejected | None:
    if not session.exists:
        return Rejected("no_session", "there is no session to prune")
    if len(event.branches) > BRANCH_MESSAGES_MAX or len(event.facts) > FACTS_MAX:
        return Rejected("too_large", "more branches or facts are named than a session holds")
    for name in event.facts:
        wrong = bad_id(name, "the fact's name")
        if wrong is not None:
            return wrong
    kept = _referred(session)
    parents = _parents(session)
    for leaf in event.branches:
        wrong = bad_reference(leaf, "the branch") or _rule_leaf(session, leaf, kept, parents)
        if wrong is not None:
            return wrong
    anything = (
        event.branches
        or any(name in session.facts for name in event.facts)
        or (event.all_branches and _doomed(session, _leaves(session)))
        or (
            event.ended
            and (
                any(not is_open(row) for row in session.generations.values())
                or any(not run.is_open for run in session.runs.values())
                or _ended_calls(session)
            )
        )
    )
    return None if anything else Duplicate(0)


def _rule_leaf(session: Session, leaf: str, kept: frozenset[str], parents: set[str]) -> Rejected | None:
    message = session.branch_messages.get(leaf)
    if message is None:
        if leaf in session.held:
            return Rejected("conflict", "the message is on the active path, pinned or waiting: it stays")
        return Rejected("unknown_message", "no branch ends in a message of this id")
    if leaf in parents:
        return Rejected("conflict", f"other messages follow the one of seq {message.seq}: name the last one")
    if leaf in kept:
        return Rejected("conflict", f"an open call or generation refers to the message of seq {message.seq}")
    return None


def _parents(session: Session) -> set[str]:
    return {m.parent for m in (*session.recent, *session.branch_messages.values())}


def _leaves(session: Session) -> list[str]:
    parents = _parents(session)
    return [name for name in session.branch_messages if name not in parents]


def _referred(session: Session) -> frozenset[str]:
    """Messages that something open refers to. What lies before them hangs under them and stays as well."""
    found = {call.message_id for call in session.calls.values() if not is_final(call)}
    for row in session.generations.values():
        if is_open(row):
            found.add(answered_by(session, row))
    return frozenset(place_of(session, name) for name in found if name)


def _doomed(session: Session, leaves: list[str]) -> list[str]:
    """The messages that leave with these last ones: up to what something else hangs on, or refers to."""
    kept = _referred(session)
    children: dict[str, int] = {}
    for message in (*session.recent, *session.branch_messages.values()):
        children[message.parent] = children.get(message.parent, 0) + 1
    found: list[str] = []
    for leaf in dict.fromkeys(leaves):  # an event may name one twice
        node = session.branch_messages.get(leaf)
        while node is not None and node.id not in kept and not children.get(node.id):
            found.append(node.id)
            children[node.parent] -= 1
            node = session.branch_messages.get(node.parent)
    return found


def _ended_calls(session: Session) -> list[Call]:
    kept = {PRUNED_CALLS, *[child.call for child in session.children]}
    kept.update(name for run in session.runs.values() for name in run.waiting_for)
    kept.update(result.matched for orphan in session.orphans for result in orphan.results)
    return [
        call
        for call in session.calls.values()
        if is_final(call)
        and call.operation_id not in kept
        and (call.call_id is None or call.call_id not in kept)
    ]


def _prune_calls(session: Session, seq: int) -> None:
    gone = _ended_calls(session)
    # From then on the number of rows does not say any more whether keys were dropped: either here or by L7.
    keys_leave = (
        any(call.declared for call in gone)
        or len([call for call in session.calls.values() if is_final(call)]) >= CLOSED_CALLS_MAX
        or session.calls_bytes >= QUIET_TOOLS_BYTES
    )
    for call in gone:
        del session.calls[call.operation_id]
        session.calls_bytes -= call.size
    if gone and keys_leave:
        row = session.calls.get(PRUNED_CALLS)
        if row is None:
            row = session.calls[PRUNED_CALLS] = Call(PRUNED_CALLS, PRUNED_CALLS, seq)
            row.state = "done"
        touch(session, row, seq)
        bound_calls(session)


def apply_pruned(session: Session, seq: int, event: SessionPruned) -> None:
    _prune_branches(session, _leaves(session) if event.all_branches else list(event.branches))
    if event.ended:
        _prune_calls(session, seq)
        for row in [row for row in session.generations.values() if not is_open(row)]:
            del session.generations[row.generation_id]
        for run in [run for run in session.runs.values() if not run.is_open]:
            drop(session, run)
        session.enc_generations = None
    for name in event.facts:
        fact = session.facts.pop(name, None)
        if fact is not None:
            session.facts_bytes -= fact.size
    session.enc_rest = None


def _prune_branches(session: Session, leaves: list[str]) -> None:
    gone = [session.branch_messages.pop(name) for name in _doomed(session, leaves)]
    if not gone:
        return
    session.branch_bytes -= sum([message.size for message in gone])
    forget_messages(session, sorted(gone, key=lambda message: message.seq))
    prune_trunks(session)
    session.enc_branches = session.enc_rest = session.enc_memory = None
