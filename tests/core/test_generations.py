"""G8 to G11: generation events, the rows, and how the finished message enters; D15, D16, D18, D19."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest

from refold.core import Accepted
from refold.core.limits import (
    ENDED_GENERATIONS_MAX,
    GENERATION_NAME_BYTES_MAX,
    LEASE_MS_MAX,
    OPEN_GENERATIONS_MAX,
    PARAMS_BYTES_MAX,
)
from refold.core.progress import Batch, Delta, next_chain
from refold.core.session import SNAPSHOT_VERSION
from refold.errors import InvalidRecord
from refold.wire.codec import decode, encode
from refold.wire.events import event_payload
from refold.wire.snapshot import decode_snapshot, encode_snapshot

from .build import (
    Inbox,
    attempted,
    call,
    duplicate,
    event,
    finished,
    fold_bytes,
    message,
    outcome,
    rejected,
    started,
    text,
)


def rows(inbox: Inbox) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = decode_snapshot(encode_snapshot(inbox.session))["generations"]
    return found


def states(inbox: Inbox) -> dict[str, str]:
    return {row["generation_id"]: row["state"] for row in rows(inbox)}


def renewed(generation_id: str, attempt: int = 1, **fields: Any) -> tuple[str, dict[str, Any]]:
    fields = {"holder": "h1", "lease_ms": 5_000, **fields}
    return event("GenerationLeaseRenewed", generation_id=generation_id, attempt=attempt, **fields)


def stopped(generation_id: str) -> tuple[str, dict[str, Any]]:
    return event("GenerationStopped", generation_id=generation_id)


def failed(generation_id: str, attempt: int = 1, code: str = "provider") -> tuple[str, dict[str, Any]]:
    return event("GenerationFailed", generation_id=generation_id, attempt=attempt, code=code)


def write(inbox: Inbox, generation_id: str, *pieces: str, attempt: int = 1, first: int = 1) -> None:
    for seq, piece in enumerate(pieces, first):
        verdict = inbox.batch(Batch(generation_id, attempt, seq, (Delta("text", 0, piece.encode()),)))
        assert repr(verdict) == "Applied()", verdict


def chain(*pieces: str) -> bytes:
    digest = b""
    for piece in pieces:
        digest = next_chain(digest, [Delta("text", 0, piece.encode())])
    return digest


# --- started -------------------------------------------------------------------------------------------


def test_a_start_opens_a_row() -> None:
    inbox = Inbox().ok(
        message("u"),
        started("g", "a", reply_to="u", params='{"t": 1}', durability="relaxed", lease_ms=700),
    )
    assert rows(inbox) == [
        {
            "generation_id": "g",
            "state": "started",
            "attempt": 1,
            "mode": "restart",
            "holder": "h1",
            "lease_until_ms": inbox.session.time_ms + 700,
            "message_id": "a",
            "reply_to": "u",
            "generator": "answer",
            "params_digest": sha256(b'{"t": 1}').hexdigest(),
            "provider_response_id": None,
            "durability": "relaxed",
            "last_seq": 0,
            "length": 0,
            "sha256": None,
            "finish_reason": None,
            "error_code": None,
            "started_seq": 2,
            "updated_seq": 2,
        }
    ]


def test_the_same_start_again_is_a_duplicate_whoever_asks() -> None:
    """A second caller with the same key follows the first one's generation; other content is a conflict."""
    inbox = Inbox().ok(started("g", params="{}"))
    assert duplicate(inbox.send(started("g", params="{}", holder="h2", lease_ms=1, context_seq=9)), 1)
    for other in (
        started("g", "another", params="{}"),
        started("g", params='{"a":1}'),
        started("g"),
        started("g", params="{}", reply_to="u"),
        started("g", params="{}", generator="other"),
        started("g", params="{}", durability="relaxed"),
    ):
        assert rejected(inbox.send(other), "conflict"), other
    inbox.ok(finished("g", "", 0))
    assert duplicate(inbox.send(started("g", params="{}")), 1), "also after it finished"


NAME = "n" * (GENERATION_NAME_BYTES_MAX + 1)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"generation_id": ""}, "bad_id"),
        ({"generation_id": "a#b"}, "bad_id"),
        ({"generation_id": "@g"}, "bad_id"),
        ({"generation_id": NAME}, "bad_id"),
        ({"message_id": NAME}, "bad_id"),
        ({"message_id": "@m"}, "bad_id"),
        ({"generator": ""}, "bad_id"),
        ({"generator": NAME}, "bad_id"),
        ({"holder": ""}, "bad_id"),
        ({"holder": NAME}, "bad_id"),
        ({"reply_to": "r" * 257}, "bad_id"),
        ({"reply_to": "m-g"}, "bad_value"),
        ({"lease_ms": -1}, "bad_value"),
        ({"lease_ms": LEASE_MS_MAX + 1}, "bad_value"),
        ({"durability": "never"}, "bad_value"),
        ({"params": "{"}, "bad_json"),
        ({"params": '"' + "p" * PARAMS_BYTES_MAX + '"'}, "too_large"),
    ],
)
def test_a_start_with_wrong_values_is_refused(fields: dict[str, Any], code: str) -> None:
    name, record = started("g")
    assert rejected(Inbox().send((name, {**record, **fields})), code)


def test_a_message_id_that_is_taken_is_refused_before_the_model_is_asked() -> None:
    inbox = Inbox().ok(message("a"), started("g1", "b"))
    assert rejected(inbox.send(started("g2", "a")), "conflict")
    assert rejected(inbox.send(started("g2", "b")), "conflict")
    inbox.ok(event("SessionConfigured", window_messages=1), message("u1"), message("u2"), message("u3"))
    assert "a" not in inbox.recent
    assert rejected(inbox.send(started("g2", "a")), "conflict"), "also when it has left the window"
    inbox.ok(failed("g1"), started("g2", "b"))


def test_the_ninth_open_generation_is_refused_and_a_place_gets_free_by_ending_one() -> None:
    inbox = Inbox().ok(*[started(f"g{n}") for n in range(OPEN_GENERATIONS_MAX)])
    assert rejected(inbox.send(started("more")), "too_many_open_generations")
    assert duplicate(inbox.send(started("g3")))
    inbox.ok(failed("g3"), started("more"))
    assert list(states(inbox))[-1] == "more"


def test_ended_rows_leave_in_the_order_they_ended_and_their_record_with_them() -> None:
    inbox = Inbox()
    for n in range(ENDED_GENERATIONS_MAX + 2):
        inbox.ok(started(f"g{n}"))
        if n == 1:
            continue
        inbox.ok(failed(f"g{n}"))
    inbox.ok(failed("g1"))
    kept = [f"g{n}" for n in range(ENDED_GENERATIONS_MAX + 2) if n not in (0, 2)]
    assert list(states(inbox)) == kept
    assert sorted(inbox.progress) == sorted(kept), "forgotten rows have no progress (G12)"
    assert rejected(inbox.send(failed("g0")), "unknown_generation")


# --- G8: attempts and leases ---------------------------------------------------------------------------


def test_g8_another_attempt_waits_for_the_lease_in_session_time() -> None:
    inbox = Inbox().ok(started("g", lease_ms=5_000))
    until = inbox.session.time_ms + 5_000
    ruling = inbox.send(attempted("g", 2))
    assert rejected(ruling, "lease_held")
    assert str(until) in ruling.reason  # type: ignore[union-attr]
    # Session time stands still while nothing is accepted: the record's own append time counts.
    inbox.clock = until - 1
    assert rejected(inbox.send(attempted("g", 2)), "lease_held")
    inbox.clock = until
    assert isinstance(inbox.send(attempted("g", 2)), Accepted)
    assert (rows(inbox)[0]["attempt"], rows(inbox)[0]["holder"], rows(inbox)[0]["mode"]) == (
        2,
        "h2",
        "continue",
    )
    assert inbox.progress["g"].attempt == 2


def test_g8_the_holder_itself_need_not_wait() -> None:
    inbox = Inbox().ok(started("g", lease_ms=60_000), attempted("g", 2, holder="h1", mode="restart"))
    assert rows(inbox)[0]["attempt"] == 2


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"attempt": 4}, "illegal_transition"),
        ({"attempt": 1}, "stale_holder"),
        ({"attempt": 2, "holder": "h3"}, "lease_held"),
        ({"attempt": 3, "holder": "h3"}, "lease_held"),
        ({"attempt": 3, "mode": "again"}, "bad_value"),
        ({"attempt": 3, "holder": ""}, "bad_id"),
        ({"attempt": 3, "lease_ms": -1}, "bad_value"),
    ],
)
def test_g8_attempts_rise_by_one(fields: dict[str, Any], code: str) -> None:
    inbox = Inbox().ok(started("g", lease_ms=0), attempted("g", 2, holder="h1", lease_ms=60_000))
    name, record = attempted("g", 3, holder="h1")
    assert rejected(inbox.send((name, {**record, **fields})), code)


def test_g8_an_attempt_again_is_a_duplicate_and_grants_nothing_to_others() -> None:
    inbox = Inbox().ok(started("g", lease_ms=0), attempted("g", 2, lease_ms=60_000))
    assert duplicate(inbox.send(attempted("g", 2)))
    assert rejected(inbox.send(attempted("g", 2, holder="h3")), "lease_held"), "two took over: one won"


def test_g8_a_lease_is_renewed_by_its_holder_only() -> None:
    inbox = Inbox().ok(started("g", lease_ms=0), renewed("g", lease_ms=9_000, provider_response_id="r1"))
    row = rows(inbox)[0]
    assert (row["lease_until_ms"], row["provider_response_id"]) == (inbox.session.time_ms + 9_000, "r1")
    inbox.ok(renewed("g", lease_ms=0))
    assert rows(inbox)[0]["provider_response_id"] == "r1", "kept where a renewal names none"
    inbox.ok(attempted("g", 2, lease_ms=60_000))
    assert rows(inbox)[0]["provider_response_id"] == "r1", "whoever continues may ask the provider for it"
    assert rejected(inbox.send(renewed("g")), "stale_holder")
    assert rejected(inbox.send(renewed("g", 2)), "stale_holder")
    assert rejected(inbox.send(renewed("g", 2, holder="h2", provider_response_id="r" * 257)), "bad_id")
    inbox.ok(attempted("g", 3, holder="h2", mode="restart"))
    assert rows(inbox)[0]["provider_response_id"] is None


def test_events_of_a_generation_nobody_started_are_refused() -> None:
    inbox = Inbox().ok(message("u"))
    for item in (attempted("g", 2), renewed("g"), stopped("g"), finished("g", "", 0), failed("g")):
        assert rejected(inbox.send(item), "unknown_generation"), item[0]


# --- finishing -----------------------------------------------------------------------------------------


def test_the_finished_message_enters_as_if_it_had_been_appended() -> None:
    """Byte for byte: the context of a session with a generation is that of one with MessageAppended."""
    inbox = Inbox().ok(message("u"), started("g", "a"))
    write(inbox, "g", "Hel", "lo")
    inbox.ok(finished("g", "Hello", 2, message_id="a", chain=chain("Hel", "lo"), finish_reason="stop"))
    plain = Inbox().ok(message("u"), event("FactSet", name="n", value="1"))
    plain.clock, plain.offset = inbox.clock - 1_000, inbox.offset - 1
    plain.ok(message("a", "assistant", "Hello", parent_id=None))
    shown, expected = (decode_snapshot(encode_snapshot(each.session)) for each in (inbox, plain))
    assert shown["context"] == expected["context"]
    row = shown["generations"][0]
    assert (row["state"], row["last_seq"], row["length"], row["finish_reason"]) == ("finished", 2, 5, "stop")
    assert (row["holder"], row["lease_until_ms"], row["sha256"]) == (None, None, sha256(b"Hello").hexdigest())
    assert inbox.progress["g"].ended == "finished"
    assert fold_bytes(inbox.entries()) == encode_snapshot(inbox.session)


def test_a_long_message_is_elided_and_the_event_at_its_seq_has_it() -> None:
    """Readers fetch what the state left out from the journal: any event with a ``body`` shows a message."""
    inbox = Inbox().ok(started("g"))
    inbox.ok(finished("g", "", 0, content="x" * 40_000))
    shown = inbox.session.recent[0]
    assert (shown.body, shown.seq) == (None, 2)
    entry, decoded = inbox.entries()[shown.seq - 1]
    assert entry.seq == shown.seq
    assert sha256(decoded.body).hexdigest() == shown.sha256  # type: ignore[union-attr]


def test_a_finished_message_opens_its_calls() -> None:
    inbox = Inbox().ok(started("g"))
    inbox.ok(finished("g", "", 0, content=[text("look"), call("c1", operation_id="op")]))
    assert inbox.states() == {"op": "intended"}
    inbox.ok(outcome("op", "c1"))
    assert len(inbox.recent) == 2


def test_d15_two_at_once_enter_in_the_order_they_finished() -> None:
    """D15, G9: batches of two generations interleaved on one topic; g2 finishes first."""
    inbox = Inbox().ok(message("u"), started("g1"), started("g2"))
    for seq in (1, 2):
        write(inbox, "g1", f"a{seq}", first=seq)
        write(inbox, "g2", f"b{seq}", first=seq)
    inbox.ok(finished("g2", "b1b2", 2, chain=chain("b1", "b2")))
    inbox.ok(finished("g1", "a1a2", 2, chain=chain("a1", "a2")))
    assert inbox.recent == ["u", "m-g2", "m-g1"]
    assert inbox.session.recent[2].parent == "m-g2", "null continues the head when it enters"
    assert fold_bytes(inbox.entries()) == encode_snapshot(inbox.session)


def test_d16_g9_two_answers_to_one_message_are_siblings() -> None:
    inbox = Inbox().ok(message("u"), started("g1", reply_to="u"), started("g2", reply_to="u"))
    inbox.ok(finished("g1", "", 0, parent_id="u"), finished("g2", "", 0, parent_id="u"))
    assert inbox.recent == ["u", "m-g2"]
    assert list(inbox.session.branch_messages) == ["m-g1"]


# --- G10: what the batches must say --------------------------------------------------------------------


def test_g10_the_batches_must_have_come() -> None:
    inbox = Inbox().ok(started("g"))
    early = finished("g", "Hello", 2)
    write(inbox, "g", "Hel")
    assert rejected(inbox.send(early), "batches_missing")
    write(inbox, "g", "lo", first=2)
    inbox.ok(early)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"length": 4}, id="length"),
        pytest.param({"chain": b"0" * 16}, id="chain"),
        pytest.param({"chain": b""}, id="no chain of some"),
    ],
)
def test_g10_length_and_chain_must_be_the_batches(changes: dict[str, Any]) -> None:
    inbox = Inbox().ok(started("g"))
    write(inbox, "g", "Hel", "lo")
    name, record = finished("g", "Hello", 2, chain=chain("Hel", "lo"))
    assert rejected(inbox.send((name, {**record, **changes})), "digest_mismatch")
    assert rejected(inbox.send((name, {**record, "last_seq": 3})), "batches_missing")
    inbox.ok((name, record))


def test_g10_a_message_may_end_before_the_last_batch() -> None:
    """Stopped at batch 1 while batch 2 was under way: the digest there is not kept, so it is not compared."""
    inbox = Inbox().ok(started("g"), stopped("g"))
    write(inbox, "g", "Hel", "lo")
    inbox.ok(finished("g", "Hel", 1, stopped=True))
    assert inbox.progress["g"].ended == "stopped"


@pytest.mark.parametrize("same", ["seq", "time", "neither"])
def test_g10_batches_from_before_a_deletion_do_not_count(same: str) -> None:
    """Goal: the same ruling in whichever order the topics are read: a generation's id is used again after its
    session was deleted, and the batches have not been read as far as that yet. Seqs begin anew; time alone or
    the seq alone tells the two apart."""
    inbox = Inbox().ok(started("g"))
    write(inbox, "g", "Hello")
    former = inbox.progress["g"].copy()
    inbox.ok(event("SessionDeleted"), *([] if same == "seq" else [started("h")]), started("g"))
    if same == "time":
        former.started_ms = inbox.session.created_ms
    again = finished("g", "Hello", 1)
    current, inbox.progress["g"] = inbox.progress["g"], former
    assert rejected(inbox.send(again), "batches_missing")
    inbox.progress["g"] = current
    write(inbox, "g", "Hello")
    inbox.ok(again)


def test_g10_a_first_begin_that_is_a_later_attempts_says_nothing_of_the_start() -> None:
    """Goal: retention took the beginning; what the attempt after it wrote counts all the same."""
    inbox = Inbox().ok(started("g", lease_ms=0))
    del inbox.progress["g"]
    inbox.ok(attempted("g", 2, mode="restart"))
    assert (inbox.progress["g"].started_seq, inbox.progress["g"].attempt) == (0, 2)
    write(inbox, "g", "new", attempt=2)
    inbox.ok(finished("g", "new", 1, attempt=2))


def test_g10_another_attempts_batches_do_not_count() -> None:
    inbox = Inbox().ok(started("g", lease_ms=0))
    write(inbox, "g", "old")
    behind = inbox.progress["g"].copy()
    inbox.ok(attempted("g", 2, mode="restart"))
    assert rejected(inbox.send(finished("g", "old", 1)), "stale_holder")
    assert rejected(inbox.send(finished("g", "old", 1, attempt=2)), "batches_missing")
    current, inbox.progress["g"] = inbox.progress["g"], behind
    assert rejected(inbox.send(finished("g", "old", 1, attempt=2)), "batches_missing"), "begin not read yet"
    inbox.progress["g"] = current
    write(inbox, "g", "new", attempt=2)
    inbox.ok(finished("g", "new", 1, attempt=2))


@pytest.mark.parametrize(
    "changes",
    [
        {"message_id": "other"},
        {"parent_id": "u"},
        {"role": "user"},
        {"last_seq": -1},
        {"length": -1},
        {"sha256": "F" * 64},
        {"sha256": "f" * 63},
        {"chain": b"12345"},
    ],
)
def test_a_finish_with_wrong_values_is_refused(changes: dict[str, Any]) -> None:
    inbox = Inbox().ok(message("u"), started("g"))
    fields = {"last_seq": 0, **changes}
    assert rejected(inbox.send(finished("g", "", fields.pop("last_seq"), **fields)), "bad_value")


def test_a_message_that_was_appended_meanwhile_is_not_shown_twice() -> None:
    """Somebody appended the very message: only the row closes; another one under its id is a conflict."""
    inbox = Inbox().ok(message("u"), started("g", "a"), started("h", "b"))
    inbox.ok(message("a", "assistant", "Hello"), message("b", "assistant", "other"))
    write(inbox, "g", "Hello")
    write(inbox, "h", "Hello")
    inbox.ok(finished("g", "Hello", 1, message_id="a"))
    assert inbox.recent == ["u", "a", "b"]
    assert rejected(inbox.send(finished("h", "Hello", 1, message_id="b")), "conflict")
    inbox.ok(failed("h"))
    assert states(inbox) == {"g": "finished", "h": "failed"}
    assert fold_bytes(inbox.entries()) == encode_snapshot(inbox.session)


def test_a_nested_message_is_read_as_strictly_as_an_appended_one() -> None:
    """Its bytes go into the state: another subject, broken bytes or half a pair are refused at the door."""
    inbox = Inbox().ok(started("g"))
    name, record = finished("g", "abc", 0)
    cases = {
        "unknown_subject": event_payload("SessionClosed", {}),
        "empty_value": b"",
        "undecodable": record["message"][:-1],
        "lone_surrogate": record["message"].replace(b"abc", b"\xed\xa0\xbd"),
    }
    for code, nested in cases.items():
        with pytest.raises(InvalidRecord) as caught:
            inbox.send((name, {**record, "message": nested}))
        assert caught.value.code == code


# --- D18, D19 ------------------------------------------------------------------------------------------


def test_d18_g11_a_closed_session_takes_what_ends_a_generation() -> None:
    """D18: late tokens count, the message enters, nothing new begins, and the session stays closed."""
    inbox = Inbox().ok(started("g"), started("h"), event("SessionClosed"))
    write(inbox, "g", "late")
    inbox.ok(renewed("g"), stopped("g"), finished("g", "late", 1), failed("h"))
    assert inbox.recent == ["m-g"]
    assert inbox.session.status == "closed"
    assert rejected(inbox.send(started("new")), "session_closed")
    assert rejected(inbox.send(message("u")), "session_closed")
    reopened = Inbox().ok(started("g", lease_ms=0), event("SessionClosed"))
    assert rejected(reopened.send(attempted("g", 2)), "session_closed")
    reopened.ok(event("SessionReopened"), attempted("g", 2))


def test_a_deletion_ends_and_forgets_every_generation() -> None:
    inbox = Inbox().ok(started("g"), started("h"), failed("h"), event("SessionDeleted"))
    assert inbox.progress == {}
    inbox.ok(started("g"))
    write(inbox, "g", "new")
    inbox.ok(finished("g", "new", 1))
    assert states(inbox) == {"g": "finished"}


ENDS = {
    "finish": lambda: finished("g", "", 0),
    "other finish": lambda: finished("g", "x", 0, length=0),
    "fail": lambda: failed("g"),
    "other fail": lambda: failed("g", code="timeout"),
    "stop": lambda: stopped("g"),
    "attempt": lambda: attempted("g", 2, holder="h1"),
    "renew": lambda: renewed("g"),
}
AFTER = {
    "finish": {"finish": "dup"},
    "other finish": {"other finish": "dup"},
    "fail": {"fail": "dup"},
    "other fail": {"other fail": "dup"},
    "stop": {"stop": "dup"},
}


@pytest.mark.parametrize("first", AFTER)
@pytest.mark.parametrize("then", ENDS)
def test_d19_the_first_final_state_stays(first: str, then: str) -> None:
    """D19: finish and fail in both orders, stop and finish in both orders; an equal end is a no-op."""
    inbox = Inbox().ok(message("u"), started("g"), ENDS[first]())
    before = encode_snapshot(inbox.session)
    ruling = inbox.send(ENDS[then]())
    expected = AFTER[first].get(then, "accepted" if first == "stop" else "already_final")
    if expected == "dup":
        assert duplicate(ruling)
    elif expected == "accepted":
        assert isinstance(ruling, Accepted)
    else:
        assert rejected(ruling, "already_final")
        assert encode_snapshot(inbox.session) == before


# --- the record ----------------------------------------------------------------------------------------


def test_rows_stand_in_the_record_as_the_compiled_writer_would_put_them() -> None:
    inbox = Inbox().ok(
        started("g", params="{}"), renewed("g", provider_response_id="r"), started("h", reply_to="")
    )
    inbox.ok(failed("h", code="x" * 100))
    value = encode_snapshot(inbox.session)
    decoded = decode(value)
    assert decoded.version == SNAPSHOT_VERSION
    assert encode(decoded.subject, decoded.record) == value
    assert rows(inbox)[1]["error_code"] == "x" * 64


def test_the_name_of_a_failure_must_be_there() -> None:
    assert rejected(Inbox().ok(started("g")).send(failed("g", code="")), "bad_value")
    assert rejected(Inbox().ok(started("g")).send(failed("g", attempt=2)), "stale_holder")
