"""The handle: record what was used, read the windows, ask for admission."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from refold.client.generations.journalling import ruled
from refold.client.ids import new_id
from refold.client.limits import RULING_TIMEOUT_S
from refold.client.receipts import Receipt, Refused
from refold.client.usage.admission import STALENESS_S_MAX, Admission, Gate
from refold.client.usage.names import check_names, check_window
from refold.client.usage.reads import Key, UsageNow
from refold.core.limits import USAGE_LEASE_MS_MAX
from refold.errors import TransientError, UnavailableError, UsageError

if TYPE_CHECKING:
    from refold.client.session import Session

log = logging.getLogger("refold.client")

#: A restore of a small partition fits.
READ_TIMEOUT_S: Final = 10.0
#: How long a request counts whose process died.
LEASE_S_DEFAULT: Final = 60.0
#: A release that takes longer is left to the end of the lease.
RELEASE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class UsageWindow:
    """Sums of the last window as of ``now_ms`` (the owners' clock): the true counts and at most one hop (1/12
    of the window) more. ``active``: requests under way. ``missing``: partitions that did not answer in time;
    ``stale``: there are some, and what was last known of them is counted in."""

    window: str
    requests: int
    input: int
    output: int
    cached: int
    reasoning: int
    active: int
    now_ms: int
    missing: tuple[int, ...] = ()

    @property
    def stale(self) -> bool:
        return bool(self.missing)


class Usage:
    """Made by :meth:`refold.client.Refold.usage` and :meth:`refold.client.Session.usage`."""

    def __init__(self, session: Session, subject: str, model: str) -> None:
        check_names(subject, model, any_model=True)
        self.session = session
        self.subject = subject
        self.model = model
        self._connection = session.publisher.connection

    @property
    def _key(self) -> Key:
        return self.session.tenant, self.subject, self.model

    def __repr__(self) -> str:
        return f"Usage({self.model} in {self.session.tenant}/{self.session.id})"

    async def record(
        self,
        *,
        requests: int = 1,
        input: int = 0,  # noqa: A002 - the names of refold.Usage
        output: int = 0,
        cached: int = 0,
        reasoning: int = 0,
        at_ms: int | None = None,
        **options: Any,
    ) -> Receipt:
        """Record what was used. ``at_ms``: when, default now; ``options`` as of ``session.publish``: with an
        ``event_id`` of yours a retry from any process counts once."""
        check_names(self.subject, self.model)
        payload = {
            "model": self.model,
            "requests": requests,
            "input": input,
            "output": output,
            "cached": cached,
            "reasoning": reasoning,
            "at_ms": at_ms,
        }
        return await self.session.publish("UsageRecorded", payload, **{"subject": self.subject, **options})

    async def now(self, *, timeout: float = READ_TIMEOUT_S, staleness: float = 0.0) -> UsageNow:
        """The rows of all partitions. Waits at most ``timeout`` seconds for partitions that are being
        restored; see :class:`UsageNow` for those that did not answer."""
        if not 0 <= staleness <= STALENESS_S_MAX:
            raise UsageError(f"staleness={staleness!r}: 0 to {STALENESS_S_MAX:g} seconds are possible")
        return await self._connection.usage.read(*self._key, timeout_s=timeout, staleness_s=staleness)

    async def window(
        self, window: str = "hour", *, timeout: float = READ_TIMEOUT_S, staleness: float = 0.0
    ) -> UsageWindow:
        """Sums of the last ``minute``, ``hour`` or ``day``, over all partitions; of all models of the subject
        for the model ``*``. ``staleness``: an answer that many seconds old will do."""
        check_window(window)
        now = await self.now(timeout=timeout, staleness=staleness)
        counts = now.window(window)
        return UsageWindow(window, *counts, len(now.lease_ends()), now.now_ms, now.missing)

    @asynccontextmanager
    async def admit(
        self,
        *,
        limit: int | None = None,
        window: str = "hour",
        tokens: int | None = None,
        concurrency: int | None = None,
        lease: float = LEASE_S_DEFAULT,
        staleness: float = 0.0,
        timeout: float = READ_TIMEOUT_S,
    ) -> AsyncGenerator[Admission, None]:
        """``async with usage.admit(limit=100, window="hour", concurrency=4): …``: one request is under way
        until the block is left, or for ``lease`` seconds where its process dies.

        ``limit``: requests in the window, those under way included; ``tokens``: input and output in the
        window, as recorded so far; ``concurrency``: requests under way. Record the request itself inside.

        Over-admission (W5) is at most one request for each admission of *other* clients that was decided at
        the same time; with a ``staleness`` above 0, for each within that time, and what they recorded in it.

        Raises :class:`Overlimit` with ``retry_after_s``, UnavailableError where a partition does not answer
        within ``timeout``, Refused (``session_closed``), TransientError when no worker ruled.
        """
        check_names(self.subject, self.model)
        check_window(window)
        if not 1 <= lease * 1000 <= USAGE_LEASE_MS_MAX:
            raise UsageError(f"lease={lease!r}: 0.001 to {USAGE_LEASE_MS_MAX / 1000:g} seconds are possible")
        now = await self.now(timeout=timeout, staleness=staleness)
        if now.missing:
            raise UnavailableError(
                f"partitions {list(now.missing)} did not say within {timeout:g} s what they counted: is a"
                " worker restoring them? Not admitted",
                retry_after_s=1.0,
            )
        gate: Gate = self._connection.gates.of(self._key)
        ticket = gate.enter(now, window=window, limit=limit, tokens=tokens, concurrency=concurrency)
        lease_id = new_id()
        payload = {"lease_id": lease_id, "model": self.model, "lease_ms": int(lease * 1000)}
        admission = Admission(lease_id, now, time.monotonic() + lease)
        try:
            await self._ruled("UsageAdmitted", payload, RULING_TIMEOUT_S)
        except BaseException:
            # If it was accepted after all, its lease ends by itself.
            gate.refused(ticket)
            raise
        ticket.accepted_at = time.monotonic()
        try:
            yield admission
        finally:
            ticket.released_at = time.monotonic()
            await self._release(lease_id)

    async def _release(self, lease_id: str) -> None:
        try:
            await self._ruled("UsageReleased", {"lease_id": lease_id, "model": self.model}, RELEASE_S)
        except (TransientError, UnavailableError, Refused) as error:
            log.warning("usage_release_left lease=%s: %s", lease_id, error)

    async def _ruled(self, event_type: str, payload: dict[str, Any], timeout_s: float) -> None:
        ruling = await ruled(self.session, event_type, payload, timeout_s=timeout_s, subject=self.subject)
        if not ruling.in_effect:
            raise Refused(payload["lease_id"], ruling)
