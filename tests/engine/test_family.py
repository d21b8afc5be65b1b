"""Closing and deleting follow the link to children (Y4): in the parent's effects, where each child lives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from engine.test_step import KEY, PARTITION, SLOTS, View, record
from engine.test_store import PARTITION as STORE_PARTITION
from engine.test_store import TENANT as STORE_TENANT
from engine.test_work import Worked
from engine.traffic import TENANT
from refold.core.envelope import Envelope
from refold.core.rulings import Accepted, Duplicate
from refold.core.session import Session
from refold.core.slots import make_key
from refold.engine import seal
from refold.engine.step import Effects, step
from refold.engine.store import Memory, Store
from refold.errors import InvariantViolation
from refold.wire.envelope import decode_envelope, encode_envelope
from refold.wire.events import event_payload

CHILDREN = [f"child-{at}" for at in range(6)]
FACT = {"name": "n", "value": "1"}


class Parent:
    """One parent session, its records at offsets of their own; ``sent``: what went to inboxes."""

    def __init__(self, **configured: Any) -> None:
        self.view = View()
        self.offset = 0
        self.sent: list[tuple[int, Envelope]] = []
        if configured:
            self.put("SessionOpened", configured)
        for name in CHILDREN:
            self.put("ChildLinked", {"session": name, "kind": "child", "call": f"op-{name}"})
        self.put("ChildLinked", {"session": "fork-1", "kind": "fork", "call": None})

    def put(self, kind: str | None, fields: dict[str, Any], append_ms: int | None = None) -> Effects:
        self.offset += 1
        value = None
        if kind is not None:
            env = Envelope(f"e{self.offset}", TENANT, "s1", kind, payload=event_payload(kind, fields))
            value = encode_envelope(env)
        changes = {} if append_ms is None else {"append_ms": append_ms}
        effects = step(self.view, record(value, self.offset, **changes))
        self.sent += [
            (out.partition, decode_envelope(out.value))
            for out in effects.outputs
            if out.topic == self.view.topics.inbox and out.value is not None
        ]
        assert all(out.session == KEY for out in effects.outputs)
        return effects


def test_closing_and_deleting_reach_every_child_and_no_fork() -> None:
    parent = Parent()
    assert isinstance(parent.put("SessionClosed", {"reason": "done"}).ruling, Accepted)
    assert [(env.session, env.type) for _, env in parent.sent] == [(c, "SessionClosed") for c in CHILDREN]
    assert {where for where, _ in parent.sent} != {PARTITION}
    for where, env in parent.sent:
        assert where == SLOTS.partition(make_key(TENANT, env.session))
        assert env.event_id.startswith("link/8/")
        assert env.causation_id == "e8"
    parent.sent.clear()
    assert isinstance(parent.put("SessionClosed", {}).ruling, Duplicate)
    assert parent.sent == []
    parent.put("SessionReopened", {})
    assert parent.sent == []
    parent.put(None, {})
    assert [(env.session, env.type) for _, env in parent.sent] == [(c, "SessionDeleted") for c in CHILDREN]


def test_the_same_event_makes_the_same_bytes() -> None:
    """Folded anew after an aborted transaction, it is one event to the child."""
    first, again = Parent(), Parent()
    made = [one.put("SessionDeleted", {}).outputs for one in (first, again)]
    assert made[0] == made[1]
    assert len(made[0]) == len(CHILDREN)


def test_a_child_takes_it_once() -> None:
    parent = Parent()
    parent.put("SessionClosed", {})
    where, env = parent.sent[0]
    key = make_key(TENANT, env.session)
    rulings = [
        step(parent.view, record(encode_envelope(env), at, key=key, partition=where)).ruling for at in (1, 2)
    ]
    assert isinstance(rulings[0], Accepted)
    assert isinstance(rulings[1], Duplicate)
    assert parent.view.entries[key].session.status == "closed"


def test_the_end_of_the_idle_time_is_followed_too() -> None:
    """By what the policy says: closed, or deleted."""
    for action, kind in (("close", "SessionClosed"), ("delete", "SessionDeleted")):
        parent = Parent(policy={"ttl_ms": 1_000, "ttl_action": action})
        assert parent.sent == []
        deadline = parent.view.entries[KEY].session.timer_ms
        early = parent.put("TimerFired", {"deadline_ms": deadline}, append_ms=deadline - 500)
        assert isinstance(early.ruling, Duplicate)
        parent.put("TimerFired", {"deadline_ms": deadline}, append_ms=deadline + 5_000)
        assert [env.type for _, env in parent.sent] == [kind] * len(CHILDREN)


def test_other_events_say_nothing_to_children() -> None:
    parent = Parent()
    for kind, fields in (("FactSet", {"name": "a", "value": "1"}), ("SessionReopened", {})):
        parent.put(kind, fields)
    assert parent.sent == []


async def test_what_is_taken_back_at_the_seal_closes_no_child(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The parent is quarantined instead of closed: its children hear nothing."""
    store = Store(tmp_path / "p0", Memory())
    try:
        bench = Worked(store)
        bench.fold(sent(1, "ChildLinked", {"session": "c1", "kind": "child", "call": "op"}))
        await bench.commit()
        real = seal.encode_snapshot

        def broken(session: Session) -> bytes:
            if session.status == "closed":
                raise InvariantViolation("too large, or whatever")
            return real(session)

        monkeypatch.setattr(seal, "encode_snapshot", broken)
        bench.fold(sent(2, "SessionClosed", {}))
        assert links(bench) == ["SessionClosed"]
        assert len(await bench.begin_commit()) == 1
        assert bench.session().status == "quarantined"
        assert links(bench) == []
    finally:
        store.close()


def sent(number: int, kind: str, fields: dict[str, Any]) -> bytes:
    return encode_envelope(
        Envelope(f"e{number}", STORE_TENANT, "s1", kind, payload=event_payload(kind, fields))
    )


def links(bench: Worked) -> list[str]:
    """Types of what would be appended to inboxes."""
    overlay = bench.inflight or bench.current
    outputs = overlay.parts[STORE_PARTITION].outputs
    return [decode_envelope(out.value).type for out in outputs if out.topic == "t.inbox" and out.value]


def deliver(view: View, first: Envelope) -> list[str]:
    """What follows from one event until nothing does: ``type session status`` of each record, in order."""
    waiting, seen = [first], []
    while waiting:
        env = waiting.pop(0)
        key = make_key(TENANT, env.session)
        at = len(seen) + 100
        effects = step(view, record(encode_envelope(env), at, key=key, partition=SLOTS.partition(key)))
        assert effects.ruling is not None
        seen.append(f"{env.type} {env.session} {type(effects.ruling).__name__}")
        assert len(seen) < 50, "it does not end"
        waiting += [
            decode_envelope(out.value)
            for out in effects.outputs
            if out.topic == view.topics.inbox and out.value is not None
        ]
    return seen


def test_sessions_that_are_each_others_children_end_once() -> None:
    """A ring, and one that two lead to: each session is closed and deleted once, and the rest is repeats."""
    view = View()
    links = [("a", "b"), ("b", "c"), ("c", "a"), ("a", "d"), ("b", "d")]
    for number, (parent, child) in enumerate(links):
        fields = {"session": child, "kind": "child", "call": None}
        payload = event_payload("ChildLinked", fields)
        deliver(view, Envelope(f"l{number}", TENANT, parent, "ChildLinked", payload=payload))
    deliver(view, Envelope("d1", TENANT, "d", "FactSet", payload=event_payload("FactSet", FACT)))
    for kind in ("SessionClosed", "SessionDeleted"):
        env = Envelope(kind, TENANT, "a", kind, payload=event_payload(kind, {"reason": None}))
        seen = deliver(view, env)
        assert sorted(line for line in seen if line.endswith(" Accepted")) == [
            f"{kind} {session} Accepted" for session in "abcd"
        ]
        assert [line for line in seen if line.endswith(" Duplicate")] == [
            f"{kind} d Duplicate",
            f"{kind} a Duplicate",
        ]
        assert len(seen) == len(links) + 1
