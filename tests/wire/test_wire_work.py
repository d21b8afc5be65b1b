"""Records of the work topic, of runs in the review topic, and the tail of the snapshot."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.core.policystate import CHILD_KINDS, ON_BUSY, TTL_ACTIONS, Child, Reduced, SessionPolicy
from refold.core.reviews import RUN_REVIEW, ReviewItem
from refold.core.session import Session, initial
from refold.core.work import SUMMARY_WORK, WorkItem
from refold.errors import InvalidRecord
from refold.wire.codec import decode, encode
from refold.wire.reviews import decode_review, encode_review, review_key
from refold.wire.snapshot import SUBJECT, decode_session, encode_snapshot
from refold.wire.snapshot_tail import NOTHING, encode_tail
from refold.wire.work import decode_work, encode_work, split_work_key, work_key

ITEM = WorkItem(
    "run", "acme", "s/1", "r-1", "report", "leased", "new", "v1", None, 3, "h", 1_764_400_000_000, 2, 5, 17
)
IDS = st.text(min_size=1, max_size=12)
NUMBERS = st.integers(0, 2**62)


def test_a_work_item_comes_back_as_it_was() -> None:
    assert decode_work(encode_work(ITEM)) == ITEM
    summary = ITEM._replace(kind="summary", run=None, agent=None, pin=None, holder=None, lease_until_ms=None)
    assert decode_work(encode_work(summary)) == summary


def test_a_work_item_of_another_kind_is_no_work_item() -> None:
    with pytest.raises(InvalidRecord, match="no such kind"):
        decode_work(encode_work(ITEM._replace(kind="lunch")))  # type: ignore[arg-type]
    with pytest.raises(InvalidRecord):
        decode_work(encode_review(_review()))


@pytest.mark.parametrize("name", ["r-1", SUMMARY_WORK, "é"])
@pytest.mark.parametrize("session_key", [b"acme/s-1", b"acme/s#1#2"])
def test_a_key_of_the_work_topic_is_split_where_it_was_joined(session_key: bytes, name: str) -> None:
    """A session's id may hold a ``#``; a run's may not."""
    assert split_work_key(work_key(session_key, name)) == (session_key, name)


@pytest.mark.parametrize("key", [b"acme/s-1", b"#r", b"acme/s-1#", b"acme/s-1#\xff"])
def test_a_key_that_is_none_of_the_work_topic(key: bytes) -> None:
    with pytest.raises(InvalidRecord) as caught:
        split_work_key(key)
    assert caught.value.code == "bad_key"


def _review() -> ReviewItem:
    return ReviewItem("run", "acme", "s", "r-1", None, "report", None, 3, None, "boom: no", 5, 17, 2)


def test_a_run_in_the_review_comes_back_as_it_was() -> None:
    assert decode_review(encode_review(_review())) == _review()
    with pytest.raises(InvalidRecord, match="no such kind"):
        decode_review(encode_review(_review()._replace(kind="lunch")))  # type: ignore[arg-type]
    assert review_key(b"acme/s", f"{RUN_REVIEW}r-1") == b"acme/s#@run/r-1"


def test_a_session_without_any_of_it_ends_in_constant_bytes() -> None:
    session = initial("acme", "s")
    session.seq = 1
    value = encode_snapshot(session)
    assert value.endswith(NOTHING)
    assert session.enc_tail == NOTHING
    again = decode_session(value)
    assert again.enc_tail == NOTHING
    assert encode_tail(again) == NOTHING


@st.composite
def tails(draw: st.DrawFn) -> Session:
    """A session with any policy, deadline, children and parts."""
    session = initial("acme", "s")
    session.seq = 2
    if draw(st.booleans()):
        session.policy = SessionPolicy(
            draw(st.sampled_from(ON_BUSY)),
            draw(NUMBERS),
            draw(st.sampled_from(TTL_ACTIONS)),
            draw(NUMBERS),
            draw(NUMBERS),
        )
    session.timer_ms, session.timer_seq, session.idle_since_ms = draw(st.tuples(NUMBERS, NUMBERS, NUMBERS))
    for child in draw(st.lists(IDS, max_size=3)):
        session.children.append(
            Child(child, draw(st.sampled_from(CHILD_KINDS)), draw(st.none() | IDS), draw(NUMBERS))
        )
    for name in draw(st.lists(IDS, max_size=3, unique=True)):
        part = Reduced(name, draw(st.integers(0, 2**31 - 1)), draw(NUMBERS), draw(st.binary(max_size=20)))
        part.status = draw(st.sampled_from(("ok", "quarantined")))
        part.error = draw(st.none() | IDS)
        session.reduced[name] = part
    return session


@settings(max_examples=100, deadline=None)
@given(tails())
def test_the_tail_is_plain_avro_and_comes_back(session: Session) -> None:
    value = encode_snapshot(session)
    assert encode(SUBJECT, decode(value, expect=SUBJECT).record) == value
    again = decode_session(value)
    for name in ("policy", "timer_ms", "timer_seq", "idle_since_ms", "children"):
        assert getattr(again, name) == getattr(session, name)
    assert list(again.reduced) == sorted(session.reduced)
    again.enc_tail = None
    assert encode_snapshot(again) == value


def test_a_tail_with_unknown_words_is_damaged() -> None:
    session = initial("acme", "s")
    session.seq = 1
    session.policy = SessionPolicy()
    session.reduced = {name: Reduced(name, 1, 1, b"{}") for name in ("a", "b")}
    value = encode_snapshot(session)
    for right, wrong in ((b"\x0aqueue", b"\x0aqueux"), (b"\x04ok", b"\x04no"), (b"\x02b\x02", b"\x02a\x02")):
        assert right in value
        with pytest.raises(InvalidRecord) as caught:
            decode_session(value.replace(right, wrong))
        assert caught.value.code == "undecodable"
