"""The tool ledger: one row per call, opened by whichever says so first, closed once.

Labels (docs/concepts/session.md):

L1  A row is opened by a ``tool_call`` part or by ToolCallIntended, whichever comes first, and joined by the
    other: by operation id, else the newest open row of that call id that the other kind has not joined.
L2  A result belongs to the row with its operation id, else to the newest open row with its call id. So an id
    used again in a later turn makes a second row, and each result its own (D07).
L3  The first final status stays. The same again is a duplicate, another one ``already_final``. ``unknown`` is
    not final: evidence that the call ran (ToolCallCompleted) or an authoritative "it had no effect"
    (ToolCallFailed with ``reconciled``) resolves it; nothing else does.
L4  A result proves that the call ran: it is taken from ``intended`` and ``awaiting_approval`` too, because
    refusing it would leave a row that says "never ran" about a call that did.
L5  ``started`` is granted once, never while approval is missing, never in a closed session.
L6  A result before its call waits as an orphan, is never in the context, and is joined when the call comes.
L7  Open rows are never dropped; final rows go oldest first, past CLOSED_CALLS_MAX or TOOLS_BYTES_MAX.
    Only rows known from transcripts alone, whose message has left the window, make room when all are open.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from refold.core.events import CallPart, ToolCallIntended
from refold.core.jsontext import is_valid_json
from refold.core.limits import (
    ARGUMENTS_INLINE_BYTES_MAX,
    CLOSED_CALLS_MAX,
    ERROR_BYTES_MAX,
    ERROR_CODE_BYTES_MAX,
    OPEN_CALLS_MAX,
    RESULT_SUMMARY_BYTES_MAX,
    TOOLS_BYTES_MAX,
)
from refold.core.orphans import release_matched
from refold.core.session import FINAL_STATES, Call, CallState, Session
from refold.core.texts import clip

#: Fixed part of a row's encoding: numbers and flags, at most (see limits.CALL_ROW_BYTES).
ROW_FIXED_BYTES = 200


def is_final(call: Call) -> bool:
    return call.state in FINAL_STATES


def touch(session: Session, call: Call, seq: int) -> None:
    """The row changed: recount its bytes and drop what was encoded of it."""
    size = ROW_FIXED_BYTES
    for text in (
        call.operation_id,
        call.call_id,
        call.message_id,
        call.tool,
        call.arguments,
        call.effect,
        call.holder,
        call.result_summary,
        call.error_code,
        call.error,
    ):
        if text:
            size += len(text.encode()) + 3
    session.calls_bytes += size - call.size
    call.size = size
    call.updated_seq = seq
    call.enc = None
    session.enc_rest = None


def find_outcome_call(session: Session, operation_id: str | None, call_id: str | None) -> Call | None:
    """L2 for a tool event: by operation id, else the newest open row of the call id, else the newest row.

    An operation id nobody declared may belong to a call that the transcript alone knows by its call id.
    """
    if operation_id is not None:
        call = session.calls.get(operation_id)
        if call is not None:
            return call
    if call_id is None:
        return None
    newest: Call | None = None
    for call in reversed(session.calls.values()):
        if call.call_id != call_id or (operation_id is not None and call.declared):
            continue
        if not is_final(call):
            return call
        if newest is None and operation_id is None:
            newest = call
    return newest


def find_newest_call(session: Session, call_id: str) -> Call | None:
    """The newest row of a call id, whatever its state."""
    for call in reversed(session.calls.values()):
        if call.call_id == call_id:
            return call
    return None


def set_arguments(call: Call, arguments: str) -> None:
    """Raw text as it came; flagged when it is not JSON, elided when it is long (D08, D23)."""
    data = arguments.encode()
    call.arguments_length = len(data)
    call.arguments_valid = is_valid_json(arguments)
    if len(data) > ARGUMENTS_INLINE_BYTES_MAX:
        _elide_arguments(call, arguments)
    else:
        call.arguments = arguments
        call.arguments_sha256 = None


def _set_given(call: Call, event: ToolCallIntended) -> None:
    """Arguments that are kept outside are as much left out as long ones are."""
    ref = event.arguments_ref
    if ref is None:
        set_arguments(call, event.arguments)
        return
    call.arguments_length, call.arguments_sha256 = ref.length, ref.sha256
    call.arguments_valid = event.arguments_valid
    call.arguments = None


def same_arguments(call: Call, event: ToolCallIntended) -> bool:
    """Whether the row was opened with these, as far as it says."""
    ref = event.arguments_ref
    data = b"" if ref is not None else event.arguments.encode()
    if call.arguments_length != (len(data) if ref is None else ref.length):
        return False
    if call.arguments is not None:
        return ref is None and call.arguments == event.arguments
    return call.arguments_sha256 == (sha256(data).hexdigest() if ref is None else ref.sha256)


def _elide_arguments(call: Call, arguments: str) -> None:
    call.arguments = None
    call.arguments_sha256 = sha256(arguments.encode()).hexdigest()


def joinable_part(session: Session, part: CallPart) -> Call | None:
    """The row a message's call part joins (L1): declared by an event, not asked for by a message yet."""
    if part.operation_id is not None:
        call = session.calls.get(part.operation_id)
        return call if call is not None and call.message_seq == 0 else None
    for call in reversed(session.calls.values()):
        if call.call_id == part.call_id and call.declared and call.message_seq == 0:
            return call
    return None


def joinable_intent(session: Session, event: ToolCallIntended) -> Call | None:
    """The row ToolCallIntended joins (L1): open, known from a message's part, not declared yet."""
    call = session.calls.get(event.operation_id)
    if call is not None:
        return None if call.declared else call
    if event.call_id is None:
        return None
    for call in reversed(session.calls.values()):
        if (
            call.call_id == event.call_id
            and not call.declared
            and not is_final(call)
            and call.operation_id.startswith("@")
            and (event.message_id is None or call.message_id == event.message_id)
        ):
            return call
    return None


def open_part(session: Session, seq: int, message_id: str, index: int, part: CallPart) -> Call:
    """A row for a call part of the message at ``seq``: joined or new."""
    call = joinable_part(session, part)
    if call is None:
        operation_id = part.operation_id
        if operation_id is None or operation_id in session.calls:
            operation_id = f"@{seq}.{index}"
        call = _new(session, operation_id, part.tool, seq)
        call.call_id = part.call_id
        set_arguments(call, part.arguments)
    elif call.call_id is None:
        call.call_id = part.call_id
    call.message_id = message_id
    call.message_seq = seq
    call.order = index
    touch(session, call, seq)
    return call


def open_intent(session: Session, seq: int, event: ToolCallIntended) -> Call:
    call = joinable_intent(session, event)
    if call is None:
        call = _new(session, event.operation_id, event.tool, seq)
        call.call_id = event.call_id
        call.message_id = event.message_id
        call.order = event.index
        _set_given(call, event)
    elif call.operation_id != event.operation_id:
        rekey(session, call, event.operation_id)
    call.declared = True
    call.effect = event.effect
    if event.approval_required:
        call.approval = "required"
    touch(session, call, seq)
    return call


def _new(session: Session, operation_id: str, tool: str, seq: int) -> Call:
    call = Call(operation_id, tool, seq)
    session.calls[operation_id] = call
    session.open_calls += 1
    return call


def rekey(session: Session, call: Call, operation_id: str) -> None:
    """The row gets its real operation id and keeps its place."""
    old = call.operation_id
    call.operation_id = operation_id
    session.calls = {operation_id if k == old else k: c for k, c in session.calls.items()}
    for orphan in session.orphans:
        for result in orphan.results:
            if result.matched == old:
                result.matched = operation_id
                session.enc_memory = None


def finish(
    session: Session,
    call: Call,
    seq: int,
    state: CallState,
    *,
    is_error: bool = False,
    summary: str | None = None,
    error_code: str | None = None,
    error: str | None = None,
) -> None:
    """The row, which is not final, reaches an outcome."""
    call.state = state
    call.is_error = is_error
    call.result_summary = clip(summary, RESULT_SUMMARY_BYTES_MAX)
    call.error_code = clip(error_code, ERROR_CODE_BYTES_MAX)
    call.error = clip(error, ERROR_BYTES_MAX)
    if is_final(call):
        session.open_calls -= 1
    touch(session, call, seq)


def bound_calls(session: Session) -> None:
    """L7: bring the ledger within its bounds."""
    calls = session.calls
    closed = [c for c in calls.values() if is_final(c)]
    over = len(closed) - CLOSED_CALLS_MAX
    if over > 0 or session.calls_bytes > TOOLS_BYTES_MAX:
        # Stable order: rows of equal age stay in the order they were made.
        closed.sort(key=lambda c: c.updated_seq)
        for call in closed:
            if over <= 0 and session.calls_bytes <= TOOLS_BYTES_MAX:
                break
            _drop(session, call)
            over -= 1
    if session.calls_bytes > TOOLS_BYTES_MAX:
        _shrink(session, calls.values())


def _shrink(session: Session, calls: Iterable[Call]) -> None:
    """Oldest first, arguments and then texts of open rows leave until the rest fits."""
    for call in calls:
        if session.calls_bytes <= TOOLS_BYTES_MAX:
            return
        if call.arguments:
            _elide_arguments(call, call.arguments)
            touch(session, call, call.updated_seq)
    for call in calls:
        if session.calls_bytes <= TOOLS_BYTES_MAX:
            return
        call.result_summary = call.error = None
        touch(session, call, call.updated_seq)


def _drop(session: Session, call: Call) -> None:
    del session.calls[call.operation_id]
    session.calls_bytes -= call.size
    if not is_final(call):
        session.open_calls -= 1
    session.enc_rest = None
    if session.orphans:
        release_matched(session, call.operation_id)


def abandoned(session: Session) -> list[Call]:
    """Open rows that may make room (L7), oldest first."""
    in_window = {m.seq for m in session.recent}
    return [
        c
        for c in session.calls.values()
        if not is_final(c) and not c.declared and c.state == "intended" and c.message_seq not in in_window
    ]


def has_room(session: Session, new_rows: int) -> bool:
    needed = session.open_calls + new_rows - OPEN_CALLS_MAX
    return needed <= 0 or (new_rows <= OPEN_CALLS_MAX and needed <= len(abandoned(session)))


def make_room(session: Session, new_rows: int) -> None:
    needed = session.open_calls + new_rows - OPEN_CALLS_MAX
    if needed > 0:
        for call in abandoned(session)[:needed]:
            _drop(session, call)
