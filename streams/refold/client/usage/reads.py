"""The sums of a subject's usage: every owner asked for its partitions, until all of them have answered (W3).

An owner that restores is asked again until the time is over. What has not answered by then is named as
missing, and what was last known of it stands in: the caller sees both.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from refold.client.limits import RETRY_PAUSE_S
from refold.client.owners import Owners
from refold.client.routing import Owner
from refold.core.usage import Counts, UsageRow, leases_at, total, window_sum
from refold.errors import UnavailableError

#: Subjects and models whose last answer is kept: with 24 partitions of 2 KB each 50 MB at the very most.
KNOWN_MAX: Final = 1_024

Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class UsageNow:
    """``rows``: by partition, empty where there are none. ``missing``: partitions that did not answer; their
    rows are the last known ones, if any. ``now_ms``: by the clock that is furthest ahead of those that
    answered. ``asked_at``: monotonic; all that was committed before is in it."""

    rows: Mapping[int, tuple[UsageRow, ...]]
    missing: tuple[int, ...]
    now_ms: int
    asked_at: float

    def all_rows(self) -> list[UsageRow]:
        return [row for rows in self.rows.values() for row in rows]

    def window(self, window: str, at_ms: int | None = None) -> Counts:
        """W1, over all partitions. ``at_ms``: another end of the window than now."""
        end = self.now_ms if at_ms is None else at_ms
        return total(window_sum(row, window, end) for row in self.all_rows())

    def lease_ends(self, at_ms: int | None = None) -> list[int]:
        """When the requests under way end at the latest, ascending."""
        end = self.now_ms if at_ms is None else at_ms
        return sorted(lease.until_ms for row in self.all_rows() for lease in leases_at(row, end))


class UsageReads:
    """One per connection. ``partitions``: how many the inbox has."""

    def __init__(self, owners: Owners, partitions: Callable[[], int]) -> None:
        self._owners = owners
        self._partitions = partitions
        self._known: OrderedDict[Key, UsageNow] = OrderedDict()

    async def read(
        self, tenant: str, subject: str, model: str, *, timeout_s: float, staleness_s: float = 0.0
    ) -> UsageNow:
        """What is committed now; what was read ``staleness_s`` ago at most will do, if it was whole.

        Raises what no retry mends: PermissionDenied, UsageError.
        """
        key, asked_at = (tenant, subject, model), time.monotonic()
        known = self._known.get(key)
        if known is not None and not known.missing and asked_at - known.asked_at <= staleness_s:
            age_ms = int((asked_at - known.asked_at) * 1000)
            return UsageNow(known.rows, (), known.now_ms + age_ms, known.asked_at)
        rows, now_ms = await self._collect(key, asked_at + timeout_s)
        missing = tuple(p for p in range(self._partitions()) if p not in rows)
        if missing and known is not None:
            rows.update({p: known.rows[p] for p in missing if p in known.rows})
        if not now_ms:
            # Nobody answered: the local clock is all there is.
            now_ms = time.time_ns() // 1_000_000
        now = self._known[key] = UsageNow(rows, missing, now_ms, asked_at)
        self._known.move_to_end(key)
        if len(self._known) > KNOWN_MAX:
            self._known.popitem(last=False)
        return now

    async def _collect(self, key: Key, deadline: float) -> tuple[dict[int, tuple[UsageRow, ...]], int]:
        rows: dict[int, tuple[UsageRow, ...]] = {}
        now_ms = 0
        while True:
            wanted = [p for p in range(self._partitions()) if p not in rows]
            left = deadline - time.monotonic()
            if not wanted or left <= 0:
                return rows, now_ms
            workers = await self._workers(wanted, left)
            left = max(0.05, deadline - time.monotonic())
            answers = await asyncio.gather(*(self._owners.usage(worker, *key, left) for worker in workers))
            for answer in answers:
                if answer is not None:
                    now_ms = max(now_ms, answer.now_ms)
                    rows.update({p: found for p, found in answer.rows.items() if p in wanted})
            left = deadline - time.monotonic()
            if len(rows) < self._partitions() and left > 0:
                await asyncio.sleep(min(RETRY_PAUSE_S, left))
                await self._owners.refresh(deadline - time.monotonic())

    async def _workers(self, partitions: list[int], timeout_s: float) -> list[Owner]:
        """The owners of these partitions, each once; those nobody owns are left out."""
        found: dict[str, Owner] = {}
        try:
            async with asyncio.timeout(timeout_s):
                for partition in partitions:
                    owner = await self._owners.router.owner(partition)
                    if owner is None:
                        # Looked for anew with every round; asking for each partition would take a look each.
                        break
                    found[owner.url] = owner
        except (UnavailableError, TimeoutError):
            pass
        return list(found.values())
