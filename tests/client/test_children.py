"""Child sessions and facts over the real fold, in memory: the same child and one result, from any process."""

from __future__ import annotations

from typing import Any

import pytest

from refold.client.children import SessionChildren
from refold.client.facts import Facts
from refold.client.receipts import Refused
from refold.client.snapshots import SnapshotView
from refold.errors import NotFound, UsageError
from refold.formats.parts import text, tool_call
from refold.testing.memory import MemoryLog, MemorySession


class Family(MemorySession, SessionChildren):
    """A session whose siblings are in the same memory."""

    def __init__(self, logs: dict[str, MemoryLog], session: str, producer: str = "p-1") -> None:
        log = logs.setdefault(session, MemoryLog(session))
        super().__init__(log, producer)
        self.logs = logs
        self.producer = producer

    def sibling(self, session: str) -> Family:
        return Family(self.logs, session, self.producer)

    async def view(self) -> SnapshotView:
        found = await self.state()
        assert found is not None
        return found


async def asked(*calls: str) -> Family:
    """A parent whose assistant has asked for these calls."""
    parent = Family({}, "trip")
    parts = [text("one moment"), *[tool_call(call, "research", '{"topic":"tea"}') for call in calls]]
    await parent.append("Where does tea come from?", role="user", message_id="u1")
    await parent.append(parts, role="assistant", message_id="a1")
    return parent


async def test_a_child_answers_its_call_once() -> None:
    parent = await asked("c1", "c2")
    child = await parent.child("c1", title="research")
    await child.append("Find out where tea comes from.", role="user")
    rows = await parent.children()
    operation = rows[0]["call"]
    assert [(row["session"], row["kind"]) for row in rows] == [(child.id, "child")]
    link = (await child.view()).data["link"]
    assert (link["kind"], link["session"], link["call"]) == ("child", "trip", operation)
    said = await child.finish("From China.", summary="China")
    assert said.accepted
    view = await parent.view()
    results = [m for m in view.data["context"]["recent_messages"] if m["role"] == "tool"]
    assert len(results) == 1
    assert [row["state"] for row in view.data["tools"]] == ["done", "intended"]
    assert (await child.view()).status == "closed"


async def test_beginning_it_again_finds_the_same_child() -> None:
    """From another process, by call id or operation id, before and after its end."""
    parent = await asked("c1")
    child = await parent.child("c1")
    operation = (await parent.children())[0]["call"]
    other = Family(parent.logs, "trip", "p-2")
    for name in ("c1", operation):
        assert (await other.child(name)).id == child.id
    await child.finish("done", close=False)
    assert (await other.child("c1")).id == child.id
    assert parent.log.types.count("ChildLinked") == 1
    assert parent.log.types.count("ToolCallIntended") == 1
    assert child.log.types == ["SessionOpened"]


async def test_the_first_result_stands() -> None:
    """The same again, and another one, from any process: the parent's context does not change."""
    parent = await asked("c1")
    child = await parent.child("c1")
    assert (await child.finish("From China.")).accepted
    before = parent.log.state.seq
    other = Family(parent.logs, child.id, "p-2")
    assert (await other.finish("From China.")).status == "duplicate"
    for ruling in (await other.finish("From India."), await other.fail("lost")):
        assert ruling.status == "rejected"
        assert ruling.code in ("already_final", "conflict")
    assert parent.log.state.seq == before


async def test_a_process_that_dies_between_result_and_close_is_finished_by_another() -> None:
    parent = await asked("c1")
    child = await parent.child("c1")

    def die(kind: str) -> None:
        if kind == "SessionClosed":
            raise RuntimeError

    child.before = die
    with pytest.raises(RuntimeError):
        await child.finish("From China.")
    other = Family(parent.logs, child.id, "p-2")
    assert (await other.finish("From China.")).status == "duplicate"
    assert (await other.view()).status == "closed"
    assert parent.log.types.count("ToolCallCompleted") == 1


async def test_every_death_while_beginning_leaves_something_to_go_on_with() -> None:
    """Stopped before any of its events, the child is begun whole by the next."""
    for stop in ("ToolCallIntended", "ChildLinked", "SessionOpened"):
        parent = await asked("c1")

        def die(kind: str, stop: str = stop) -> None:
            if kind == stop:
                raise RuntimeError

        class Dying(Family):
            def __init__(self, *given: Any) -> None:
                super().__init__(*given)
                self.before = die

            def sibling(self, session: str) -> Family:
                return Dying(self.logs, session, self.producer)

        with pytest.raises(RuntimeError):
            await Dying(parent.logs, "trip", "p-9").child("c1")
        child = await parent.child("c1")
        assert (await child.finish("From China.")).accepted
        assert len(await parent.children()) == 1


async def test_a_child_that_failed() -> None:
    parent = await asked("c1")
    child = await parent.child("c1")
    await child.fail("no sources", error_code="empty")
    row = (await parent.view()).data["tools"][0]
    assert (row["state"], row["error"]) == ("failed", "no sources")


async def test_calls_of_two_turns_with_one_id_have_children_of_their_own() -> None:
    """A call id used again: the open call is meant, and each child answers its own."""
    parent = await asked("call_0")
    first = await parent.child("call_0")
    await parent.append("And coffee?", role="user")
    await parent.append([tool_call("call_0", "research", '{"topic":"coffee"}')], role="assistant")
    second = await parent.child("call_0")
    assert first.id != second.id
    assert (await second.finish("From Ethiopia.")).accepted
    assert (await first.finish("From China.")).accepted
    summaries = [row["result_summary"] for row in (await parent.view()).data["tools"]]
    assert summaries == ["From China.", "From Ethiopia."]


async def test_what_is_no_child_cannot_finish() -> None:
    parent = await asked("c1")
    with pytest.raises(UsageError, match="is no child of a call"):
        await parent.finish("x")
    with pytest.raises(NotFound, match="has no call 'c9'"):
        await parent.child("c9")
    with pytest.raises(NotFound, match=r"'nobody' of tenant .* does not exist"):
        await Family({}, "nobody").child("c1")


async def test_a_session_that_is_there_already_is_not_taken_for_a_child() -> None:
    parent = await asked("c1")
    await parent.sibling("other").append("hello", role="user")
    with pytest.raises(UsageError, match="is no child of call"):
        await parent.child("c1", session_id="other")


async def test_no_child_of_a_closed_parent_and_no_result_to_a_deleted_one() -> None:
    parent = await asked("c1", "c2")
    child = await parent.child("c1")
    await parent.close()
    with pytest.raises(Refused, match="session_closed"):
        await parent.child("c2")
    assert (await child.finish("late", close=False)).accepted
    await parent.delete()
    with pytest.raises(NotFound, match="was deleted"):
        await child.finish("later")


async def test_facts_are_a_mapping() -> None:
    session = Family({}, "s")
    facts = Facts(session)
    assert await facts.all() == {}
    assert await facts.get("goal", "none") == "none"
    await facts.set("goal", {"city": "Xi'an"})
    await facts.set("mood", None)
    assert await facts.get("goal") == {"city": "Xi'an"}
    assert await facts.has("mood")
    assert not await facts.has("weather")
    await facts.remove("mood")
    assert await facts.all() == {"goal": {"city": "Xi'an"}}


async def test_actors_of_a_session() -> None:
    from refold.core.envelope import Actor

    session = Family({}, "s")
    await session.append("hi", role="user", actor=Actor("user", "anna"))
    await session.append("plan", role="assistant", actor=Actor("agent", "planner"))
    await session.append("no", role="assistant", actor=Actor("agent", "critic"))
    await session.append("ok", role="assistant", actor=Actor("agent", "planner"))
    assert (await session.view()).actors == ["anna", "planner", "critic"]
