"""Peers' durable unit of work on SQLite: a LangGraph turn and a DBOS step. Run by the peers' interpreter.

``python bench/peer_steps.py [--count 300] [--concurrency 32]`` prints one JSON object. Needs ``langgraph``,
``langgraph-checkpoint-sqlite`` and ``dbos`` (``requirements/peers.in``); imports nothing of refold, so that
it runs in an environment of its own.

A LangGraph turn: a user message in, one node that calls a tool, the state checkpointed by
``AsyncSqliteSaver``. A DBOS step: a workflow with one step that returns the tool's result; both are
recorded in its SQLite database. Each is measured one at a time (latency) and with ``--concurrency`` at once
(rate).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import operator
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, TypedDict


async def measure(one: Callable[[int], Awaitable[Any]], count: int, concurrency: int) -> dict[str, float]:
    for number in range(count // 10):
        await one(-1 - number)
    taken: list[float] = []
    for number in range(count):
        start = time.perf_counter()
        await one(number)
        taken.append(1000 * (time.perf_counter() - start))
    todo = iter(range(count, count * 3))

    async def worker() -> None:
        for number in todo:
            await one(number)

    start = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(concurrency)))
    rate = 2 * count / (time.perf_counter() - start)
    ordered = sorted(taken)
    return {
        "p50_ms": round(statistics.median(taken), 2),
        "p99_ms": round(ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], 2),
        "per_second": round(rate, 1),
    }


async def langgraph_turns(directory: Path, count: int, concurrency: int) -> dict[str, float]:
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
    from langgraph.graph import END, START, StateGraph

    class State(TypedDict):
        messages: Annotated[list[dict[str, str]], operator.add]

    async def tool(state: State) -> State:
        return {"messages": [{"role": "tool", "content": f"done {len(state['messages'])}"}]}

    builder = StateGraph(State)
    builder.add_node("tool", tool)
    builder.add_edge(START, "tool")
    builder.add_edge("tool", END)
    async with AsyncSqliteSaver.from_conn_string(str(directory / "langgraph.db")) as saver:
        graph = builder.compile(checkpointer=saver)

        async def one(number: int) -> None:
            # A new thread every 8 turns: its checkpoints grow with the conversation.
            config = {"configurable": {"thread_id": str(number // 8)}}
            await graph.ainvoke({"messages": [{"role": "user", "content": f"refund {number}"}]}, config)

        return await measure(one, count, concurrency)


async def dbos_steps(directory: Path, count: int, concurrency: int) -> dict[str, float]:
    from dbos import DBOS

    DBOS(
        config={
            "name": "bench",
            "system_database_url": f"sqlite:///{directory / 'dbos.db'}",
            "log_level": "ERROR",
            "run_admin_server": False,
        }
    )

    @DBOS.step()
    async def refund(number: int) -> str:
        return f"done {number}"

    @DBOS.workflow()
    async def turn(number: int) -> str:
        return await refund(number)

    DBOS.launch()
    try:
        return await measure(turn, count, concurrency)
    finally:
        DBOS.destroy()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--concurrency", type=int, default=32)
    options = parser.parse_args()
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as directory:
        for name, run in (("langgraph_sqlite", langgraph_turns), ("dbos_sqlite", dbos_steps)):
            result[name] = asyncio.run(run(Path(directory), options.count, options.concurrency))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
