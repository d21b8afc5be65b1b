"""Branches, order and time: D09, D15, D16, D17 and the rules B1 to B4."""

from __future__ import annotations

import pytest

from refold.core.limits import BRANCH_BYTES_MAX, BRANCH_MESSAGES_MAX
from refold.wire.snapshot import decode_snapshot, encode_snapshot

from .build import Inbox, call, duplicate, event, fold_bytes, message, rejected, result


def branches(inbox: Inbox) -> list[dict[str, object]]:
    found: list[dict[str, object]] = decode_snapshot(encode_snapshot(inbox.session))["branches"]
    return found


def off_path(inbox: Inbox) -> list[str]:
    return list(inbox.session.branch_messages)


def test_d16_regenerate_then_edit_then_switch_back() -> None:
    """D16: u1,a1; a1' under u1; u2 under a1'; u1' as a root; a1''. Nothing lost, switching back finds it."""
    inbox = Inbox().ok(message("u1"), message("a1", "assistant", "one"))
    inbox.ok(message("a1'", "assistant", "two", parent_id="u1"), message("u2", parent_id="a1'"))
    assert inbox.recent == ["u1", "a1'", "u2"]
    assert off_path(inbox) == ["a1"]
    assert branches(inbox) == [{"head_message_id": "a1", "fork_message_id": "u1", "seq": 2}]

    inbox.ok(message("u1'", content="edited", parent_id=""), message("a1''", "assistant", "three"))
    assert inbox.recent == ["u1'", "a1''"]
    assert off_path(inbox) == ["u1", "a1", "a1'", "u2"]
    assert [b["head_message_id"] for b in branches(inbox)] == ["a1", "u2"]
    assert all(b["fork_message_id"] is None for b in branches(inbox))

    inbox.ok(event("BranchSwitched", head_message_id="u2"))
    assert inbox.recent == ["u1", "a1'", "u2"]
    assert inbox.session.complete
    inbox.ok(event("BranchSwitched", head_message_id="a1''"))
    assert inbox.recent == ["u1'", "a1''"]
    assert duplicate(inbox.send(event("BranchSwitched", head_message_id="a1''")))
    assert rejected(inbox.send(event("BranchSwitched", head_message_id="nobody")), "unknown_message")


def test_an_edit_by_replaces_is_a_sibling() -> None:
    inbox = Inbox().ok(message("u1"), message("a1", "assistant"), message("u2"), message("a2", "assistant"))
    inbox.ok(message("u2'", content="better", replaces="u2"))
    assert inbox.recent == ["u1", "a1", "u2'"]
    assert off_path(inbox) == ["u2", "a2"]
    assert rejected(inbox.send(message("u9", replaces="nobody")), "unknown_message")


def test_b3_a_parent_that_is_not_held_makes_an_incomplete_path() -> None:
    """An edit far back: accepted, marked, and complete again when the old path is taken up again."""
    inbox = Inbox().ok(event("SessionOpened", window_messages=2))
    for i in range(4):
        inbox.ok(message(f"u{i}"), message(f"a{i}", "assistant"))
    assert inbox.recent == ["u3", "a3"]
    through = inbox.session.through
    inbox.ok(message("edit", parent_id="a0"))
    assert inbox.recent == ["edit"]
    assert not inbox.session.complete
    inbox.ok(event("BranchSwitched", head_message_id="a3"))
    assert inbox.recent == ["u3", "a3"]
    assert inbox.session.complete
    assert inbox.session.through == through
    assert inbox.session.uncovered == 6


def test_b3_a_summary_stands_only_on_the_path_it_was_made_on() -> None:
    inbox = Inbox().ok(
        message("u1"),
        message("a1", "assistant"),
        message("u2"),
        message("a2", "assistant"),
        event("ContextSummarized", text="so far", through_message_id="a1"),
    )
    assert inbox.session.summary_active
    inbox.ok(message("other", parent_id=""))
    assert not inbox.session.summary_active
    assert inbox.session.complete
    assert inbox.session.through == 0
    inbox.ok(event("BranchSwitched", head_message_id="a2"))
    assert inbox.session.summary_active
    assert (inbox.session.through, inbox.session.uncovered) == (2, 0)
    # A summary of the other path takes its place: the first path can no longer say what was covered.
    inbox.ok(event("BranchSwitched", head_message_id="other"))
    inbox.ok(event("ContextSummarized", text="the other", through_message_id="other"))
    inbox.ok(event("BranchSwitched", head_message_id="a2"))
    assert not inbox.session.summary_active
    assert not inbox.session.complete


def test_a_summary_completes_a_path_whose_beginning_was_unknown() -> None:
    inbox = Inbox().ok(message("u5", parent_id="from elsewhere"), message("a5", "assistant"))
    assert not inbox.session.complete
    inbox.ok(event("ContextSummarized", text="read from the journal", through_message_id="a5"))
    assert inbox.session.complete
    assert inbox.session.summary_active


def test_b2_branch_messages_are_bounded_leaf_by_leaf() -> None:
    inbox = Inbox().ok(message("u"))
    for i in range(BRANCH_MESSAGES_MAX + 20):
        inbox.ok(message(f"a{i}", "assistant", parent_id="u"))
    assert len(off_path(inbox)) == BRANCH_MESSAGES_MAX
    assert off_path(inbox)[0] == "a19"
    # Gone from the state, still recognised.
    assert duplicate(inbox.send(message("a18", "assistant", parent_id="u")), 20)
    assert rejected(inbox.send(message("a18", "assistant", "x", parent_id="u")), "conflict")
    for i in range(10):
        inbox.ok(message(f"big{i}", "assistant", "x" * 20_000, parent_id="u"))
    assert inbox.session.branch_bytes <= BRANCH_BYTES_MAX


def test_b4_pinned_messages_stand_outside_the_tree() -> None:
    """A chain of explicit parents through a system message stays one path."""
    inbox = Inbox().ok(
        message("s1", "system", parent_id=""),
        message("u1", parent_id="s1"),
        message("a1", "assistant", parent_id="u1"),
        message("s2", "system", "more", parent_id="a1"),
        message("u2", parent_id="s2"),
    )
    assert inbox.recent == ["u1", "a1", "u2"]
    assert inbox.session.complete


def test_a_result_for_a_call_on_another_branch_stays_there() -> None:
    """The user went another way while the tool ran: its result follows its call, not the head."""
    inbox = Inbox().ok(
        message("u1"),
        message("a1", "assistant", [call("c1"), call("c2")]),
        message("t1", "tool", [result("c1")]),
        message("u1'", parent_id=""),
        message("t2", "tool", [result("c2")]),
    )
    assert inbox.recent == ["u1'"]
    assert {m.id: m.parent for m in inbox.session.branch_messages.values()} == {
        "u1": "",
        "a1": "u1",
        "t1": "a1",
        "t2": "t1",
    }
    inbox.ok(event("BranchSwitched", head_message_id="t2"))
    assert inbox.recent == ["u1", "a1", "t1", "t2"]


def test_a_branch_whose_call_was_trimmed_does_not_show_a_lone_result() -> None:
    """W2 on a path that is taken up again after the common beginning has left the window."""
    inbox = Inbox().ok(
        event("SessionOpened", window_messages=4),
        message("u1"),
        message("a1", "assistant", [call("c1"), call("c2")]),
        message("t1", "tool", [result("c1")]),
        message("b", "assistant", "other way", parent_id="a1"),
        message("u2"),
        message("a2", "assistant"),
        message("u3"),
        message("a3", "assistant"),
    )
    assert "a1" not in inbox.session.held
    assert "t1" in off_path(inbox)
    inbox.ok(event("BranchSwitched", head_message_id="t1"))
    assert inbox.recent == []
    assert not inbox.session.complete
    inbox.ok(message("a4", "assistant"))
    assert inbox.recent == ["a4"]


def test_a_parent_that_comes_after_its_child_makes_no_ring() -> None:
    inbox = Inbox().ok(message("child", parent_id="late"), message("late"), message("x", parent_id="child"))
    inbox.ok(event("BranchSwitched", head_message_id="late"))
    inbox.ok(message("late2", parent_id="late"), event("BranchSwitched", head_message_id="x"))
    assert rejected(inbox.send(message("self", parent_id="self")), "bad_value")


def test_a_ring_of_parents_off_the_path_is_still_bounded() -> None:
    """Three large messages in a ring have no leaf; the oldest leaves, and the fold goes on."""
    inbox = Inbox().ok(message("m1", content="x" * 25_000, parent_id="m3"))
    inbox.ok(message("m2", content="x" * 25_000), message("m3", content="x" * 25_000))
    inbox.ok(message("new", parent_id=""))
    assert off_path(inbox) == ["m2", "m3"]


def test_d09_a_message_id_again() -> None:
    """D09: other content is a conflict, counted and not applied; the same content is a duplicate."""
    inbox = Inbox().ok(message("m1", content="pay 10"))
    assert rejected(inbox.send(message("m1", content="pay 100")), "conflict")
    assert duplicate(inbox.send(message("m1", content="pay 10")), 1)
    assert inbox.session.seq == 1
    # Also after the message has left the window.
    inbox.ok(event("SessionConfigured", window_messages=1), message("m2"), message("m3"))
    assert rejected(inbox.send(message("m1", content="pay 100")), "conflict")
    assert duplicate(inbox.send(message("m1", content="pay 10")), 1)


def test_d15_messages_of_concurrent_runs_stand_in_log_order() -> None:
    """D15: two runs write to one session at once: the order is the journal's, the same under replay."""
    inbox = Inbox().ok(message("u"))
    for i, run in enumerate(["r1", "r2", "r1", "r2"]):
        inbox.send(message(f"{run}.{i}", "assistant"), run=run)
    assert inbox.recent == ["u", "r1.0", "r2.1", "r1.2", "r2.3"]
    assert fold_bytes(inbox.entries()) == encode_snapshot(inbox.session)


@pytest.mark.parametrize("shift_ms", [5 * 3600 * 1000, -5 * 3600 * 1000, 0, -(10**14), 10**14])
def test_d17_order_is_the_logs_never_the_clients_clock(shift_ms: int) -> None:
    """D17: a clock hours off, the years 1970 and 2100, and ties: kept as data, never an order."""
    inbox = Inbox()
    inbox.send(message("m1"), event_time_ms=max(0, inbox.clock + shift_ms))
    inbox.send(message("m2"))
    inbox.send(message("m3"), event_time_ms=inbox.clock)
    assert inbox.recent == ["m1", "m2", "m3"]
    assert inbox.session.time_ms == 1_760_000_002_000


def test_session_time_never_goes_back() -> None:
    """Append times of an old broker or a forwarded record may: session time is the largest so far."""
    inbox = Inbox().ok(message("m1"))
    first = inbox.session.time_ms
    value = inbox.records[0][0]
    assert duplicate(inbox.put(value, at_ms=5))
    inbox.clock = 1000
    inbox.ok(message("m2"))
    assert inbox.session.time_ms == first
    assert [m.time_ms for m in inbox.session.recent] == [first, first]


def test_w2_what_asked_leaves_with_what_stands_before_it_alone() -> None:
    """A path whose second message answers a call that is not on it begins behind that one; whoever answers
    the first, which leaves with it, goes too."""
    inbox = Inbox().ok(*[message(f"m{number}") for number in range(6)])
    path = [("x1", -9, []), ("x2", -8, [900]), ("x3", -7, [-9]), ("x4", -6, [])]
    before = [""] + [name for name, _, _ in path]
    inbox.ok(
        event(
            "ContextRestored",
            head_message_id="x4",
            messages=[
                {
                    "message_id": name,
                    "parent": parent,
                    "seq": seq,
                    "time_ms": 1,
                    "role": "tool" if answers else "assistant",
                    "turn_start": False,
                    "answers": answers,
                    "length": 5,
                    "sha256": "0" * 64,
                }
                for parent, (name, seq, answers) in zip(before, path, strict=False)
            ],
        )
    )
    assert inbox.recent == ["x4"]


def test_o3_a_session_that_was_deleted_meanwhile_is_not_begun_by_its_past() -> None:
    """A path of a fork that lies in its source has seqs below zero, which no session's seq contradicts."""
    restored = event(
        "ContextRestored",
        head_message_id="x",
        messages=[
            {
                "message_id": "x",
                "parent": "",
                "seq": -3,
                "time_ms": 1,
                "role": "user",
                "turn_start": True,
                "length": 5,
                "sha256": "0" * 64,
            }
        ],
    )
    inbox = Inbox().ok(message("m"), event("SessionDeleted"))
    assert rejected(inbox.send(restored), "no_session")
    assert not inbox.session.exists
