"""Broker restarts and leader moves beside the deaths of workers, and what was seen of them."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from refold.ops.verify.nodes import Nodes, elect_preferred, leaders, wait_in_sync
from refold.ops.verify.plan import ChaosPlan, NodeEnd
from refold.ops.verify.stage import Say

#: Between two restarts: workers and copies catch up, and work goes on with everything there.
CALM_S = 3.0
#: A leader that moves away and back within this is missed by the count.
WATCH_S = 0.25


class LeaderWatch:
    """A thread that counts how often a partition was seen with another leader than before. Close it."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin
        self._stopping = threading.Event()
        self._seen: dict[tuple[str, int], int] = {}
        self.moves = 0
        self._thread = threading.Thread(target=self._run, name="leader-watch", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(WATCH_S):
            try:
                now = leaders(self._admin)
            except KafkaException:
                continue
            for partition, leader in now.items():
                if leader < 0:
                    continue  # None at the moment: it counts when there is one again.
                if self._seen.setdefault(partition, leader) != leader:
                    self.moves += 1
                    self._seen[partition] = leader


class BrokerChaos:
    """Restarts one node after the other until told to stop; ``restarts`` counts them by kind."""

    def __init__(self, plan: ChaosPlan, nodes: Nodes, admin: AdminClient, say: Say) -> None:
        self._plan = plan
        self._nodes = nodes
        self._admin = admin
        self._say = say
        self._watch: LeaderWatch | None = None
        self.restarts: Counter[NodeEnd] = Counter()

    @property
    def leader_moves(self) -> int:
        return 0 if self._watch is None else self._watch.moves

    async def run(self, started: float) -> None:
        """Until ``plan.seconds`` after ``started`` (monotonic), and until all copies are in sync again.

        Raises what a node that does not come back raises.
        """
        self._watch = LeaderWatch(self._admin)
        try:
            numbers = self._nodes.numbers
            for draw, how in self._plan.node_ends():
                await asyncio.sleep(CALM_S)
                at = time.monotonic() - started
                if at > self._plan.seconds:
                    return
                number = numbers[draw % len(numbers)]
                self._say(f"  {at:6.1f} s  broker {number}: {how}")
                await asyncio.to_thread(self._nodes.restart, number, how)
                self.restarts[how] += 1
                await asyncio.to_thread(wait_in_sync, self._admin, numbers)
                try:
                    moved = await asyncio.to_thread(elect_preferred, self._admin)
                except KafkaException as error:
                    self._say(f"            leaders were not moved back: {error}")
                else:
                    at = time.monotonic() - started
                    self._say(f"  {at:6.1f} s  {moved} leaders moved back to broker {number}")
        finally:
            await asyncio.to_thread(self._watch.close)

    @property
    def not_shown(self) -> list[str]:
        """What the run did not meet, though it is about that."""
        missing = []
        if not self.restarts:
            missing.append("no broker was restarted: the run was too short")
        if not self.leader_moves:
            missing.append("no partition was seen to change its leader")
        return missing
