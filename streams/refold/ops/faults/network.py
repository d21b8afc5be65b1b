"""The network between one worker and the broker: cut, cut in one direction, slow."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from refold.broker.ports import LOOPBACK, choose
from refold.broker.properties import Door
from refold.ops.faults.proxy import Proxy
from refold.ops.faults.scenario import Scene, log_size, told
from refold.ops.verify.stage import Stage
from refold.settings import Settings

#: Longer than the session (3 s) and than librdkafka waits for a session of its own.
ANSWERS_LOST_S: Final = 8.0
#: Each way: two round trips of a commit are half a second then.
DELAY_S: Final = 0.12
DELAYED_S: Final = 10.0
#: Chunks: a commit a second at the worst, both ways.
DELAYED_MIN: Final = 20
VICTIM: Final = "w0"


@contextlib.asynccontextmanager
async def _behind_a_proxy(scene: Scene) -> AsyncIterator[tuple[Stage, Proxy]]:
    """A broker whose second listener is reached through a proxy, by one worker; others go straight."""
    door = choose(None)
    proxy = Proxy(door)
    proxy.start()
    scene.undo.append(proxy.heal)
    try:
        with scene.broker(door=Door(port=door, advertised=proxy.port)) as broker:
            settings = Settings(kafka={"bootstrap": broker.bootstrap})
            stage = scene.stage(settings)
            stage.worker(VICTIM).configure({"REFOLD_KAFKA__BOOTSTRAP": f"{LOOPBACK}:{proxy.port}"})
            async with stage:
                yield stage, proxy
    finally:
        await asyncio.to_thread(proxy.close)


async def cut(scene: Scene) -> None:
    """Both directions, until the others have taken over and committed; then it heals."""
    async with _behind_a_proxy(scene) as (stage, proxy), scene.acting(stage):
        owned = await scene.until("the worker behind the proxy owns something", lambda: stage.owned(VICTIM))
        proxy.cut()
        await scene.until("its partitions moved while it was cut off", lambda: not stage.owned(VICTIM))
        ticket = stage.watch.died(owned)
        took = await scene.until(
            "others committed for its partitions", lambda: stage.watch.recovered_ms(ticket)
        )
        scene.seen |= {"partitions_moved": len(owned), "first_commit_by_others_ms": round(took)}
        scene.seen["requests_held"] = proxy.seen.requests_held
        proxy.heal()
        await scene.until("the worker came back", lambda: stage.owned(VICTIM))
    scene.gate(scene.seen.get("requests_held", 0) > 0, "requests were under way when the network was cut")


async def answers_lost(scene: Scene) -> None:
    """Requests arrive and are carried out, the answers do not come: the outcome of commits is unknown."""
    async with _behind_a_proxy(scene) as (stage, proxy), scene.acting(stage):
        await scene.until("the worker behind the proxy owns something", lambda: stage.owned(VICTIM))
        since = log_size(stage.worker(VICTIM))
        proxy.cut(requests=False)
        await asyncio.sleep(ANSWERS_LOST_S)
        scene.seen["answers_held"] = proxy.seen.answers_held
        proxy.heal()
        await scene.until("the worker came back", lambda: stage.owned(VICTIM))
        scene.seen["sessions_lost"] = told(stage.worker(VICTIM), "partitions_lost_fenced", since) is not None
    scene.gate(scene.seen.get("answers_held", 0) > 0, "answers were held back")


async def delay(scene: Scene) -> None:
    """Every packet of one worker takes longer."""
    async with _behind_a_proxy(scene) as (stage, proxy), scene.acting(stage):
        await scene.until("the worker behind the proxy owns something", lambda: stage.owned(VICTIM))
        proxy.delay(DELAY_S)
        await asyncio.sleep(DELAYED_S)
        scene.seen |= {"delayed": proxy.seen.delayed, "delay_ms": round(DELAY_S * 1000)}
        proxy.heal()
    scene.gate(scene.seen.get("delayed", 0) >= DELAYED_MIN, "traffic of the worker was delayed")
