"""The demo's reference and judge without Kafka: same script, same conversation; planted faults are found."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace

import pytest

from refold.demo.dataset import Conversation, load
from refold.demo.judge import Topic, Verdict, judge
from refold.demo.model import EndpointModel, LocalModel, model_from_environment
from refold.demo.player import Played, Player
from refold.demo.reference import MemorySession
from refold.demo.uninterrupted import uninterrupted
from refold.ops.effects.ledger import Entry
from refold.ops.effects.told import Told
from refold.ops.verify.readback import Record
from refold.wire.codec import decode

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("bfcl_eval") is None,
    reason="the demo's data is not installed: make demo (or pip install --no-deps -r requirements/demo.lock)",
)

TENANT = "bfcl"


@pytest.fixture(scope="module")
def conversation() -> Conversation:
    return load(1)[0]


async def play(conversation: Conversation) -> tuple[MemorySession, Played]:
    session = MemorySession(TENANT, conversation.session)
    return session, await Player(conversation, session, LocalModel()).play()


async def test_two_runs_tell_the_same(conversation: Conversation) -> None:
    (one, first), (two, second) = await play(conversation), await play(conversation)
    assert Told.by(one.journal) == Told.by(two.journal)
    assert tuple(first.ledger) == tuple(second.ledger) == conversation.calls


async def test_spoken_words_give_the_same_conversation(conversation: Conversation) -> None:
    """Goal: a run with a real model can be compared. Method: say again what the journal says was said."""
    one, _ = await play(conversation)
    told = Told.by(one.journal)
    again = await uninterrupted(TENANT, [conversation], {conversation.session: told.words})
    assert again[conversation.session] == told
    other = await uninterrupted(TENANT, [conversation], {conversation.session: ["?", *told.words[1:]]})
    assert other[conversation.session].spoken != told.spoken


async def test_every_call_goes_through_its_states(conversation: Conversation) -> None:
    session, played = await play(conversation)
    types = [receipt.type for receipt in played.receipts]
    assert types.count("ToolCallIntended") == types.count("ToolCallStarted") == len(conversation.calls)
    rows = decode(session.value, "refold.SessionSnapshot").record["tools"]
    assert [row["state"] for row in rows] == ["done"] * len(conversation.calls)
    assert [row["tool"] for row in rows] == [call.tool for call in conversation.calls]


def test_the_environment_names_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REFOLD_DEMO_MODEL_URL", raising=False)
    assert isinstance(model_from_environment(), LocalModel)
    monkeypatch.setenv("REFOLD_DEMO_MODEL_URL", "http://127.0.0.1:1/v1")
    monkeypatch.setenv("REFOLD_DEMO_MODEL_NAME", "small")
    model = model_from_environment()
    assert isinstance(model, EndpointModel)
    assert model.name == "small"


async def verdict_of(conversation: Conversation, planted: str) -> Verdict:
    session, _ = await play(conversation)
    key = f"{TENANT}/{conversation.session}".encode()
    told = Told.by(session.journal)
    values, state = session.journal, session.value
    entries = [
        Entry(n, "executed", conversation.session, f"op{n}/1", call.tool, json.loads(call.arguments), result)
        for n, (call, result) in enumerate(zip(conversation.calls, told.results.values(), strict=True))
    ]
    reference = dict(await uninterrupted(TENANT, [conversation]))
    match planted:
        case "lost event":
            values = values[:-1]
        case "doubled operation":
            entries.append(entries[0])
        case "operation not run":
            entries.pop()
        case "operations out of order":
            entries[0], entries[1] = entries[1], entries[0]
        case "other state":
            other = MemorySession(TENANT, conversation.session)
            await other.append("something else", message_id="x")
            state = other.value
        case "other words":
            changed = [*told.spoken[:-1], ("assistant", told.spoken[-1][1], "something else")]
            reference[conversation.session] = replace(told, spoken=changed)
    journal: Topic = {0: [Record(0, n, key, value, (), 0) for n, value in enumerate(values)]}
    topic: Topic = {0: [Record(0, 0, key, state, (), 0)]}
    return judge(TENANT, [conversation], entries, journal, topic, {0: []}, reference)


async def test_a_run_without_differences_is_clean(conversation: Conversation) -> None:
    verdict = await verdict_of(conversation, "nothing")
    assert verdict.differences == []
    assert verdict.clean
    assert (verdict.sessions, verdict.operations) == (1, len(conversation.calls))


@pytest.mark.parametrize(
    ("planted", "lost", "doubled"),
    [
        ("lost event", 1, 0),
        ("doubled operation", 0, 1),
        ("operation not run", 1, 0),
        ("operations out of order", 0, 0),
        ("other state", 0, 0),
        ("other words", 1, 1),
    ],
)
async def test_each_planted_difference_is_found(
    conversation: Conversation, planted: str, lost: int, doubled: int
) -> None:
    """Goal: nothing can hide. Method: one thing is made wrong at a time, and is counted as what it is."""
    verdict = await verdict_of(conversation, planted)
    assert not verdict.clean
    assert (verdict.mismatches, verdict.lost, verdict.doubled) == (1, lost, doubled)
