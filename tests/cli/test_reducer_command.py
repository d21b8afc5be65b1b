"""``refold reducer``: what is refused before anything is asked, and folding a part anew."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from core.build import SESSION, TENANT, Inbox, message
from refold.cli.main import run
from refold.cli.reducer_parts import TRIES_MAX, Part, _parts, fold_part, release_part
from refold.client import Refused, Ruling
from refold.client.events import SessionEvent
from refold.core import Accepted, Rejected, evolve
from refold.core import reducers as pure
from refold.core.reducerevents import ReducerQuarantined
from refold.core.reducers import Reducer, Registry
from refold.errors import NotFound, TransientError, UsageError
from refold.reducers.event import Event, viewer
from refold.wire.events import event_payload
from refold.wire.journal import decode_journal, journal_value
from refold.wire.snapshot import encode_snapshot


def total(state: Any, event: Event) -> Any:
    return {"sum": state.get("sum", 0) + event.payload["n"]}


def gone(state: Any, event: Event) -> Any:
    raise LookupError


def registry(function: Any, version: int = 1) -> Registry:
    reducers = [
        Reducer("total", version, frozenset({"Counted"}), b"{}", function, {}),
        Reducer("other", 1, frozenset({"Counted"}), b"{}", total, {}),
    ]
    return Registry(reducers, viewer({}))


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    pure.install(None)


class Chat:
    """A session whose worker folds with ``worker``; ``busy`` events come between a fold and its release."""

    tenant, id = TENANT, SESSION

    def __init__(self, worker: Registry | None, busy: int = 0) -> None:
        self.inbox = Inbox()
        self.inbox.check = False
        self.worker = worker
        self.busy = busy

    def say(self, *numbers: int) -> Chat:
        pure.install(self.worker)
        for number in numbers:
            payload = json.dumps({"n": number}).encode()
            assert isinstance(self.inbox.send(("Counted", {}), payload=payload), Accepted)
        pure.install(None)
        return self

    def note(self) -> None:
        """What the worker journals behind an event that stopped a part."""
        session = self.inbox.session
        part = session.reduced["total"]
        error = part.error or ""
        env = self.inbox.envelope(
            "ReducerQuarantined",
            {
                "name": "total",
                "version": part.version,
                "at_seq": part.seq,
                "error": error,
                "state": part.state,
                "partition": 3,
                "offset": 0,
            },
            event_id="note",
        )
        seq, at = session.seq + 1, session.time_ms
        event = ReducerQuarantined("total", part.version, part.seq, part.state, error)
        evolve(session, seq, at, 3, self.inbox.offset, env, event)
        self.inbox.journal.append(journal_value(seq, at, 3, self.inbox.offset, env))

    async def events(self) -> AsyncIterator[SessionEvent]:
        for value in list(self.inbox.journal):
            entry = decode_journal(value)
            yield SessionEvent(entry.seq, entry.time_ms, 3, 0, entry.partition, entry.offset, entry.env)

    async def publish(self, kind: str, payload: dict[str, Any], wait: str) -> Ruling:
        assert wait == "accepted"
        if self.busy:
            self.busy -= 1
            self.say(100)
        pure.install(self.worker)
        ruled = self.inbox.send((kind, {}), payload=event_payload(kind, payload))
        pure.install(None)
        if isinstance(ruled, Rejected):
            raise Refused("e", Ruling("rejected", None, ruled.code, ruled.reason))
        assert isinstance(ruled, Accepted)
        return Ruling("accepted", ruled.seq)


def part_of(chat: Chat) -> tuple[str, bytes, int]:
    part = chat.inbox.session.reduced["total"]
    return part.status, part.state, part.seq


async def release(chat: Chat, folded_with: Registry) -> Any:
    return await release_part(chat, folded_with, "total", by="me", reason=None)  # type: ignore[arg-type]


async def test_a_part_that_stopped_is_folded_anew_from_the_whole_journal() -> None:
    chat = Chat(registry(gone)).say(1)
    chat.note()
    chat.say(2, 3)
    assert part_of(chat) == ("quarantined", b"{}", 4)
    chat.worker = registry(total)
    assert (await release(chat, chat.worker)).seq == 5
    assert part_of(chat) == ("ok", b'{"sum":6}', 4)
    chat.say(4)
    assert part_of(chat) == ("ok", b'{"sum":10}', 6)
    assert pure.active is None


async def test_a_session_of_before_its_reducer_gets_its_past() -> None:
    chat = Chat(None).say(1, 2)
    chat.worker = registry(total)
    assert "total" not in chat.inbox.session.reduced
    await release(chat, chat.worker)
    assert part_of(chat) == ("ok", b'{"sum":3}', 2)


async def test_events_that_come_meanwhile_are_folded_too_unless_they_never_end() -> None:
    chat = Chat(registry(total), busy=TRIES_MAX - 1).say(1)
    await release(chat, registry(total))
    assert part_of(chat)[:2] == ("ok", b'{"sum":%d}' % (1 + 100 * (TRIES_MAX - 1)))
    chat.busy = TRIES_MAX
    with pytest.raises(TransientError, match="run it again"):
        await release(chat, registry(total))


async def test_what_cannot_be_released_is_said_and_nothing_is_sent() -> None:
    chat = Chat(registry(total)).say(1)
    before = len(chat.inbox.records)
    with pytest.raises(UsageError, match="stops again at seq 1"):
        await release(chat, registry(gone))
    assert len(chat.inbox.records) == before
    with pytest.raises(UsageError, match="folded with version 2, the worker has version 1"):
        await release(chat, registry(total, version=2))
    with pytest.raises(NotFound):
        await fold_part(Chat(None), registry(total), "total")  # type: ignore[arg-type]


def test_parts_are_listed_with_what_sessions_of_before_lack() -> None:
    chat = Chat(registry(total)).say(1)
    chat.inbox.ok(message("u1"))
    value = encode_snapshot(chat.inbox.session)
    rows = _parts(value, None)
    assert [(row.name, row.version, row.status, row.state_bytes) for row in rows] == [
        ("other", 1, "ok", 9),
        ("total", 1, "ok", 9),
    ]
    later = Registry([Reducer("later", 1, frozenset({"Counted"}), b"{}", total, {})], viewer({}))
    missing = Part(TENANT, SESSION, "later", 0, 0, "missing", None, 0)
    assert [row for row in _parts(value, later) if row.stands] == [missing]


REFUSED: dict[str, tuple[list[str], str]] = {
    "neither session nor all": (["release", "orders"], "say which session to release, or --all"),
    "both": (["release", "orders", "chat-1", "--all"], "say which session to release, or --all"),
    "refold of one": (["release", "orders", "chat-1", "--refold"], "--refold is for --all"),
    "no module": (["release", "orders", "chat-1"], "name its module with --reducers"),
    "a module that is none": (["release", "orders", "--all", "--reducers", "nowhere"], "cannot be imported"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_wrong_call_is_refused_before_anything_is_asked(
    what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words, text = REFUSED[what]
    assert run(["reducer", *words]) in (64, 78)
    assert text in capsys.readouterr().err
