"""O6: what is pruned leaves the state, and what something open refers to stays."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings

from refold.core import Accepted, limits
from refold.core.generations import is_open
from refold.core.ledger import is_final
from refold.core.limits import PRUNED_CALLS
from refold.engine.markers import before, outputs
from refold.topology.names import TopicNames
from refold.wire.batches import decode_item
from refold.wire.envelope import decode_envelope, encode_envelope
from refold.wire.events import decode_event

from .build import (
    Inbox,
    call,
    duplicate,
    event,
    finished,
    intended,
    message,
    outcome,
    rejected,
    started,
    step,
    text,
)
from .histories import histories
from .runkit import held, leased, run_started


def branchy() -> Inbox:
    """u1 ─ a1 ─ u2 (active); u1 ─ b1 ─ b2; u1 ─ c1."""
    inbox = Inbox().ok(message("u1"), message("b1", "assistant"), message("b2"))
    inbox.ok(message("c1", "assistant", parent_id="u1"), message("a1", "assistant", parent_id="u1"))
    return inbox.ok(message("u2"))


def test_o6_a_branch_leaves_up_to_where_another_path_hangs() -> None:
    inbox = branchy().ok(event("SessionPruned", branches=["b2"], by="anna", reason="room"))
    assert set(inbox.session.branch_messages) == {"c1"}
    assert inbox.recent == ["u1", "a1", "u2"]
    assert rejected(inbox.send(event("BranchSwitched", head_message_id="b2")), "unknown_message")
    assert duplicate(inbox.send(message("b2"))), "its id is remembered (U4)"


def test_o6_a_branch_may_be_named_twice() -> None:
    inbox = branchy().ok(event("SessionPruned", branches=["b2", "c1", "b2"]))
    assert not inbox.session.branch_messages
    assert inbox.session.branch_bytes == 0


def test_o6_all_branches_and_nothing_else() -> None:
    inbox = branchy().ok(event("SessionPruned", all_branches=True))
    assert not inbox.session.branch_messages
    assert inbox.session.branch_bytes == 0
    assert duplicate(inbox.send(event("SessionPruned", all_branches=True)))


def test_o6_what_is_named_wrongly_is_refused() -> None:
    inbox = branchy()
    assert rejected(inbox.send(event("SessionPruned", branches=["nowhere"])), "unknown_message")
    assert rejected(inbox.send(event("SessionPruned", branches=["b1"])), "conflict")
    assert rejected(inbox.send(event("SessionPruned", branches=["u2"])), "conflict")
    assert rejected(inbox.send(event("SessionPruned", facts=["@x"])), "bad_id")
    assert rejected(Inbox().send(event("SessionPruned", ended=True)), "no_session")
    assert duplicate(inbox.send(event("SessionPruned", facts=["unknown"])))


def test_o6_what_an_open_call_or_generation_refers_to_stays() -> None:
    """Named it is refused, with all branches it is passed over, with the path up to it."""
    inbox = branchy().ok(
        message("d1", "assistant", [text("t"), call("c", operation_id="op")], parent_id="b2"),
        message("d2", parent_id="d1"),
        started("g1", "e1", reply_to="c1"),
        event("BranchSwitched", head_message_id="u2"),
    )
    assert rejected(inbox.send(event("SessionPruned", branches=["c1"])), "conflict")
    inbox.ok(event("SessionPruned", all_branches=True))
    assert set(inbox.session.branch_messages) == {"b1", "b2", "d1", "c1"}
    inbox.ok(outcome("op"), finished("g1", "", 0, message_id="e1", content="x", parent_id="c1"))
    inbox.ok(event("BranchSwitched", head_message_id="u2"), event("SessionPruned", all_branches=True))
    assert not inbox.session.branch_messages


def test_o6_ended_rows_leave_and_open_ones_stay() -> None:
    """Also what a child session belongs to, and what a waiting run waits for."""
    inbox = branchy().ok(
        message("d", "assistant", [call(f"c{i}", operation_id=f"op{i}") for i in range(2)]),
        *[intended(f"op{i}") for i in range(2, 5)],
        outcome("op4"),
        outcome("op0"),
        outcome("op1"),
        step("ToolCallStarted", "op3"),
        event("ChildLinked", session="kid", kind="child", call="op1"),
        started("g1", "e1"),
        finished("g1", "", 0, message_id="e1", content="x"),
        started("g2", "e2"),
        run_started("done"),
        leased(run_id="done"),
        held("RunCompleted", run_id="done"),
        run_started("open"),
    )
    inbox.ok(event("SessionPruned", ended=True))
    assert list(inbox.session.calls) == ["op1", "op2", "op3", "op4"], "the result of op4 still waits"
    assert list(inbox.session.generations) == ["g2"]
    assert list(inbox.session.runs) == ["open"]
    assert duplicate(inbox.send(event("SessionPruned", ended=True)))


def test_o6_a_pruned_generation_is_forgotten_among_the_batches_too() -> None:
    """G12: its record goes with its row."""
    inbox = branchy().ok(started("g1", "e1"), finished("g1", "", 0, message_id="e1", content="x"))
    pruned = event("SessionPruned", ended=True)
    decoded = decode_event(decode_envelope(encode_envelope(inbox.envelope(*pruned))))
    was = before(inbox.session, decoded)
    ruling = inbox.send(pruned)
    assert was is not None
    assert isinstance(ruling, Accepted)
    made = outputs(TopicNames("t"), 0, b"acme/s1", inbox.session, ruling, decoded, was)
    items = [decode_item(out.value) for out in made if out.value is not None]
    assert [(item.generation, item.kind) for item in items] == [("g1", "forget")]


def test_o6_facts_and_a_closed_session() -> None:
    inbox = branchy().ok(event("FactSet", name="a", value="1"), event("FactSet", name="b", value="2"))
    inbox.ok(event("SessionClosed"), event("SessionPruned", facts=["a", "gone"]))
    assert list(inbox.session.facts) == ["b"]
    assert inbox.session.facts_bytes == 1


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(histories())
def test_o6_pruning_everything_keeps_what_is_open(inbox: Inbox) -> None:
    """Over random histories: invariants hold, the window stays as it was, and so do all open rows."""
    session = inbox.session
    if not session.exists:
        return
    window = [(m.id, m.seq) for m in session.recent]
    calls = [c.operation_id for c in session.calls.values() if not is_final(c)]
    rows = [g for g, row in session.generations.items() if is_open(row)]
    kept = {c.message_id for c in session.calls.values() if not is_final(c)} & set(session.branch_messages)
    ruling = inbox.send(event("SessionPruned", all_branches=True, ended=True, facts=list(session.facts)))
    assert isinstance(ruling, Accepted) or duplicate(ruling)
    assert [(m.id, m.seq) for m in session.recent] == window
    assert [c.operation_id for c in session.calls.values() if not is_final(c)] == calls
    assert list(session.generations) == rows
    assert kept <= set(session.branch_messages)
    assert not session.facts
    assert duplicate(inbox.send(event("SessionPruned", all_branches=True, ended=True)))


def ended(*operations: str) -> list[tuple[str, dict[str, Any]]]:
    """Declared calls, each asked for by a message and done."""
    made: list[tuple[str, dict[str, Any]]] = []
    for name in operations:
        made += [message(f"m-{name}", "assistant", [call(f"c-{name}", operation_id=name)])]
        made += [intended(name, f"c-{name}"), step("ToolCallStarted", name, attempt=1), outcome(name)]
    return made


def test_o6_a_row_says_that_rows_of_operations_were_pruned() -> None:
    """An operation without a row may have run: who is about to run it asks the journal."""
    inbox = Inbox().ok(*ended("op1", "op2"), event("SessionPruned", ended=True))
    assert list(inbox.session.calls) == [PRUNED_CALLS]
    assert inbox.session.open_calls == 0
    assert duplicate(inbox.send(event("SessionPruned", ended=True)))
    assert rejected(inbox.send(intended(PRUNED_CALLS)), "bad_id")
    assert rejected(inbox.send(step("ToolCallStarted", PRUNED_CALLS, attempt=1)), "already_final")
    again = inbox.session.seq + 1
    inbox.ok(*ended("op3"), event("SessionPruned", ended=True))
    assert list(inbox.session.calls) == [PRUNED_CALLS]
    assert inbox.session.calls[PRUNED_CALLS].updated_seq > again
    inbox.ok(event("SessionDeleted"), message("anew"))
    assert not inbox.session.calls


def test_o6_so_it_does_where_only_rows_of_transcripts_leave_and_others_had_left() -> None:
    """The number of rows said it before: a full ledger may have dropped some (L7)."""
    asks = [(message(f"m{i}", "assistant", [call(f"c{i}")]), outcome(None, f"c{i}")) for i in range(40)]
    few = Inbox().ok(*[item for pair in asks[:3] for item in pair], event("SessionPruned", ended=True))
    assert not few.session.calls
    full = Inbox().ok(*ended("op1"), *[item for pair in asks for item in pair])
    assert "op1" not in full.session.calls
    full.ok(event("SessionPruned", ended=True))
    assert list(full.session.calls) == [PRUNED_CALLS]


def test_o6_a_ledger_at_its_limit_has_room_for_that_row() -> None:
    """It is longer than the shortest it stands for, so final rows make room as ever (L7): here itself. What
    is left are more bytes of open rows than a ledger has that never dropped one."""
    inbox = Inbox().ok(message("m", "assistant", [call("c", "t", "", "o")]))
    inbox.ok(outcome("o", body=""))
    room = limits.TOOLS_BYTES_MAX - inbox.session.calls_bytes
    while room > 4_000:
        size = min(3_900, room - 1_000)
        inbox.ok(intended(f"{room}", tool="t", arguments="1" * size))
        room = limits.TOOLS_BYTES_MAX - inbox.session.calls_bytes
    inbox.ok(intended("last", tool="t", arguments="1" * (room - 200 - 7 - 4 - 3)))
    assert inbox.session.calls_bytes == limits.TOOLS_BYTES_MAX
    inbox.ok(event("SessionPruned", ended=True))
    assert not any(map(is_final, inbox.session.calls.values()))
    assert limits.QUIET_TOOLS_BYTES < inbox.session.calls_bytes <= limits.TOOLS_BYTES_MAX
