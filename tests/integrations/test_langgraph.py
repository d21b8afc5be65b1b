"""LangGraph's checkpointer on the fold itself, beside its own InMemorySaver: same calls, same answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, TypedDict

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, RESUME
from langgraph.graph import START, StateGraph

from integrations.memory_threads import Memory
from refold.errors import InvalidRecord, NotFound, StorageError, TransientError, UsageError
from refold.integrations.langgraph import RefoldSaver, threads
from refold.integrations.langgraph.journal import Records
from refold.integrations.langgraph.records import CheckpointPut, CheckpointsDeleted, Value, decode, encode
from refold.integrations.langgraph.values import loaded


def config(thread: str = "t", ns: str = "", id_: str | None = None) -> Any:
    named = {"thread_id": thread, "checkpoint_ns": ns}
    return {"configurable": named if id_ is None else {**named, "checkpoint_id": id_}}


def checkpoint(number: int, versions: dict[str, Any] | None = None, **values: Any) -> Any:
    return {
        "v": 1,
        "id": f"{number:06}",
        "ts": "2026-01-01T00:00:00+00:00",
        "channel_values": values,
        "channel_versions": dict.fromkeys(values, f"{number:06}") if versions is None else versions,
        "versions_seen": {"node": {"a": "1"}},
        "updated_channels": None,
    }


async def put(
    saver: BaseCheckpointSaver[Any],
    number: int,
    *,
    at: Any = None,
    metadata: dict[str, Any] | None = None,
    **values: Any,
) -> Any:
    """Checkpoint ``number`` with these channels; all of them changed."""
    made = checkpoint(number, **values)
    given_: Any = {"source": "loop", "step": number, **(metadata or {})}
    return await saver.aput(at or config(), made, given_, made["channel_versions"])


async def every(saver: BaseCheckpointSaver[Any], of: Any = None, **options: Any) -> list[CheckpointTuple]:
    return [one async for one in saver.alist(of, **options)]


def ids(found: list[CheckpointTuple]) -> list[str]:
    return [one.checkpoint["id"] for one in found]


async def test_all_of_langgraphs_conformance_suite() -> None:
    @checkpointer_test(name="RefoldSaver in memory")
    async def made() -> AsyncIterator[RefoldSaver]:
        yield Memory().saver()

    report = await validate(made)
    assert [failure for one in report.results.values() for failure in one.failures] == []
    assert sum(one.tests_passed for one in report.results.values()) == 81


CHANNELS = ("a", "b", "messages")
#: What LangGraph's serializer takes.
numbers = st.integers(-(2**63), 2**63 - 1)
values = st.one_of(numbers, st.text(max_size=3), st.lists(numbers, max_size=3), st.none())
writes = st.lists(
    st.tuples(st.sampled_from([*CHANNELS, ERROR, INTERRUPT, RESUME]), values), min_size=1, max_size=3
)
spaces = st.sampled_from(["", "child:1"])
steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("put"),
            spaces,
            st.integers(0, 9),
            st.dictionaries(st.sampled_from(CHANNELS), st.one_of(values, st.just(...)), max_size=3),
            st.sampled_from(["input", "loop"]),
        ),
        st.tuples(st.just("writes"), spaces, st.integers(0, 9), writes, st.sampled_from(["t1", "t2", "t3"])),
        st.tuples(st.just("get"), spaces, st.one_of(st.none(), st.integers(0, 9))),
        st.tuples(
            st.just("list"),
            spaces,
            st.one_of(st.none(), st.integers(0, 9)),
            st.one_of(st.none(), st.integers(0, 3)),
            st.sampled_from([None, {"source": "input"}, {"source": "loop", "step": 2}, {"none": 1}]),
        ),
        st.sampled_from([("delete",), ("other",), ("other",)]),
    ),
    max_size=30,
)


@given(steps, st.sampled_from([1, 64 * 1024]))
@settings(max_examples=150, deadline=None)
def test_does_what_langgraphs_own_saver_does(plan: list[Any], inline_bytes_max: int) -> None:
    """Goal: random puts, writes, reads and deletions, by processes that come and go, with the values in the
    events or in the blob store, are answered as by InMemorySaver."""

    async def play() -> None:
        memory = Memory(inline_bytes_max=inline_bytes_max)
        mine, theirs = memory.saver(), InMemorySaver()
        made: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
        for number, (name, *rest) in enumerate(plan):
            ns = rest[0] if rest else ""
            if name == "put":
                parent = made[rest[1] % len(made)] if made and rest[1] else ("", {}, {})
                new = dict.fromkeys(rest[2], f"{number:06}")
                held = {**parent[2], **rest[2]}
                held = {channel: value for channel, value in held.items() if value is not ...}
                one = checkpoint(number, {**parent[1], **new}, **held)
                at = config(ns=ns, id_=parent[0] or None)
                metadata: Any = {"source": rest[3], "step": len(made), "parents": {}}
                assert await mine.aput(at, one, metadata, new) == await theirs.aput(at, one, metadata, new)
                made.append((one["id"], one["channel_versions"], held))
            elif name == "writes" and made:
                at = config(ns=ns, id_=made[rest[1] % len(made)][0])
                for saver in (mine, theirs):
                    await saver.aput_writes(at, rest[2], rest[3], f"path-{rest[1] % 3}")
            elif name == "get":
                at = config(ns=ns, id_=made[rest[1] % len(made)][0] if made and rest[1] is not None else None)
                assert await mine.aget_tuple(at) == await theirs.aget_tuple(at)
            elif name == "list":
                until = config(id_=made[rest[1] % len(made)][0]) if made and rest[1] is not None else None
                asked: Any = {"filter": rest[3], "before": until, "limit": rest[2]}
                assert await every(mine, config(ns=ns), **asked) == await every(
                    theirs, config(ns=ns), **asked
                )
            elif name == "delete":
                await mine.adelete_thread("t")
                await theirs.adelete_thread("t")
            elif name == "other":
                mine = memory.saver()
        for ns in ("", "child:1"):
            assert await every(memory.saver(), config(ns=ns)) == await every(theirs, config(ns=ns))
            assert await every(mine, config(ns=ns)) == await every(theirs, config(ns=ns))

    asyncio.run(play())


async def test_a_retry_from_another_process_is_absorbed() -> None:
    memory = Memory()
    one, other = memory.saver(), memory.saver()
    for saver in (one, other, one):
        await put(saver, 1, a="x")
        await saver.aput_writes(config(id_="000001"), [("a", "y"), (INTERRUPT, "why")], "task", "path")
    assert memory.logs["t"].types == ["langgraph.CheckpointPut", "langgraph.WritesPut"]


async def test_what_is_said_again_after_something_else_counts() -> None:
    """An absorbed event id must not swallow a change back, of a special write or after a deletion."""
    memory = Memory()
    saver = memory.saver()
    await put(saver, 1, a="x")
    at = config(id_="000001")
    for said in ("one", "two", "one"):
        await saver.aput_writes(at, [(RESUME, said)], "task")
        for reader in (saver, memory.saver()):
            found = await reader.aget_tuple(config())
            assert found is not None
            assert found.pending_writes == [("task", RESUME, said)]
    await memory.saver().aput_writes(at, [(RESUME, "two")], "task")
    await saver.aput_writes(at, [(RESUME, "one")], "task")
    found = await saver.aget_tuple(config())
    assert found is not None
    assert found.pending_writes == [("task", RESUME, "one")]
    await saver.aprune(["t"], strategy="delete")
    assert await saver.aget_tuple(config()) is None
    await put(saver, 1, a="x")
    assert ids(await every(saver, config())) == ["000001"]


async def test_which_write_counts_and_their_order() -> None:
    """An ordinary write stays what it was first, a special one becomes what it is last; in the order of the
    tasks' paths, not of their ids."""
    memory, theirs = Memory(), InMemorySaver()
    mine = memory.saver()
    at = config(id_="000001")
    for saver in (mine, theirs):
        await put(saver, 1, a="x")
        await saver.aput_writes(at, [("a", "first"), (ERROR, "first")], "t1", "path-2")
        await saver.aput_writes(at, [("a", "second"), (ERROR, "second"), ("b", "more")], "t1", "path-2")
        await saver.aput_writes(at, [("a", "other")], "t2", "path-1")
    for saver in (mine, theirs, memory.saver()):
        found = await saver.aget_tuple(config())
        assert found is not None
        assert found.pending_writes == [
            ("t2", "a", "other"),
            ("t1", ERROR, "second"),
            ("t1", "a", "first"),
            ("t1", "b", "more"),
        ]


async def test_only_what_changed_is_written() -> None:
    memory = Memory()
    saver = memory.saver()
    big = "x" * 10_000
    versions: dict[str, str] = {}
    for number in range(20):
        new = {"b": f"{number}"} if number else {"a": "0", "b": "0"}
        versions |= new
        one = checkpoint(number, dict(versions), a=big, b=number)
        await saver.aput(config(), one, {"step": number}, new)  # type: ignore[arg-type]
    written = [len(event.envelope.payload) for event in memory.logs["t"].journal]
    assert written[0] > 10_000
    assert max(written[1:]) < 2_000
    found = await memory.saver().aget_tuple(config())
    assert found is not None
    assert found.checkpoint["channel_values"] == {"a": big, "b": 19}


async def test_branches_that_share_a_version_keep_their_values() -> None:
    """Whole numbers for versions, as another saver may have given them, are the same on two branches."""
    saver = Memory().saver()
    for number, parent in ((1, None), (2, "000001"), (3, "000001")):
        made = checkpoint(number, {"a": 1 if parent is None else 2}, a=number)
        new: Any = made["channel_versions"]
        await saver.aput(config(id_=parent), made, {"step": number}, new)
    found = await every(saver, config())
    assert [one.checkpoint["channel_values"]["a"] for one in found] == [3, 2, 1]


async def test_own_events_are_not_read_again() -> None:
    memory = Memory()
    saver = memory.saver()
    reads: list[str] = []
    memory.before = reads.append
    for number in range(5):
        await put(saver, number, a=number)
        await saver.aput_writes(config(id_=f"{number:06}"), [("a", 1)], "task")
        assert await saver.aget_tuple(config()) is not None
    assert "read" not in reads
    await memory.session("t").append("somebody else's")
    await put(memory.saver(), 7, a="theirs")
    await put(saver, 8, a="mine")
    assert ids(await every(saver, config()))[:2] == ["000008", "000007"]
    assert reads.count("read") == 1


async def test_contents_that_left_the_memory_are_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = Memory()
    saver = memory.saver()
    monkeypatch.setattr(saver._threads, "records", Records(bytes_max=3_000))
    for number in range(20):
        await put(saver, number, a=f"{number}" * 500)
    found = await every(saver, config())
    assert [one.checkpoint["channel_values"]["a"] for one in found] == [
        f"{n}" * 500 for n in range(19, -1, -1)
    ]
    assert saver._threads.records._bytes <= 3_000


async def test_threads_beyond_the_limit_are_folded_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "THREADS_KEPT_MAX", 3)
    memory = Memory()
    saver = memory.saver()
    for number in range(9):
        await put(saver, number, at=config(f"t{number}"), a=number)
    assert len(saver._threads._threads) == 3
    for number in range(9):
        found = await saver.aget_tuple(config(f"t{number}"))
        assert found is not None
        assert found.checkpoint["channel_values"] == {"a": number}


async def test_a_thread_that_was_deleted_and_begun_anew_elsewhere() -> None:
    memory = Memory()
    here, there = memory.saver(), memory.saver()
    for number in range(3):
        await put(here, number, a=number)
    assert len(await every(here, config())) == 3
    await there.adelete_thread("t")
    assert await every(here, config()) == []
    for number in range(5, 9):
        await put(there, number, a=number)
    assert ids(await every(here, config())) == ["000008", "000007", "000006", "000005"]
    await there.adelete_thread("t")
    for number in range(20, 26):
        await put(there, number, a=number)
    # Not looked at in between, and longer than what was known.
    assert ids(await every(here, config())) == [f"{number:06}" for number in range(25, 19, -1)]
    await there.adelete_thread("t")
    await put(here, 10, a="anew")
    for saver in (here, there):
        assert ids(await every(saver, config())) == ["000010"]


async def test_messages_of_the_session_are_left_alone() -> None:
    memory = Memory()
    saver, session = memory.saver(), memory.session("t")
    await session.append("hello", message_id="m1")
    await put(saver, 1, a="x")
    await session.append("again", message_id="m2")
    await put(saver, 2, a="y")
    await saver.aprune(["t"])
    assert ids(await every(saver, config())) == ["000002"]
    view = await session.state()
    assert view is not None
    assert [one["message_id"] for one in view.data["context"]["recent_messages"]] == ["m1", "m2"]
    await saver.aprune(["t"], strategy="delete")
    assert await every(saver, config()) == []
    assert await session.state() is not None


async def test_what_is_large_goes_outside_and_comes_back_checked() -> None:
    memory = Memory(inline_bytes_max=1_000)
    saver = memory.saver()
    await put(saver, 1, small="s", large="x" * 5_000)
    await saver.aput_writes(config(id_="000001"), [("large", "y" * 5_000)], "task")
    assert max(len(event.envelope.payload) for event in memory.logs["t"].journal) < 2_000
    found = await memory.saver().aget_tuple(config())
    assert found is not None
    assert found.checkpoint["channel_values"] == {"small": "s", "large": "x" * 5_000}
    assert found.pending_writes == [("task", "large", "y" * 5_000)]
    store = memory.connection.blobs
    (path, *_) = [path for path in store.fs.find(store.root) if store.fs.cat_file(path)[-1:] == b"x"]
    store.fs.pipe_file(path, store.fs.cat_file(path)[:-1] + b"z")
    with pytest.raises(StorageError, match="not what the event names"):
        await memory.saver().aget_tuple(config())
    store.fs.rm_file(path)
    with pytest.raises(NotFound, match="not in the blob store"):
        await memory.saver().aget_tuple(config())


async def test_many_values_below_the_limit_still_fit_one_event() -> None:
    memory = Memory()
    saver = memory.saver()
    held = {f"c{number}": bytes([number]) * (60_000 - number) for number in range(30)}
    await put(saver, 1, **held)
    (event,) = memory.logs["t"].journal
    assert len(event.envelope.payload) < 512 * 1024
    found = await memory.saver().aget_tuple(config())
    assert found is not None
    assert found.checkpoint["channel_values"] == held


async def test_a_task_that_sends_thousands_is_one_event_and_one_blob() -> None:
    memory = Memory()
    saver = memory.saver()
    await put(saver, 1, a="x")
    sent = [("__pregel_tasks", {"node": "each", "arg": "x" * (300 + number % 7)}) for number in range(5_000)]
    await saver.aput_writes(config(id_="000001"), sent, "task")
    event = memory.logs["t"].journal[-1]
    assert len(event.envelope.payload) < 1_000_000
    store = memory.connection.blobs
    (path,) = store.fs.find(store.root)
    # The garbage collection finds it by its digits.
    assert path.rpartition("/")[2].encode() in event.envelope.payload
    found = await memory.saver().aget_tuple(config())
    assert found is not None
    assert found.pending_writes == [("task", channel, value) for channel, value in sent]


async def test_a_pack_that_ends_too_early_is_said() -> None:
    store = Memory().connection.blobs
    ref = store.put(b"0123", media_type="x/y", field="data")
    assert await loaded([Value("x", None, ref, 1, 3)], store) == [("x", b"123")]
    with pytest.raises(StorageError, match="ends before the x value"):
        await loaded([Value("x", None, ref, 1, 4)], store)


async def test_where_retention_has_cut_the_beginning_it_says_so() -> None:
    memory = Memory()
    saver = memory.saver()
    for number in range(3):
        await put(saver, number, a=number)
    del memory.logs["t"].journal[:1]
    with pytest.raises(NotFound, match="from seq 2 on only: its beginning was cut by retention"):
        await memory.saver().aget_tuple(config())


def added(held: list[str], new: Any) -> list[str]:
    return [*held, *(one for some in new for one in some)]


class State(TypedDict, total=False):
    log: Annotated[list[str], DeltaChannel(added, snapshot_frequency=5)]
    count: int


async def test_graphs_with_delta_channels_survive_pruning_and_other_processes() -> None:
    def step(state: State) -> State:
        return {"log": [f"step {len(state.get('log', []))}"], "count": state.get("count", 0) + 1}

    builder = StateGraph(State)
    builder.add_node("step", step)
    builder.add_edge(START, "step")
    memory, theirs = Memory(), InMemorySaver()
    for turn in range(7):
        mine = memory.saver()
        answers = [
            await builder.compile(checkpointer=saver).ainvoke({"log": [f"turn {turn}"]}, config())
            for saver in (mine, theirs)
        ]
        assert answers[0] == answers[1]
        if turn in (2, 5):
            before = len(await every(mine, config()))
            await mine.aprune(["t"])
            assert len(await every(mine, config())) < before
    assert len(answers[0]["log"]) == 14


async def test_pruning_keeps_what_delta_channels_are_rebuilt_from() -> None:
    """A delta channel has a value at some checkpoints only; in between it is rebuilt from earlier writes."""
    saver = Memory().saver()
    for number in range(8):
        held = {"d": [number]} if number in (0, 4) else {}
        made = checkpoint(number, {"d": f"{number}"}, **held)
        since = {} if held else {"counters_since_delta_snapshot": {"d": (1, 1)}}
        at = config(id_=f"{number - 1:06}" if number else None)
        await saver.aput(at, made, {"step": number, **since}, {"d": f"{number}"})  # type: ignore[arg-type]
        await saver.aput_writes(config(id_=made["id"]), [("d", number)], "task")
    asked: Any = {"config": config(), "channels": ["d"]}
    wanted = await saver.aget_delta_channel_history(**asked)
    assert wanted["d"]["seed"] == [4]
    await saver.aprune(["t"])
    assert ids(await every(saver, config())) == ["000007", "000006", "000005", "000004"]
    assert await saver.aget_delta_channel_history(**asked) == wanted


async def test_runs_are_deleted_everywhere_or_where_said() -> None:
    memory = Memory()
    saver = memory.saver()
    for thread in ("t1", "t2", "t3"):
        for number, run in enumerate(["r1", "r2", "r1"]):
            await put(saver, number, at=config(thread), metadata={"run_id": run}, a=number)
    await memory.session("chat").append("hello")
    await saver.adelete_thread("t3")
    await saver.adelete_for_runs(["r1"], thread_ids=["t1"])
    assert [
        (one.config["configurable"]["thread_id"], one.metadata["run_id"]) for one in await every(saver)
    ] == [
        ("t2", "r1"),
        ("t2", "r2"),
        ("t1", "r2"),
        ("t2", "r1"),
    ]
    # Of a former life, and of a session that its idle time has deleted: nothing is left to delete.
    await put(saver, 0, at=config("t4"), metadata={"run_id": "r1"}, a=0)
    await saver.adelete_thread("t4")
    await put(saver, 1, at=config("t4"), metadata={"run_id": "r3"}, a=1)
    memory.logs["t3"].journal.pop()
    for _ in range(2):
        await saver.adelete_for_runs(["r1"])
        assert sorted(one.metadata["run_id"] for one in await every(saver)) == ["r2", "r2", "r3"]
    deletions = {name: log.types.count("langgraph.CheckpointsDeleted") for name, log in memory.logs.items()}
    assert deletions == {"t1": 1, "t2": 1, "t3": 0, "t4": 0, "chat": 0}
    assert not memory.logs["t3"].state.exists


async def test_all_threads_are_listed_newest_first() -> None:
    memory = Memory()
    saver = memory.saver()
    for number in range(6):
        await put(saver, number, at=config(f"t{number % 2}", "" if number < 4 else "child:1"), a=number)
    assert ids(await every(saver)) == [f"{number:06}" for number in (5, 4, 3, 2, 1, 0)]
    assert ids(await every(saver, limit=2)) == ["000005", "000004"]
    assert ids(await every(saver, filter={"step": 3})) == ["000003"]
    assert ids(await every(saver, before=config(id_="000002"))) == ["000001", "000000"]
    assert ids(await every(saver, {"configurable": {"checkpoint_ns": "child:1"}})) == ["000005", "000004"]


async def test_a_copy_has_everything_and_is_made_once() -> None:
    memory = Memory(inline_bytes_max=100)
    saver = memory.saver()
    for number in range(4):
        await put(saver, number, a=number, big="x" * 200)
        await saver.aput_writes(config(id_=f"{number:06}"), [("a", number)], "task")
    await saver.adelete_for_runs(["none"], thread_ids=["t"])
    await saver._threads.delete("t", [("", "000001")])
    await memory.session("t").append("no message is copied")
    await saver.acopy_thread("t", "u")

    def there(found: list[CheckpointTuple]) -> list[Any]:
        return [(one.checkpoint, one.metadata, one.pending_writes) for one in found]

    assert there(await every(saver, config("u"))) == there(await every(saver, config("t")))
    assert set(memory.logs["u"].types) == {
        "langgraph.CheckpointPut",
        "langgraph.WritesPut",
        "langgraph.CheckpointsDeleted",
    }
    # Into a thread that lacks what was deleted there since.
    await saver.aprune(["u"], strategy="delete")
    await saver.acopy_thread("t", "u")
    assert there(await every(memory.saver(), config("u"))) == there(await every(saver, config("t")))


async def test_a_clone_with_another_serializer_shares_what_is_known() -> None:
    memory = Memory()
    saver = memory.saver(serde=JsonPlusSerializer(allowed_msgpack_modules=[("some", "Other")]))
    clone = saver.with_allowlist([("some", "Type")])
    assert clone is not saver
    await put(saver, 1, a="x")
    found = await clone.aget_tuple(config())
    assert found is not None
    assert isinstance(clone, RefoldSaver)
    assert clone._threads is saver._threads


async def test_what_failed_is_sent_again_before_anything_else() -> None:
    memory = Memory()
    saver = memory.saver()
    session = saver._threads.session("t")
    assert isinstance(session, object)
    lost: list[Any] = []
    publish = session.publish

    async def failing(event_type: str, payload: Any, **options: Any) -> Any:
        from refold.client.ordering import EarlierEventFailed

        if not lost:
            lost.append((event_type, payload, options))
            raise TransientError("the event was not acknowledged: outcome unknown")
        raise EarlierEventFailed("e1", "outcome unknown")

    async def retry() -> Any:
        session.publish = publish  # type: ignore[method-assign]
        event_type, payload, options = lost[0]
        return [await publish(event_type, payload, **options)]

    session.publish = failing  # type: ignore[method-assign]
    session.retry = retry  # type: ignore[method-assign]
    with pytest.raises(TransientError, match="outcome unknown"):
        await put(saver, 1, a="x")
    await put(saver, 2, a="y")
    assert ids(await every(saver, config())) == ["000002", "000001"]


async def test_mistakes_are_named_before_anything_is_sent() -> None:
    memory = Memory()
    saver = memory.saver()
    with pytest.raises(UsageError, match="no thread_id"):
        await saver.aget_tuple({"configurable": {}})
    with pytest.raises(UsageError, match="no checkpoint_id"):
        await saver.aput_writes(config(), [("a", 1)], "task")
    with pytest.raises(UsageError, match="keep_latest, delete"):
        await saver.aprune(["t"], strategy="all")
    with pytest.raises(UsageError, match="cannot be written"):
        await saver.aput_writes(config(id_="1"), [("half \ud800", 1)], "task")
    assert all(log.journal == [] for log in memory.logs.values())


def test_a_saver_is_made_where_its_client_lives() -> None:
    with pytest.raises(UsageError, match=r"refold\.client\.sync\.Refold"):
        Memory().saver()


async def test_blocking_calls_are_refused_on_the_clients_own_loop() -> None:
    saver = Memory().saver()
    with pytest.raises(asyncio.InvalidStateError, match="async interface"):
        saver.get_tuple(config())
    with pytest.raises(asyncio.InvalidStateError, match="different thread"):
        next(iter(saver.list(config())))
    await put(saver, 1, a="x")
    found = await asyncio.to_thread(saver.get_tuple, config())
    assert found is not None
    assert found.checkpoint["channel_values"] == {"a": "x"}


async def test_events_that_no_saver_has_written_are_said_where_they_are() -> None:
    memory = Memory()
    await put(memory.saver(), 1, a="x")
    await memory.session("t").publish("langgraph.WritesPut", b"{}")
    said = r"^undecodable: event 2 of session default/t: a langgraph\.WritesPut that no RefoldSaver"
    with pytest.raises(InvalidRecord, match=said):
        await memory.saver().aget_tuple(config())


def test_records_come_back_as_they_were() -> None:
    changed = (
        ("a", 1, None),
        ("b", "2", Value("null", b"")),
        ("c", 1.5, Value("x", None, {"sha256": "0" * 64})),
        ("d", 2, Value("x", None, {"sha256": "1" * 64}, 0, 7)),
        ("e", 2, Value("y", None, {"sha256": "1" * 64}, 7, 0)),
    )
    put_ = CheckpointPut("ns|x", "id", None, Value("msgpack", b"\x00\xff"), Value("json", b"{}"), changed)
    assert decode("langgraph.CheckpointPut", encode(put_)) == put_
    gone = CheckpointsDeleted((("", "1"), ("ns", "2")))
    assert decode("langgraph.CheckpointsDeleted", encode(gone)) == gone
    newer = encode(gone).replace(b'"format":1', b'"format":2')
    with pytest.raises(InvalidRecord, match="newer refold"):
        decode("langgraph.CheckpointsDeleted", newer)
