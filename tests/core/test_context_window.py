"""The context window: D01, D02, D03 of the public bug reports, summaries, and oversize groups (W1 to W5)."""

from __future__ import annotations

import pytest

from refold.core.limits import MESSAGE_INLINE_BYTES_MAX, WINDOW_BYTES_MAX, WINDOW_MESSAGES_MAX
from refold.wire.snapshot import decode_snapshot, encode_snapshot

from .build import Inbox, call, duplicate, event, message, outcome, rejected, result, text


def opened(window: int, **settings: object) -> Inbox:
    return Inbox().ok(event("SessionOpened", window_messages=window, **settings))


def turn(number: int) -> list[tuple[str, dict[str, object]]]:
    return [message(f"u{number}"), message(f"a{number}", "assistant")]


def tool_turn(number: int, calls: int = 1) -> list[tuple[str, dict[str, object]]]:
    ids = [f"c{number}.{i}" for i in range(calls)]
    return [
        message(f"u{number}"),
        message(f"a{number}", "assistant", [call(i) for i in ids]),
        *[message(f"t{i}", "tool", [result(i)]) for i in ids],
    ]


def covered(inbox: Inbox, ids: list[str]) -> None:
    """W1: every message is in exactly one place: recent, or the range that ends at ``through``."""
    session = inbox.session
    assert inbox.recent == ids[-len(inbox.recent) :] if inbox.recent else True
    trimmed = ids[: len(ids) - len(inbox.recent)]
    assert session.trunk_id == (trimmed[-1] if trimmed else "")
    active = 0
    if session.summary_active and session.summary is not None:
        active = trimmed.index(session.summary.through_message_id) + 1
    assert session.uncovered == len(trimmed) - active


def test_d01_trimming_never_cuts_a_result_off_its_call() -> None:
    """D01: window 3 over user, call, result, user, assistant: the cut moves to the turn border."""
    inbox = opened(3)
    ids: list[str] = []
    for item in [*tool_turn(1), *turn(2)]:
        inbox.ok(item)
        ids.append(str(item[1]["message_id"]))
        covered(inbox, ids)
    assert inbox.recent == ["u2", "a2"]
    assert inbox.session.through == 4


def test_d01_by_bytes_the_window_is_cut_at_turns_too() -> None:
    """D01, byte-limited: a large message in the middle goes with its whole turn, never alone."""
    inbox = opened(100, window_bytes=2000)
    ids: list[str] = []
    script = [
        *turn(1),
        message("u2"),
        message("a2", "assistant", [call("c")]),
        message("t2", "tool", [result("c", "x" * 1500)]),
        *turn(3),
        *turn(4),
        message("u5", content="y" * 700),
    ]
    for item in script:
        inbox.ok(item)
        ids.append(str(item[1]["message_id"]))
        covered(inbox, ids)
    assert inbox.recent == ["u3", "a3", "u4", "a4", "u5"]


def test_d02_a_group_of_parallel_results_is_kept_or_dropped_whole() -> None:
    """D02: window 6, one turn with ten calls: it stays whole and is reported; the next turn drops it."""
    inbox = opened(6).ok(*tool_turn(1, calls=10))
    assert len(inbox.recent) == 12
    limits = decode_snapshot(encode_snapshot(inbox.session))["limits"]
    assert limits["overflow"] is True
    assert limits["max_messages"] == 6
    inbox.ok(message("u2"))
    assert inbox.recent == ["u2"]
    assert inbox.session.overflow is False


def test_d03_system_messages_stay_first_and_are_never_trimmed() -> None:
    """D03: window 4, a system and a developer message, six turns."""
    inbox = opened(4).ok(message("s", "system", "rules"), message("d", "developer", "style"))
    for number in range(6):
        inbox.ok(*turn(number))
    context = decode_snapshot(encode_snapshot(inbox.session))["context"]
    assert [m["message_id"] for m in context["system"]] == ["s", "d"]
    assert context["uncovered"] == 8
    assert "s" not in inbox.recent
    inbox.ok(event("ContextSummarized", text="so far", through_message_id="a3"))
    context = decode_snapshot(encode_snapshot(inbox.session))["context"]
    assert [m["message_id"] for m in context["system"]] == ["s", "d"]
    assert context["uncovered"] == 0


def test_system_messages_are_bounded_and_replaceable() -> None:
    """The ninth system message is an ordinary one; a replacement keeps the old one's place."""
    inbox = Inbox().ok(*[message(f"s{i}", "system") for i in range(9)])
    assert [m.id for m in inbox.session.system] == [f"s{i}" for i in range(8)]
    assert inbox.recent == ["s8"]
    inbox.ok(message("s3b", "system", "better", replaces="s3"))
    assert [m.id for m in inbox.session.system] == ["s0", "s1", "s2", "s3b", "s4", "s5", "s6", "s7"]
    assert rejected(inbox.send(message("s3", "system", "other")), "conflict")
    inbox.ok(message("u", parent_id="s3"))
    assert inbox.recent == ["u"]


def test_a_turn_above_the_hard_limits_is_cut_between_groups() -> None:
    """W3: one turn of 200 calls, one after the other: whole groups leave from its beginning."""
    inbox = Inbox().ok(message("u"))
    for i in range(200):
        inbox.ok(message(f"a{i}", "assistant", [call(f"c{i}")]), message(f"t{i}", "tool", [result(f"c{i}")]))
    recent = inbox.recent
    assert len(recent) <= WINDOW_MESSAGES_MAX
    assert len(recent) > WINDOW_MESSAGES_MAX - 3
    assert recent[0].startswith("a")
    assert recent[1] == "t" + recent[0][1:]


def test_overlapping_calls_without_a_border_leave_group_by_group() -> None:
    """W3: each call is answered after the next was asked, for ever: no prefix is free, groups still go."""
    inbox = Inbox().ok(message("u"), message("a0", "assistant", [call("c0")]))
    for i in range(1, 150):
        inbox.ok(
            message(f"a{i}", "assistant", [call(f"c{i}")]),
            message(f"t{i - 1}", "tool", [result(f"c{i - 1}")]),
        )
        recent = set(inbox.recent)
        assert all(f"a{m[1:]}" in recent for m in recent if m[0] == "t")
    assert len(inbox.recent) <= WINDOW_MESSAGES_MAX


def test_one_group_above_the_byte_limit_keeps_its_messages_without_content() -> None:
    """W3: 40 results of 30 KB in one turn: none is dropped, the oldest lose their content, nothing else."""
    inbox = Inbox()
    inbox.check = False
    ids = [f"c{i}" for i in range(40)]
    inbox.ok(message("u"), message("a", "assistant", [call(i) for i in ids]))
    for i in ids:
        inbox.ok(message("t" + i, "tool", [result(i, "x" * 30_000)]))
    session = inbox.session
    assert len(session.recent) == 42
    assert session.recent_bytes <= WINDOW_BYTES_MAX
    kept = [m.body is not None for m in session.recent]
    assert kept[-4:] == [True] * 4
    assert kept.count(False) >= 34
    shown = decode_snapshot(encode_snapshot(session))["context"]["recent_messages"]
    gone = next(m for m in shown if m["elided"] and m["role"] == "tool")
    assert gone["elided"]["length"] > 30_000
    assert gone["content"] == []
    assert gone["answers"] == [2]


def test_a_message_above_the_inline_limit_is_elided_with_length_and_digest() -> None:
    """D23 in a message: the snapshot holds length, sha256 and seq; the same message again is a duplicate."""
    body = "é" * MESSAGE_INLINE_BYTES_MAX
    inbox = Inbox().ok(message("u", content=body))
    shown = decode_snapshot(encode_snapshot(inbox.session))["context"]["recent_messages"][0]
    assert shown["content"] == []
    assert shown["elided"]["length"] > 2 * MESSAGE_INLINE_BYTES_MAX
    assert len(shown["elided"]["sha256"]) == 64
    assert (shown["seq"], shown["message_id"], shown["role"]) == (1, "u", "user")
    assert duplicate(inbox.send(message("u", content=body)), 1)
    assert rejected(inbox.send(message("u", content=body + "x")), "conflict")


# --- summaries ---------------------------------------------------------------------------------------


def summary(through: str, body: str = "what happened") -> tuple[str, dict[str, object]]:
    return event("ContextSummarized", text=body, through_message_id=through)


def test_w5_a_summary_takes_its_messages_out_of_recent() -> None:
    inbox = opened(20).ok(*turn(1), *turn(2), *turn(3), summary("a2"))
    session = inbox.session
    assert inbox.recent == ["u3", "a3"]
    assert session.summary is not None
    assert (session.summary.through_seq, session.through, session.uncovered) == (5, 5, 0)
    assert session.summary_active


def test_w4_with_a_summary_in_force_messages_wait_for_the_next() -> None:
    """W1, W4: nothing is in neither: past the window's setting messages stay until a summary covers them."""
    inbox = opened(4).ok(*turn(1), summary("a1"), *turn(2), *turn(3), *turn(4))
    assert len(inbox.recent) == 6
    assert inbox.session.overflow
    assert inbox.session.uncovered == 0
    inbox.ok(summary("a3"))
    assert inbox.recent == ["u4", "a4"]


def test_w4_hold_for_summary_holds_up_to_the_hard_limit_and_then_counts() -> None:
    inbox = opened(2, hold_for_summary=True)
    for number in range(60):
        inbox.ok(*turn(number))
    assert len(inbox.recent) == WINDOW_MESSAGES_MAX
    assert inbox.session.uncovered == 20


def test_a_late_summary_covers_part_of_what_was_trimmed() -> None:
    """The summariser read at seq n; the window moved on: what it covers is counted exactly."""
    inbox = opened(4)
    for number in range(6):
        inbox.ok(*turn(number))
    assert inbox.session.uncovered == 8
    inbox.ok(summary("a1"))
    assert inbox.session.uncovered == 4
    assert inbox.session.summary is not None
    assert inbox.session.summary.through_seq == 5
    assert rejected(inbox.send(summary("a0")), "bad_summary")
    inbox.ok(summary("a3"))
    assert inbox.session.uncovered == 0


@pytest.mark.parametrize("body", ["", "  \n\t "])
def test_an_empty_summary_is_refused(body: str) -> None:
    inbox = Inbox().ok(*turn(1))
    assert rejected(inbox.send(summary("a1", body)), "bad_summary")


def test_a_summary_never_parts_a_call_from_its_result() -> None:
    inbox = Inbox().ok(*tool_turn(1), *turn(2))
    assert rejected(inbox.send(summary("a1")), "bad_summary")
    inbox.ok(summary("tc1.0"))
    assert inbox.recent == ["u2", "a2"]


def test_a_summary_may_cover_one_message() -> None:
    inbox = Inbox().ok(*turn(1), summary("u1"))
    assert inbox.recent == ["a1"]
    assert (inbox.session.through, inbox.session.uncovered) == (1, 0)


def test_a_summary_names_a_message_of_the_active_path() -> None:
    inbox = Inbox().ok(*turn(1), message("a1b", "assistant", "again", parent_id="u1"))
    assert rejected(inbox.send(summary("a1")), "unknown_message")
    assert rejected(inbox.send(summary("nobody")), "unknown_message")
    inbox.ok(summary("a1b"))


def test_a_summary_may_take_everything_and_the_conversation_goes_on() -> None:
    inbox = Inbox().ok(*turn(1), summary("a1"))
    assert inbox.recent == []
    assert inbox.session.head == "a1"
    inbox.ok(*turn(2))
    assert inbox.recent == ["u2", "a2"]
    assert inbox.session.recent[0].parent == "a1"


def test_w2_a_result_after_its_call_was_trimmed_joins_the_range() -> None:
    """A late result closes its row but never stands in the context without its call."""
    inbox = opened(2).ok(message("u1"), message("a1", "assistant", [call("c1")]), *turn(2), *turn(3))
    assert inbox.recent == ["u3", "a3"]
    assert inbox.session.uncovered == 4
    inbox.ok(message("t1", "tool", [result("c1", "late")]))
    assert inbox.recent == ["u3", "a3"]
    assert inbox.states() == {"@3.0": "done"}
    assert inbox.session.uncovered == 5
    # What names it as parent goes on at the head.
    inbox.ok(message("a4", "assistant", parent_id="t1"))
    assert inbox.recent == ["u3", "a3", "a4"]
    assert duplicate(inbox.send(message("t1", "tool", [result("c1", "late")])))


def test_tool_results_are_in_the_context_exactly_once() -> None:
    """W6: as a made message from a tool event, then as the producer's own message in the same place."""
    inbox = Inbox().ok(
        message("u"),
        message("a", "assistant", [text("let me see"), call("c1", operation_id="op1")]),
        outcome("op1", "c1", "42"),
    )
    made = inbox.session.recent[-1]
    assert made.from_tool_event
    assert made.seq == 3
    assert made.answers == (2,)
    inbox.ok(message("a2", "assistant", "it is 42"))
    inbox.ok(message("t1", "tool", [result("c1", "42")], parent_id="a"))
    assert inbox.recent == ["u", "a", "t1", "a2"]
    assert [m.parent for m in inbox.session.recent] == ["", "u", "a", "t1"]
    assert duplicate(inbox.send(message("t1b", "tool", [result("c1", "42")])), 5)
