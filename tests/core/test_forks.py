"""O1: a fork is what its source was, without what acts; whatever a base holds, the fold keeps its bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refold.core import Accepted, Session, evolve, initial, limits
from refold.core.context import elide
from refold.core.envelope import Actor
from refold.core.forks import source_seq_of
from refold.core.messagestate import Message
from refold.core.policystate import Reduced, SessionPolicy
from refold.core.session import Config, Fact, Summary, Trunk
from refold.errors import InvalidRecord
from refold.wire.codec import decode, encode, encode_body
from refold.wire.foreign import _fields
from refold.wire.snapshot import decode_snapshot, encode_snapshot
from refold.wire.varint import LONG_MAX, LONG_MIN

from .build import TENANT, Inbox, call, duplicate, event, intended, message, rejected, started, text
from .forkkit import FORK, base_session, fork, forked
from .histories import histories, items
from .runkit import run_started

PATIENT = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def context_of(session: Session, shift: int = 0) -> dict[str, Any]:
    """The public context; seqs of the source as the fork has them."""
    context = decode_snapshot(encode_snapshot(session))["context"]
    for name in ("system", "recent_messages", "branch_messages"):
        for shown in context[name]:
            shown["seq"] -= shift
            shown["answers"] = [seq - shift for seq in shown["answers"]]
    if context["summary"]:
        context["summary"]["seq"] -= shift
        context["summary"]["through_seq"] -= shift
    if context["through"]:
        context["through"] -= shift
    context.pop("waiting_results")
    return context


@PATIENT
@given(histories(), st.data())
def test_o1_a_fork_has_the_sources_context_and_goes_on_like_any_session(
    inbox: Inbox, data: st.DataObject
) -> None:
    """O1 over random histories: the same context, and whatever comes next folds as ever, byte for byte."""
    source = inbox.session
    if not source.exists:
        return
    before = encode_snapshot(source)
    made = fork(inbox)
    assert made.session.seq == 1
    assert context_of(made.session) == context_of(source, source.seq + 1)
    assert not any([made.session.calls, made.session.generations, made.session.runs, made.session.orphans])
    assert {name: fact.value for name, fact in made.session.facts.items()} == {
        name: fact.value for name, fact in source.facts.items()
    }
    for number in range(data.draw(st.integers(0, 12))):
        made.send(data.draw(items(inbox.offset + number)), event_id=f"x{number}")
    again = initial(TENANT, FORK)
    for entry, decoded in made.entries():
        evolve(again, entry.seq, entry.time_ms, entry.partition, entry.offset, entry.env, decoded)
    assert not again.exists or encode_snapshot(again) == encode_snapshot(made.session)
    assert encode_snapshot(source) == before, "the source hears nothing of it"


def talk(inbox: Inbox | None = None) -> Inbox:
    made = inbox or Inbox()
    made.ok(event("SessionOpened", window_messages=4, config_json='{"model":"m"}'), message("s", "system"))
    for turn in range(6):
        made.ok(message(f"u{turn}"), message(f"a{turn}", "assistant"))
    made.ok(message("u5'", content="other", parent_id="a4"), event("FactSet", name="city", value='"Oslo"'))
    made.ok(event("ContextSummarized", text="so far", through_message_id="a3"))
    return made


def test_o1_nothing_that_acts_is_taken_along() -> None:
    """Calls, generations, runs, children, waiting results and de-duplication stay with the source."""
    source = talk()
    source.ok(
        message("a6", "assistant", [text("t"), call("c1", operation_id="op1")]),
        intended("op2"),
        started("g1"),
        run_started(),
        event("ChildLinked", session="child", kind="child", call="op1"),
        ("ToolCallCompleted", {"operation_id": "nobody", "content": []}),
    )
    source.send(message("stamped"), producer_id="p", producer_epoch=1, producer_counter=1)
    made = fork(source).session
    assert made.link is not None
    assert (made.link.kind, made.link.session, made.link.seq) == ("fork", "s1", source.session.seq)
    assert not any([made.calls, made.generations, made.runs, made.children, made.orphans])
    assert not made.producers
    assert len(made.event_ids) == limits.DEDUP_ENTRY_BYTES, "only the fork's own event"
    assert made.config is not None
    assert made.config.json == '{"model":"m"}'


def test_o1_seqs_of_the_source_are_below_zero_and_lead_back() -> None:
    """What came from the source has its place in the source's journal; a fork of a fork once more."""
    source = talk()
    made = fork(source)
    at = source.session.seq
    for mine, theirs in zip(made.session.recent, source.session.recent, strict=True):
        assert mine.seq < 0
        assert source_seq_of(mine.seq, at) == theirs.seq
    made.ok(message("new"))
    second = Inbox(initial(TENANT, "fork-2")).ok(forked(made.session))
    seqs = {m.id: m.seq for m in second.session.recent}
    assert source_seq_of(seqs["new"], made.session.seq) == 2
    assert source_seq_of(source_seq_of(seqs["u5'"], made.session.seq), at) == source.session.held["u5'"].seq


def test_o1_a_summary_and_branches_work_on_in_the_fork() -> None:
    """A branch is switched to and back; a summary covers messages that came from the source."""
    made = fork(talk())
    assert made.session.summary_active
    made.ok(event("BranchSwitched", head_message_id="a5"))
    assert made.recent[-1] == "a5"
    made.ok(event("BranchSwitched", head_message_id="u5'"), message("a5'", "assistant"))
    made.ok(event("ContextSummarized", text="all", through_message_id="a4"))
    assert made.recent == ["u5'", "a5'"]
    assert made.session.uncovered == 0


def test_o1_only_the_first_event_and_the_same_again_is_a_duplicate() -> None:
    source = talk()
    made = fork(source)
    assert duplicate(made.send(forked(source.session)), 1)
    source.ok(message("later"))
    assert rejected(made.send(forked(source.session)), "conflict")
    assert rejected(talk(Inbox(initial(TENANT, "busy"))).send(forked(source.session)), "conflict")
    made.ok(event("SessionDeleted"))
    made.ok(forked(source.session))
    assert made.recent[-1] == "later"


def test_o1_a_closed_source_and_one_with_a_timer_make_an_open_fork() -> None:
    source = talk()
    source.ok(event("SessionConfigured", policy={"ttl_ms": 60_000}), event("SessionClosed"))
    made = fork(source)
    assert made.session.status == "open"
    assert made.session.policy == SessionPolicy(ttl_ms=60_000)
    assert made.session.timer_ms == made.session.time_ms + 60_000


def test_o1_opening_a_fork_again_compares_with_what_it_has() -> None:
    made = fork(talk())
    assert duplicate(made.send(event("SessionOpened", config_json='{"model":"m"}')), 1)
    assert rejected(made.send(event("SessionOpened", config_json='{"model":"n"}')), "conflict")


def _message(base: Session, **changes: Any) -> None:
    last = base.recent[-1]
    last.altered()
    for name, value in changes.items():
        setattr(last, name, value)


def _pin(base: Session, made: Message) -> None:
    base.system.append(made)
    base.held[made.id] = made
    base.system_bytes += made.size
    base.enc_context = None


def _part(base: Session, state: bytes, version: int = 1, seq: int = 3) -> None:
    base.reduced["orders"] = Reduced("orders", version, seq, state)
    base.enc_tail = None


def _config(base: Session, seq: int) -> None:
    assert base.config is not None
    base.config.seq = seq
    base.enc_rest = None


def _trunk(base: Session, trunk: Trunk) -> None:
    base.trunks[next(iter(base.branch_messages.values())).parent] = trunk
    base.enc_memory = None


def _elide(base: Session, sha256: str) -> None:
    last = base.recent[-1]
    base.recent_bytes -= last.size
    elide(last)
    base.recent_bytes += last.size
    last.sha256 = sha256


def _put(name: str, key: str, value: Any) -> Callable[[Session], None]:
    def change(base: Session) -> None:
        getattr(base, name)[key] = value
        if name == "facts":
            base.facts_bytes += value.size
        base.enc_rest = base.enc_memory = None

    return change


def _set(name: str, value: Any) -> Callable[[Session], None]:
    def change(base: Session) -> None:
        setattr(base, name, value)
        base.enc_rest = base.enc_memory = base.enc_settings = base.enc_tail = base.enc_context = None

    return change


FAULTS: dict[str, Callable[[Session], None]] = {
    "a call": lambda base: _call(base),
    "a message from the future": lambda base: _message(base, seq=base.seq + 1),
    "a seq out of all bounds": lambda base: _message(base, seq=-(1 << 60)),
    "a broken path": lambda base: _message(base, parent="elsewhere"),
    "too many answers": lambda base: _message(base, answers=tuple(range(limits.ANSWERS_MAX + 1))),
    "an actor without end": lambda base: _message(base, actor="a" * 300),
    "a fact that is no JSON": _put("facts", "f", Fact("{", 1, 1)),
    "a fact from the future": _put("facts", "f", Fact("1", 10_000, 1)),
    "a fact above its limit": _put("facts", "f", Fact(f'"{"x" * 9_000}"', 1, 9_002)),
    "a configuration with a wrong digest": _set("config", Config("0" * 64, "{}", 1)),
    "a window above the limit": _set("window_messages", 1_000),
    "a policy nobody has": _set("policy", SessionPolicy(ttl_ms=-5)),
    "a place that is no id": _put("trunks", "@@x", Trunk(1, 1, True, 0)),
    "an alias without end": _put("aliases", "x" * 300, "u5'"),
    "memory that is cut off": _set("message_ids", b"123"),
    "a trail that is cut off": _set("trail", b"123"),
    "a window that covers the future": _set("through", 10_000),
    "a part that is no state": lambda base: _part(base, b"{"),
    "a part that is not canonical": lambda base: _part(base, b'{"b": 1}'),
    "a part of version 0": lambda base: _part(base, b"{}", 0),
    "a part with a number longer than Python reads": lambda base: _part(base, b"1" * 5_000),
    "a part out of all bounds": lambda base: _part(base, b"{}", seq=LONG_MIN),
    "a configuration out of all bounds": lambda base: _config(base, LONG_MIN),
    "a fact out of all bounds": _put("facts", "f", Fact("1", LONG_MIN, 1)),
    "a summary out of all bounds": _set("summary", Summary("so far", "a3", LONG_MIN, 1)),
    "a trunk whose count overflows": lambda base: _trunk(base, Trunk(1, LONG_MAX, True, 0)),
    "a trunk whose count is negative": lambda base: _trunk(base, Trunk(1, -1, True, 0)),
    "a trunk whose summary is out of all bounds": lambda base: _trunk(base, Trunk(1, 1, True, LONG_MIN)),
    "a count that overflows": _set("uncovered", LONG_MAX),
    "an elided message without a digest": lambda base: _elide(base, "x" * 64),
    "a timer": _set("timer_ms", 5),
    "a parked event": _set("parked", 5),
    "a closed session": _set("status", "closed"),
}


def _call(base: Session) -> None:
    other = Inbox().ok(intended("op")).session
    base.calls = dict(other.calls)
    base.calls_bytes, base.open_calls = other.calls_bytes, 1
    base.enc_rest = None


@pytest.mark.parametrize("fault", FAULTS)
def test_o1_a_base_that_no_session_could_be_is_refused(fault: str) -> None:
    """D24: the bytes come from anybody. Each fault alone turns an accepted base into a refused one."""
    source = talk().session
    base = base_session(source)
    inbox = Inbox(initial(TENANT, FORK))
    FAULTS[fault](base)
    ruling = inbox.send(forked(source, base))
    assert rejected(ruling, "bad_value"), ruling
    assert not inbox.session.exists
    assert isinstance(inbox.send(forked(source)), Accepted)


@pytest.mark.parametrize("name", ["", "@bot", "a" * limits.ID_BYTES_MAX])
def test_o1_whoever_may_write_a_message_may_be_its_actor_in_a_fork(name: str) -> None:
    inbox = Inbox()
    inbox.send(message("m1"), actor=Actor("agent", name))
    assert fork(inbox).session.recent[0].actor == name


def test_o1_a_base_without_events_or_from_the_end_of_time_is_refused() -> None:
    """What is held in a session without events is not looked at; and seqs are moved by that of the source."""
    source = talk().session
    empty = Session(TENANT, source.session)
    empty.aliases = {f"a{number}": "x" for number in range(1_000)}
    inbox = Inbox(initial(TENANT, FORK))
    assert rejected(inbox.send(forked(source, empty, source_seq=0)), "bad_value")
    below = base_session(source)
    below.seq = -5
    assert rejected(inbox.send(forked(source, below, source_seq=-5)), "bad_value")
    late = base_session(source)
    late.seq = LONG_MAX
    assert rejected(inbox.send(forked(source, late, source_seq=late.seq)), "bad_value")


def _longer(context: dict[str, Any]) -> None:
    context["recent_messages"][-1]["size"] += 1


def _shown(context: dict[str, Any]) -> None:
    """Elided, and its content stands there nevertheless."""
    context["recent_messages"][-1]["elided"] = {"length": 5, "sha256": "0" * 64}


def _flood(context: dict[str, Any]) -> None:
    context["recent_messages"] *= 40


def _knots(context: dict[str, Any]) -> None:
    for shown in context["recent_messages"]:
        shown["answers"] = list(range(1_000))


def _rewritten(source: Session, change: Callable[[dict[str, Any]], None]) -> bytes:
    data = decode(encode_snapshot(base_session(source)), "refold.SessionSnapshot").record
    change(data["context"])
    return encode("refold.SessionSnapshot", data)


def _twins(context: dict[str, Any]) -> None:
    """A branch message four times: four times its bytes, and the tree can only give up one."""
    last = context["recent_messages"].pop()
    content = [{**last["content"][0], "text": "x" * 25_000}]
    body = {name: last[name] for name in _fields()}
    size = len(encode_body("refold.event.MessageAppended", {**body, "content": content}))
    context["branch_messages"] = [{**last, "content": content, "size": size}] * 4


@pytest.mark.parametrize("change", [_longer, _flood, _knots, _twins])
def test_o1_a_base_whose_bytes_no_worker_writes_is_refused(change: Callable[[dict[str, Any]], None]) -> None:
    """A size that is wrong would make a state record that nobody can read again; what is there in masses
    would keep the worker busy before anything is ruled."""
    source = talk().session
    inbox = Inbox(initial(TENANT, FORK))
    with pytest.raises(InvalidRecord) as wrong:
        inbox.send(forked(source, _rewritten(source, change)))
    assert wrong.value.code == "undecodable"


def test_o1_a_message_that_is_elided_and_has_content_is_refused() -> None:
    """Its size would be that of what the fold does not keep."""
    source = talk().session
    inbox = Inbox(initial(TENANT, FORK))
    assert rejected(inbox.send(forked(source, _rewritten(source, _shown))), "bad_value")


def test_o1_a_base_of_another_session_tenant_or_seq_is_refused() -> None:
    source = talk().session
    inbox = Inbox(initial(TENANT, FORK))
    assert rejected(inbox.send(forked(source, source_seq=source.seq - 1)), "bad_value")
    assert rejected(inbox.send(forked(source, source="other")), "bad_value")
    assert rejected(inbox.send(forked(source, source="@s")), "bad_id")
    base = base_session(source)
    base.tenant, base.enc_head = "else", None
    assert rejected(inbox.send(forked(source, base)), "bad_value")
    own = Inbox(initial(TENANT, source.session))
    assert rejected(own.send(forked(source)), "bad_value")


def test_o1_the_fullest_session_has_a_fork_within_the_record() -> None:
    """S8: a base of a session at its limits fits, and the fork's record with it."""
    inbox = Inbox()
    inbox.check = False
    inbox.ok(event("SessionOpened", window_messages=100, config_json=f'"{"c" * 32_000}"'))
    for i in range(8):
        inbox.ok(message(f"s{i}", "system", "s" * 5_900))
    for i in range(48):
        inbox.ok(message(f"b{i}", content="b" * 1_100, parent_id=""))
    for i in range(5):
        inbox.ok(message(f"w{i}", ("user", "assistant")[i % 2], "w" * 26_000))
    for i in range(6):
        inbox.ok(event("FactSet", name=f"f{i}", value=f'"{"f" * 8_000}"'))
    made = fork(inbox)
    assert len(encode_snapshot(made.session)) <= limits.STATE_RECORD_BYTES_MAX
    assert len(made.session.branch_messages) == len(inbox.session.branch_messages) > 20
