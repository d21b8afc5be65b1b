"""What calls gave: matching results to rows, and putting the messages that show them in their place.

Every result is shown in the context exactly once (W6): as the message a producer appended, or, for a result
that came as a tool event, as a message made from it (``from_tool_event``). When a producer then also appends
the message, it takes the made one's place. A message of nothing but results belongs to its calls' place:

- calls held in the tree: after the head where they are on that path, else right after them;
- calls not known, or their message not here yet: it waits as an orphan (L6);
- calls trimmed: it joins them in the summary range (W2).
"""

from __future__ import annotations

from refold.core.context import append_recent, forget_messages
from refold.core.events import MessageAppended, ResultPart, ToolCallCompleted, ToolCallFailed
from refold.core.ledger import find_newest_call, finish, is_final, touch
from refold.core.limits import ANSWERS_MAX
from refold.core.messagestate import Message
from refold.core.orphans import hold, release_orphan
from refold.core.rulings import Duplicate, Rejected
from refold.core.session import Call, CallState, OrphanResult, Session
from refold.core.tree import (
    activate,
    add_alias,
    first_whole,
    insert_after_call,
    path_to,
    resolve,
    tree_message,
)

Match = tuple[ResultPart, "Call | None"]


def match_results(session: Session, results: tuple[ResultPart, ...]) -> list[Match]:
    """The row of each result (L2), each open row taken at most once, final rows where nothing is open."""
    used: set[str] = set()
    matches: list[Match] = []
    for part in results:
        call = _open_call(session, part.call_id, used) or find_newest_call(session, part.call_id)
        if call is not None:
            used.add(call.operation_id)
        matches.append((part, call))
    return matches


def _open_call(session: Session, call_id: str, used: set[str]) -> Call | None:
    """The newest open row of this call id; of several from one message the first asked."""
    found: Call | None = None
    for call in reversed(session.calls.values()):
        if call.call_id == call_id and not is_final(call) and call.operation_id not in used:
            if found is not None and call.intended_seq != found.intended_seq:
                break
            found = call
    return found


def _made_message(session: Session, call: Call) -> Message | None:
    """The message made from the event that closed the row, while it is held in the tree."""
    if not call.result_seq:
        return None
    for message in (*session.recent, *session.branch_messages.values()):
        if message.seq == call.result_seq:
            return message if message.from_tool_event else None
    return None


def agrees(call: Call, is_error: bool) -> bool:
    """Does a result message say the same as the row's final status?"""
    return call.is_error == is_error if call.state == "done" else is_error


def takes(session: Session, call: Call | None, part: ResultPart) -> bool:
    """Does the result say something new: a first outcome, or the first message that shows one?"""
    if call is None or (not is_final(call) and call.state != "unknown"):
        return True
    if call.result_seq == 0:
        return call.state == "unknown" or agrees(call, part.is_error)
    return _made_message(session, call) is not None and agrees(call, part.is_error)


def rule_results(session: Session, event: MessageAppended) -> Duplicate | Rejected | None:
    """L3 for a message of nothing but results: news, a repeat, or another status."""
    matches = match_results(session, event.results)
    for part, call in matches:
        if takes(session, call, part):
            return None
    for part, call in matches:
        if call is not None and call.state != "unknown" and not agrees(call, part.is_error):
            return Rejected("already_final", f"the call is {call.state} since seq {call.updated_seq}")
    first = matches[0][1]
    return Duplicate(first.result_seq if first is not None else 0)


def apply_results(session: Session, message: Message, event: MessageAppended) -> None:
    """Close rows by a message's results; put the message in its place when it is nothing but results.

    A message that also holds other content has its place already (it is in ``recent``).
    """
    matches = match_results(session, event.results)
    replaced: list[Message] = []
    waiting: list[OrphanResult] = []
    for part, call in matches:
        if call is None:
            waiting.append(OrphanResult(None, part.call_id, "done", part.is_error, part.summary, None, None))
            continue
        if takes(session, call, part):
            made = _made_message(session, call)
            if made is not None:
                replaced.append(made)
            if is_final(call) or call.state == "unknown":
                call.result_seq = message.seq
                touch(session, call, message.seq)
            else:
                call.result_seq = message.seq
                finish(session, call, message.seq, "done", is_error=part.is_error, summary=part.summary)
        waiting.append(
            OrphanResult(None, part.call_id, "done", part.is_error, None, None, None, call.operation_id)
        )
    calls = [call for _, call in matches if call is not None]
    _set_answers(session, message, calls)
    if not event.only_results:
        # It has its place for its other content's sake; only calls on its path bind it (W2).
        on_path = {m.seq for m in session.recent}
        message.answers = tuple(seq for seq in message.answers if seq in on_path)
        return
    if replaced:
        _replace(session, message, replaced)
    elif len(calls) < len(matches) or any(c.message_seq == 0 for c in calls):
        hold(session, message, waiting)
    else:
        place_result(session, message, event.parent_id)


def apply_outcome(
    session: Session, seq: int, message: Message, call: Call | None, event: ToolCallCompleted
) -> None:
    """ToolCallCompleted or ToolCallFailed: close the row and show the result (W6)."""
    state: CallState = "failed" if isinstance(event, ToolCallFailed) else "done"
    if call is None:
        result = OrphanResult(
            event.operation_id,
            event.call_id,
            state,
            event.is_error,
            event.summary,
            event.error_code,
            event.error,
        )
        hold(session, message, [result])
        return
    if event.attempt is not None:
        call.attempt = event.attempt
    shown = call.result_seq != 0
    if not shown:
        call.result_seq = seq
    finish(
        session,
        call,
        seq,
        state,
        is_error=event.is_error,
        summary=event.summary,
        error_code=event.error_code,
        error=event.error,
    )
    if shown:
        return
    if call.message_seq == 0:
        matched = OrphanResult(
            event.operation_id, event.call_id, state, event.is_error, None, None, None, call.operation_id
        )
        hold(session, message, [matched])
        return
    _set_answers(session, message, [call])
    place_result(session, message, None)


def _set_answers(session: Session, message: Message, calls: list[Call]) -> None:
    seqs = sorted({c.message_seq for c in calls if c.message_seq and c.message_seq != message.seq})
    message.answers = tuple(seqs[-ANSWERS_MAX:])
    if seqs:
        session.answering = True


def place_result(session: Session, message: Message, parent_id: str | None) -> None:
    """A message of results whose calls' messages are all known; see the module's list."""
    held = {m.seq for m in session.recent}
    active = [seq for seq in message.answers if seq in held]
    others = [m.seq for m in session.branch_messages.values() if m.seq in message.answers]
    # Calls on two paths: the active one is shown.
    message.answers = tuple(sorted(active or others))
    if not message.answers:
        _into_range(session, message, parent_id)
        return
    parent = session.head if parent_id is None else resolve(session, parent_id)
    if parent == session.head and active:
        message.parent = parent
        append_recent(session, message)
        return
    if parent_id is not None and tree_message(session, parent) is not None:
        path = path_to(session, parent)
        on_path = {m.seq for m in path[first_whole(path) :]}
        if on_path.issuperset(message.answers):
            activate(session, parent)
            message.parent = parent
            append_recent(session, message)
            return
    insert_after_call(session, message)


def _into_range(session: Session, message: Message, parent_id: str | None) -> None:
    """Its calls were trimmed: it belongs where they are (W2). The journal has it at its seq."""
    place = session.head if parent_id is None else resolve(session, parent_id)
    add_alias(session, message.id, place)
    session.uncovered += 1
    forget_messages(session, (message,))


def _replace(session: Session, message: Message, made: list[Message]) -> None:
    """The appended message takes the place of the first made one; further made ones leave."""
    first, *rest = made
    for gone in rest:
        _swap(session, gone, None)
    _swap(session, first, message)
    session.held[message.id] = message
    session.enc_branches = session.enc_rest = session.enc_memory = None


def _swap(session: Session, old: Message, new: Message | None) -> None:
    """``old`` leaves the tree; ``new`` stands in its place, or nothing does and its children move up."""
    place = old.parent if new is None else new.id
    if new is not None:
        new.parent = old.parent
    if old.id in session.branch_messages:
        session.branch_bytes -= old.size
        items = [(k, m) for k, m in session.branch_messages.items() if k != old.id]
        if new is not None:
            items.append((new.id, new))
            session.branch_bytes += new.size
        session.branch_messages = dict(sorted(items, key=lambda item: item[1].seq))
    else:
        at = session.recent.index(old)
        session.recent[at : at + 1] = [] if new is None else [new]
        session.recent_bytes += (new.size if new is not None else 0) - old.size
        if session.head == old.id:
            session.head = place
    for child in (*session.recent, *session.branch_messages.values()):
        if child.parent == old.id and child is not new:
            child.altered()
            child.parent = place
    session.held.pop(old.id, None)
    add_alias(session, old.id, place)


def join_orphans(session: Session, calls: list[Call], seq: int) -> None:
    """L6: rows were opened or joined; results that waited for them close them and find their place."""
    for call in calls:
        if not is_final(call):
            _join(session, call, seq)
    for orphan in list(session.orphans):
        rows = [session.calls.get(r.matched) if r.matched else None for r in orphan.results]
        if not all(row is not None and row.message_seq for row in rows):
            continue
        message = orphan.message
        release_orphan(session, orphan, forget=False)
        session.held.pop(message.id, None)
        session.aliases.pop(message.id, None)
        _set_answers(session, message, [row for row in rows if row is not None])
        active = {m.seq for m in session.recent}.intersection(message.answers)
        others = {m.seq for m in session.branch_messages.values()}.intersection(message.answers)
        message.answers = tuple(sorted(active or others))
        if message.answers:
            insert_after_call(session, message)
        else:
            _into_range(session, message, None)


def _join(session: Session, call: Call, seq: int) -> None:
    for orphan in session.orphans:
        for result in orphan.results:
            if result.matched:
                continue
            by_operation = result.operation_id is not None and result.operation_id == call.operation_id
            by_call_id = result.call_id is not None and result.call_id == call.call_id
            if by_operation or (by_call_id and (result.operation_id is None or not call.declared)):
                result.matched = call.operation_id
                call.result_seq = orphan.message.seq
                finish(
                    session,
                    call,
                    seq,
                    result.state,
                    is_error=result.is_error,
                    summary=result.summary,
                    error_code=result.error_code,
                    error=result.error,
                )
                session.enc_memory = None
                return
