"""Serving summaries: hear which sessions want one, write them side by side, until told to stop.

The work topic is read from its beginning by every process for itself; several may try the same session. Each
waits a random time before it asks a model, longer with every time that another was first and shorter with
every summary that was its own, and does not ask when it hears meanwhile that the session has its summary.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from refold.client.agents.taking import Contention
from refold.client.summaries.limits import (
    CONCURRENCY_DEFAULT,
    TEXT_BYTES_DEFAULT,
    UNAVAILABLE_PAUSE_S,
)
from refold.client.summaries.making import Outcome, summarize_once
from refold.client.summaries.table import SummaryTable
from refold.errors import RefoldError, TransientError, UnavailableError

if TYPE_CHECKING:
    from refold.client.session import Session
    from refold.client.summaries.protocol import Summarizer
    from refold.core.work import WorkItem

log = logging.getLogger("refold.client")

Told: TypeAlias = "Mapping[bytes, WorkItem | None]"
#: Hears of each try: the session's key parts, the outcome, seconds.
Report: TypeAlias = Callable[[str, str, Outcome, float], None]


class Source(Protocol):
    """Where wishes are heard of, and sessions come from: the client, or a test."""

    def work(self, *, follow: bool = True) -> AsyncGenerator[Told, None]: ...

    def session(self, tenant: str, session: str) -> Session: ...


def no_report(_tenant: str, _session: str, _outcome: Outcome, _seconds: float) -> None:
    """For whom the counts are enough."""


class SummaryServer:
    """``follow=False``: what is wanted now, then the end. ``counts``: outcomes by their word."""

    def __init__(
        self,
        source: Source,
        summarizer: Summarizer,
        *,
        concurrency: int = CONCURRENCY_DEFAULT,
        bytes_max: int = TEXT_BYTES_DEFAULT,
        report: Report = no_report,
        follow: bool = True,
    ) -> None:
        self._source = source
        self._summarizer = summarizer
        self._concurrency = concurrency
        self._bytes_max = bytes_max
        self._report = report
        self._follow = follow
        self._table = SummaryTable()
        self._contention = Contention()
        self._tasks: dict[bytes, asyncio.Task[None]] = {}
        self._changed = asyncio.Event()
        self._heard_all = False
        self.counts: Counter[str] = Counter()

    async def serve(self, stop: asyncio.Event, drain_s: float) -> bool:
        """Until ``stop`` is set, then at most ``drain_s`` seconds for summaries under way; whether all of
        them ended. Cancelled, it leaves them at once: a summary that nobody appended has changed nothing.
        Raises what keeps it from hearing of wishes for good: no right to read the work topic, no such topic.
        """
        stopping = asyncio.create_task(stop.wait(), name="refold-summaries-stop")
        hearing = asyncio.create_task(self._hear(), name="refold-summaries-work")
        try:
            while not stop.is_set():
                if hearing.done():
                    hearing.result()
                self._changed.clear()
                self._dispatch()
                due = self._table.next_due(asyncio.get_running_loop().time())
                if self._heard_all and not self._tasks and due is None:
                    return True
                changed = asyncio.create_task(self._changed.wait())
                waited = {stopping, changed} if hearing.done() else {stopping, hearing, changed}
                await asyncio.wait(waited, timeout=due, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
            if self._tasks:
                await asyncio.wait(list(self._tasks.values()), timeout=drain_s)
            return not self._tasks
        finally:
            rest = (stopping, hearing, *self._tasks.values())
            for task in rest:
                task.cancel()
            await asyncio.gather(*rest, return_exceptions=True)

    async def _hear(self) -> None:
        while True:
            try:
                async with aclosing(self._source.work(follow=self._follow)) as batches:
                    async for batch in batches:
                        for key, item in batch.items():
                            self._table.hear(key, item)
                        self._changed.set()
                if not self._follow:
                    self._heard_all = True
                    self._changed.set()
                    return
            except (TransientError, UnavailableError) as error:
                log.warning("summaries_work_unreadable: %s", error)
            await asyncio.sleep(UNAVAILABLE_PAUSE_S)

    def _dispatch(self) -> None:
        loop = asyncio.get_running_loop()
        while len(self._tasks) < self._concurrency:
            if not self._follow and not self._heard_all:
                # Its tombstone may be further on in the topic.
                return
            chosen = self._table.choose(self._tasks.__contains__, loop.time(), random.randrange)
            if chosen is None:
                return
            key, item = chosen
            task = loop.create_task(self._one(key, item), name=f"refold-summary-{item.session}")
            self._tasks[key] = task
            task.add_done_callback(lambda done, key=key: self._done(key, done))  # type: ignore[misc]

    def _done(self, key: bytes, task: asyncio.Task[None]) -> None:
        self._tasks.pop(key, None)
        self._changed.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("summary_crashed: %s", type(error).__name__)

    async def _one(self, key: bytes, item: WorkItem) -> None:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(self._contention.jitter())
        if not self._table.still(key, item):
            return
        began = time.monotonic()
        session = self._source.session(item.tenant, item.session)
        try:
            outcome = await summarize_once(
                # What was heard may be old: another process was first, and its tombstone is on the way.
                session,
                self._summarizer,
                min_seq=item.seq,
                wanted=True,
                bytes_max=self._bytes_max,
            )
        except RefoldError as error:
            outcome = Outcome("failed", _code_of(error), again=True)
        except BaseException:
            # A fault, or the end: another process, or this one at its next start, tries again.
            self._table.failed(key, item, loop.time())
            raise
        self._ended(key, item, outcome, loop.time())
        self.counts[outcome.what] += 1
        self._report(item.tenant, item.session, outcome, time.monotonic() - began)

    def _ended(self, key: bytes, item: WorkItem, outcome: Outcome, now: float) -> None:
        if outcome.what == "failed":
            self._table.failed(key, item, now, again=outcome.again)
            return
        if outcome.what == "made":
            self._contention.granted()
        elif outcome.what == "superseded":
            self._contention.refused()
        self._table.done(key, item)


def _code_of(error: Any) -> str:
    return str(getattr(error, "code", None) or type(error).__name__)
