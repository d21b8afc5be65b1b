"""Ask every worker ten times a second what it has read and what it serves.

The read rate is counted at the clients, in the unit of the cap: ``refold_restore_bytes_total``, keys and
values uncompressed, as the restores go on. What brokers send is less where changelogs compress, and earlier
by what librdkafka fetches ahead.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from typing import Final

import aiohttp
import orjson

from refold.errors import UnavailableError
from refold.ops.fleet import WorkerProcess
from refold.ops.storm.curves import ReadRate

EVERY_S: Final = 0.1
REQUEST_S_MAX: Final = 5.0
READ_BYTES: Final = "refold_restore_bytes_total"


def counter(metrics: bytes, name: str) -> float:
    """A counter without labels in the Prometheus text; 0 where it has not been counted yet."""
    found = re.search(rb"^%s (\S+)$" % name.encode(), metrics, re.MULTILINE)
    return float(found[1]) if found else 0.0


async def total(workers: Sequence[WorkerProcess], name: str) -> float:
    """A counter over all workers. Raises UnavailableError when one does not answer."""
    timeout = aiohttp.ClientTimeout(total=REQUEST_S_MAX)
    found = 0.0
    async with aiohttp.ClientSession(timeout=timeout) as http:
        for worker in workers:
            try:
                async with http.get(f"{worker.url}/metrics") as answer:
                    found += counter(await answer.read(), name)
            except (aiohttp.ClientError, TimeoutError, OSError) as err:
                raise UnavailableError(
                    f"worker {worker.name} does not answer: {type(err).__name__}"
                ) from None
    return found


class Sampler:
    """Times are seconds since ``began`` (``time.monotonic()``). ``live``: partition -> when it was first seen
    live with nothing left to restore; ``assigned_s``: when the first partition was seen at a worker."""

    def __init__(self, workers: Sequence[WorkerProcess], began: float) -> None:
        self.rate = ReadRate()
        self.live: dict[int, float] = {}
        self.assigned_s: float | None = None
        self._began = began
        self._workers = workers

    async def run(self) -> None:
        """Until cancelled."""
        timeout = aiohttp.ClientTimeout(total=REQUEST_S_MAX)
        async with aiohttp.ClientSession(timeout=timeout) as http, asyncio.TaskGroup() as group:
            for worker in self._workers:
                group.create_task(self._follow(http, worker.url))

    async def _follow(self, http: aiohttp.ClientSession, url: str) -> None:
        counted, at = 0.0, None
        while True:
            began = time.monotonic()
            try:
                async with http.get(f"{url}/metrics") as answer:
                    read = counter(await answer.read(), READ_BYTES)
                now = time.monotonic() - self._began
                # A smaller number is another life of the worker, which counts from nothing.
                more = read - counted if read >= counted else read
                self.rate.add(max(0.0, now - EVERY_S) if at is None else at, now, more)
                counted, at = read, now
                async with http.get(f"{url}/healthz/partitions") as answer:
                    self._see(orjson.loads(await answer.read())["partitions"])
            except (aiohttp.ClientError, TimeoutError, OSError):
                pass
            await asyncio.sleep(max(0.0, EVERY_S - (time.monotonic() - began)))

    def _see(self, rows: Sequence[dict[str, float | str]]) -> None:
        now = time.monotonic() - self._began
        if rows and self.assigned_s is None:
            self.assigned_s = now
        for row in rows:
            if row["state"] == "live" and float(row["progress"]) >= 1.0:
                self.live.setdefault(int(row["partition"]), now)
