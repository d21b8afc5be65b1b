"""The demo's player and judge without Kafka: same script, same state; each planted difference is found."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import pytest

from refold.demo.dataset import Conversation, load
from refold.demo.judge import Topic, Verdict, judge
from refold.demo.model import LocalModel, SpokenWords
from refold.demo.player import Played, Player
from refold.demo.reference import MemorySession, normalised
from refold.ops.verify.readback import Record

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


async def test_two_runs_end_in_the_same_state(conversation: Conversation) -> None:
    (one, first), (two, second) = await play(conversation), await play(conversation)
    assert normalised(one.value) == normalised(two.value)
    assert first.words == second.words
    assert tuple(first.ledger) == conversation.calls


async def test_spoken_words_give_the_same_state(conversation: Conversation) -> None:
    """Goal: a run with a real model can be compared. Method: say its words again."""
    one, played = await play(conversation)
    two = MemorySession(TENANT, conversation.session)
    await Player(conversation, two, SpokenWords(played.words)).play()
    assert normalised(one.value) == normalised(two.value)


async def test_every_call_goes_through_its_states(conversation: Conversation) -> None:
    session, played = await play(conversation)
    types = [receipt.type for receipt in played.receipts]
    assert types.count("ToolCallIntended") == types.count("ToolCallStarted") == len(conversation.calls)
    rows = normalised(session.value)["tools"]
    assert [row["state"] for row in rows] == ["done"] * len(conversation.calls)
    assert [row["tool"] for row in rows] == [call.tool for call in conversation.calls]


async def test_normalising_hides_times_and_nothing_else(conversation: Conversation) -> None:
    session, _ = await play(conversation)
    plain = normalised(session.value)
    assert plain["created_at_ms"] == plain["updated_at_ms"] == 0
    assert {"engine", "frontier"}.isdisjoint(plain)
    assert plain["seq"] > 0
    assert plain["context"]["recent_messages"][-1]["message_id"].endswith("/answer")


async def verdict_of(conversation: Conversation, planted: str) -> Verdict:
    session, played = await play(conversation)
    key = f"{TENANT}/{conversation.session}".encode()
    values = session.journal
    state = session.value
    match planted:
        case "lost event":
            values = values[:-1]
        case "doubled operation":
            played.ledger.append(played.ledger[0])
        case "operation not run":
            played.ledger.pop()
        case "other state":
            other = MemorySession(TENANT, conversation.session)
            await other.append("something else", message_id="x")
            state = other.value
        case "event nobody sent":
            played.receipts.pop()
    journal: Topic = {0: [Record(0, n, key, value, (), 0) for n, value in enumerate(values)]}
    reference = {conversation.session: session.value}
    topic: Topic = {0: [Record(0, 0, key, state, (), 0)]}
    return judge(TENANT, [conversation], {conversation.session: played}, reference, journal, topic)


async def test_a_run_without_differences_is_clean(conversation: Conversation) -> None:
    verdict = await verdict_of(conversation, "nothing")
    assert verdict.differences == []
    assert verdict.clean
    assert (verdict.sessions, verdict.operations) == (1, len(conversation.calls))


@pytest.mark.parametrize(
    "planted", ["lost event", "doubled operation", "operation not run", "other state", "event nobody sent"]
)
async def test_each_planted_difference_is_found(conversation: Conversation, planted: str) -> None:
    verdict = await verdict_of(conversation, planted)
    assert not verdict.clean
    assert verdict.mismatches == 1
    assert verdict.lost + verdict.doubled > 0 or planted == "other state"


async def test_operations_in_another_order_are_found(conversation: Conversation) -> None:
    """Goal: order counts, not only the set."""
    swapped = replace(conversation, turns=tuple(reversed(conversation.turns)))
    session, played = await play(conversation)
    key = f"{TENANT}/{conversation.session}".encode()
    journal: Topic = {0: [Record(0, n, key, value, (), 0) for n, value in enumerate(session.journal)]}
    topic: Topic = {0: [Record(0, 0, key, session.value, (), 0)]}
    reference = {conversation.session: session.value}
    verdict = judge(TENANT, [swapped], {conversation.session: played}, reference, journal, topic)
    assert verdict.differences == [f"{conversation.session}: operations out of order"]
