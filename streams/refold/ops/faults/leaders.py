"""The leader of a state partition dies after a transaction was decided and before its marker was written.

Three nodes whose traffic among each other goes through a proxy per node. ``WriteTxnMarkers`` requests that
name the state topic are held in front of one node: the coordinator has answered the worker "committed", other
partitions have their markers, this one has not. Then the node is killed. Its successor has the records
without an end, until the coordinator finds it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from functools import partial
from typing import Final

from confluent_kafka import KafkaException

from refold.broker import EmbeddedCluster
from refold.broker.ports import choose
from refold.broker.properties import Door
from refold.ops.faults.proxy import WRITE_TXN_MARKERS, Proxy
from refold.ops.faults.scenario import Scene
from refold.ops.verify.nodes import leaders, wait_in_sync
from refold.ops.verify.stage import COPIES, Stage
from refold.settings import Settings

NODES: Final = (1, 2, 3)
#: The dead leader is missed after 9 s, and what waited for it must be folded.
QUIESCE_S_MAX: Final = 120.0


def _leader_of_state(stage: Stage) -> int | None:
    """The node that leads most partitions of the state topic."""
    try:
        found = leaders(stage.admin)
    except KafkaException:
        return None
    led = Counter(node for (topic, _), node in found.items() if topic == stage.names.state and node > 0)
    return led.most_common(1)[0][0] if led else None


def _successors(stage: Stage, node: int) -> bool:
    try:
        found = leaders(stage.admin)
    except KafkaException:
        return False
    return all(leader not in (node, -1) for (topic, _), leader in found.items() if topic == stage.names.state)


async def at_marker(scene: Scene) -> None:
    proxies: dict[int, Proxy] = {}
    doors = {}
    for node in NODES:
        port = choose(None)
        proxies[node] = Proxy(port)
        doors[node] = Door(port=port, advertised=proxies[node].port, between=True)
    with contextlib.ExitStack() as stack:
        for proxy in proxies.values():
            proxy.start()
            stack.callback(proxy.close)
            scene.undo.append(proxy.heal)
        cluster = stack.enter_context(
            EmbeddedCluster(scene.directory / "cluster", nodes=len(NODES), doors=doors)
        )
        settings = Settings(kafka={"bootstrap": cluster.bootstrap})
        stage = scene.stage(settings, copies=COPIES, quiesce_s_max=QUIESCE_S_MAX)
        async with stage, scene.acting(stage):
            await scene.until("both workers own something", lambda: len(set(stage.owners().values())) == 2)
            node = await scene.until("the state topic has leaders", lambda: _leader_of_state(stage))
            proxy = proxies[node]
            proxy.hold(WRITE_TXN_MARKERS, stage.names.state.encode())
            await scene.until("a marker of the state topic was held", lambda: proxy.seen.frames)
            scene.seen |= {"node": node, "markers_held": len(proxy.seen.frames)}
            scene.undo.append(partial(cluster.start_node, node))
            await asyncio.to_thread(cluster.kill_node, node)
            proxy.heal()
            await scene.until("others lead its state partitions", lambda: _successors(stage, node))
            ticket = stage.watch.died(range(stage.plan.partitions))
            scene.seen["work_goes_on_ms"] = round(
                await scene.until("all partitions go on", lambda: stage.watch.recovered_ms(ticket))
            )
            await asyncio.to_thread(cluster.start_node, node)
            await asyncio.to_thread(wait_in_sync, stage.admin, list(NODES))
            await scene.until_ready(stage)
