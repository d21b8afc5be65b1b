"""States as of a seq, paths from history, and contexts of forks: over journals in memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.build import TENANT, Inbox, duplicate, event, message, rejected
from core.forkkit import forked
from core.histories import histories
from refold.client.completion import complete
from refold.client.connection import Connection
from refold.client.events import SessionEvent
from refold.client.operations.past import fold_past, lineage
from refold.client.operations.session_operations import fork_payload
from refold.client.operations.window import restored_payload
from refold.client.snapshots import SnapshotView
from refold.core import Accepted, evolve, initial
from refold.core.messagestate import Message
from refold.errors import InvalidRecord, NotFound, UsageError
from refold.wire.codec import decode_body
from refold.wire.journal import decode_journal
from refold.wire.snapshot import encode_snapshot

PATIENT = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


class Journals:
    """Sessions of one tenant, and their events as the client reads them: of the present life, in pages."""

    def __init__(self, *inboxes: Inbox) -> None:
        self.by_id = {inbox.session.session: inbox for inbox in inboxes}

    def events_of(self, session: str, after: int, limit: int | None) -> AsyncGenerator[SessionEvent, None]:
        inbox = self.by_id.get(session)
        life: list[SessionEvent] = []
        for offset, value in enumerate([] if inbox is None else inbox.journal):
            entry = decode_journal(value)
            life.append(
                SessionEvent(entry.seq, entry.time_ms, 0, offset, entry.partition, entry.offset, entry.env)
            )
            if entry.env.type == "SessionDeleted":
                life = []

        async def found() -> AsyncGenerator[SessionEvent, None]:
            for one in [e for e in life if e.seq > after][: limit if limit is not None else len(life)]:
                yield one

        return found()


async def context(journals: Journals, session: str) -> dict[str, Any]:
    view = SnapshotView.of(encode_snapshot(journals.by_id[session].session))
    done = await complete(cast("Connection", None), view, journals.events_of, load_blobs=False)
    made: dict[str, Any] = done["context"]
    return made


def ids(messages: list[dict[str, Any]]) -> list[str]:
    return [one["message_id"] for one in messages]


@PATIENT
@given(histories(), st.integers(0, 2**16))
async def test_o2_the_state_as_of_any_seq_is_what_it_was_then(inbox: Inbox, number: int) -> None:
    """O2: byte for byte, from the journal alone."""
    if not inbox.session.exists:
        return
    journals = Journals(inbox)
    upto = 1 + number % inbox.session.seq
    past = await fold_past(journals.events_of, TENANT, "s1", upto)
    state = initial(TENANT, "s1")
    for entry, decoded in inbox.entries():
        evolve(state, entry.seq, entry.time_ms, entry.partition, entry.offset, entry.env, decoded)
        if entry.seq == upto and state.exists:
            expected = encode_snapshot(state)
    assert past.state.seq == upto
    assert encode_snapshot(past.state) == expected


async def test_o2_a_journal_without_its_beginning_is_told_from_a_session_that_is_not_there() -> None:
    inbox = Inbox().ok(*[message(f"m{i}") for i in range(5)])
    inbox.journal = inbox.journal[2:]
    with pytest.raises(NotFound, match="from seq 3 on only: its beginning"):
        await fold_past(Journals(inbox).events_of, TENANT, "s1", 4)
    past = await fold_past(Journals().events_of, TENANT, "s1", 4)
    assert past.state.seq == 0


async def test_b3_a_path_under_a_message_that_was_never_there_says_so() -> None:
    """B3: a mistyped parent is accepted and hides what was said; a parent that the state forgot does not."""
    inbox = conversation(10, window=8)
    inbox.ok(message("lost", parent_id="a99"), message("on", "assistant"))
    journals = Journals(inbox)
    made = await context(journals, "s1")
    assert (ids(made["recent_messages"]), made["missing_parent"]) == (["lost", "on"], "a99")
    inbox.ok(message("a99", "assistant", parent_id="a9"))
    made = await context(journals, "s1")
    assert made["missing_parent"] is None
    inbox.ok(event("BranchSwitched", head_message_id="on"))
    made = await context(journals, "s1")
    assert made["missing_parent"] is None, "it came later"
    assert "a99" in ids(made["recent_messages"])

    forgotten = conversation(60)
    forgotten.ok(message("back", parent_id="a1"))
    assert "a1" not in forgotten.session.held
    made = await context(Journals(forgotten), "s1")
    assert (ids(made["recent_messages"])[-3:], made["missing_parent"]) == (["u1", "a1", "back"], None)


def content_of(held: Message) -> Any:
    return None if held.body is None else decode_body("refold.event.MessageAppended", held.body)["content"]


def conversation(turns: int, window: int = 4) -> Inbox:
    inbox = Inbox().ok(event("SessionOpened", window_messages=window))
    for turn in range(turns):
        inbox.ok(message(f"u{turn}", content=f"question {turn}"), message(f"a{turn}", "assistant"))
    return inbox


async def test_o3_a_path_the_state_has_lost_is_active_again_with_its_window() -> None:
    """O3: edited far back, the old path is given up by the state and brought back whole from the journal."""
    inbox = conversation(10)
    inbox.ok(message("edit", content="from the start", parent_id=""))
    for i in range(60):
        inbox.ok(message(f"x{i}", parent_id="edit"))
    assert "a9" not in inbox.session.held
    assert rejected(inbox.send(event("BranchSwitched", head_message_id="a9")), "unknown_message")
    past = await fold_past(Journals(inbox).events_of, TENANT, "s1", messages=True)
    payload = restored_payload(past, "a9")
    inbox.ok(("ContextRestored", payload))
    session = inbox.session
    assert inbox.recent == ["u8", "a8", "u9", "a9"]
    assert (session.complete, session.uncovered, session.head) == (True, 16, "a9")
    inbox.ok(message("u10"), message("a10", "assistant"))
    assert inbox.recent == ["u9", "a9", "u10", "a10"]
    assert session.uncovered == 18
    inbox.ok(event("ContextSummarized", text="so far", through_message_id="a9"))
    assert session.uncovered == 0


async def test_o3_it_is_the_window_that_a_session_of_that_path_alone_has() -> None:
    """O3, for every message there ever was: ids, bodies and the count of what lies before."""
    inbox = conversation(8, window=5)
    for turn in range(4):
        inbox.ok(message(f"e{turn}", parent_id=f"a{turn}"), message(f"f{turn}", "assistant"))
    inbox.ok(message("long", content="y" * 40_000, parent_id="f1"))
    for i in range(70):
        inbox.ok(message(f"x{i}", parent_id=""))
    journals = Journals(inbox)
    past = await fold_past(journals.events_of, TENANT, "s1", messages=True)
    for head in ["a7", "f0", "f3", "long", "u3", "u0"]:
        inbox.ok(("ContextRestored", restored_payload(past, head)))
        path = []
        name = head
        while name:
            path.append(name)
            name = past.placed[name].message.parent
        alone = Inbox().ok(event("SessionOpened", window_messages=5))
        for name in reversed(path):
            content = "y" * 40_000 if name == "long" else f"question {name[1]}" if name[0] == "u" else "hello"
            alone.ok(message(name, past.placed[name].message.role, content))
        session = inbox.session
        assert inbox.recent == alone.recent, head
        assert [content_of(m) for m in session.recent] == [content_of(m) for m in alone.session.recent]
        assert (session.uncovered, session.complete) == (alone.session.uncovered, True)


async def test_o3_a_path_that_is_held_but_whose_beginning_is_not_known_is_whole_again() -> None:
    """More of it is held than the window takes: what lies before is counted once."""
    inbox = conversation(6, window=20)
    inbox.session.recent[0].altered()
    inbox.session.recent[0].parent = inbox.session.trunk_id = "lost"
    inbox.session.enc_memory = None
    inbox.session.complete = False
    past = await fold_past(Journals(conversation(6)).events_of, TENANT, "s1", messages=True)
    payload = restored_payload(past, "a5")
    assert (len(payload["messages"]), payload["uncovered"]) == (4, 8)
    inbox.ok(("ContextRestored", {**payload, "uncovered": 30}))
    assert inbox.session.complete
    assert len(inbox.session.recent) == 12
    assert inbox.session.uncovered == 30 - 8


@PATIENT
@given(histories(), st.integers(0, 2**16))
async def test_o3_whatever_the_history_a_path_is_active_again_or_refused_whole(
    inbox: Inbox, number: int
) -> None:
    """O3 over random histories: what the journal says is taken or refused as a conflict, never half, and
    every invariant of the state holds afterwards."""
    inbox.send(event("SessionReopened"))
    if not inbox.session.exists:
        return
    past = await fold_past(Journals(inbox).events_of, TENANT, "s1", messages=True)
    out = {m.id for m in past.state.system} | {o.message.id for o in past.state.orphans}
    heads = sorted(set(past.placed) - out - set(past.state.aliases))
    if not heads:
        return
    head = heads[number % len(heads)]
    ruling = inbox.send(("ContextRestored", restored_payload(past, head)))
    if isinstance(ruling, Accepted) or duplicate(ruling):
        assert inbox.session.head == head
    else:
        # Ids used again for something else, and parents that came after their children and closed a ring.
        assert rejected(ruling, "conflict"), (head, ruling)


async def test_o3_what_does_not_fit_the_tree_is_refused() -> None:
    inbox = conversation(10)
    inbox.ok(message("edit", parent_id=""), *[message(f"x{i}", parent_id="edit") for i in range(60)])
    past = await fold_past(Journals(inbox).events_of, TENANT, "s1", messages=True)
    good = restored_payload(past, "a9")

    body, last = good["messages"][:-1], good["messages"][-1]

    def with_last(**changes: Any) -> tuple[str, dict[str, Any]]:
        return "ContextRestored", {**good, "messages": [*body, {**last, **changes}]}

    def with_path(**changes: Any) -> tuple[str, dict[str, Any]]:
        return "ContextRestored", {**good, **changes}

    other = restored_payload(past, "a8")["messages"][-1]["body"]
    held = inbox.session.recent[-1]
    moved = {**last, "message_id": held.id, "seq": held.seq, "body": None, "sha256": "0" * 64}
    for what, code in [
        (with_last(seq=10_000), "bad_value"),
        (with_last(parent="elsewhere"), "bad_value"),
        (with_last(body=None, length=5, sha256="x"), "bad_value"),
        (with_last(message_id="nobody", body=None, sha256="0" * 64, seq=held.seq), "unknown_message"),
        (with_path(head_message_id="a8"), "unknown_message"),
        (with_path(messages=[]), "unknown_message"),
        (with_path(uncovered=-1), "bad_value"),
        (with_path(uncovered=(1 << 63) - 1), "bad_value"),
        (with_path(through=-(1 << 63)), "bad_value"),
        (with_last(seq=-(1 << 63)), "bad_value"),
        (with_last(answers=[(1 << 63) - 1]), "bad_value"),
        (with_last(actor="a" * 300), "bad_id"),
        (with_path(through_message_id=""), "bad_value"),
        (with_path(head_message_id=held.id, messages=[*body, moved]), "conflict"),
        (with_path(head_message_id="new", messages=[*body, {**moved, "message_id": "new"}]), "conflict"),
    ]:
        assert rejected(inbox.send(what), code), what
    with pytest.raises(InvalidRecord, match="another message's"):
        inbox.send(with_last(body=other))
    with pytest.raises(NotFound, match="never had a message"):
        restored_payload(past, "nowhere")
    assert isinstance(inbox.send(("ContextRestored", good)), Accepted)
    inbox.ok(message("new"))
    assert rejected(inbox.send(with_last(seq=2)), "conflict"), "the same message, another event"


def fork_of(source: Inbox, name: str) -> Inbox:
    made = Inbox(initial(TENANT, name))
    made.clock = source.clock
    payload = fork_payload(source.session.session, encode_snapshot(source.session))
    return made.ok(("SessionForked", payload))


async def test_o1_content_that_no_state_holds_comes_from_the_sources_journal() -> None:
    """Elided content and beginnings of paths, through a fork of a fork."""
    source = conversation(6, window=20)
    source.ok(message("big", content="z" * 50_000))
    first = fork_of(source, "f1").ok(message("later", content="w" * 50_000))
    second = fork_of(first, "f2").ok(message("last"))
    journals = Journals(source, first, second)
    shown = await context(journals, "f2")
    assert ids(shown["recent_messages"])[-3:] == ["big", "later", "last"]
    assert [m["elided"] for m in shown["recent_messages"]] == [None] * len(shown["recent_messages"])
    texts = [m["content"][0]["text"][:2] for m in shown["recent_messages"][-3:]]
    assert texts == ["zz", "ww", "he"]


async def test_o1_a_path_edited_far_back_has_its_beginning_from_the_source() -> None:
    """The fork hangs a message below one that neither state holds: the window is filled from both."""
    source = conversation(8, window=4)
    made = fork_of(source, "f1")
    made.ok(message("edit", parent_id="a2"))
    assert not made.session.complete
    shown = await context(Journals(source, made), "f1")
    assert ids(shown["recent_messages"]) == ["u2", "a2", "edit"]
    past = await fold_past(Journals(source, made).events_of, TENANT, "f1", messages=True)
    made.ok(("ContextRestored", restored_payload(past, "edit")))
    assert made.recent == ["u2", "a2", "edit"]
    assert (made.session.uncovered, made.session.complete) == (4, True)
    assert all(m.seq < 0 for m in made.session.recent[:2]), "they are the source's messages"


async def test_o1_a_source_that_was_deleted_or_begun_anew_is_not_mistaken() -> None:
    """The fork stands; only what was left to the source's journal is gone."""
    source = conversation(6, window=4).ok(message("big", content="z" * 50_000))
    made = fork_of(source, "f1")
    source.ok(event("SessionDeleted"))
    for i in range(20):
        source.ok(message(f"other{i}", content="q" * 50_000))
    shown = await context(Journals(source, made), "f1")
    assert shown["recent_messages"][-1]["message_id"] == "big"
    assert shown["recent_messages"][-1]["elided"] is not None
    past = await fold_past(Journals(source, made).events_of, TENANT, "f1", messages=True)
    assert not [name for name in past.placed if name.startswith("other")]


async def test_o1_lineage_is_the_source_up_to_the_fork_and_then_the_fork() -> None:
    source = conversation(2)
    made = fork_of(source, "f1").ok(message("mine"))
    source.ok(message("theirs"))
    found = await lineage(Journals(source, made).events_of, "f1")
    assert [(e.session, e.type) for e in found][-3:] == [
        ("s1", "MessageAppended"),
        ("f1", "SessionForked"),
        ("f1", "MessageAppended"),
    ]
    assert len(found) == 5 + 2


def test_o1_a_quarantined_session_is_not_forked_as_it_is() -> None:
    inbox = conversation(2).ok(event("SessionQuarantined", code="X", reason="S2", partition=0, offset=1))
    with pytest.raises(UsageError, match="release it"):
        fork_payload("s1", encode_snapshot(inbox.session))


def test_the_sdk_makes_the_base_that_the_rules_are_tested_with() -> None:
    inbox = conversation(3)
    assert ("SessionForked", fork_payload("s1", encode_snapshot(inbox.session))) == forked(inbox.session)
