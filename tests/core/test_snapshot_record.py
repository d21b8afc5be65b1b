"""The state record: older versions, damage, the public shape, and planted faults the invariants must find."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable

import pytest

from refold.core import Session, well_formed
from refold.core.envelope import LINK_KINDS
from refold.core.session import SNAPSHOT_VERSION
from refold.errors import InvalidRecord, InvariantViolation
from refold.wire import pieces
from refold.wire.codec import decode, encode
from refold.wire.schemafiles import load_schema_files, schema_root
from refold.wire.schemas import registry
from refold.wire.snapshot import SUBJECT, decode_session, decode_snapshot, encode_snapshot
from refold.wire.writers import compile_writer

from .build import Inbox, call, event, fold_bytes, intended, message, outcome, result, started, text
from .forkkit import fork
from .golden import GOLDEN


def rich() -> Inbox:
    inbox = Inbox()
    inbox.send(message("s", "system", "rules"), producer_id="p", producer_epoch=1, producer_counter=1)
    inbox.ok(
        event("SessionOpened", config_json='{"model":"m"}'),
        event("FactSet", name="goal", value='{"n":1}'),
        message("u1"),
        message("a1", "assistant", [text("look"), call("c1", "look", '{"q":1}', "op1"), call("c2")]),
        intended("op1", "c1"),
        outcome("op1", "c1", "42"),
        message("u2"),
        message("a2", "assistant"),
        message("a2b", "assistant", parent_id="u2"),
        outcome("op9", None, "early"),
        event("ContextSummarized", text="so far", through_message_id="@e6"),
        started("g", params='{"n":1}'),
    )
    return inbox


def test_the_public_part_reads_as_documented() -> None:
    value = encode_snapshot(rich().session)
    state = decode_snapshot(value)
    assert "engine" not in state
    assert (state["tenant"], state["session_id"], state["seq"], state["version"]) == (
        "acme",
        "s1",
        13,
        SNAPSHOT_VERSION,
    )
    assert state["frontier"] == [{"topic": "inbox", "partition": 3, "next_offset": 13}]
    context = state["context"]
    assert [m["message_id"] for m in context["system"]] == ["s"]
    assert context["summary"] == {"text": "so far", "through_message_id": "@e6", "through_seq": 7, "seq": 12}
    assert [(m["role"], m["seq"]) for m in context["recent_messages"]] == [("user", 8), ("assistant", 10)]
    assert [m["message_id"] for m in context["branch_messages"]] == ["a2"]
    assert state["branches"] == [{"head_message_id": "a2", "fork_message_id": "u2", "seq": 9}]
    assert context["waiting_results"] == 1
    assert [(f["name"], f["value"]) for f in state["facts"]] == [("goal", '{"n":1}')]
    assert [(t["operation_id"], t["state"], t["result_summary"]) for t in state["tools"]] == [
        ("op1", "done", "42"),
        ("@5.1", "intended", None),
    ]


def test_parts_data_is_decoded_in_the_public_shape() -> None:
    inbox = Inbox().ok(message("u"), message("a", "assistant", [call("c1", "f", '{"a":1}')]))
    inbox.ok(message("t", "tool", [result("c1", "r")]))
    shown = decode_snapshot(encode_snapshot(inbox.session))["context"]["recent_messages"]
    assert shown[1]["content"][0]["data"]["arguments"] == '{"a":1}'
    assert shown[2]["content"][0]["data"]["content"][0]["text"] == "r"


def test_d26_a_record_of_an_older_schema_is_read_with_the_defaults() -> None:
    """D26: a field the old writer did not have gets its declared default and the session goes on."""
    inbox = Inbox().ok(message("u"), message("a", "assistant", [call("c")]))
    value = encode_snapshot(inbox.session)
    record = decode(value).record
    files = load_schema_files(schema_root())
    newest = [f.schema for f in files.versions if f.subject == SUBJECT][-1]
    older = {**newest, "fields": [f for f in newest["fields"] if f["name"] not in ("parked", "facts")]}
    pieces: list[bytes] = []
    compile_writer(older)(pieces.append, {k: v for k, v in record.items() if k not in ("parked", "facts")})
    from refold.wire.readers import compile_reader

    read, _ = compile_reader(older, newest)(b"".join(pieces), 0)
    session = decode_session(encode(SUBJECT, read))
    assert session.parked == 0
    assert encode_snapshot(session) == value


@pytest.mark.parametrize(("version", "count"), [(1, 15), (2, 15)])
def test_d26_states_that_older_versions_wrote_go_on_as_if_this_one_had_written_them(
    version: int, count: int
) -> None:
    """D26: real state records of older schema versions, from all along the golden history: each loads,
    encodes to what this version's fold has at that record, and folds on to the same end."""
    path = GOLDEN.parent / f"session_states_v{version}.json"
    old = {
        item["record"]: bytes.fromhex(item["state"])
        for item in json.loads(path.read_text(encoding="utf-8"))["states"]
    }
    records = json.loads(GOLDEN.read_text(encoding="utf-8"))["records"]
    inbox = Inbox()
    inbox.check = False
    compared = 0
    for number, record in enumerate(records):
        inbox.put(bytes.fromhex(record["value"]), record["append_ms"])
        if number not in old:
            continue
        assert decode(old[number]).version == version
        session = decode_session(old[number])
        well_formed(session)
        assert encode_snapshot(session) == encode_snapshot(inbox.session), number
        other = Inbox(session)
        other.check, other.offset, other.clock = False, inbox.offset, inbox.clock
        other.progress = copy.deepcopy(inbox.progress)
        for later in records[number + 1 : number + 6]:
            other.put(bytes.fromhex(later["value"]), later["append_ms"])
            state = encode_snapshot(session) if session.exists else b""
            assert hashlib.sha256(state).hexdigest() == later["state"], (number, later["ruling"])
        compared += 1
    assert compared == len(old) == count


def test_d26_fields_that_follow_from_others_may_be_missing_in_old_records() -> None:
    """An old writer's record is not held to agree with what it did not know; the next write does."""
    inbox = rich().ok(event("SessionConfigured", window_messages=1))
    value = encode_snapshot(inbox.session)
    record = decode(value).record
    record["branches"] = []
    record["context"]["waiting_results"] = 0
    record["limits"]["overflow"] = False
    with pytest.raises(InvalidRecord, match="disagree"):
        decode_session(encode(SUBJECT, record))
    entry = registry().get(SUBJECT)
    older = b"\x01" + entry.guid.bytes + encode(SUBJECT, record)[5:]
    assert encode_snapshot(decode_session(older)) == value


def test_a_newer_snapshot_version_is_refused_with_the_way_out() -> None:
    record = decode(encode_snapshot(rich().session)).record
    with pytest.raises(InvalidRecord, match="upgrade"):
        decode_session(encode(SUBJECT, {**record, "version": SNAPSHOT_VERSION + 1}))


def test_damaged_records_are_refused_never_misread() -> None:
    """Any byte flipped or cut: either refused, or read as something that encodes to exactly those bytes."""
    value = encode_snapshot(rich().session)
    for at in range(len(value)):
        damaged = value[:at] + bytes([value[at] ^ 0x55]) + value[at + 1 :]
        for candidate in (damaged, value[:at]):
            try:
                session = decode_session(candidate)
            except InvalidRecord:
                continue
            assert encode_snapshot(session) == candidate


def test_what_a_number_cannot_mean_is_refused_never_misread() -> None:
    """A negative link kind counted from the end of the kinds; a flag of 2 was read as false."""
    made = fork(rich()).session
    value = encode_snapshot(made)
    assert made.link is not None
    link = pieces.text(made.link.session)
    message = made.recent[-1]
    # Parent, no actor, not the start of a turn; no tool event, no answers, not elided.
    place = b"".join(map(pieces.number, (message.seq, message.time_ms)))
    place += pieces.text(message.parent) + pieces.NULL
    assert not message.turn_start
    for good, bad in (
        (pieces.number(LINK_KINDS.index("fork")) + link, pieces.number(-1) + link),
        (place + bytes(4), place + b"\2" + bytes(3)),
    ):
        assert value.count(good) == 1
        with pytest.raises(InvalidRecord) as caught:
            decode_session(value.replace(good, bad))
        assert caught.value.code == "undecodable"


def test_reading_back_gives_the_same_future() -> None:
    inbox = rich()
    session = decode_session(encode_snapshot(inbox.session))
    other = Inbox(session)
    other.offset, other.clock = inbox.offset, inbox.clock
    for each in (inbox, other):
        each.ok(
            message("u3"), message("t2", "tool", [result("c2")]), intended("op9"), message("a1x", "assistant")
        )
    assert encode_snapshot(inbox.session) == encode_snapshot(other.session)
    assert fold_bytes(inbox.entries()) == encode_snapshot(inbox.session)


def _append_alien(session: Session) -> None:
    session.recent.append(session.recent[0])


FAULTS: dict[str, tuple[str, Callable[[Session], object]]] = {
    "a message from the future": ("S1", lambda s: setattr(s.recent[0], "seq", 99)),
    "a summary from the future": ("S1", lambda s: setattr(s.summary, "seq", 99)),
    "a path that is broken": ("S2", lambda s: setattr(s.recent[1], "parent", "nobody")),
    "a head that is not the last": ("S2", lambda s: setattr(s, "head", "nobody")),
    "a trunk that is not the first's parent": ("S2", lambda s: setattr(s, "trunk_id", "nobody")),
    "an id held twice": ("S2", lambda s: s.held.pop("a2")),
    "a result without its call": ("S3", lambda s: _lone_result(s)),
    "bytes that do not add up": ("S4", lambda s: setattr(s, "recent_bytes", 1)),
    "ledger bytes that do not add up": ("S4", lambda s: setattr(s, "calls_bytes", 1)),
    "branch bytes that do not add up": ("S4", lambda s: setattr(s, "branch_bytes", 1)),
    "fact bytes that do not add up": ("S4", lambda s: setattr(s, "facts_bytes", 1)),
    "too many ids remembered": ("S5", lambda s: setattr(s, "event_ids", b"x" * 16 * 129)),
    "a wrong count of open calls": ("S6", lambda s: setattr(s, "open_calls", 9)),
    "a row under another key": ("S6", lambda s: setattr(s.calls["op1"], "operation_id", "x")),
    "an active summary that is not there": ("S7", lambda s: setattr(s, "summary", None)),
    "a generation from the future": ("S1", lambda s: setattr(s.generations["g"], "updated_seq", 99)),
    "an open generation without holder": ("S9", lambda s: setattr(s.generations["g"], "holder", None)),
    "an ended generation with a lease": ("S9", lambda s: setattr(s.generations["g"], "state", "failed")),
    "a generation under another key": ("S9", lambda s: setattr(s.generations["g"], "generation_id", "x")),
    "too many open generations": ("S5", lambda s: _copies(s, 9)),
    "a session without events that holds something": ("S1", lambda s: setattr(s, "seq", 0)),
}


def _copies(session: Session, count: int) -> None:
    for number in range(count):
        row = copy.copy(session.generations["g"])
        row.generation_id = f"g{number}"
        session.generations[row.generation_id] = row


def _lone_result(session: Session) -> None:
    last = session.recent[-1]
    last.role = "tool"
    last.answers = (5,)


@pytest.mark.parametrize("fault", FAULTS)
def test_well_formed_finds(fault: str) -> None:
    """A check that cannot fail proves nothing: each label is violated on purpose."""
    label, plant = FAULTS[fault]
    session = rich().session
    well_formed(session)
    plant(session)
    with pytest.raises(InvariantViolation, match=f"^{label} "):
        well_formed(session)


def test_s8_an_oversized_record_is_never_written() -> None:
    session = rich().session
    session.event_ids = b"x" * 900_000
    with pytest.raises(InvariantViolation, match="S8"):
        encode_snapshot(session)
