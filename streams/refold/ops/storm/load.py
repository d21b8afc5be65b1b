"""Who is hot, and their events while the fleet restarts, through the SDK, as an application would.

Some are sent twice under an id of the application's own: what a retry does.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from refold.client import Refold
from refold.ops.storm.fill import Texts
from refold.ops.storm.plan import StormPlan

#: Appended at once: enough to keep the producer's batches full, few enough for its queue.
SLICE: Final = 500
#: Every so many events of the restart comes twice.
REPEATED_EVERY: Final = 20
POLL_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Hot:
    """``known``: sessions with a history that get events during every restart, on these ``partitions``."""

    known: Sequence[str]
    partitions: Sequence[int]


class Load:
    """``sent``: events, repeats not counted."""

    def __init__(self, plan: StormPlan, client: Refold) -> None:
        self._plan = plan
        self._client = client
        self._texts = Texts(plan.random("restart"))
        self.sessions = [f"s{number:06d}" for number in range(plan.sessions)]
        self.sent = 0
        self._stopping = False

    def key(self, session: str) -> bytes:
        return self._client.session(session).key

    def choose_hot(self, owners: Mapping[int, str]) -> Hot:
        """Which sessions are hot. Their partitions are taken from the workers in turn, so that no worker has
        more of them than it must."""
        plan, chance = self._plan, self._plan.random("hot")
        mine: dict[str, list[int]] = {}
        for partition in chance.sample(range(plan.partitions), plan.partitions):
            mine.setdefault(owners.get(partition, ""), []).append(partition)
        turns = [queue[at] for at in range(plan.partitions) for queue in mine.values() if at < len(queue)]
        chosen = frozenset(turns[: plan.hot_partitions or plan.partitions])
        there = [name for name in self.sessions if self._client.session(name).partition in chosen]
        return Hot(chance.sample(there, min(len(there), plan.hot_sessions)), sorted(chosen))

    def newcomers(self, arm: str, hot: Hot) -> list[str]:
        """Sessions on the hot partitions that nobody has heard of before this arm."""
        found: list[str] = []
        numbers = itertools.count()
        while len(found) < self._plan.new_sessions:
            if self._client.session(name := f"{arm}{next(numbers):06d}").partition in hot.partitions:
                found.append(name)
        return found

    async def keep_on(self, arm: str, sessions: Sequence[str]) -> None:
        """An event to each of them at once, then ``rate`` per second in turns, until :meth:`stop`. Returns
        when the last one is durable."""
        self._stopping = False
        names = list(sessions)
        self._plan.random(f"order/{arm}").shuffle(names)
        for at in range(0, len(names), SLICE):
            await asyncio.gather(*(self._say(name) for name in names[at : at + SLICE]))
        began = time.monotonic()
        for number in itertools.count():
            due = began + number / self._plan.rate
            if (wait := due - time.monotonic()) > 0:
                await asyncio.sleep(max(wait, POLL_S))
            if self._stopping:
                return
            name = names[number % len(names)]
            if number % REPEATED_EVERY == 0:
                await self._twice(name, f"{arm}-{number}")
            else:
                await self._say(name)

    def stop(self) -> None:
        """No further event: what is compared afterwards must not move."""
        self._stopping = True

    async def _say(self, name: str) -> None:
        await self._client.session(name).append(self._texts.next(), role="user")
        self.sent += 1

    async def _twice(self, name: str, event_id: str) -> None:
        """The same event, to the byte, from an application that did not hear the answer."""
        text, session = self._texts.next(), self._client.session(name)
        for _ in range(2):
            await session.append(text, role="user", event_id=event_id)
        self.sent += 1
