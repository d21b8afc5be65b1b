"""The SDK against a real broker and real worker processes."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka import Producer

from client.worker_process import Worker, refold, worker
from refold.client import EarlierEventFailed, Refold, Refused
from refold.client import sync as sync_client
from refold.client.sender import Delivery
from refold.errors import ConfigError, NotFound, StorageError, TransientError, UsageError
from refold.settings import Settings
from refold.testing.kafka import Kafka
from refold.wire.parts import text, tool_call

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.fixture(scope="module")
def prefix(kafka: Kafka) -> str:
    """One application for the module: its tests use sessions of their own."""
    name = f"sdk-{uuid.uuid4().hex[:8]}"
    refold(kafka.bootstrap, name, "topology", "apply", "--partitions", "4")
    return name


@pytest.fixture(scope="module")
def running(kafka: Kafka, prefix: str, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with worker(kafka.bootstrap, prefix, tmp_path_factory.mktemp("workers"), "w-0") as made:
        yield made


def settings(prefix: str, blobs: Path, **client: Any) -> Settings:
    return Settings(topic_prefix=prefix, blobs={"url": f"file://{blobs}/blobs"}, client=client)


@pytest.fixture
async def rf(kafka: Kafka, prefix: str, running: Worker, tmp_path: Path) -> AsyncIterator[Refold]:
    async with Refold(settings(prefix, tmp_path), bootstrap=kafka.bootstrap) as made:
        yield made


def new_id(name: str) -> str:
    return f"{name}-{uuid.uuid4().hex[:6]}"


async def test_append_is_durable_then_ruled_on_then_read(rf: Refold) -> None:
    """Goal: receipt, ruling with seq, and a context that holds what was just accepted."""
    s = rf.session(new_id("chat"))
    receipt = await s.append("Be brief.", role="system")
    assert receipt.offset >= 0
    assert (await receipt.ruling()).seq == 1
    second = await s.append("Hello", wait="accepted")
    assert await second.accepted() == 2
    context = await s.context()
    assert context.seq == 2
    assert not context.stale
    assert context.messages == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
    ]
    anthropic = await s.context(format="anthropic")
    assert anthropic.request["system"][0]["text"] == "Be brief."


async def test_a_thousand_appends_to_many_sessions_cost_little(rf: Refold) -> None:
    """Goal: all are accepted, each session's in order; the SDK's own CPU is reported, not asserted."""
    sessions = [rf.session(new_id(f"many-{n}")) for n in range(50)]
    cpu = time.process_time()
    receipts = await asyncio.gather(
        *(s.append(f"{n}", message_id=f"m{n}") for n in range(20) for s in sessions)
    )
    rulings = await asyncio.gather(*(receipt.ruling() for receipt in receipts))
    print(f"CPU per append and ruling: {(time.process_time() - cpu) / 1000 * 1e6:.0f} us")
    assert {ruling.status for ruling in rulings} == {"accepted"}
    for s in sessions[:3]:
        found = [e.payload["message_id"] async for e in s.events()]  # type: ignore[index]
        assert found == [f"m{n}" for n in range(20)]


async def test_a_callers_ids_make_a_retry_from_another_process_a_duplicate(
    kafka: Kafka, prefix: str, rf: Refold, tmp_path: Path
) -> None:
    session = new_id("retry")
    first = await (await rf.session(session).append("pay 10", event_id="order-1")).ruling()
    assert (first.status, first.seq) == ("accepted", 1)
    async with Refold(settings(prefix, tmp_path), bootstrap=kafka.bootstrap) as other:
        again = await (await other.session(session).append("pay 10", event_id="order-1")).ruling()
        assert (again.status, again.seq) == ("duplicate", 1)
        changed = await (await other.session(session).append("pay 100", event_id="order-1")).ruling()
        assert (changed.status, changed.code) == ("rejected", "conflict")
        same_message = await (await other.session(session).append("x", message_id="order-1")).ruling()
        assert same_message.code == "conflict"
    assert (await rf.session(session).state(min_seq=0)).seq == 1  # type: ignore[union-attr]


async def test_rejections_carry_code_and_reason(rf: Refold) -> None:
    s = rf.session(new_id("reject"))
    await s.append("one", wait="accepted")
    ruling = await (await s.append("two", expected_seq=7)).ruling()
    assert (ruling.status, ruling.code) == ("rejected", "expected_seq")
    await s.close(wait="accepted")
    with pytest.raises(Refused, match="session_closed"):
        await s.append("three", wait="accepted")
    await s.reopen(wait="accepted")
    await s.append("four", wait="accepted")


async def test_tools_facts_config_and_recovery(rf: Refold) -> None:
    """Goal: the ledger through the SDK; recover() says what to do with each open call."""
    s = rf.session(new_id("tools"))
    await s.configure({"model": "m-1", "temperature": 0})
    await s.set_fact("name", {"first": "Ada"})
    await s.append("go")
    calls = [tool_call(f"c{n}", "pay", f'{{"n": {n}}}') for n in range(4)]
    await s.append([text("calling"), *calls], role="assistant", message_id="asked")
    for n in range(4):
        await s.tool_intended(f"op{n}", "pay", {"n": n}, call_id=f"c{n}", asked_by="asked", index=n)
    await s.tool_started("op0", holder="me")
    await s.tool_completed("op0", "paid", call_id="c0", summary="paid")
    await s.tool_started("op1", holder="me")
    await s.tool_started("op2", holder="me")
    last = await s.tool_unknown("op2", "no answer")
    await last.accepted()
    recovery = await s.recover()
    assert {step.operation_id: step.action for step in recovery.plan} == {
        "op1": "reconcile",
        "op2": "review",
        "op3": "start",
    }
    assert recovery.events == []
    assert recovery.snapshot.facts == {"name": {"first": "Ada"}}
    assert recovery.snapshot.config == {"model": "m-1", "temperature": 0}
    answered = [m for m in (await s.context()).messages if m["role"] == "tool"]
    assert [m["tool_call_id"] for m in answered] == ["c0", "c1", "c2", "c3"]


async def test_events_by_index(rf: Refold) -> None:
    """Goal: after, limit, and order over many blocks of the index; another session's events never appear."""
    s, noise = rf.session(new_id("events")), rf.session(new_id("noise"))
    for n in range(150):
        await s.append(f"{n}", message_id=f"m{n}")
        if n % 10 == 0:
            await noise.append("noise")
    await (await s.append("last", message_id="m150")).accepted()
    assert [e.seq async for e in s.events()] == list(range(1, 152))
    assert [e.seq async for e in s.events(after=60, limit=10)] == list(range(61, 71))
    assert [e.seq async for e in s.events(after=149)] == [150, 151]
    assert [e.seq async for e in s.events(after=151)] == []
    assert [e async for e in rf.session(new_id("none")).events()] == []
    [event] = [e async for e in s.events(after=63, limit=1)]
    assert event.payload["message_id"] == "m63"  # type: ignore[index]


async def test_large_payloads_go_outside_and_come_back(rf: Refold, tmp_path: Path) -> None:
    """Goal: 5 MB of tool output are a reference in the log, load and are checked; damage is said."""
    s = rf.session(new_id("large"))
    big = "tool output " * 450_000
    await s.append("go")
    await s.append([tool_call("c1", "cat", "{}")], role="assistant")
    await s.tool_intended("op1", "cat", "{}", call_id="c1")
    await s.tool_started("op1", holder="me")
    await (await s.tool_completed("op1", big, call_id="c1")).accepted()
    [tool] = [m for m in (await s.context()).messages if m["role"] == "tool"]
    assert len(tool["content"]) < 1000
    [tool] = [m for m in (await s.context(load_blobs=True)).messages if m["role"] == "tool"]
    assert tool["content"] == big
    state = await s.state()
    assert state is not None
    assert len(state.raw) < 20_000
    [file] = [p for p in (tmp_path / "blobs").rglob("*") if p.is_file()]
    file.write_bytes(file.read_bytes()[:-1] + b"X")
    with pytest.raises(StorageError, match="not what the event names"):
        await s.context(load_blobs=True)
    file.unlink()
    with pytest.raises(NotFound, match="blob store"):
        await s.context(load_blobs=True)


async def test_a_message_too_large_for_the_state_is_read_from_the_journal(rf: Refold) -> None:
    """Goal: 40 KB stay inline in the log, are a stub in the state, and whole in the context."""
    s = rf.session(new_id("elided"))
    words = "word " * 8_000
    await (await s.append(words)).accepted()
    state = await s.state()
    assert state is not None
    assert len(state.raw) < 5_000
    assert (await s.context()).messages == [{"role": "user", "content": words}]


@pytest.mark.parametrize("size", [999_000, 1_010_000, 1_040_000])
async def test_an_event_as_large_as_its_topic_takes_is_sent(rf: Refold, size: int) -> None:
    """Goal: no limit of the producer's own, below the topic's, stops a session for good: an event that passed
    our look at its size is one that can be written."""
    s = rf.session(new_id("large"))
    receipt = await s.append([text("x" * (size // 20)) for _ in range(20)], role="user")
    assert (await receipt.ruling()).accepted
    assert (await (await s.append("after", role="user")).ruling()).accepted


async def test_an_event_too_large_for_the_topic_is_refused_before_it_is_sent(rf: Refold) -> None:
    s = rf.session(new_id("toolarge"))
    with pytest.raises(UsageError, match="1114112"):
        await s.append([text("x" * 60_000) for _ in range(20)])
    await s.append("the lane is still open", wait="accepted")


async def test_an_edit_far_back_is_completed_from_the_journal(rf: Refold) -> None:
    """Goal: the state does not hold how the edited path begins; the context shows it all the same."""
    s = rf.session(new_id("edit"))
    await s.configure(window_messages=4)
    for n in range(12):
        await s.append(f"question {n}", message_id=f"q{n}")
        await s.append(f"answer {n}", role="assistant", message_id=f"a{n}")
    await (await s.append("question 2, edited", message_id="q2b", parent="a1", replaces="q2")).accepted()
    context = await s.context()
    assert not context.complete
    assert [m["content"] for m in context.messages] == ["question 1", "answer 1", "question 2, edited"]


async def test_the_worker_dies_while_a_ruling_is_awaited(kafka: Kafka, tmp_path: Path) -> None:
    """Goal: SIGKILL between durable and ruled: the ruling comes from the worker's next life."""
    prefix = f"kill-{uuid.uuid4().hex[:8]}"
    refold(kafka.bootstrap, prefix, "topology", "apply", "--partitions", "4")
    with worker(kafka.bootstrap, prefix, tmp_path, "k-0") as process:
        async with Refold(settings(prefix, tmp_path), bootstrap=kafka.bootstrap) as rf:
            s = rf.session("chat")
            await s.append("one", wait="accepted")
            process.signal(signal.SIGSTOP)
            receipt = await s.append("two")
            waiting = asyncio.ensure_future(receipt.ruling(timeout=90))
            _, pending = await asyncio.wait({waiting}, timeout=0.5)
            assert pending
            process.kill()
            process.start()
            ruling = await waiting
            assert (ruling.status, ruling.seq) == ("accepted", 2)
            assert [m["content"] for m in (await s.context()).messages] == ["one", "two"]


async def test_without_workers_topics_answer(kafka: Kafka, tmp_path: Path) -> None:
    """Goal: what was folded can be read with no worker at all, marked stale; new events are not ruled on."""
    prefix = f"none-{uuid.uuid4().hex[:8]}"
    refold(kafka.bootstrap, prefix, "topology", "apply", "--partitions", "4")
    with worker(kafka.bootstrap, prefix, tmp_path, "n-0") as process:
        async with Refold(settings(prefix, tmp_path), bootstrap=kafka.bootstrap) as rf:
            s = rf.session("chat")
            accepted = await s.append("one")
            assert (await accepted.ruling()).seq == 1
            rejected = await s.append("bad", expected_seq=9)
            assert (await rejected.ruling()).code == "expected_seq"
            repeated = await s.append("one", message_id=accepted.message_id)
            assert (await repeated.ruling()).status == "duplicate"
            await s.append("two", wait="accepted")
            process.stop()
    quick = settings(prefix, tmp_path, request_timeout_ms=1000)
    async with Refold(quick, bootstrap=kafka.bootstrap) as rf:
        s = rf.session("chat")
        state = await s.state()
        assert state is not None
        assert (state.seq, state.stale) == (2, True)
        assert (await s.context()).stale
        assert [e.seq async for e in s.events()] == [1, 2]
        assert [e.seq async for e in s.events(after=1)] == [2]
        assert (await s.recover()).seq == 2
        # The receipts of the first client, looked up by a client that never saw a stream.
        connection = rf.connection
        for receipt, expected in ((accepted, "accepted"), (rejected, "rejected"), (repeated, "duplicate")):
            delivery = Delivery(receipt.partition, receipt.offset, receipt.append_time_ms)
            line = await connection.fallback.ruling(delivery)
            assert line is not None
            assert line.status == expected
        new = await s.append("three")
        with pytest.raises(TransientError, match=r"durable.*not lost"):
            await new.ruling(timeout=2)


async def test_bulk_states_and_journal_restart_anywhere(rf: Refold) -> None:
    """Goal: states() ends at the log end, the last change per session is its state; restart points hold."""
    s = rf.session(new_id("bulk"))
    for n in range(5):
        await s.append(f"{n}", wait="accepted")
    changes = [change async for change in rf.states()]
    mine = [c for c in changes if c.session == s.id]
    assert mine[-1].snapshot is not None
    assert mine[-1].snapshot.seq == 5
    assert mine[-1].frontier == mine[-1].snapshot.frontier
    position = changes[-1].position.to_json()
    await s.append("5", wait="accepted")
    later = [c async for c in rf.states(since=position)]
    assert [c.snapshot.seq for c in later if c.session == s.id and c.snapshot] == [6]
    await s.delete(wait="accepted")
    async with aclosing(rf.states(since=later[-1].position)) as source:
        gone = [c async for c in source if c.session == s.id]
    assert gone[-1].snapshot is None
    items = [item async for item in rf.journal()]
    assert [i.event.seq for i in items if i.event.session == s.id] == [1, 2, 3, 4, 5, 6, 7]
    with pytest.raises(UsageError, match="positions of their own"):
        [c async for c in rf.states(since=items[0].position)]


async def test_a_deleted_session_begins_anew(rf: Refold) -> None:
    s = rf.session(new_id("anew"))
    await s.append("one", wait="accepted")
    await s.delete(wait="accepted")
    assert await s.state() is None
    with pytest.raises(NotFound):
        await s.context()
    await s.append("again", wait="accepted")
    assert (await s.context()).seq == 1
    assert [e.seq async for e in s.events()] == [1]


async def test_a_failed_event_blocks_its_session_until_decided(
    rf: Refold, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: after a failed delivery nothing overtakes it; retry sends the same bytes, absorbed if written."""
    s = rf.session(new_id("order"))
    await s.append("one", wait="accepted")
    sender = rf.connection.sender
    real = sender.start

    def written_but_not_acknowledged(*arguments: Any) -> None:
        *record, tell = arguments
        real(*record, lambda _: tell(TransientError("timed out: outcome unknown")))

    monkeypatch.setattr(sender, "start", written_but_not_acknowledged)
    with pytest.raises(TransientError, match="outcome unknown"):
        await s.append("two")
    monkeypatch.setattr(sender, "start", real)
    with pytest.raises(EarlierEventFailed):
        await s.append("three")
    [receipt] = await s.retry()
    assert (await receipt.ruling()).status == "duplicate"
    await s.append("three", wait="accepted")
    assert [m["content"] for m in (await s.context()).messages] == ["one", "two", "three"]


async def test_a_missing_application_is_said_at_once(kafka: Kafka, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="topology apply"):
        async with Refold(settings("nosuch", tmp_path), bootstrap=kafka.bootstrap):
            pass


def test_the_synchronous_face(kafka: Kafka, prefix: str, running: Worker, tmp_path: Path) -> None:
    with sync_client.Refold(settings(prefix, tmp_path), bootstrap=kafka.bootstrap) as rf:
        s = rf.session(new_id("sync"))
        receipt = s.append("hello")
        assert receipt.ruling().seq == 1
        assert s.context("openai").messages == [{"role": "user", "content": "hello"}]
        assert s.recover().seq == 1


async def test_session_commands(kafka: Kafka, prefix: str, rf: Refold, tmp_path: Path) -> None:
    """Goal: show, events, export, where, fold and delete over a real session, as JSON on the last line."""
    name = new_id("cli")
    s = rf.session(name)
    await s.append("hello", message_id="m1")
    await s.append("hi there", role="assistant", wait="accepted")

    async def run(*arguments: str, check: bool = True) -> Any:
        return await asyncio.to_thread(refold, kafka.bootstrap, prefix, *arguments, check=check)

    def last(done: Any) -> Any:
        return json.loads(done.stdout.splitlines()[-1])

    shown = last(await run("session", "show", name, "--json"))
    assert (shown["seq"], shown["status"]) == (2, "open")
    assert "hi there" in (await run("session", "show", name)).stdout
    events = last(await run("session", "events", name, "--json", "--after", "1"))
    assert [row["seq"] for row in events["events"]] == [2]
    listed = (await run("session", "events", name)).stdout.splitlines()
    assert listed[0].endswith("  message_id=m1")
    first = last(await run("session", "events", name, "--json", "--limit", "1"))["events"]
    assert [row["ids"] for row in first] == [{"message_id": "m1"}]
    assert last(await run("session", "events", name, "--json", "--after", "2"))["events"] == []
    exported = (await run("session", "export", name, "--format", "openai")).stdout
    assert orjson.loads(exported)["messages"][0] == {"role": "user", "content": "hello"}
    where = last(await run("session", "where", name, "--json"))
    assert (where["partition"], where["owner"]) == (s.partition, "w-0")
    folded = last(await run("session", "fold", name, "--json"))
    assert (folded["sessions"], folded["equal"], folded["events"]) == (1, 1, 2)
    everything = last(await run("session", "fold", "--all", "--json"))
    assert everything["sessions"] == everything["equal"] >= 1
    refused = await run("session", "delete", name, check=False)
    assert refused.returncode == 64
    assert last(await run("session", "delete", name, "--yes", "--json"))["status"] == "accepted"
    for command in (
        ["show", name],
        ["events", name],
        ["events", name, "--after", "2", "--json"],
        ["export", name],
        ["prune", name, "--ended", "--yes"],
        ["switch", name, "m1"],
        ["delete", name, "--yes"],
    ):
        missing = await run("session", *command, check=False)
        assert (missing.returncode, missing.stdout) == (66, ""), command
        assert f"session '{name}'" in missing.stderr
        assert "Traceback" not in missing.stderr


async def test_a_parent_that_is_not_there_is_told(
    kafka: Kafka, prefix: str, rf: Refold, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: who mistypes a parent learns why the conversation is gone, and how to have it back."""
    s = rf.session(new_id("parents"))
    await s.append("hello", message_id="m1")
    lost = await (await s.append("lost", parent="m11", message_id="m2")).ruling()
    assert (lost.status, lost.note) == ("accepted", "no_parent")
    assert "parent" in str(lost.reason)
    context = await s.context()
    assert ([m["content"] for m in context.messages], context.missing_parent) == (["lost"], "m11")
    missing = f"goes on from message 'm11', which session {s.id!r} does not have"
    assert missing in caplog.text
    assert "switch_branch('m1')" in caplog.text
    shown = await asyncio.to_thread(refold, kafka.bootstrap, prefix, "session", "show", s.id)
    assert missing in shown.stdout
    refused = await (await s.switch_branch("m11")).ruling()
    assert (refused.code, "parent" in str(refused)) == ("unknown_message", False), "into the trap again"
    told = re.search(r"`refold (session switch \S+ m1)`", shown.stdout)
    assert told is not None, shown.stdout
    await asyncio.to_thread(refold, kafka.bootstrap, prefix, *told[1].split())
    assert (await s.context(min_seq=3)).missing_parent is None


async def test_a_result_of_a_call_that_is_not_there_is_told_and_listed(
    kafka: Kafka, prefix: str, rf: Refold, caplog: pytest.LogCaptureFixture
) -> None:
    """Goal: who mistypes a call's id finds the result, and the id it names, by looking at the session."""
    s = rf.session(new_id("orphans"))
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    await s.append({"role": "assistant", "content": None, "tool_calls": [call]})
    rain = await s.append({"role": "tool", "tool_call_id": "c2", "content": "rain"}, message_id="r1")
    told = await rain.ruling()
    assert (told.status, told.seq, told.note) == ("accepted", 2, "no_call")
    assert "no call of the id" in str(told.reason)
    await s.tool_completed("op-9", "wind", result_message_id="r2", wait="accepted")
    view = await s.state()
    assert view is not None
    found = [(r.message_id, r.seq, r.operation_id, r.call_id, r.state) for r in view.waiting_results]
    assert found == [("r1", 2, None, "c2", "done"), ("r2", 3, "op-9", None, "done")]
    context = await s.context()
    assert context.waiting_results == 2
    assert "no call of session" in caplog.text
    assert "'c2', 'op-9'" in caplog.text
    assert not {"rain", "wind"} & set(re.findall(r"\w+", caplog.text))
    assert not {"rain", "wind"} & {message["content"] for message in context.messages}
    shown = await asyncio.to_thread(refold, kafka.bootstrap, prefix, "session", "show", s.id)
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert ["2", "r1", "c2", "done"] in rows
    assert ["3", "r2", "op-9", "done"] in rows
    as_json = await asyncio.to_thread(refold, kafka.bootstrap, prefix, "session", "show", s.id, "--json")
    listed = json.loads(as_json.stdout.splitlines()[-1])["waiting_results"]
    assert [row["message_id"] for row in listed] == ["r1", "r2"]
    call["id"] = "c2"
    await s.append({"role": "assistant", "content": None, "tool_calls": [call]}, wait="accepted")
    assert (await s.context()).waiting_results == 1, "its call has come"


async def test_a_quarantined_session_is_released_in_order(kafka: Kafka, prefix: str, rf: Refold) -> None:
    """Goal: parked events come back in order before new ones; a second release finds nothing to do."""
    s = rf.session(new_id("quarantine"))
    await s.append("one", wait="accepted")
    payload = {"code": "operator", "reason": "test", "partition": s.partition, "offset": 0}
    await s.publish("SessionQuarantined", payload, wait="accepted")
    for word in ("two", "three", "four"):
        ruling = await (await s.append(word)).ruling()
        assert (ruling.status, ruling.code) == ("rejected", "quarantined")
    conflict = await (await s.append("never", expected_seq=1)).ruling()
    assert conflict.code == "quarantined"
    done = await asyncio.to_thread(refold, kafka.bootstrap, prefix, "session", "release", s.id, "--json")
    released = json.loads(done.stdout.splitlines()[-1])
    assert (released["replayed"], released["accepted"], released["refused"]) == (4, 3, 1)
    assert released["refused_by_code"] == {"expected_seq": 1}
    await s.append("five", wait="accepted")
    said = [m["content"] for m in (await s.context()).messages]
    assert said == ["one", "two", "three", "four", "five"]
    again = await asyncio.to_thread(refold, kafka.bootstrap, prefix, "session", "release", s.id, check=False)
    assert again.returncode == 64
    assert "not quarantined" in again.stderr
    folded = await asyncio.to_thread(refold, kafka.bootstrap, prefix, "session", "fold", s.id, "--json")
    assert json.loads(folded.stdout.splitlines()[-1])["equal"] == 1


async def test_topics_do_not_take_a_note_about_a_parked_event_for_its_acceptance(rf: Refold) -> None:
    """Goal: an event of a quarantined session was rejected, also for who has to ask the topics: the journal
    has the worker's note of it, at the event's own place."""
    s = rf.session(new_id("parked"))
    await s.append("one", wait="accepted")
    payload = {"code": "operator", "reason": "test", "partition": s.partition, "offset": 0}
    stopped = await s.publish("SessionQuarantined", payload, wait="accepted")
    parked = await s.append("two")
    assert (await parked.ruling()).code == "quarantined"
    for receipt, expected in ((stopped, "accepted"), (parked, "rejected")):
        line = await rf.connection.fallback.ruling(
            Delivery(receipt.partition, receipt.offset, receipt.append_time_ms)
        )
        assert line is not None
        assert (line.status, line.code) == (expected, "quarantined" if expected == "rejected" else None)


async def test_an_interrupted_release_goes_on(kafka: Kafka, prefix: str, rf: Refold, tmp_path: Path) -> None:
    """Goal: what a first run replayed is not replayed again; events parked meanwhile follow."""
    from refold.cli.session_release import _originals, _send, quarantine_of

    s = rf.session(new_id("interrupted"))
    await s.append("one", wait="accepted")
    payload = {"code": "operator", "reason": "test", "partition": s.partition, "offset": 0}
    await s.publish("SessionQuarantined", payload, wait="accepted")
    for word in ("two", "three"):
        await (await s.append(word)).ruling()
    # A first run that dies after the first replay; as `session release` does, with a producer of its own.
    async with Refold(settings(prefix, tmp_path), bootstrap=kafka.bootstrap) as other:
        mine = other.session(s.id)
        await mine.publish("SessionReleased", {}, wait="accepted")
        parked, replayed = await quarantine_of(mine)
        assert (len(parked), replayed) == (2, {})
        at = (parked[0].payload["partition"], parked[0].payload["offset"])  # type: ignore[index]
        ruling = await _send(other, mine, (await _originals(other, mine, {at}))[at])
        assert ruling.status == "accepted"
    await (await s.append("four")).ruling()
    done = await asyncio.to_thread(refold, kafka.bootstrap, prefix, "session", "release", s.id, "--json")
    released = json.loads(done.stdout.splitlines()[-1])
    assert (released["replayed"], released["accepted"], released["duplicates"]) == (3, 2, 1)
    assert [m["content"] for m in (await s.context()).messages] == ["one", "two", "three", "four"]


async def test_fold_finds_a_state_that_is_not_the_journals(kafka: Kafka, tmp_path: Path) -> None:
    """Goal: the check can fail: a changed state, an invented one and a missing one are each named."""
    prefix = f"fold-{uuid.uuid4().hex[:8]}"
    refold(kafka.bootstrap, prefix, "topology", "apply", "--partitions", "4")
    with worker(kafka.bootstrap, prefix, tmp_path, "f-0") as process:
        async with Refold(settings(prefix, tmp_path), bootstrap=kafka.bootstrap) as rf:
            sessions = [rf.session(f"s{n}") for n in range(6)]
            for n in range(3):
                await asyncio.gather(*(s.append(f"{n}", wait="accepted") for s in sessions))
            await sessions[5].delete(wait="accepted")
            raw = (await sessions[0].state()).raw  # type: ignore[union-attr]
            process.stop()

    def folded() -> tuple[int, Any]:
        done = refold(kafka.bootstrap, prefix, "session", "fold", "--all", "--json", check=False)
        return done.returncode, json.loads(done.stdout.splitlines()[-1])

    code, report = await asyncio.to_thread(folded)
    assert (code, report["sessions"], report["equal"]) == (0, 5, 5)
    assert report["events"] == 19
    async with Refold(settings(prefix, tmp_path), bootstrap=kafka.bootstrap) as rf:
        s0, s1 = rf.session("s0"), rf.session("s1")
        state = rf.connection.names.state
        assert raw.count(b"\x022") >= 1
        await rf.connection.sender.send(state, s0.key, raw.replace(b"\x022", b"\x029"), (), s0.partition)
        await rf.connection.sender.send(state, b"default/ghost", raw, (), rf.session("ghost").partition)
        await asyncio.to_thread(tombstone, kafka.bootstrap, state, s1.key, s1.partition)
    code, report = await asyncio.to_thread(folded)
    assert (code, report["equal"], report["different"]) == (1, 3, 3)
    found = {d["session"]: d["difference"] for d in report["differences"]}
    assert set(found) == {"default/s0", "default/s1", "default/ghost"}
    assert "recent_messages" in found["default/s0"]
    assert "no state is stored" in found["default/s1"]
    assert "folds to none" in found["default/ghost"]


def tombstone(bootstrap: str, topic: str, key: bytes, partition: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap})
    producer.produce(topic, None, key, partition=partition)
    producer.flush(60)


async def test_a_worker_reports_what_its_metrics_promise(rf: Refold) -> None:
    """Goal: after one event and one read the counters of input, disk, commit and port have moved."""
    s = rf.session(new_id("measured"))
    await s.append("Hello", wait="accepted")
    await s.state()
    owners = rf.connection.owners
    owner = await owners.router.owner(s.partition)
    assert owner is not None
    wanted = (
        r"^refold_input_bytes_total [1-9]",
        r"^refold_store_write_seconds_count [1-9]",
        r"^refold_commits_total [1-9]",
        r'^refold_http_requests_total\{route="/v1/sessions/\{tenant\}/\{session\}",status="2xx"\} [1-9]',
        rf'^refold_partition_state\{{partition="{s.partition}",state="live"\}} 1',
    )
    missing: list[str] = list(wanted)
    # Gauges and the input are reported once a second.
    async with asyncio.timeout(60):
        while missing:
            async with owners.http.get(f"{owner.url}/metrics") as answer:
                text = await answer.text()
            missing = [line for line in wanted if re.search(line, text, re.MULTILINE) is None]
            await asyncio.sleep(0.1)
    assert s.id not in text
