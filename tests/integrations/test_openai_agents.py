"""The Agents SDK's ``Session`` on the fold itself, beside its own SQLiteSession: same calls, same answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any, cast

import pytest
from agents import SessionSettings
from agents.memory import Session, SQLiteSession
from hypothesis import given, settings
from hypothesis import strategies as st

from refold.client.events import SessionEvent
from refold.client.facts import Facts
from refold.client.operations.past import fold_past
from refold.client.operations.window import restored_payload
from refold.client.ordering import EarlierEventFailed
from refold.client.receipts import Receipt, Refused
from refold.client.session import Session as Conversation
from refold.errors import TransientError, UsageError
from refold.integrations.openai_agents import RefoldSession
from refold.integrations.openai_agents.items import items_of
from refold.testing.memory import MemoryLog, MemorySession
from refold.wire.parts import Part
from refold.wire.parts import text as text_part

Item = dict[str, Any]


class Memory(MemorySession):
    """With what the adapter asks of a client's session besides."""

    def _events_of(self, session: str, after: int, limit: int | None) -> AsyncGenerator[SessionEvent, None]:
        assert session == self.id
        return self.events(after, limit)

    async def switch_branch(self, head_message_id: str, *, rebuild: bool = False, **options: Any) -> Receipt:
        if not rebuild:
            return await super().switch_branch(head_message_id, **options)
        past = await fold_past(self._events_of, self.tenant, self.id, messages=True)
        return await self.publish("ContextRestored", restored_payload(past, head_message_id), **options)

    @property
    def facts(self) -> Facts:
        return Facts(self)

    async def load(self, parts: Sequence[Part]) -> list[Part]:
        return list(parts)

    async def events(self, after: int = 0, limit: int | None = None) -> AsyncGenerator[SessionEvent, None]:
        life: list[SessionEvent] = []
        for event in self.log.journal:
            life.append(event)
            if event.type == "SessionDeleted":
                life = []
        for event in life[after : None if limit is None else after + limit]:
            yield event


def adapted(log: MemoryLog, **options: Any) -> RefoldSession:
    return RefoldSession(cast("Conversation", Memory(log)), **options)


def user(words: str) -> Item:
    return {"role": "user", "content": words}


def said(words: str) -> Item:
    return {
        "id": f"msg_{words}",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": words, "annotations": [], "logprobs": []}],
    }


def call(call_id: str, arguments: str = "{}") -> Item:
    return {
        "type": "function_call",
        "id": f"fc_{call_id}",
        "call_id": call_id,
        "name": "look",
        "arguments": arguments,
    }


def output(call_id: str, words: str = "found") -> Item:
    return {"type": "function_call_output", "call_id": call_id, "output": words}


REASONING: Item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c2VjcmV0"}
SEARCH: Item = {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search"}}
SYSTEM: Item = {"role": "system", "content": "be brief"}
STRANGE: Item = {"type": "some_new_item", "anything": [1, None, {"a": 0.5}]}

#: What one model turn adds: a call comes with its output, as the Runner writes them.
groups = st.one_of(
    st.sampled_from(["hello", "and then?", "ö\n"]).map(lambda words: [user(words)]),
    st.sampled_from(["yes", "no"]).map(lambda words: [said(words)]),
    st.sampled_from(["c1", "c2", "c3"]).map(lambda name: [call(name), output(name)]),
    st.permutations(["c1", "c2"]).map(lambda two: [*map(call, two), *map(output, two)]),
    st.just([REASONING, call("c9", '{"q": 1}'), output("c9", "")]),
    st.sampled_from([[SEARCH], [SYSTEM], [STRANGE], []]),
)
steps = st.lists(
    st.one_of(
        groups.map(lambda items: ("add", items)),
        st.sampled_from([("pop", None), ("pop", None), ("clear", None)]),
        st.sampled_from([None, 0, 1, 3, 50, -1]).map(lambda limit: ("get", limit)),
    ),
    max_size=30,
)


@given(steps)
@settings(max_examples=150, deadline=None)
def test_does_what_the_sdks_own_session_does(plan: list[tuple[str, Any]]) -> None:
    async def play() -> None:
        mine, theirs = adapted(MemoryLog()), SQLiteSession("s")
        for name, given_ in plan:
            if name == "add":
                await mine.add_items(given_)
                await theirs.add_items(given_)
            elif name == "pop":
                assert await mine.pop_item() == await theirs.pop_item()
            elif name == "clear":
                await mine.clear_session()
                await theirs.clear_session()
            else:
                assert await mine.get_items(given_) == await theirs.get_items(given_)
        assert await mine.get_items() == await theirs.get_items()
        # And so for whoever comes to the session anew.
        assert await adapted(mine.session.log).get_items() == await theirs.get_items()  # type: ignore[attr-defined]
        theirs.close()

    asyncio.run(play())


async def test_it_is_a_session_of_the_sdk_and_takes_its_settings() -> None:
    mine = adapted(MemoryLog(), session_settings=SessionSettings(limit=2))
    assert isinstance(mine, Session)
    await mine.add_items([user("1"), user("2"), user("3")])
    assert await mine.get_items() == [user("2"), user("3")]
    assert await mine.get_items(3) == [user("1"), user("2"), user("3")]


async def test_more_than_the_state_holds_comes_back_and_can_be_popped_to_the_last() -> None:
    mine = adapted(MemoryLog())
    every = [item for number in range(60) for item in (user(f"q{number}"), said(f"a{number}"))]
    await mine.add_items(every)
    assert await mine.get_items() == every
    popped = []
    while (item := await mine.pop_item()) is not None:
        popped.append(item)
    assert popped == every[::-1]
    await mine.add_items([user("again")])
    assert await mine.get_items() == [user("again")]


async def test_a_removed_system_message_stays_removed() -> None:
    mine = adapted(MemoryLog())
    await mine.add_items([user("hi"), SYSTEM])
    assert await mine.pop_item() == SYSTEM
    assert await mine.get_items() == [user("hi")]
    await mine.add_items([user("more")])
    assert [await mine.pop_item(), await mine.pop_item(), await mine.pop_item()] == [
        user("more"),
        user("hi"),
        None,
    ]


async def test_an_item_added_by_another_process_is_not_popped_unseen() -> None:
    log = MemoryLog()
    mine, other = adapted(log), adapted(log)
    await mine.add_items([user("1"), user("2")])
    raced = False

    def race(event_type: str) -> None:
        nonlocal raced
        if event_type == "BranchSwitched" and not raced:
            raced = True
            written.append(asyncio.ensure_future(other.add_items([user("3")])))

    written: list[asyncio.Future[None]] = []
    session = cast("Memory", mine.session)
    session.before = race
    alive = session.alive

    async def yielding() -> None:
        await alive()
        for one in written:
            await one

    session.alive = yielding  # type: ignore[method-assign]
    taken = await mine.pop_item()
    left = await other.get_items()
    assert raced
    assert taken is not None
    assert [*left, taken] in ([user("1"), user("2"), user("3")], [user("1"), user("3"), user("2")])
    assert user("1") in left


async def test_what_is_no_item_is_refused_before_anything_is_sent() -> None:
    log = MemoryLog()
    with pytest.raises(UsageError, match="dict of the Responses API"):
        await adapted(log).add_items([user("1"), cast("Any", "two")])
    assert log.journal == []


async def test_what_failed_is_sent_again_before_anything_else() -> None:
    """An append of unknown outcome is told; the next call settles it first, so the order is as meant."""
    mine = adapted(MemoryLog())
    session = cast("Memory", mine.session)
    lost: list[tuple[str, Any, dict[str, Any]]] = []
    publish = session.publish

    async def failing(event_type: str, payload: Any, **options: Any) -> Receipt:
        if not lost:
            lost.append((event_type, payload, options))
            raise TransientError("the event was not acknowledged: outcome unknown")
        raise EarlierEventFailed("e1", "outcome unknown")

    async def retry() -> list[Receipt]:
        session.publish = publish  # type: ignore[method-assign]
        event_type, payload, options = lost[0]
        return [await publish(event_type, payload, **options)]

    session.publish = failing  # type: ignore[method-assign]
    session.retry = retry  # type: ignore[method-assign]
    with pytest.raises(TransientError, match="outcome unknown"):
        await mine.add_items([user("1")])
    await mine.add_items([user("2")])
    assert await mine.get_items() == [user("1"), user("2")]


async def test_a_history_whose_end_cannot_be_read_yet_is_not_given_without_it() -> None:
    """Goal: no turn is left out: without an owner the journal ends at the last stable offset, which may lie
    before the commit that the state is of."""
    log, visible = MemoryLog(), 1

    class Behind(Memory):
        async def events(
            self, after: int = 0, limit: int | None = None
        ) -> AsyncGenerator[SessionEvent, None]:
            for event in log.journal[after:visible]:
                yield event

    await adapted(log).add_items([user("one"), said("two")])
    s = RefoldSession(cast("Conversation", Behind(log)))
    with pytest.raises(TransientError, match="ends at seq 1 and not at 2"):
        await s.get_items()
    visible = 2
    assert len(await s.get_items()) == 2


async def test_a_closed_session_refuses_by_name() -> None:
    log = MemoryLog()
    mine = adapted(log)
    await mine.add_items([user("1")])
    await mine.session.close()
    with pytest.raises(Refused, match="session_closed"):
        await mine.add_items([user("2")])
    assert await mine.get_items() == [user("1")]


async def test_messages_from_elsewhere_are_items_too() -> None:
    mine = adapted(MemoryLog())
    chat = mine.session
    await chat.append("Where is order 17?")
    asked = {"id": "c1", "type": "function", "function": {"name": "track", "arguments": '{"order": 17}'}}
    await chat.append({"role": "assistant", "content": "Let me see.", "tool_calls": [asked]})
    await chat.append({"role": "tool", "tool_call_id": "c1", "content": "out for delivery"})
    first = {"type": "message", "role": "user", "content": "Where is order 17?"}
    words = {
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_text", "text": "Let me see."}],
    }
    called = {"type": "function_call", "call_id": "c1", "name": "track", "arguments": '{"order": 17}'}
    done = {"type": "function_call_output", "call_id": "c1", "output": "out for delivery"}
    assert await mine.get_items() == [first, words, called, done]
    assert await mine.get_items(2) == [called, done]
    assert await mine.pop_item() == done
    # Of a message that is two items only one goes.
    assert await mine.pop_item() == called
    assert await mine.get_items() == [first, words]


def test_what_items_have_no_form_for_is_said() -> None:
    def body(role: str, *parts: Part) -> dict[str, Any]:
        return {"role": role, "content": list(parts), "extra": None, "extra_format": "anthropic"}

    (only,) = items_of(body("user", text_part("see"), Part("audio", None, {"format": "wav"})))
    assert [piece["type"] for piece in only["content"]] == ["input_text", "input_text"]
    assert only["content"][1]["text"].startswith("[refold: audio")
    (silent,) = items_of(body("assistant", Part("reasoning", "thinking")))
    assert silent["content"] == [{"type": "output_text", "text": ""}]
