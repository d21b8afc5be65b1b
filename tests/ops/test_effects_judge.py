"""The effects harness' judge: an uninterrupted session is clean, and every planted difference is found."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from refold.demo.dataset import Conversation, load
from refold.demo.reference import MemorySession
from refold.demo.simulators import Simulators
from refold.ops.effects.judge import Topic, Verdict, judge
from refold.ops.effects.ledger import Entry
from refold.ops.effects.told import Told
from refold.ops.verify.readback import Record

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("bfcl_eval") is None,
    reason="the conversations are not installed: pip install --no-deps -r requirements/demo.lock",
)

TENANT = "bfcl"
#: The call that becomes unknown and is settled by a review, in every session here.
REVIEWED = 2


@pytest.fixture(scope="module")
def conversation() -> Conversation:
    return load(1)[0]


async def play(conversation: Conversation) -> tuple[MemorySession, list[Entry]]:
    """The script as an uncrashed agent leaves it, one call with a detour through the review."""
    session = MemorySession(TENANT, conversation.session)
    simulators = Simulators.of(conversation)
    entries: list[Entry] = []
    await session.append("you have tools", role="system", message_id="system")
    for number, turn in enumerate(conversation.turns):
        await session.append(turn.user, role="user", message_id=f"t{number}/user")
        if turn.calls:
            await session.append("I will", role="assistant", message_id=f"t{number}/calls")
        for index, call in enumerate(turn.calls):
            operation = f"t{number}/c{index}"
            arguments = json.loads(call.arguments)
            await session.tool_intended(operation, call.tool, call.arguments)
            await session.tool_started(operation, holder="h", call_attempt=1)
            result = simulators.run(call)
            name = conversation.session
            entries.append(
                Entry(len(entries) + 1, "executed", name, f"{operation}/1", call.tool, arguments, result)
            )
            if len(entries) == REVIEWED:
                await session.tool_unknown(operation, "no lookup", call_attempt=1)
            await session.tool_completed(operation, result, reconciled=len(entries) == REVIEWED)
        await session.append("done", role="assistant", message_id=f"t{number}/answer")
    return session, entries


def topic(*records: tuple[bytes, bytes | None]) -> Topic:
    return {0: [Record(0, n, key, value, (), 0) for n, (key, value) in enumerate(records)]}


def verdict_of(
    conversation: Conversation,
    session: MemorySession,
    entries: Sequence[Entry],
    *,
    journal: Sequence[bytes] | None = None,
    state: bytes | None = None,
    reviews: Sequence[bytes | None] = (b"item", None),
    ours: bool = True,
) -> Verdict:
    key = f"{TENANT}/{conversation.session}".encode()
    reviewed = f"{key.decode()}#{entries[REVIEWED - 1].key.rpartition('/')[0]}".encode()
    return judge(
        TENANT,
        [conversation],
        entries,
        topic(*((key, value) for value in (session.journal if journal is None else journal))),
        topic((key, session.value if state is None else state)),
        topic(*((reviewed, value) for value in reviews)),
        {conversation.session: Told.by(session.journal)} if ours else None,
    )


async def test_an_uninterrupted_session_is_clean(conversation: Conversation) -> None:
    session, entries = await play(conversation)
    verdict = verdict_of(conversation, session, entries)
    assert verdict.differences == []
    assert verdict.clean
    assert (verdict.operations, verdict.unknown) == (len(conversation.calls), 1)


async def test_an_operation_that_ran_twice_is_found(conversation: Conversation) -> None:
    session, entries = await play(conversation)
    verdict = verdict_of(conversation, session, [*entries, entries[0]])
    assert (verdict.executed_twice, verdict.lost, verdict.ledger_mismatches) == (1, 0, 1)
    assert not verdict.clean


async def test_an_operation_that_never_ran_is_found(conversation: Conversation) -> None:
    session, entries = await play(conversation)
    verdict = verdict_of(conversation, session, entries[:-1])
    assert (verdict.executed_twice, verdict.lost, verdict.ledger_mismatches) == (0, 1, 1)


async def test_the_wrong_order_is_found(conversation: Conversation) -> None:
    session, entries = await play(conversation)
    verdict = verdict_of(conversation, session, [entries[1], entries[0], *entries[2:]])
    assert (verdict.executed_twice, verdict.lost, verdict.ledger_mismatches) == (0, 0, 1)


async def test_other_arguments_are_another_operation(conversation: Conversation) -> None:
    session, entries = await play(conversation)
    changed = replace(entries[0], arguments={"folder": "elsewhere"})
    verdict = verdict_of(conversation, session, [changed, *entries[1:]])
    assert (verdict.executed_twice, verdict.lost) == (1, 1)


async def test_lines_that_are_no_executions_do_not_count(conversation: Conversation) -> None:
    session, entries = await play(conversation)
    others = [replace(entries[0], what=what) for what in ("repeated", "refused", "lookup")]
    assert verdict_of(conversation, session, [*entries, *others]).clean


@pytest.mark.parametrize(
    ("reviews", "words"),
    [((), "0 review items"), ((b"item",), "is open"), ((b"item", b"item", None), "2 review items")],
)
async def test_an_unknown_call_that_is_not_in_the_review_is_found(
    conversation: Conversation, reviews: Sequence[bytes | None], words: str
) -> None:
    """Goal: an item per unknown outcome, open exactly while the call is unknown."""
    session, entries = await play(conversation)
    verdict = verdict_of(conversation, session, entries, reviews=reviews)
    assert verdict.unknown_not_in_review == 1
    assert words in verdict.differences[0]


async def test_a_state_that_is_not_the_journal_is_found(conversation: Conversation) -> None:
    session, entries = await play(conversation)
    verdict = verdict_of(conversation, session, entries, journal=session.journal[:-1], ours=False)
    assert verdict.state_mismatches == 1
    missing = judge(TENANT, [conversation], entries, topic(), topic(), topic(), None)
    assert missing.differences == [f"state {conversation.session}: no stored state"]


async def test_a_recorded_result_that_the_gateway_never_gave_is_found(conversation: Conversation) -> None:
    session, entries = await play(conversation)
    other = [*entries[:-1], replace(entries[-1], result="something else")]
    assert verdict_of(conversation, session, other).state_mismatches == 1


async def test_a_message_too_many_is_found(conversation: Conversation) -> None:
    (session, entries), (other, _) = await play(conversation), await play(conversation)
    await other.append("once more", role="assistant", message_id="t9/answer")
    key = f"{TENANT}/{conversation.session}".encode()
    reviewed = key + b"#" + entries[REVIEWED - 1].key.rpartition("/")[0].encode()
    verdict = judge(
        TENANT,
        [conversation],
        entries,
        topic(*((key, value) for value in other.journal)),
        topic((key, other.value)),
        topic((reviewed, b"item"), (reviewed, None)),
        {conversation.session: Told.by(session.journal)},
    )
    assert (verdict.messages_doubled, verdict.messages_lost) == (1, 0)
    assert verdict.state_mismatches == 1
    assert verdict.wrong == {conversation.session}
