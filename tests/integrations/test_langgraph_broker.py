"""``docs/guides/langgraph.md`` as printed, its process and worker killed; LangGraph's conformance suite, its
graphs on the synchronous half, and two clients at once; on a real broker."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from client.worker_process import STARTED_S_MAX, Worker, refold
from readme.pages import ROOT, blocks
from refold.client import Refold
from refold.client.sync import Refold as SyncRefold
from refold.integrations.langgraph import RefoldSaver
from refold.settings import Settings
from refold.testing.kafka import Kafka

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(4 * STARTED_S_MAX)]

#: Tests per capability: 81. The suite's own verdict passes over capabilities that it does not find.
CAPABILITIES = {
    "put": 17,
    "put_writes": 10,
    "get_tuple": 10,
    "list": 16,
    "delete_thread": 5,
    "delete_for_runs": 7,
    "copy_thread": 8,
    "prune": 8,
}

GUIDE = (ROOT / "docs/guides/langgraph.md").read_text("utf-8")
PROGRAM, SYNCHRONOUS = blocks(GUIDE, "python")

#: A start and a takeover: ten seconds, on a very busy machine ten times that.
PROCESS_S_MAX = 120.0


class Stage:
    """A worker that can be killed, and then goes on as another process."""

    def __init__(self, bootstrap: str, prefix: str, directory: Path) -> None:
        self.prefix = prefix
        self._worker = Worker(bootstrap, prefix, directory, "w-0")
        self._worker.start()
        self._worker.wait_started()

    def restart(self) -> None:
        self._worker.kill()
        self._worker.start()

    def end(self) -> None:
        self._worker.kill()


@pytest.fixture(scope="module")
def stage(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    prefix = f"lg-{uuid.uuid4().hex[:8]}"
    refold(kafka.bootstrap, prefix, "topology", "apply", "--partitions", "2")
    made = Stage(kafka.bootstrap, prefix, tmp_path_factory.mktemp("worker"))
    yield made
    made.end()


@pytest.fixture
def prefix(stage: Stage) -> str:
    return stage.prefix


async def test_all_of_langgraphs_conformance_suite(kafka: Kafka, prefix: str) -> None:
    @checkpointer_test(name="RefoldSaver")
    async def made() -> AsyncIterator[RefoldSaver]:
        async with Refold(Settings(topic_prefix=prefix), bootstrap=kafka.bootstrap, tenant="acme") as rf:
            yield RefoldSaver(rf)

    report = await validate(made)
    assert [failure for one in report.results.values() for failure in one.failures] == []
    assert {name: one.tests_passed for name, one in report.results.items()} == CAPABILITIES
    assert all(one.detected and one.passed for one in report.results.values())


def test_the_guide_as_printed(kafka: Kafka, stage: Stage, tmp_path: Path) -> None:
    """Goal: the process is killed between two nodes, its worker after it; another process and another worker
    go on, and the node that was done is not run again."""
    (tmp_path / "report.py").write_text(PROGRAM)
    run_it = "asyncio.run(main())\n"
    assert PROGRAM.endswith(run_it)
    (tmp_path / "report_sync.py").write_text(PROGRAM.removesuffix(run_it) + SYNCHRONOUS)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")}
    environment = {
        **kept,
        "REFOLD_BOOTSTRAP": kafka.bootstrap,
        "REFOLD_TOPIC_PREFIX": stage.prefix,
        "PYTHONUNBUFFERED": "1",
    }

    def played(*command: str) -> tuple[int, list[str]]:
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PROCESS_S_MAX,
        )
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        return done.returncode, done.stdout.splitlines()

    first, second = _console(GUIDE)
    said = first[1].removesuffix("\nKilled").splitlines()
    assert played(*first[0].split()[1:]) == (-signal.SIGKILL, said)
    stage.restart()
    assert played(*second[0].split()[1:]) == (0, second[1].splitlines())
    assert played("report_sync.py") == (0, ["gathering", "writing", second[1].splitlines()[-1]])


def _console(page: str) -> list[tuple[str, str]]:
    """Commands with their outputs."""
    (block,) = blocks(page, "console")
    return [
        (command, said.rstrip("\n"))
        for command, _, said in (part.partition("\n") for part in block.split("$ ") if part)
    ]


def added(left: list[str], right: list[str]) -> list[str]:
    return left + right


class State(TypedDict, total=False):
    said: Annotated[list[str], added]
    approved: str
    blob: bytes


def graph_with(saver: BaseCheckpointSaver[Any]) -> Any:
    """Two tasks side by side, a subgraph with checkpoints of its own, a question to a person."""

    def ask(state: State) -> State:
        return {"approved": interrupt("send it?"), "said": ["asked"]}

    inner = StateGraph(State)
    inner.add_node("ask", ask)
    inner.add_edge(START, "ask")
    inner.add_edge("ask", END)
    builder = StateGraph(State)
    builder.add_node("left", lambda _: {"said": ["left"], "blob": b"x" * 300_000})
    builder.add_node("right", lambda _: {"said": ["right"]})
    builder.add_node("inner", inner.compile())
    builder.add_node("end", lambda state: {"said": [f"end {state['approved']}"]})
    builder.add_edge(START, "left")
    builder.add_edge(START, "right")
    builder.add_edge(["left", "right"], "inner")
    builder.add_edge("inner", "end")
    builder.add_edge("end", END)
    return builder.compile(checkpointer=saver)


def history_of(graph: Any, config: Any) -> list[Any]:
    """What a thread's history says, without what is random."""
    return [
        (
            one.values,
            one.next,
            one.metadata["source"],
            one.metadata["step"],
            [task.name for task in one.tasks],
        )
        for one in graph.get_state_history(config)
    ]


def play(*savers: BaseCheckpointSaver[Any]) -> list[Any]:
    """A conversation with a pause, an answer, a look back and a change of the past, each with the next saver;
    what was seen of it."""
    config: Any = {"configurable": {"thread_id": "graph"}}
    seen: list[Any] = []
    graphs = itertools.cycle(map(graph_with, savers))
    graph = next(graphs)
    paused = graph.invoke({"said": ["begin"]}, config)
    seen.append([one.value for one in paused["__interrupt__"]])
    graph = next(graphs)
    seen.append(graph.invoke(Command(resume="yes"), config)["said"])
    graph = next(graphs)
    seen.append(history_of(graph, config))
    (before,) = [one for one in graph.get_state_history(config) if one.next == ("end",)]
    changed = graph.update_state(before.config, {"approved": "no", "said": ["changed"]})
    seen.append(graph.invoke(None, changed)["said"])
    graph = next(graphs)
    seen.append(history_of(graph, config))
    seen.append(graph.get_state(config).values["blob"])
    return seen


def test_graphs_on_the_synchronous_half_do_as_with_langgraphs_own_saver(
    kafka: Kafka, prefix: str, tmp_path: Path
) -> None:
    wanted = play(InMemorySaver())
    settings = Settings(topic_prefix=prefix, blobs={"url": f"file://{tmp_path}/blobs"})  # type: ignore[arg-type]
    with (
        SyncRefold(settings, bootstrap=kafka.bootstrap, tenant="acme") as one,
        SyncRefold(settings, bootstrap=kafka.bootstrap, tenant="acme") as two,
    ):
        mine, other = RefoldSaver(one), RefoldSaver(two)
        assert play(mine, other) == wanted
        assert list((tmp_path / "blobs").rglob("*")) != []
        mine.copy_thread("graph", "other")
        copied: Any = {"configurable": {"thread_id": "other", "checkpoint_ns": ""}}
        found = list(other.list(copied))
        assert len(found) == len(wanted[-2])
        mine.prune(["other"])
        assert [one.checkpoint["id"] for one in other.list(copied)] == [found[0].checkpoint["id"]]
        everywhere = {one.config["configurable"]["thread_id"] for one in other.list(None, limit=100)}
        assert "other" in everywhere
        mine.put_writes(found[0].config, [("said", ["more"])], "task")
        again = other.get_tuple(copied)
        assert again is not None
        assert again.pending_writes is not None
        assert again.pending_writes[-1] == ("task", "said", ["more"])
        for name, saver in (("other", mine), ("other", other)):
            saver.delete_thread(name)
            assert saver.get_tuple(copied) is None


async def test_two_clients_write_one_thread_at_once(kafka: Kafka, prefix: str) -> None:
    """Goal: nothing of either is lost, both see the same, and a retry of one's by the other adds nothing."""
    settings = Settings(topic_prefix=prefix)
    thread = f"both-{uuid.uuid4().hex[:8]}"
    config: Any = {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}

    def checkpoint(id_: str) -> Any:
        return {
            "v": 1,
            "id": id_,
            "ts": "",
            "channel_values": {"a": id_},
            "channel_versions": {"a": id_},
            "versions_seen": {},
            "updated_channels": None,
        }

    async def put(saver: RefoldSaver, id_: str) -> None:
        at = await saver.aput(config, checkpoint(id_), {"step": 0}, {"a": id_})
        await saver.aput_writes(at, [("a", id_)], "task")

    async with (
        Refold(settings, bootstrap=kafka.bootstrap, tenant="acme") as one,
        Refold(settings, bootstrap=kafka.bootstrap, tenant="acme") as two,
    ):
        savers = {"x": RefoldSaver(one), "y": RefoldSaver(two)}
        for turn in range(3):
            await asyncio.gather(
                *(put(saver, f"{turn}{n}{name}") for name, saver in savers.items() for n in range(4))
            )
            seen = []
            for saver in [*savers.values(), RefoldSaver(one)]:
                seen.append([found async for found in saver.alist(config)])
            assert seen[0] == seen[1] == seen[2]
            assert len(seen[0]) == 8 * (turn + 1)
            assert all(found.pending_writes == [("task", "a", found.checkpoint["id"])] for found in seen[0])
        before = await one.session(thread).state()
        await put(savers["y"], "20x")
        await put(RefoldSaver(one), "20y")
        after = await one.session(thread).state()
        assert before is not None
        assert after is not None
        assert after.seq == before.seq
        await savers["x"].adelete_thread(thread)
        await put(savers["y"], "anew")
        for saver in savers.values():
            assert [found.checkpoint["id"] async for found in saver.alist(config)] == ["anew"]
        # On the loop that the client lives on nobody could answer.
        with pytest.raises(asyncio.InvalidStateError, match="async interface"):
            savers["x"].get_tuple(config)
        found = await asyncio.to_thread(savers["x"].get_tuple, config)
        assert found is not None
