"""The step: one record in, effects out. No broker, no disk: a view made of a dict."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from engine.traffic import TENANT, message_event
from refold.core.progress import Progress
from refold.core.rulings import Accepted, Duplicate, Parked, Rejected
from refold.core.session import initial
from refold.core.slots import SlotMap, make_key
from refold.engine import history, recordheaders
from refold.engine import step as step_module
from refold.engine.assignment import Assignment
from refold.engine.cache import Entry
from refold.engine.chunks import Record
from refold.engine.forwards import HOPS_MAX
from refold.engine.overlay import Noted, Overlay, apply
from refold.engine.rulings import line
from refold.engine.sabotage import Sabotage
from refold.engine.step import Effects, Limits, step
from refold.engine.usage import Usages
from refold.errors import StorageError, UnavailableError
from refold.topology.names import TopicNames
from refold.wire.envelope import encode_envelope
from refold.wire.events import event_payload
from refold.wire.journal import decode_journal
from refold.wire.owner import RulingLine
from refold.wire.snapshot import decode_session, encode_snapshot

SLOTS = SlotMap(4)


class View:
    """A StepView over a dict; ``rebuild`` gives the last state that :meth:`confirm` stored."""

    def __init__(self, limits: Limits | None = None, sabotage: Sabotage | None = None) -> None:
        self.topics = TopicNames("t")
        self.limits = limits or Limits(1_179_648, 1_179_648, 1_114_112, 1_048_576, 1_114_112, 1_048_576)
        self.sabotage = sabotage or Sabotage()
        self.usages = Usages(Assignment())
        self.entries: dict[bytes, Entry] = {}
        self.stored: dict[bytes, bytes] = {}
        #: Generation id → what batches say of it; whether they were read to their end.
        self.read: dict[str, Progress] = {}
        self.to_the_end = False

    def progress(self, key: bytes, partition: int, generation_id: str) -> Progress | None:
        return self.read.get(generation_id)

    def caught_up(self, record: Record) -> bool:
        return self.to_the_end

    def cached(self, key: bytes) -> Entry | None:
        return self.entries.get(key)

    def partition_of(self, key: bytes) -> int:
        return SLOTS.partition(key)

    def load(self, key: bytes, partition: int, tenant: str, session: str) -> Entry:
        entry = Entry(key, partition, initial(tenant, session), history.EMPTY, 0)
        self.entries[key] = entry
        return entry

    def rebuild(self, entry: Entry) -> Entry:
        stored = self.stored.get(entry.key)
        old = entry.session
        entry.session = initial(old.tenant, old.session) if stored is None else decode_session(stored)
        return entry

    def confirm(self) -> None:
        for key, entry in self.entries.items():
            self.stored[key] = encode_snapshot(entry.session)


KEY = make_key(TENANT, "s1")
PARTITION = SLOTS.partition(KEY)


def record(value: bytes | None, offset: int = 0, **changes: Any) -> Record:
    values = {
        "partition": PARTITION,
        "offset": offset,
        "append_ms": 1_800_000_000_000 + offset,
        "key": KEY,
        "value": value,
        "headers": None,
        **changes,
    }
    return Record(**values)


def event(number: int, session: str = "s1", **changes: object) -> bytes:
    return encode_envelope(message_event(number, session, **changes))


def appended(number: int, parent: str | None) -> bytes:
    body = {"message_id": f"m{number}", "parent_id": parent, "role": "user", "content": []}
    return event(number, payload=event_payload("MessageAppended", body))


def code_of(effects: Effects) -> str:
    assert isinstance(effects.ruling, Rejected)
    return effects.ruling.code


def test_an_accepted_event_is_journalled_with_the_producers_bytes() -> None:
    view = View()
    value = event(1)
    effects = step(view, record(value, 5))
    assert effects.ruling == Accepted(1, 1_800_000_000_005)
    (item,) = effects.journal
    entry = decode_journal(item.value)
    assert (entry.seq, entry.partition, entry.offset) == (1, PARTITION, 5)
    assert item.value.endswith(value[5:])
    assert list(item.headers) == [("refold-type", b"MessageAppended")]
    assert effects.entry is view.entries[KEY]


def test_a_duplicate_changes_nothing() -> None:
    view = View()
    step(view, record(event(1), 0))
    before = encode_snapshot(view.entries[KEY].session)
    effects = step(view, record(event(1), 1))
    assert isinstance(effects.ruling, Duplicate)
    assert (effects.journal, effects.outputs, effects.entry) == ((), (), None)
    assert encode_snapshot(view.entries[KEY].session) == before


@pytest.mark.parametrize(
    ("value", "key", "code"),
    [
        (b"", KEY, "empty_value"),
        (b"abc", KEY, "bad_magic"),
        (b"\x05" + bytes(8), KEY, "bad_magic"),
        (b"\x00\x00\x00\x00\x01zz", KEY, "unknown_schema"),
        (event(1)[:-3], KEY, "undecodable"),
        (event(1), None, "bad_key"),
        (event(1), b"", "bad_key"),
        (event(1), b"no-slash", "bad_key"),
        (event(1), b"\xff/s1", "bad_key"),
    ],
)
def test_what_cannot_be_taken_is_rejected_with_its_bytes(value: bytes, key: bytes | None, code: str) -> None:
    effects = step(View(), record(value, 9, key=key, headers=[("x", b"1")]))
    assert code_of(effects) == code
    (out,) = effects.outputs
    assert (out.topic, out.partition, out.key, out.value) == ("t.rejected", PARTITION, key, value)
    headers = dict(out.headers)
    assert headers["refold-code"] == code.encode()
    assert headers["refold-origin"] == f"t.inbox/{PARTITION}/9".encode()
    assert headers["refold-append-ms"] == b"1800000000009"
    assert headers["x"] == b"1"
    assert effects.journal == ()


@pytest.mark.parametrize("decoder", ["decode_envelope", "decode_event"])
def test_a_decoder_s_own_fault_is_one_record_s_ruling_and_not_the_worker_s_end(
    decoder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was met at every restart again, and nothing behind it was ruled on."""
    view = View()
    with monkeypatch.context() as broken:
        broken.setattr(step_module, decoder, _overflow)
        effects = step(view, record(event(1)))
    assert code_of(effects) == "undecodable"
    assert isinstance(effects.ruling, Rejected)
    assert "RecursionError" in effects.ruling.reason
    assert effects.outputs[0].value == event(1)
    assert isinstance(step(view, record(event(2), 1)).ruling, Accepted)


@pytest.mark.parametrize("error", [UnavailableError("the registry does not answer"), StorageError("full")])
def test_what_is_not_the_record_s_fault_is_raised(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else every record would be rejected while a registry is away."""

    def away(*_: object) -> None:
        raise error

    monkeypatch.setattr(step_module, "decode_event", away)
    with pytest.raises(type(error)):
        step(View(), record(event(1)))


def _overflow(*_: object) -> None:
    raise RecursionError("maximum recursion depth exceeded")


def test_the_key_must_name_the_envelopes_session() -> None:
    effects = step(View(), record(event(1, session="s2")))
    assert code_of(effects) == "key_mismatch"


def test_a_null_value_deletes_and_the_next_event_begins_anew() -> None:
    view = View()
    assert isinstance(step(view, record(None, 0)).ruling, Duplicate)
    step(view, record(event(1), 1))
    effects = step(view, record(None, 2))
    assert effects.deleted
    assert decode_journal(effects.journal[0].value).env.type == "SessionDeleted"
    again = step(view, record(event(2), 3))
    assert again.ruling == Accepted(1, 1_800_000_000_003)
    assert not again.deleted


# --- rule P ----------------------------------------------------------------------------------------------


def test_p_a_record_on_the_wrong_partition_is_forwarded_untouched() -> None:
    view = View()
    wrong = (PARTITION + 1) % 4
    value = event(1)
    effects = step(view, record(value, 3, partition=wrong, headers=[("traceparent", b"t")]))
    assert effects.ruling is None
    (out,) = effects.outputs
    assert (out.topic, out.partition, out.key, out.value) == ("t.inbox", PARTITION, KEY, value)
    headers = dict(out.headers)
    assert headers["refold-origin"] == f"t.inbox/{wrong}/3".encode()
    assert (headers["refold-hops"], headers["traceparent"]) == (b"1", b"t")
    assert view.entries == {}


def test_p_also_when_the_session_is_in_memory_here() -> None:
    view = View()
    step(view, record(event(1), 0))
    effects = step(view, record(event(2), 0, partition=(PARTITION + 1) % 4))
    assert effects.ruling is None
    assert effects.outputs[0].partition == PARTITION


def test_p_a_forward_is_folded_at_the_time_it_was_first_appended() -> None:
    view = View()
    headers = [
        ("refold-origin", b"t.inbox/0/3"),
        ("refold-hops", b"1"),
        ("refold-append-ms", b"1700000000000"),
    ]
    effects = step(view, record(event(1), 0, headers=headers))
    assert effects.ruling == Accepted(1, 1_700_000_000_000)
    assert [name for name, _ in effects.journal[0].headers] == ["refold-type"]


@pytest.mark.parametrize(
    "headers",
    [
        [("refold-origin", b"t.inbox/0/3"), ("refold-hops", b"1"), ("refold-append-ms", b"9999999999999")],
        [("refold-origin", b"t.inbox/0/3"), ("refold-hops", b"x"), ("refold-append-ms", b"1")],
        [("refold-hops", b"1")],
    ],
)
def test_p_made_up_headers_cannot_set_the_clock(headers: list[tuple[str, bytes]]) -> None:
    effects = step(View(), record(event(1), 0, headers=headers))
    assert effects.ruling == Accepted(1, 1_800_000_000_000)


def test_p_forwarding_ends_at_the_hop_limit() -> None:
    view = View()
    current = record(event(1), 0, partition=(PARTITION + 1) % 4)
    for hop in range(1, HOPS_MAX + 1):
        (out,) = step(view, current).outputs
        assert dict(out.headers)["refold-hops"] == b"%d" % hop
        current = current._replace(headers=out.headers)
    assert code_of(step(view, current)) == "too_many_hops"


# --- sizes -----------------------------------------------------------------------------------------------


def test_a_journal_record_above_the_topics_limit_is_ruled_too_large() -> None:
    view = View(Limits(2_000, 1_179_648, 1_114_112, 1_048_576, 1_114_112, 1_048_576))
    effects = step(view, record(event(1, text="x" * 2_000)))
    assert code_of(effects) == "too_large"
    assert view.entries[KEY].session.seq == 0
    many = [(f"h{n}", b"x" * 100) for n in range(20)]
    assert code_of(step(view, record(event(2), headers=many))) == "too_large"
    assert isinstance(step(view, record(event(3))).ruling, Accepted)


def test_a_rejected_record_that_does_not_fit_leaves_its_head_and_digest() -> None:
    limit = 20_000
    view = View(Limits(1_179_648, limit, 1_114_112, 1_048_576, 1_114_112, 1_048_576))
    value = b"\x09" * 50_000
    effects = step(view, record(value, headers=[("h", b"y" * 100_000)], key=b"k" * 30_000))
    (out,) = effects.outputs
    headers = dict(out.headers)
    assert out.value == value[:4096]
    assert headers["refold-value-sha256"] == hashlib.sha256(value).hexdigest().encode()
    assert headers["refold-value-length"] == b"50000"
    assert headers["refold-key-length"] == b"30000"
    assert headers["refold-headers-dropped"] == b"1"
    assert recordheaders.size(out.key, out.value, out.headers) <= limit


# --- quarantine ------------------------------------------------------------------------------------------


def test_a_fold_that_raises_quarantines_the_session_and_parks_its_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Goal: the session is as it was before the event, the journal says why, and fold(journal) is the
    state."""
    view = View()
    journal = list(step(view, record(event(1), 0)).journal)
    view.confirm()
    real = step_module.evolve

    def broken(session: Any, *rest: Any) -> None:
        real(session, *rest)
        if rest[4].event_id == "e2":
            raise RuntimeError("a bug that quotes payload text")

    monkeypatch.setattr(step_module, "evolve", broken)
    effects = step(view, record(event(2), 1))
    assert isinstance(effects.quarantined, RuntimeError)
    assert isinstance(effects.ruling, Parked)
    assert code_of(effects) == "quarantined"
    types = [decode_journal(item.value).env.type for item in effects.journal]
    assert types == ["SessionQuarantined", "SessionEventParked"]
    assert b"payload text" not in b"".join(item.value for item in effects.journal)
    journal += effects.journal
    later = step(view, record(event(3), 2))
    assert code_of(later) == "quarantined"
    assert [decode_journal(item.value).env.type for item in later.journal] == ["SessionEventParked"]
    assert len(later.outputs) == 1
    journal += later.journal
    folded = initial(TENANT, "s1")
    for item in journal:
        entry = decode_journal(item.value)
        real(
            folded,
            entry.seq,
            entry.time_ms,
            entry.partition,
            entry.offset,
            entry.env,
            step_module.decode_event(entry.env),
        )
    assert encode_snapshot(folded) == encode_snapshot(view.entries[KEY].session)
    assert (folded.status, folded.parked) == ("quarantined", 2)


# --- overlay ---------------------------------------------------------------------------------------------


def test_a_note_on_an_accepted_event_is_ruled_with_it() -> None:
    """B3, L6: what an id did not find is in the ruling, and in no record."""
    view, overlay = View(), Overlay()
    part = overlay.part(PARTITION, 7, 0)
    for offset, parent in enumerate([None, "typo", "m1"]):
        one = record(appended(offset + 1, parent), offset)
        apply(overlay, part, one, step(view, one))
    assert [ruled[0] for ruled in part.rulings.values()] == [1, Noted(2, "no_parent"), 3]
    told = line(PARTITION, 1, part.rulings[1])
    assert (told.status, told.seq, told.note) == ("accepted", 2, "no_parent")
    assert RulingLine.from_bytes(told.to_bytes()) == told
    assert b'"n"' not in line(PARTITION, 0, part.rulings[0]).to_bytes(), "as older clients know it"


def test_the_overlay_collects_per_partition_and_drops_whole_partitions() -> None:
    view, overlay = View(), Overlay()
    part = overlay.part(PARTITION, 7, 0)
    for offset, value in enumerate([event(1), event(1), b"bad", None, event(2)]):
        one = record(value, offset)
        apply(overlay, part, one, step(view, one))
    assert part.next_offset == 5
    assert [decode_journal(item.value).seq for item in part.journal] == [1, 2, 1]
    touched = part.touched[KEY]
    # The deletion ends the first incarnation: only what came after it belongs to the session's history.
    assert touched.deleted
    assert touched.events == [2]
    assert touched.entry.unconfirmed == 1
    assert (overlay.records, overlay.duplicates, overlay.rejected) == (5, 1, {"bad_magic": 1})
    assert sorted(part.rulings) == [0, 1, 2, 3, 4]
    assert overlay.drop(PARTITION) is part
    assert not overlay
