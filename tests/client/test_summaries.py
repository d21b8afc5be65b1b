"""Summaries over the real fold, in memory: what they cover, that two at once are one, that a failed one
changes nothing, and what an endpoint is sent."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from refold.client.snapshots import SnapshotView
from refold.client.summaries import (
    Extractive,
    OpenAICompatible,
    Outcome,
    Said,
    SummaryFailed,
    SummaryRequest,
    summarize_once,
)
from refold.client.summaries.choosing import choose_cut, is_wanted, words
from refold.client.summaries.extractive import LINE_CHARS_MAX, beginning, extract
from refold.client.summaries.limits import HTTP_ANSWER_BYTES_MAX, HTTP_TRIES_MAX, TRIES_MAX
from refold.client.summaries.making import clip_bytes
from refold.client.summaries.serving import SummaryServer
from refold.client.summaries.table import SummaryTable
from refold.core.policystate import SessionPolicy
from refold.core.work import SUMMARY_WORK, WorkItem, work_items
from refold.errors import PermissionDenied
from refold.formats.parts import text, tool_call, tool_result
from refold.formats.validate import problems
from refold.testing.memory import MemoryLog, MemorySession
from refold.wire.work import work_key


class Talk(MemorySession):
    """A session in memory with what a summary reads."""

    async def completed(self, view: SnapshotView) -> dict[str, Any]:
        return dict(view.data)

    async def publish(self, event_type: str, payload: Any, **options: Any) -> Any:
        # How the client's publisher retries is not what is tested here.
        return await super().publish(event_type, payload, **options)

    def item(self) -> WorkItem | None:
        return work_items(self.log.state).get(SUMMARY_WORK)

    async def view(self) -> SnapshotView:
        found = await self.state()
        assert found is not None
        return found

    async def shown(self) -> list[str]:
        return [m["message_id"] for m in (await self.view()).data["context"]["recent_messages"]]


async def talk(turns: int, session: str = "s", **policy: Any) -> Talk:
    chat = Talk(MemoryLog(session))
    await chat.open(policy=policy or {"summary_messages": 6})
    for at in range(turns):
        await chat.append(f"Question {at}. More of it.", role="user", message_id=f"u{at}")
        await chat.append(f"Answer {at}.", role="assistant", message_id=f"a{at}")
    return chat


class Recorded:
    """A summarizer that remembers what it was asked; ``fail``: raises so often first."""

    name = "recorded"

    def __init__(self, reply: str = "so far", fail: int = 0, error: Exception | None = None) -> None:
        self.asked: list[SummaryRequest] = []
        self.reply = reply
        self.fail = fail
        self.error = error or ValueError("secret words of the conversation")

    async def summarize(self, request: SummaryRequest) -> str:
        self.asked.append(request)
        await asyncio.sleep(0)
        if len(self.asked) <= self.fail:
            raise self.error
        return self.reply


# --- one summary -----------------------------------------------------------------------------------------


async def test_a_summary_takes_the_place_of_what_it_covers() -> None:
    """Whole turns, down to half of the limit; no message in both or neither."""
    chat = await talk(4)
    assert chat.item() is not None
    recorded = Recorded()
    made = await summarize_once(chat, recorded)
    assert made == Outcome("made", seq=10, messages=6, bytes=6)
    assert [one.text for one in recorded.asked[0].messages][:2] == ["Question 0. More of it.", "Answer 0."]
    assert recorded.asked[0].previous is None
    assert await chat.shown() == ["u3", "a3"]
    context = (await chat.view()).data["context"]
    assert (context["summary"]["text"], context["summary_active"], context["uncovered"]) == (
        "so far",
        True,
        0,
    )
    assert chat.item() is None


async def test_the_next_summary_is_given_the_one_before() -> None:
    chat = await talk(4)
    recorded = Recorded()
    await summarize_once(chat, recorded)
    for at in range(4, 7):
        await chat.append(f"Question {at}.", role="user")
        await chat.append(f"Answer {at}.", role="assistant")
    recorded.reply = "still so far"
    assert (await summarize_once(chat, recorded)).what == "made"
    assert recorded.asked[1].previous == "so far"
    assert recorded.asked[1].messages[0].text.startswith("Question 3.")
    assert (await chat.view()).data["context"]["summary"]["text"] == "still so far"


@pytest.mark.parametrize(
    ("summarizer", "code", "again"),
    [
        (Recorded(""), "empty", True),
        (Recorded(" \n"), "empty", True),
        (Recorded(fail=1), "raised", True),
        (Recorded(fail=1, error=SummaryFailed("http_401", "refused", again=False)), "http_401", False),
    ],
)
async def test_a_failed_or_empty_summary_changes_nothing(
    summarizer: Recorded, code: str, again: bool
) -> None:
    chat = await talk(4)
    before = chat.log.view()
    assert before is not None
    outcome = await summarize_once(chat, summarizer)
    assert (outcome.what, outcome.code, outcome.again) == ("failed", code, again)
    after = chat.log.view()
    assert after is not None
    assert after.raw == before.raw


async def test_one_that_takes_too_long_failed() -> None:
    class Slow:
        name = "slow"

        async def summarize(self, request: SummaryRequest) -> str:
            await asyncio.Event().wait()
            raise AssertionError

    chat = await talk(4)
    outcome = await summarize_once(chat, Slow(), timeout_s=0.01)
    assert (outcome.what, outcome.code) == ("failed", "timeout")


async def test_two_at_once_are_one() -> None:
    """Both read the same state: the same text is a repeat, another one is refused; one is in force."""
    for second, what in (("one", "made"), ("two", "superseded")):
        chat = await talk(4)
        other = Talk(chat.log, "p-2")
        both = await asyncio.gather(
            summarize_once(chat, Recorded("one")), summarize_once(other, Recorded(second))
        )
        assert [one.what for one in both] == ["made", what]
        assert chat.log.types.count("ContextSummarized") == 1
        assert (await chat.view()).data["context"]["summary"]["text"] == "one"


async def test_a_summary_that_is_late_is_refused_and_harms_nothing() -> None:
    """Another process has covered more meanwhile; or the path was left."""
    chat = await talk(4)

    class Overtaken(Recorded):
        async def summarize(self, request: SummaryRequest) -> str:
            await chat.summarize("covers more", "a3")
            return "late"

    outcome = await summarize_once(chat, Overtaken())
    assert (outcome.what, outcome.code) == ("superseded", "bad_summary")
    chat = await talk(4)

    class Edited(Recorded):
        async def summarize(self, request: SummaryRequest) -> str:
            await chat.append("A new beginning.", role="user", parent="", message_id="n")
            return "of the other path"

    outcome = await summarize_once(chat, Edited())
    assert (outcome.what, outcome.code) == ("superseded", "unknown_message")
    assert (await chat.view()).data["context"]["summary_active"] is False


async def test_wanted_is_what_the_fold_wants() -> None:
    """For sessions of every length and kind of policy."""
    for policy in ({"summary_messages": 3}, {"summary_bytes": 1_024}, {"summary_messages": 5, "ttl_ms": 9}):
        chat = await talk(0, **policy)
        for at in range(12):
            await chat.append("x" * 200, role="user" if at % 2 == 0 else "assistant")
            assert is_wanted((await chat.view()).data) == (chat.item() is not None)
    held = Talk(MemoryLog("s"))
    await held.open(hold_for_summary=True, window_messages=3)
    for at in range(6):
        await held.append("x", role="user")
        assert is_wanted((await held.view()).data) == (held.item() is not None) == (at >= 3)


async def test_there_is_nothing_to_do_where_nothing_is() -> None:
    nobody = Talk(MemoryLog("nobody"))
    assert (await summarize_once(nobody, Extractive())).code == "no_session"
    chat = await talk(4)
    await chat.close()
    assert (await summarize_once(chat, Extractive())).code == "closed"
    short = await talk(0)
    await short.append("hello", role="user")
    assert (await summarize_once(short, Extractive())) == Outcome("nothing", "no_cut")


async def test_messages_that_left_before_anybody_asked_are_read_back() -> None:
    """A policy set late: the summary stands for what had left the window too, so it has seen it."""
    chat = Talk(MemoryLog("s"))
    for at in range(14):
        await chat.append(f"Question {at}.", role="user", message_id=f"u{at}")
        await chat.append(f"Answer {at}.", role="assistant", message_id=f"a{at}")
    await chat.configure(policy={"summary_messages": 4})
    assert (await chat.view()).data["context"]["uncovered"] == 8
    recorded = Recorded()
    made = await summarize_once(chat, recorded)
    assert [one.text for one in recorded.asked[0].messages] == [
        word for at in range(13) for word in (f"Question {at}.", f"Answer {at}.")
    ]
    assert (made.what, made.messages) == ("made", 26)
    context = (await chat.view()).data["context"]
    assert (context["uncovered"], len(context["recent_messages"])) == (0, 2)


async def test_contexts_with_a_summary_are_taken_by_both_providers() -> None:
    from refold.formats.context import render

    chat = await talk(3, summary_messages=4)
    await chat.append([tool_call("c1", "look", "{}")], role="assistant", message_id="t0")
    await chat.append([tool_result("c1", [text("found")])], role="tool", message_id="t1")
    assert (await summarize_once(chat, Extractive())).what == "made"
    for name in ("openai", "anthropic"):
        request = render((await chat.view()).data, name)
        assert problems(request, name) == []
        assert "Question 0." in str(request)


# --- where it is cut -------------------------------------------------------------------------------------


def held(seq: int, role: str = "user", answers: tuple[int, ...] = (), size: int = 10) -> dict[str, Any]:
    return {
        "seq": seq,
        "role": role,
        "answers": list(answers),
        "size": size,
        "turn_start": role == "user",
        "message_id": f"m{seq}",
        "content": [],
    }


def window(policy: SessionPolicy | None, count: int = 20) -> dict[str, Any]:
    asked = None if policy is None else policy._asdict()
    return {"policy": asked, "limits": {"max_messages": count, "max_bytes": 1_000}}


def test_a_cut_is_at_a_turn_where_one_is_short_enough() -> None:
    turns = [held(1), held(2, "assistant"), held(3), held(4, "assistant"), held(5), held(6, "assistant")]
    assert choose_cut(window(SessionPolicy(summary_messages=5)), turns) == 4
    assert choose_cut(window(SessionPolicy(summary_messages=8)), turns) == 2
    assert choose_cut(window(None, 4), turns) == 4


def test_a_long_turn_is_cut_inside_but_never_between_call_and_result() -> None:
    one = [held(1), held(2, "assistant"), held(3, "tool", (2,)), held(4, "assistant"), held(5, "tool", (4,))]
    assert choose_cut(window(SessionPolicy(summary_messages=4)), one) == 3
    overlap = [held(1, "assistant"), held(2, "assistant"), held(3, "tool", (1,)), held(4, "tool", (2,))]
    assert choose_cut(window(SessionPolicy(summary_messages=2)), overlap) == 0


def test_bytes_count_as_messages_do() -> None:
    large = [held(1, size=400), held(2, size=400), held(3, size=400)]
    assert choose_cut(window(SessionPolicy(summary_bytes=1_000)), large) == 2


def test_what_was_read_back_is_covered_whole() -> None:
    """The message named is one that the state holds."""
    turns = [held(at) for at in range(1, 7)]
    assert choose_cut(window(SessionPolicy(summary_messages=12)), turns, known_before=3) == 4


def test_a_message_as_words() -> None:
    message = {
        **held(1, "assistant"),
        "actor": "planner",
        "content": [
            text("I look."),
            tool_call("c", "search", '{"q":1}'),
            tool_result("c", [text("x" * 9_000)]),
        ],
    }
    said = words(message)
    assert (said.role, said.author) == ("assistant", "planner")
    assert said.text.startswith('I look.\n[calls search: {"q":1}]\n[result: xxx')
    assert len(said.text) < 2_100


# --- extractive ------------------------------------------------------------------------------------------


def request(*said: Said, previous: str | None = None, bytes_max: int = 4_096) -> SummaryRequest:
    return SummaryRequest("t", "s", previous, said, bytes_max)


def test_extracts_are_the_same_for_the_same_and_keep_the_users_longest() -> None:
    said = [
        Said("user", None, "Book a flight. To Rome, please, on Monday."),
        Said("assistant", "planner", "I look it up."),
        Said("tool", None, "[result: 12 flights]"),
    ]
    whole = extract(request(*said, previous="user: hello"))
    assert whole.splitlines() == [
        "user: hello",
        "user: Book a flight. To Rome, please, on Monday.",
        "planner: I look it up.",
        "[result: 12 flights]",
    ]
    assert whole == extract(request(*said, previous="user: hello"))
    short = extract(request(*said, previous="user: hello", bytes_max=70)).splitlines()
    assert short == ["user: hello", "user: Book a flight. To Rome, please, on Monday."]


def test_extracts_of_extracts_stay_bounded() -> None:
    """A session of any length: the newest lines are there, the oldest have left."""
    summary: str | None = None
    for at in range(200):
        summary = extract(request(Said("user", None, f"Question {at}."), previous=summary, bytes_max=600))
        assert len(summary.encode()) <= 600
    assert summary is not None
    assert summary.splitlines()[-1] == "user: Question 199."
    assert "Question 0." not in summary


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("  a\n\n b ", "a b"),
        ("One. " * 100, "One. " * 47 + "One."),
        ("x" * 1_000, "x" * (LINE_CHARS_MAX - 1) + "…"),
        ("短い。" * 200, "短い。" * 80),
    ],
)
def test_the_beginning_of_a_text(said: str, shown: str) -> None:
    assert beginning(said) == shown


def test_a_text_is_cut_between_characters() -> None:
    assert clip_bytes("äää", 5) == "ää"
    assert clip_bytes("abc", 3) == "abc"
    assert clip_bytes("a\ud83d", 9).startswith("a")
    clip_bytes("a\ud83d", 9).encode()


# --- what is wanted --------------------------------------------------------------------------------------


def item(seq: int = 5, notices: int = 0, kind: str = "summary") -> WorkItem:
    return WorkItem(
        kind, "t", "s", None, None, "ready", "messages", None, None, 0, None, None, notices, 9, seq
    )  # type: ignore[arg-type]


def test_a_failed_one_is_tried_again_a_few_times_and_then_when_it_says_something_new() -> None:
    table = SummaryTable()
    table.hear(b"k", item())
    now = 0.0
    for tries in range(TRIES_MAX):
        assert table.choose(lambda _: False, now, lambda _: 0) == (b"k", item())
        table.failed(b"k", item(), now)
        assert table.choose(lambda _: False, now, lambda _: 0) is None
        now += table.next_due(now) or 0.0
        assert len(table) == (tries + 1 < TRIES_MAX)
    assert now == 5 + 10 + 20 + 40
    table.hear(b"k", item(notices=1))
    assert table.choose(lambda _: False, now, lambda _: 0) is not None


def test_what_is_no_summary_is_not_ours_and_what_is_heard_meanwhile_stays() -> None:
    table = SummaryTable(items_max=1)
    table.hear(b"r", item(kind="run"))
    assert len(table) == 0
    table.hear(b"k", item())
    table.hear(b"full", item())
    assert len(table) == 1
    table.hear(b"k", item(notices=2))
    table.done(b"k", item())
    assert table.still(b"k", item(notices=2))
    table.failed(b"k", item(), 0.0, again=False)
    assert len(table) == 1
    table.failed(b"k", item(notices=2), 0.0, again=False)
    assert len(table) == 0
    table.hear(b"k", item())
    table.hear(b"k", None)
    assert len(table) == 0


# --- serving ---------------------------------------------------------------------------------------------


class World:
    """Sessions, and a work topic that tells of them."""

    def __init__(self, *talks: Talk) -> None:
        self.talks = {talk.id: talk for talk in talks}
        self.told: asyncio.Queue[dict[bytes, WorkItem | None]] = asyncio.Queue()

    def tell(self) -> None:
        self.told.put_nowait({work_key(t.key, SUMMARY_WORK): t.item() for t in self.talks.values()})

    async def work(self, *, follow: bool = True) -> AsyncGenerator[dict[bytes, WorkItem | None], None]:
        while follow or not self.told.empty():
            yield await self.told.get()

    def session(self, tenant: str, session: str) -> Any:
        return Talk(self.talks[session].log, f"p-{id(self)}")


async def test_every_session_that_wants_one_gets_one_and_then_it_ends() -> None:
    world = World(*[await talk(4, f"s{at}") for at in range(9)])
    world.tell()
    heard: list[tuple[str, str]] = []
    server = SummaryServer(
        world,
        Extractive(),
        concurrency=3,
        report=lambda _t, session, outcome, _s: heard.append((session, outcome.what)),
        follow=False,
    )
    assert await server.serve(asyncio.Event(), 1.0)
    assert sorted(heard) == [(f"s{at}", "made") for at in range(9)]
    assert all(one.item() is None for one in world.talks.values())


async def test_several_processes_share_the_work() -> None:
    """Each session has one summary, whoever wrote it; what came second was refused and is no failure."""
    world = World(*[await talk(4, f"s{at}") for at in range(12)])
    servers = []
    for _ in range(3):
        share = World()
        share.talks = world.talks
        share.tell()
        servers.append(SummaryServer(share, Recorded(), concurrency=4, follow=False))
    await asyncio.gather(*[server.serve(asyncio.Event(), 1.0) for server in servers])
    assert sum(server.counts["failed"] for server in servers) == 0
    for one in world.talks.values():
        assert one.log.types.count("ContextSummarized") == 1


async def test_stop_lets_those_under_way_end_and_begins_no_other() -> None:
    world = World(await talk(4, "s0"), await talk(4, "s1"))
    world.tell()
    begun, go = asyncio.Event(), asyncio.Event()

    class Waiting(Recorded):
        async def summarize(self, request: SummaryRequest) -> str:
            begun.set()
            await go.wait()
            return "so far"

    stop = asyncio.Event()
    server = SummaryServer(world, Waiting(), concurrency=1)
    serving = asyncio.create_task(server.serve(stop, 30.0))
    await asyncio.wait_for(begun.wait(), 30)
    stop.set()
    await asyncio.sleep(0)
    go.set()
    assert await asyncio.wait_for(serving, 30)
    assert sorted(one.item() is None for one in world.talks.values()) == [False, True]


async def test_a_drain_that_takes_too_long_leaves_the_session_as_it_was() -> None:
    world = World(await talk(4, "s0"))
    world.tell()
    begun = asyncio.Event()

    class Stuck(Recorded):
        async def summarize(self, request: SummaryRequest) -> str:
            begun.set()
            await asyncio.Event().wait()
            raise AssertionError

    stop = asyncio.Event()
    serving = asyncio.create_task(SummaryServer(world, Stuck()).serve(stop, 0.01))
    await asyncio.wait_for(begun.wait(), 30)
    stop.set()
    assert not await asyncio.wait_for(serving, 30)
    assert "ContextSummarized" not in world.talks["s0"].log.types


@pytest.mark.parametrize("follow", [True, False])
async def test_a_topic_that_may_not_be_read_ends_it(follow: bool) -> None:
    """Goal: no right to read the work topic ends serving with that error, and not in silence."""

    class Forbidden(World):
        async def work(self, *, follow: bool = True) -> AsyncGenerator[dict[bytes, WorkItem | None], None]:
            raise PermissionDenied("no right to read")
            yield {}

    server = SummaryServer(Forbidden(), Extractive(), follow=follow)
    with pytest.raises(PermissionDenied, match="no right to read"):
        await asyncio.wait_for(server.serve(asyncio.Event(), 1.0), 30)


# --- an endpoint -----------------------------------------------------------------------------------------


class Endpoint:
    """Chat completions that answer what they are told to, one after the other."""

    def __init__(self, *answers: tuple[int, Any]) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[dict[str, str], dict[str, Any]]] = []
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._answer)
        self.server = TestServer(app, host="127.0.0.1")

    async def _answer(self, asked: web.Request) -> web.Response:
        self.asked.append((dict(asked.headers), await asked.json()))
        status, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Retry-After": "0"} if status == 429 else {}
        return web.Response(status=status, body=raw, headers=headers, content_type="application/json")

    async def __aenter__(self) -> Endpoint:
        await self.server.start_server()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.server.close()

    @property
    def url(self) -> str:
        return str(self.server.make_url("/v1"))


def completion(said: str | None) -> dict[str, Any]:
    return {"choices": [{"message": {"role": "assistant", "content": said}}]}


ASKED = request(Said("user", "anna", "Where is my order?"), previous="they met")


async def test_an_endpoint_is_asked_and_its_words_are_taken() -> None:
    async with Endpoint((200, completion(" Anna asks for her order. \n"))) as there:
        async with OpenAICompatible(there.url, "m-1", api_key="sk-secret", max_tokens=200) as model:
            assert await model.summarize(ASKED) == "Anna asks for her order."
            assert "sk-secret" not in repr(vars(model))
        headers, body = there.asked[0]
    assert headers["Authorization"] == "Bearer sk-secret"
    assert (body["model"], body["max_tokens"]) == ("m-1", 200)
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert json.loads(body["messages"][1]["content"]) == {
        "previous_summary": "they met",
        "new_messages": [{"role": "user", "name": "anna", "text": "Where is my order?"}],
    }


@pytest.mark.parametrize("status", [429, 500, 503, 408])
async def test_what_passes_is_tried_again(status: int) -> None:
    async with Endpoint((status, {"error": "busy"}), (200, completion("ok"))) as there:
        async with OpenAICompatible(there.url, "m", pause_s=0.0) as model:
            assert await model.summarize(ASKED) == "ok"
        assert len(there.asked) == 2
        assert "Authorization" not in there.asked[0][0]


async def test_tries_are_bounded() -> None:
    async with Endpoint((503, {})) as there, OpenAICompatible(there.url, "m", pause_s=0.0) as model:
        with pytest.raises(SummaryFailed, match="http_503"):
            await model.summarize(ASKED)
        assert len(there.asked) == HTTP_TRIES_MAX


@pytest.mark.parametrize(
    ("answer", "code", "again"),
    [
        ((401, {"error": {"message": "Where is my order?"}}), "http_401", False),
        ((404, {}), "http_404", False),
        ((302, {}), "http_302", False),
        ((200, {"choices": []}), "bad_answer", False),
        ((200, b"<html>"), "bad_answer", False),
        ((200, completion(None)), "empty", True),
        ((200, completion("  ")), "empty", True),
        ((200, b"x" * (HTTP_ANSWER_BYTES_MAX + 1)), "too_large", True),
    ],
)
async def test_what_is_no_summary_fails_without_a_word_of_the_conversation(
    answer: tuple[int, Any], code: str, again: bool
) -> None:
    async with Endpoint(answer) as there, OpenAICompatible(there.url, "m", pause_s=0.0) as model:
        with pytest.raises(SummaryFailed) as failed:
            await model.summarize(ASKED)
        assert (failed.value.code, failed.value.again) == (code, again)
        assert "order" not in str(failed.value)
        assert len(there.asked) == (HTTP_TRIES_MAX if again else 1)


async def test_nobody_there() -> None:
    async with Endpoint((200, {})) as there:
        url = there.url
    async with OpenAICompatible(url, "m", pause_s=0.0) as model:
        with pytest.raises(SummaryFailed, match="unreachable"):
            await model.summarize(ASKED)
