"""O4, O5: double texting and idle time, decided in the fold by the session's policy."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refold.core import Accepted, evolve, initial
from refold.core.answering import NOTE
from refold.engine.markers import before, outputs
from refold.topology.names import TopicNames
from refold.wire.batches import decode_item
from refold.wire.envelope import decode_envelope, encode_envelope
from refold.wire.events import decode_event
from refold.wire.snapshot import encode_snapshot

from .build import SESSION, TENANT, Inbox, call, event, finished, message, rejected, result, started, text
from .histories import items
from .runkit import MINUTE_MS, held, leased, run_started


def with_policy(on_busy: str, **policy: object) -> Inbox:
    inbox = Inbox()
    inbox.ok(event("SessionOpened", policy={"on_busy": on_busy, **policy}), message("u1"))
    return inbox


def generating(on_busy: str) -> Inbox:
    return with_policy(on_busy).ok(started("g1", "a1", lease_ms=MINUTE_MS))


def test_o4_queue_is_the_default_and_takes_every_message() -> None:
    """``queue`` alone is no policy: the session stays a plain one."""
    inbox = generating("queue")
    assert inbox.session.policy is None
    inbox.ok(message("u2"), finished("g1", "", 0, message_id="a1", content="both"))
    assert inbox.recent == ["u1", "u2", "a1"]


def test_o4_reject_refuses_user_messages_only_while_an_answer_is_under_way() -> None:
    inbox = generating("reject")
    assert rejected(inbox.send(message("u2")), "busy")
    inbox.ok(message("t", "assistant", "thinking"), message("s", "system"))
    inbox.ok(finished("g1", "", 0, message_id="a1", content="well"), message("u2"))
    assert inbox.recent == ["u1", "t", "a1", "u2"]


def test_o4_a_result_of_a_tool_is_no_text_of_the_user() -> None:
    inbox = generating("reject")
    inbox.ok(message("c", "assistant", [text("t"), call("c1")]), message("r", "user", [result("c1")]))


def test_o4_a_lease_that_is_over_keeps_nobody_waiting() -> None:
    """A generator or an agent that died does not refuse the user for ever."""
    inbox = generating("reject")
    inbox.clock += MINUTE_MS
    inbox.ok(message("u2"))
    inbox = with_policy("reject").ok(run_started(), leased(lease_ms=5_000))
    assert rejected(inbox.send(message("u2")), "busy")
    inbox.clock += 5_000
    inbox.ok(message("u2"))


def test_o4_interrupt_stops_generations_and_leased_runs() -> None:
    """Open generations become stopping and can still be finished; leased runs are stopped, others stay."""
    inbox = generating("interrupt").ok(
        run_started(), leased(), run_started("other"), started("g2", "b1", reply_to="u1")
    )
    assert inbox.session.timer_ms > 0
    inbox.ok(message("u2"))
    rows = inbox.session.generations
    assert {name: row.state for name, row in rows.items()} == {"g1": "stopping", "g2": "stopping"}
    runs = inbox.session.runs
    assert {name: run.state for name, run in runs.items()} == {"r": "stopped", "other": "ready"}
    assert runs["r"].error == "a user message interrupted it"
    assert rejected(inbox.send(held("RunCompleted")), "already_final")
    inbox.ok(finished("g1", "", 0, message_id="a1", content="so f", stopped=True))
    assert inbox.recent == ["u1", "u2", "a1"]


def test_o4_an_interrupt_is_told_among_the_batches_once() -> None:
    """Who follows a generation sees its stop; one that was stopping already is not told again."""
    inbox = generating("interrupt").ok(started("g2", "b1"), event("GenerationStopped", generation_id="g2"))
    session = inbox.session
    decoded = decode_event(decode_envelope(encode_envelope(inbox.envelope(*message("u2")))))
    was = before(session, decoded)
    ruling = inbox.send(message("u2"))
    assert was is not None
    assert isinstance(ruling, Accepted)
    made = outputs(TopicNames("t"), 0, b"acme/s1", session, ruling, decoded, was)
    markers = [decode_item(out.value) for out in made if out.topic == "t.batches" and out.value]
    assert [(m.generation, m.kind, m.journal_seq) for m in markers] == [("g1", "stop", ruling.seq)]


def test_o4_an_interrupted_run_leaves_the_work_topic() -> None:
    inbox = with_policy("interrupt").ok(run_started(), leased())
    session = inbox.session
    decoded = decode_event(decode_envelope(encode_envelope(inbox.envelope(*message("u2")))))
    was = before(session, decoded)
    ruling = inbox.send(message("u2"))
    assert was is not None
    assert isinstance(ruling, Accepted)
    made = outputs(TopicNames("t"), 0, b"acme/s1", session, ruling, decoded, was)
    assert [(out.topic, out.key, out.value) for out in made] == [("t.work", b"acme/s1#r", None)]


def test_o4_branch_puts_the_message_beside_the_one_being_answered() -> None:
    """Both are answered, each on its own path; the active one is the newer message's."""
    inbox = generating("branch").ok(message("u2"))
    assert inbox.recent == ["u2"]
    assert inbox.session.held["u2"].parent == inbox.session.held["u1"].parent == ""
    inbox.ok(started("g2", "a2", lease_ms=MINUTE_MS), message("u3"))
    assert inbox.recent == ["u3"], "a third beside them"
    inbox.ok(finished("g1", "", 0, message_id="a1", content="to the first"))
    assert inbox.recent == ["u3"], "an answer to what has left does not change the path"
    inbox.ok(finished("g2", "", 0, message_id="a2", content="to the second"), started("g3", "a3"))
    inbox.ok(finished("g3", "", 0, message_id="a3", content="to the third"))
    parents = {name: inbox.session.held[name].parent for name in ("a1", "a2", "a3")}
    assert parents == {"a1": "u1", "a2": "u2", "a3": "u3"}
    assert inbox.recent == ["u3", "a3"]
    inbox.ok(event("BranchSwitched", head_message_id="a1"))
    assert inbox.recent == ["u1", "a1"]
    assert not inbox.session.aliases, "nothing is left of the notes"


def test_o4_branch_while_a_run_is_leased_is_a_sibling_of_the_last_user_message() -> None:
    inbox = with_policy("branch").ok(message("a1", "assistant"), message("u2"), run_started(), leased())
    inbox.ok(message("a2", "assistant", "working"), message("u3"))
    assert inbox.recent == ["u1", "a1", "u3"]
    inbox.ok(held("RunCompleted"), message("u4"))
    assert inbox.recent == ["u1", "a1", "u3", "u4"], "not busy any more"


def test_o4_a_place_that_is_named_is_taken() -> None:
    inbox = generating("branch").ok(message("u2", parent_id="u1"))
    assert inbox.recent == ["u1", "u2"]


def test_o4_a_tool_call_answered_aside_has_its_row() -> None:
    """A generation that ends off the active path asks for calls like any other."""
    inbox = generating("branch").ok(message("u2"))
    inbox.ok(finished("g1", "", 0, message_id="a1", content=[text("t"), call("c1", operation_id="op1")]))
    assert inbox.states() == {"op1": "intended"}
    inbox.ok(message("r1", "tool", [result("c1")]))
    assert inbox.session.branch_messages["r1"].parent == "a1"
    assert inbox.recent == ["u2"]


@pytest.mark.parametrize("action", ["close", "delete"])
def test_o5_idle_time_over_closes_or_deletes(action: str) -> None:
    """TTL: from the last event that is not the timer's own; a timer that fires early changes nothing."""
    inbox = with_policy("queue", ttl_ms=MINUTE_MS, ttl_action=action)
    inbox.clock += MINUTE_MS // 2
    inbox.ok(message("u2"))
    last = inbox.session.time_ms
    inbox.clock = inbox.session.timer_ms
    inbox.ok(event("TimerFired", deadline_ms=inbox.session.timer_ms))
    assert inbox.session.status == "open", "it was written to since"
    assert inbox.session.timer_ms == last + MINUTE_MS
    inbox.clock = inbox.session.timer_ms
    inbox.ok(event("TimerFired", deadline_ms=inbox.session.timer_ms))
    if action == "delete":
        assert not inbox.session.exists
        return
    assert inbox.session.status == "closed"
    assert rejected(inbox.send(message("u3")), "session_closed")
    inbox.ok(event("SessionReopened"), message("u3"))
    assert inbox.session.timer_ms > inbox.clock - 2_000


def test_o5_without_a_policy_nothing_is_armed() -> None:
    inbox = Inbox().ok(message("u1"), event("SessionConfigured", window_messages=5))
    assert inbox.session.timer_ms == 0
    inbox.ok(event("SessionConfigured", policy={"ttl_ms": MINUTE_MS}))
    assert inbox.session.timer_ms == inbox.session.time_ms + MINUTE_MS
    inbox.ok(event("SessionConfigured", policy={"ttl_ms": 0}))
    assert inbox.session.timer_ms == 0
    assert inbox.session.policy is None


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data(), st.sampled_from(["reject", "interrupt", "branch"]))
def test_o4_random_histories_under_each_policy(data: st.DataObject, on_busy: str) -> None:
    """F1 and the invariants, with generations, runs, branches and pruning mixed in; a finished generation
    under ``branch`` answers the message that was the head when another one was begun beside it."""
    inbox = with_policy(on_busy, ttl_ms=MINUTE_MS)
    for number in range(data.draw(st.integers(4, 24))):
        kind = data.draw(st.integers(0, 9))
        if kind == 0:
            what = event("SessionPruned", all_branches=data.draw(st.booleans()), ended=True)
        elif kind == 1:
            what = started(f"n{number}", lease_ms=data.draw(st.sampled_from([1_000, MINUTE_MS])))
        elif kind == 2:
            rows = [row for row in inbox.session.generations.values() if row.state in ("started", "stopping")]
            if not rows:
                continue
            row = rows[data.draw(st.integers(0, len(rows) - 1))]
            what = finished(row.generation_id, "", 0, message_id=row.message_id, content="well",
                            attempt=row.attempt, parent_id=row.reply_to)  # fmt: skip
        elif kind == 3:
            what = data.draw(st.sampled_from([run_started(f"r{number}"), run_started(), leased()]))
        elif kind < 6:
            what = message(f"q{number}")
        else:
            what = data.draw(items(number))
        before = inbox.session.head
        ruling = inbox.send(what)
        if kind == 2 and on_busy == "branch" and isinstance(ruling, Accepted):
            made = inbox.session.held.get(row.message_id)
            aside = inbox.session.head == before
            assert made is None or made.id in inbox.session.branch_messages or not aside
    notes = [name for name in inbox.session.aliases if name.startswith(NOTE)]
    assert on_busy == "branch" or not notes
    state = initial(TENANT, SESSION)
    for entry, decoded in inbox.entries():
        evolve(state, entry.seq, entry.time_ms, entry.partition, entry.offset, entry.env, decoded)
    assert not state.exists or encode_snapshot(state) == encode_snapshot(inbox.session)
