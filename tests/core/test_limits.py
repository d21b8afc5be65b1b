"""S5, S8: whatever arrives, the state stays within its limits."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refold.core import limits
from refold.core.ledger import ROW_FIXED_BYTES
from refold.core.limits import STATE_RECORD_BYTES_MAX
from refold.core.policystate import Child, Reduced, SessionPolicy
from refold.core.rulings import Accepted
from refold.core.session import Call, Generation, Session
from refold.wire.snapshot import encode_snapshot
from refold.wire.snapshot_generations import encode_generation
from refold.wire.snapshot_ledger import encode_call

from .build import Inbox, call, event, intended, message, outcome, rejected, result, started, step
from .runkit import fill_runs


def long_id(prefix: str) -> str:
    return prefix + "x" * (limits.ID_BYTES_MAX - len(prefix.encode()))


def test_the_arithmetic_of_the_limits() -> None:
    """The worst record, by the sum of the limits, with 2 % to spare for list headers and nothing more."""
    assert limits.STATE_RECORD_WORST_BYTES <= STATE_RECORD_BYTES_MAX * 0.98
    assert limits.WINDOW_MESSAGES_MAX * limits.MESSAGE_STUB_BYTES < limits.WINDOW_BYTES_MAX
    assert limits.OPEN_CALLS_MAX * (limits.CALL_ROW_BYTES) <= limits.TOOLS_BYTES_MAX
    assert limits.ORPHAN_INLINE_BYTES_MAX < limits.ORPHANS_BYTES_MAX
    assert limits.WINDOW_BYTES_DEFAULT <= limits.WINDOW_BYTES_MAX
    assert limits.MESSAGE_INLINE_BYTES_MAX < limits.WINDOW_BYTES_MAX


def test_a_rows_counted_size_is_never_below_its_bytes() -> None:
    """The ledger counts before it encodes: the count must be an upper bound."""
    from refold.core.ledger import touch
    from refold.core.session import initial

    session = initial("t", "s")
    row = Call(long_id("é"), long_id("t"), 2**62)
    row.call_id = row.message_id = row.holder = long_id("i")
    row.arguments = "a" * 4096
    row.arguments_length = row.fencing = row.intended_seq = row.result_seq = row.message_seq = 2**62
    row.arguments_sha256 = "f" * 64
    row.effect = "e" * 32
    row.state = "awaiting_approval"
    row.approval = "requested"
    row.attempt = row.order = 2**31 - 1
    row.lease_until_ms = 2**62
    row.result_summary = row.error = "s" * 1024
    row.error_code = "c" * 64
    touch(session, row, 2**62)
    assert len(encode_call(row)) <= row.size
    assert row.size - ROW_FIXED_BYTES < len(encode_call(row))


def test_a_generations_counted_size_is_never_below_its_bytes() -> None:
    """The arithmetic counts sixteen rows at these sizes."""
    row = Generation("g" * limits.GENERATION_NAME_BYTES_MAX, "m" * limits.GENERATION_NAME_BYTES_MAX, 2**62)
    row.generator = "f" * limits.GENERATION_NAME_BYTES_MAX
    row.reply_to = long_id("r")
    row.params_digest = "d" * 64
    row.attempt = 2**31 - 1
    row.last_seq = row.length = row.updated_seq = 2**62
    row.state, row.mode, row.durability = "stopping", "continue", "relaxed"
    ended = copy.copy(row)
    row.holder = "h" * limits.GENERATION_NAME_BYTES_MAX
    row.lease_until_ms = 2**62
    row.provider_response_id = long_id("p")
    assert 0.9 * limits.OPEN_GENERATION_BYTES < len(encode_generation(row)) <= limits.OPEN_GENERATION_BYTES
    ended.state, ended.sha256 = "finished", "f" * 64
    ended.finish_reason = "f" * limits.FINISH_REASON_BYTES_MAX
    ended.error_code = "e" * limits.ERROR_CODE_BYTES_MAX
    assert (
        0.9 * limits.ENDED_GENERATION_BYTES < len(encode_generation(ended)) <= limits.ENDED_GENERATION_BYTES
    )


def worst(inbox: Inbox) -> int:
    return len(encode_snapshot(inbox.session))


def fill_rest(session: Session) -> None:
    """Policy, children and reducers' parts at their limits. Their own tests are about who keeps these."""
    session.policy = SessionPolicy("interrupt", 2**62, "delete", 2**62, 2**62)
    session.timer_ms = session.timer_seq = session.idle_since_ms = 2**62
    each = limits.CHILDREN_BYTES_MAX // limits.CHILDREN_MAX - limits.CHILD_ROW_BYTES
    for n in range(limits.CHILDREN_MAX):
        session.children.append(
            Child(f"{n:03}".ljust(each // 2, "c"), "child", "o" * (each // 2), session.seq)
        )
    room = limits.REDUCED_BYTES_MAX // limits.REDUCED_PARTS_MAX - limits.REDUCED_ROW_BYTES
    for n in range(limits.REDUCED_PARTS_MAX):
        name = f"{n:03}".ljust(limits.REDUCED_NAME_BYTES_MAX, "n")
        part = Reduced(name, 2**31 - 1, session.seq, b"s" * (room - 128 - limits.REDUCED_ERROR_BYTES_MAX))
        part.status, part.error = "quarantined", "e" * limits.REDUCED_ERROR_BYTES_MAX
        session.reduced[name] = part
    session.enc_tail = None
    before = len(encode_snapshot(session))
    session.children, session.reduced, kept = [], {}, (session.children, session.reduced)
    session.enc_tail = None
    assert before - len(encode_snapshot(session)) <= limits.CHILDREN_BYTES_MAX + limits.REDUCED_BYTES_MAX
    session.children, session.reduced = kept
    session.enc_tail = None


def test_everything_at_its_worst_at_once() -> None:
    """Fill every part of the state to its limit, with the longest ids, in one session."""
    inbox = Inbox()
    inbox.check = False
    inbox.ok(
        event(
            "SessionOpened",
            config_json='"' + "c" * (limits.CONFIG_BYTES_MAX - 2) + '"',
            window_messages=100,
            window_bytes=limits.WINDOW_BYTES_MAX,
        )
    )
    for i in range(limits.FACTS_MAX):
        inbox.send(event("FactSet", name=long_id(f"f{i}."), value='"' + "v" * 760 + '"'))
    for i in range(limits.SYSTEM_MESSAGES_MAX):
        inbox.ok(message(long_id(f"s{i}."), "system", "s" * 7600))
    for i in range(limits.PRODUCERS_MAX + 3):
        inbox.send(
            message(long_id(f"p{i}."), "user", "x"),
            producer_id=long_id(f"p{i}."),
            producer_epoch=2**62,
            producer_counter=2**62,
        )
    # Branches: many roots, each a leaf; then the summary, orphans, and a window of full messages.
    for i in range(80):
        inbox.ok(message(long_id(f"b{i}."), "user", "b" * 700, parent_id=""))
    for i in range(30):
        inbox.ok(
            outcome(
                long_id(f"o{i}."), long_id(f"oc{i}."), "r" * 1600, summary="s" * 2000, error_code="e" * 70
            )
        )
    inbox.ok(
        event("ContextSummarized", text="z" * limits.SUMMARY_BYTES_MAX, through_message_id=inbox.recent[-1])
    )
    name = "n" * (limits.GENERATION_NAME_BYTES_MAX - 3)
    for i in range(limits.ENDED_GENERATIONS_MAX + limits.OPEN_GENERATIONS_MAX):
        named = {"generator": f"{name}aaa", "holder": f"{name}bbb", "reply_to": long_id("r")}
        inbox.ok(started(f"{name}{i:03}", f"{name}{i:03}", params="{}", lease_ms=10**9, **named))
        if i < limits.ENDED_GENERATIONS_MAX:
            inbox.ok(event("GenerationFailed", generation_id=f"{name}{i:03}", attempt=1, code="e" * 99))
            continue
        inbox.ok(
            event(
                "GenerationLeaseRenewed",
                generation_id=f"{name}{i:03}",
                attempt=1,
                holder=named["holder"],
                lease_ms=10**9,
                provider_response_id=long_id("p"),
            )
        )
    for i in range(limits.OPEN_CALLS_MAX):
        inbox.ok(
            intended(
                long_id(f"op{i}."),
                long_id(f"c{i}."),
                long_id("tool"),
                message_id=long_id("m"),
                effect="e" * 32,
            )
        )
        inbox.ok(step("ToolCallStarted", long_id(f"op{i}."), holder=long_id("h")))
    for i in range(140):
        role = "user" if i % 10 == 0 else "assistant"
        inbox.ok(message(long_id(f"w{i}."), role, "w" * 2000))
    assert fill_runs(inbox) > 0
    fill_rest(inbox.session)
    size = worst(inbox)
    assert 640_000 < size <= STATE_RECORD_BYTES_MAX
    from .build import check_state

    check_state(inbox.session)


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_no_input_breaks_the_limit(data: st.DataObject) -> None:
    """D23: huge texts, many calls, the longest ids, in any mixture: bounded, and the session goes on."""
    inbox = Inbox()
    inbox.check = False
    sizes = st.sampled_from([0, 10, 3_000, 33_000, 200_000])
    for i in range(data.draw(st.integers(5, 40))):
        size = data.draw(sizes)
        kind = data.draw(st.integers(0, 6))
        if kind == 0:
            inbox.send(message(long_id(f"u{i}."), "user", "é" * (size // 2)))
        elif kind == 1:
            calls = [
                call(long_id(f"c{i}.{k}."), "t", "a" * size) for k in range(data.draw(st.integers(1, 40)))
            ]
            inbox.send(message(long_id(f"a{i}."), "assistant", calls))
        elif kind == 2 and inbox.session.calls:
            row = data.draw(st.sampled_from(sorted(inbox.session.calls)))
            found = inbox.session.calls[row]
            if found.call_id:
                inbox.send(message(long_id(f"t{i}."), "tool", [result(found.call_id, "r" * size)]))
        elif kind == 3:
            inbox.send(outcome(long_id(f"o{i}."), None, "r" * size, summary="s" * size))
        elif kind == 4:
            inbox.send(intended(long_id(f"i{i}."), arguments="a" * size))
        elif kind == 5:
            inbox.send(message(long_id(f"s{i}."), "system", "s" * size))
        else:
            inbox.send(message(long_id(f"b{i}."), "user", "b" * size, parent_id=""))
    from .build import check_state

    check_state(inbox.session)
    if inbox.session.exists:
        assert worst(inbox) <= STATE_RECORD_BYTES_MAX


def test_d23_five_megabytes_of_tool_output() -> None:
    """D23: the record stays small, the row says what came, and the next event folds."""
    inbox = Inbox()
    inbox.check = False
    inbox.ok(message("u"), message("a", "assistant", [call("c1")]))
    inbox.ok(message("t", "tool", [result("c1", "x" * 5_000_000)]), message("a2", "assistant"))
    assert worst(inbox) < 10_000
    held = inbox.session.recent[2]
    assert held.body is None
    assert held.length > 5_000_000
    for i in range(2_000):
        inbox.ok(
            message(f"b{i}", "assistant", [call(f"d{i}")]),
            message(f"r{i}", "tool", [result(f"d{i}", "y" * 5_000)]),
        )
    assert worst(inbox) <= STATE_RECORD_BYTES_MAX


def test_texts_above_their_limits_are_refused() -> None:
    inbox = Inbox().ok(message("u"))
    assert rejected(inbox.send(event("FactSet", name="f", value='"' + "v" * 9000 + '"')), "too_large")
    summary = event("ContextSummarized", text="z" * 33_000, through_message_id="u")
    assert rejected(inbox.send(summary), "too_large")
    assert rejected(inbox.send(message("m", "r" * 33)), "bad_value")
    assert rejected(inbox.send(intended("op", effect="e" * 33)), "bad_value")


def test_facts_are_bounded_by_count_and_bytes() -> None:
    inbox = Inbox()
    for i in range(limits.FACTS_MAX):
        inbox.ok(event("FactSet", name=f"f{i}", value=str(i)))
    assert rejected(inbox.send(event("FactSet", name="more", value="1")), "facts_full")
    inbox.ok(event("FactSet", name="f0", value='"again"'), event("FactRemoved", name="f1"))
    inbox.ok(event("FactSet", name="more", value="1"))
    names = list(inbox.session.facts)
    assert names[0] == "f0"
    assert names[-1] == "more"
    for i in range(10):
        ruling = inbox.send(event("FactSet", name=f"f{i + 2}", value='"' + "v" * 8000 + '"'))
    assert rejected(ruling, "facts_full")
    assert inbox.session.facts_bytes <= limits.FACTS_BYTES_MAX
    assert rejected(inbox.send(event("FactSet", name="f0", value="NaN")), "bad_json")


@pytest.mark.parametrize(
    "what",
    [
        message("m2", parent_id="@" + "x" * 900_000),
        message("m2", parent_id="m1", replaces="@" + "x" * 900_000),
        started("g1", reply_to="@" + "x" * 900_000),
        outcome(None, "@" + "x" * 20_000),
        outcome("@" + "x" * 900_000, None),
        outcome(None, "c1", message_id="@" + "x" * 900_000),
    ],
)
def test_an_id_that_looks_like_one_of_the_folds_is_no_longer_than_those(what: Any) -> None:
    """Goal: S8 holds for references to ids the fold made. Otherwise a producer has sessions quarantined,
    and 21 of them within a minute stop a worker."""
    inbox = Inbox()
    inbox.send(message("m1"))
    assert rejected(inbox.send(what), "bad_id")
    of_the_fold = "@" + long_id("e")
    assert isinstance(inbox.send(message("m3", parent_id=of_the_fold)), Accepted)
