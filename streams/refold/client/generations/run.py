"""One attempt of a generation in this process, from its lease to its end.

Order: lease → answer → last batch durable → GenerationFinished, which carries the message. Whatever goes
wrong in between and is not the answer's own error leaves the generation open: its lease runs out and another
process goes on. Only the answer's own error ends it as failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from refold.client.generations.composing import usage_record
from refold.client.generations.ears import Ear
from refold.client.generations.generation import Outcome
from refold.client.generations.journalling import LOST, ruled
from refold.client.generations.lease import Lease, LeaseLost
from refold.client.generations.limits import (
    FINISH_PAUSE_S,
    FINISH_TRIES_MAX,
    RENEWALS_PER_LEASE,
    RULING_WAIT_S,
    STOP_GRACE_S,
)
from refold.client.generations.metering import usage_event_id
from refold.client.generations.prefix import NO_PREFIX, Prefix
from refold.client.generations.recording import ProviderFailed, Recording
from refold.client.messages import default_actor
from refold.client.payloads import encode_payload, offload
from refold.client.receipts import Ruling
from refold.core.limits import ERROR_CODE_BYTES_MAX
from refold.core.progress import NO_USAGE, Marker, TokenUsage
from refold.errors import RefoldError, StorageError, TransientError, UnavailableError

if TYPE_CHECKING:
    from refold.client.generations.generation import Generation
    from refold.client.generations.service import Generations

log = logging.getLogger("refold.client")

ERROR_CHARS_MAX = 300


@dataclass(frozen=True, slots=True)
class Grant:
    """An attempt the fold has granted this process. ``asked_at``: monotonic, before it was asked for.
    ``ear``: made before that too, so that no stop is missed."""

    attempt: int
    mode: str
    asked_at: float
    ear: Ear
    prefix: Prefix = NO_PREFIX
    usage_before: TokenUsage = NO_USAGE
    stopping: bool = False
    overlap: bool = True


class RestartNeeded(Exception):
    """The looked-up response is another one: only a restart leads on."""


class Run:
    """``answer`` gets the handle and records through it."""

    def __init__(
        self,
        service: Generations,
        generation: Generation,
        grant: Grant,
        answer: Callable[[Generation], Awaitable[Any]],
    ) -> None:
        self._service = service
        self._generation = generation
        self._session = generation.session
        self._terms = generation.terms
        self._grant = grant
        self._answer = answer
        self._partition = generation.session.partition
        self._lease = Lease(generation.id, grant.attempt, self._terms.lease_s, grant.asked_at)
        self._recording = Recording(
            generation.id,
            grant.attempt,
            self._start,
            self._lease,
            strict=self._terms.strict,
            prefix=grant.prefix,
            strokes=service.courier,
        )
        if grant.stopping:
            self._recording.stop()
        self._ending = False
        generation.begin(self._recording, grant.attempt, grant.mode, grant.prefix, overlap=grant.overlap)

    async def perform(self) -> None:
        """Until the generation has ended, or is another attempt's, or must be left to one."""
        service, terms = self._service, self._terms
        helpers = [
            asyncio.create_task(self._lease.keep(self._renew), name="refold-lease"),
            asyncio.create_task(self._beat(), name="refold-heartbeat"),
        ]
        try:
            self._grant.ear.attach(self._marked)
            await self._run()
        except (LeaseLost, TransientError, UnavailableError) as error:
            log.warning(
                "generation_left id=%s attempt=%d: %s", terms.generation_id, self._grant.attempt, error
            )
        finally:
            service.ears.unlisten(self._grant.ear)
            self._generation.rest()
            for helper in helpers:
                helper.cancel()
            await asyncio.gather(*helpers, return_exceptions=True)

    async def _run(self) -> None:
        try:
            # A complete prefix: only its end was not written.
            if not self._grant.prefix.complete and not self._recording.stopped.is_set():
                await self._answered()
            await self._recording.settle()
            await self._recording.complete()
        except (LeaseLost, RestartNeeded, asyncio.CancelledError):
            raise
        except Exception as error:
            if not self._recording.stopped.is_set():
                await self._recording.settle()
                self._lease.check()
                await self._fail(error)
                return
        await self._finish()

    async def _answered(self) -> None:
        """Run the answer; after a stop or a lost lease it has ``STOP_GRACE_S`` to come to its end."""
        task = asyncio.ensure_future(self._answer(self._generation))
        stop = asyncio.create_task(self._recording.stopped.wait())
        lost = asyncio.create_task(self._lost())
        try:
            await asyncio.wait({task, stop, lost}, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                await asyncio.wait({task}, timeout=STOP_GRACE_S)
            if task.done():
                self._lease.check()
                await task
                return
        finally:
            for helper in (task, stop, lost):
                helper.cancel()
            await asyncio.gather(task, stop, lost, return_exceptions=True)
        self._lease.check()

    async def _lost(self) -> None:
        gone = asyncio.Event()
        self._lease.when_lost(gone.set)
        if self._lease.lost is None:
            await gone.wait()

    async def _finish(self) -> None:
        recording, terms = self._recording, self._terms
        self._ending = True
        try:
            message = await self._message()
        except (TransientError, UnavailableError):
            raise
        except RefoldError as error:
            await self._fail(error)
            return
        usage = self._grant.usage_before.plus(recording.usage)
        payload = {
            "generation_id": terms.generation_id,
            "attempt": self._grant.attempt,
            "last_seq": recording.produced,
            "length": recording.length,
            "sha256": recording.sha256,
            "chain": recording.chain,
            "finish_reason": recording.finish_reason,
            "stopped": recording.stopped.is_set(),
            "message": message,
            "usage": usage_record(usage),
        }
        await self._meter(usage)
        for attempt in range(FINISH_TRIES_MAX):
            ruling = await self._ruled("GenerationFinished", payload, actor=default_actor("assistant"))
            if ruling.in_effect:
                state = "stopped" if payload["stopped"] else "finished"
                self._ended(state, terms.message_id, ruling, None)
            if ruling.in_effect or ruling.code in LOST:
                return
            if ruling.code != "batches_missing":
                await self._fail(RefoldError(f"{ruling.code}: {ruling.reason}"), str(ruling.code))
                return
            await asyncio.sleep(FINISH_PAUSE_S * (attempt + 1))
        raise TransientError("the fold does not see the last batches")

    async def _meter(self, usage: TokenUsage) -> None:
        """Record the usage, where it is wanted; a repeat or a refusal is no reason not to end."""
        meter, terms = self._terms.meter, self._terms
        if meter is not None:
            event_id = usage_event_id(terms.generation_id)
            await self._ruled("UsageRecorded", meter.payload(usage), event_id=event_id, subject=meter.subject)

    async def _message(self) -> bytes:
        """The framed MessageAppended; large fields are in the blob store by then. Raises TransientError when
        the store does not take them: that is no fault of the answer, which is all there."""
        connection = self._service.connection
        terms = self._terms
        body = self._recording.content(terms.message_id)
        body.update(message_id=terms.message_id, parent_id=terms.reply_to, role="assistant")
        if body.get("usage") is None and any(self._recording.usage):
            body["usage"] = usage_record(self._recording.usage)
        for attempt in range(FINISH_TRIES_MAX):
            try:
                stored = dict(await offload(body, connection.blobs, connection.inline_bytes_max))
                return encode_payload("MessageAppended", stored)
            except (StorageError, UnavailableError) as error:
                log.warning("generation_message_not_stored id=%s: %s", terms.generation_id, error)
                await asyncio.sleep(FINISH_PAUSE_S * (attempt + 1))
        raise TransientError("the blob store does not take the message")

    async def _fail(self, error: Exception, code: str | None = None) -> None:
        self._ending = True
        if code is None:
            code = "provider_error" if isinstance(error, ProviderFailed) else "answer_error"
        await self._meter(self._grant.usage_before.plus(self._recording.usage))
        ruling = await self._ruled(
            "GenerationFailed",
            {
                "generation_id": self._terms.generation_id,
                "attempt": self._grant.attempt,
                "code": code[:ERROR_CODE_BYTES_MAX],
                "error": f"{type(error).__name__}: {error}"[:ERROR_CHARS_MAX],
                "retryable": isinstance(error, TransientError | UnavailableError | ProviderFailed),
            },
        )
        if ruling.in_effect:
            self._ended("failed", None, ruling, code)

    def _ended(self, state: str, message_id: str | None, ruling: Ruling, error: str | None) -> None:
        usage = self._grant.usage_before.plus(self._recording.usage)
        self._generation.outcome = Outcome(
            state, message_id, ruling.seq or 0, self._recording.text, usage._asdict(), error
        )

    async def _ruled(self, event_type: str, payload: dict[str, Any], **options: Any) -> Ruling:
        return await ruled(self._session, event_type, payload, timeout_s=RULING_WAIT_S, **options)

    async def _renew(self, timeout_s: float) -> Ruling:
        payload = {
            "generation_id": self._terms.generation_id,
            "attempt": self._grant.attempt,
            "holder": self._service.holder,
            "lease_ms": self._terms.lease_ms,
            "provider_response_id": self._recording.provider_response_id,
        }
        return await ruled(self._session, "GenerationLeaseRenewed", payload, timeout_s=timeout_s)

    def _start(self, value: bytes, tell: Callable[[Any], None]) -> None:
        self._service.courier.start(self._session.key, self._partition, value, tell)

    async def _beat(self) -> None:
        """ "Still here", where the provider says nothing: supervisors go by it."""
        pause = self._terms.lease_s / RENEWALS_PER_LEASE
        while self._lease.lost is None:
            await asyncio.sleep(pause / 2)
            if (beat := self._recording.heartbeat(pause)) is not None:
                with contextlib.suppress(TransientError, UnavailableError):
                    self._start(beat, _ignore)

    def _marked(self, marker: Marker) -> None:
        """What the journal decided, as the hub sees it."""
        if marker.kind == "begin" and marker.attempt > self._grant.attempt:
            self._lease.lose(f"attempt {marker.attempt} has begun")
        elif marker.kind == "stop":
            self._recording.stop()
        elif marker.kind == "end" and not self._ending:
            self._lease.lose(f"it has ended as {marker.state}")


def _ignore(outcome: object) -> None:
    """A heartbeat that was lost is followed by another one."""
