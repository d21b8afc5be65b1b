"""Samples through the runner, at most ``concurrency`` at once, in the order of the file.

A slot takes a sample, runs attempts until one is done or the retries are used up, each outcome committed
before the next begins, and then takes another. ``stop`` ends that: no slot takes a sample or a retry any
more; those that run may go on for ``max_seconds``, then they are cancelled and have no outcome.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from refold.ops.evals.committing import Committer
from refold.ops.evals.limits import RESULT_INLINE_BYTES_MAX, RETRY_WAIT_S, RETRY_WAIT_S_MAX
from refold.ops.evals.rules import Known
from refold.ops.evals.runner import EvalContext, Outcome, Runner, call
from refold.ops.evals.samples import Sample, SampleFile
from refold.wire.blobs import BlobStore
from refold.wire.evals import EvalCursor, EvalResult


@dataclass(frozen=True, slots=True)
class Work:
    """What is to be run, and how. ``retries``: further attempts of a sample in this run."""

    runner: Runner
    file: SampleFile
    todo: set[int]
    known: Mapping[str, Known]
    cursor: EvalCursor
    blobs: BlobStore
    inline_bytes_max: int
    concurrency: int
    retries: int
    max_seconds: float


class Execution:
    """Made and used once. ``abandoned`` afterwards: whether samples were given up while they ran."""

    def __init__(self, work: Work, committer: Committer, started: Callable[[], None]) -> None:
        self._work = work
        self._committer = committer
        self._started = started
        self._samples: Iterator[tuple[int, Sample]] = work.file.samples(work.todo)
        self._turn = asyncio.Lock()
        self.abandoned = False

    async def run(self, stop: asyncio.Event) -> None:
        """Raises what the sink, the blob store or the samples file raises."""
        committing = asyncio.create_task(self._committer.run())
        slots = {asyncio.create_task(self._slot(stop)) for _ in range(self._work.concurrency)}
        stopping = asyncio.create_task(stop.wait())
        try:
            await self._until_over(slots, committing, stopping)
            self._committer.close()
            await committing
        except Exception:
            # What was finished before is committed all the same: it may have cost money.
            for slot in slots:
                slot.cancel()
            self._committer.close()
            await asyncio.gather(committing, return_exceptions=True)
            raise
        finally:
            for task in (committing, stopping, *slots):
                task.cancel()
            await asyncio.gather(committing, stopping, *slots, return_exceptions=True)

    async def _until_over(
        self, slots: set[asyncio.Task[None]], committing: asyncio.Task[None], stopping: asyncio.Task[bool]
    ) -> None:
        deadline: float | None = None
        running = set(slots)
        now = asyncio.get_running_loop().time
        while running:
            if stopping.done() and deadline is None:
                deadline = now() + self._work.max_seconds
            left = None if deadline is None else max(0.0, deadline - now())
            also = {committing} if stopping.done() else {committing, stopping}
            await asyncio.wait(running | also, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if committing.done():
                committing.result()
            for task in [task for task in running if task.done()]:
                running.discard(task)
                task.result()
            if deadline is not None and now() >= deadline and running:
                self.abandoned = True
                for task in running:
                    task.cancel()
                await asyncio.gather(*running, return_exceptions=True)
                return

    async def _slot(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            async with self._turn:
                taken = await asyncio.to_thread(next, self._samples, None)
            if taken is None or stop.is_set():
                return
            await self._sample(*taken, stop)

    async def _sample(self, position: int, sample: Sample, stop: asyncio.Event) -> None:
        work = self._work
        name = work.file.ids[position]
        before = work.known.get(name, Known(False, 0)).attempts
        for retry in range(work.retries + 1):
            attempt = before + 1 + retry
            # A copy: a runner that changes its sample or its parameters must not change the next attempt's.
            context = EvalContext(work.cursor.batch, name, position, attempt, json.loads(work.cursor.params))
            self._started()
            self._committer.begin()
            try:
                outcome = await call(work.runner, json.loads(json.dumps(sample)), context)
                row = await self._row(context, outcome)
            finally:
                self._committer.end()
            await self._committer.submit(row)
            if row.done or not outcome.retryable or retry == work.retries:
                return
            if await _stopped(stop, min(RETRY_WAIT_S * 2**retry, RETRY_WAIT_S_MAX)):
                return

    async def _row(self, context: EvalContext, outcome: Outcome) -> EvalResult:
        value, ref = outcome.value, None
        if value is not None and len(value) > min(self._work.inline_bytes_max, RESULT_INLINE_BYTES_MAX):
            # Durable before the record that names it, as everywhere.
            ref = await asyncio.to_thread(
                self._work.blobs.put, value, media_type="application/json", field="data"
            )
            value = None
        return EvalResult(
            batch=context.batch,
            sample=context.sample_id,
            position=context.position,
            status="failed" if outcome.value is None else "done",
            attempts=context.attempt,
            params=self._work.cursor.params,
            started_ms=outcome.started_ms,
            finished_ms=outcome.finished_ms,
            latency_ms=outcome.latency_ms,
            result=value,
            result_ref=ref,
            error_code=outcome.error_code,
            error=outcome.error,
            epoch=self._work.cursor.epoch,
        )


async def _stopped(stop: asyncio.Event, seconds: float) -> bool:
    """Wait so long, or until stopped."""
    try:
        await asyncio.wait_for(stop.wait(), seconds)
    except TimeoutError:
        return False
    return True
