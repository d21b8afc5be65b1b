"""One operation and its steps in the ledger: the state machine every way of running a tool goes through.

::

    no row ──intend──► intended ──start──► started (ours) ───► body ───► outcome
                          │ ▲                  ▲    │
              approval    │ │ not_done (L10)   │    └─ held by another: wait, or leave it
                          ▼ └──────────────────┤       lease over: claim (L9), then by effect:
                       awaiting                │         none, idempotent: ours again, the same key
                                               └──────── external: ask the lookup: done │ not_done │ unknown

Only what the fold accepts counts. A step that is refused because somebody else was faster is no error: the
row is read again. ``started`` is granted to one holder, and every holder's name is new, so a grant is ours
or nobody's.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from refold.client.connection import now_ms
from refold.client.ids import new_id
from refold.client.ordering import EarlierEventFailed, NotAcknowledged
from refold.client.receipts import Receipt, Refused, Ruling
from refold.client.tools.clocks import lease_clock
from refold.client.tools.declare import Approval, LookupFunction
from refold.client.tools.lease import Lease
from refold.client.tools.outcomes import Effect
from refold.errors import TransientError, UsageError

if TYPE_CHECKING:
    from refold.client.session import Session

#: How long a step is sent again when Kafka does not acknowledge it; each try has the client's own delivery
#: time-out in it. Sending again is absorbed by the call's state (the same holder, attempt and outcome).
SEND_PATIENCE_S: Final = 30.0
SEND_PAUSE_S: Final = 0.2

#: Of a holder's name: enough of the producer id to find the process, and a nonce of its own per run.
HOLDER_ID_CHARS: Final = 64

#: Codes that say "the call is not where you think": read the row again.
MOVED_ON: Final = frozenset(
    {"illegal_transition", "already_final", "lease_held", "stale_holder", "unknown_call"}
)


@dataclass(slots=True)
class Operation:
    """What is to be run. ``arguments``: the raw text."""

    session: Session
    operation_id: str
    tool: str
    arguments: str
    effect: Effect
    lookup: LookupFunction | None = None
    approval: Approval = False
    values: Mapping[str, Any] = field(default_factory=dict)
    call_id: str | None = None
    message_id: str | None = None
    index: int = 0
    run: str | None = None
    step: str | None = None
    timeout_s: float | None = None
    attempts_max: int = 1
    lease_s: float = 0.0
    #: Wait while another runner holds the call; else leave it to that one.
    patient: bool = True
    #: Return when the outcome is accepted (reads see it), or when it is durable.
    wait_accepted: bool = True
    holder: str = ""
    #: Broker time minus ours, in ms, as of our last append.
    skew_ms: int = 0

    def __post_init__(self) -> None:
        if not self.holder:
            producer = self.session._connection.options.producer_id
            self.holder = f"{producer[-HOLDER_ID_CHARS:]}/{new_id()[:16]}"

    @property
    def lease_ms(self) -> int:
        return int(self.lease_s * 1000)

    def options(self, attempt: int | None = None) -> dict[str, Any]:
        """Of every event of this operation."""
        return {"run": self.run, "step": self.step, "attempt": attempt}

    async def send(self, append: Callable[[], Awaitable[Receipt]]) -> Receipt:
        """Append until it is durable, or raise TransientError after ``SEND_PATIENCE_S``.

        An event whose acknowledgement did not come blocks its session's queue: it is sent again first, byte
        for byte, and so are events of others that failed with it. Both are absorbed where they were written.
        """
        deadline = lease_clock() + SEND_PATIENCE_S
        while True:
            try:
                receipt = await append()
            except TransientError as error:
                own = error.event_id if isinstance(error, NotAcknowledged) else None
                if isinstance(error, EarlierEventFailed):
                    own = error.own
                if own is not None:
                    # Should this be given up or cancelled, whoever writes next sends it again.
                    self.session.publisher.leave(own)
                if lease_clock() > deadline:
                    raise
                await asyncio.sleep(SEND_PAUSE_S)
                with contextlib.suppress(TransientError, EarlierEventFailed):
                    await self.session.retry()
            else:
                self.skew_ms = receipt.append_time_ms - now_ms()
                return receipt

    async def rule(self, receipt: Receipt) -> Ruling:
        """The ruling; raises :class:`Refused` for a refusal that reading the row again does not mend."""
        ruling = await receipt.ruling()
        if not ruling.in_effect and ruling.code not in MOVED_ON:
            raise Refused(receipt.event_id, ruling)
        return ruling

    # Steps

    async def intend(self, *, approval_required: bool) -> Receipt:
        return await self.send(
            lambda: self.session.tool_intended(
                self.operation_id,
                self.tool,
                self.arguments,
                call_id=self.call_id,
                asked_by=self.message_id,
                effect=self.effect,
                approval_required=approval_required,
                lookup_supported=self.lookup is not None,
                timeout_ms=None if self.timeout_s is None else int(self.timeout_s * 1000),
                index=self.index,
                **self.options(),
            )
        )

    async def start(self, attempt: int) -> tuple[Receipt, float]:
        """The receipt of *started*, and the lease clock before it was sent: the lease counts from there."""
        sent_at = lease_clock()
        receipt = await self.send(
            lambda: self.session.tool_started(
                self.operation_id,
                holder=self.holder,
                call_attempt=attempt,
                lease_ms=self.lease_ms,
                wait="durable",
                **self.options(attempt),
            )
        )
        return receipt, sent_at

    async def claim(self, attempt: int) -> tuple[Receipt, float]:
        """As :meth:`start`, for *claimed*: a take-over, or our own renewal."""
        sent_at = lease_clock()
        receipt = await self.send(
            lambda: self.session.tool_reconciled(
                self.operation_id,
                "claimed",
                holder=self.holder,
                call_attempt=attempt,
                lease_ms=self.lease_ms,
                **self.options(attempt),
            )
        )
        return receipt, sent_at

    async def not_done(self, attempt: int, detail: str) -> bool:
        """Give the attempt up as known not to have taken effect. False: it was not ours to say any more."""
        receipt = await self.send(
            lambda: self.session.tool_reconciled(
                self.operation_id,
                "not_done",
                holder=self.holder,
                call_attempt=attempt,
                detail=detail,
                **self.options(attempt),
            )
        )
        return (await self.rule(receipt)).in_effect

    def lease(self, attempt: int, sent_at: float) -> Lease:
        async def renew() -> bool:
            receipt, _ = await self.claim(attempt)
            return (await receipt.ruling()).in_effect

        return Lease(self.operation_id, sent_at, self.lease_s, renew)


@dataclass(frozen=True, slots=True)
class Grant:
    """The right to run one attempt under ``key``; its lease is being renewed until somebody stops it.

    ``fresh``: we have just started this attempt, so nobody has run it before. ``ours_alone``: nor can anybody
    run it after, so as long as its body has not begun it is known to be not done. Only external calls are:
    one that may simply run again runs as the same attempt when it is claimed. ``effect``: what it is judged
    by; of an attempt that another runner began, whichever of its effect and the tool's allows less.
    """

    operation: Operation
    attempt: int
    key: str
    lease: Lease
    effect: Effect
    fresh: bool
    ours_alone: bool = False


def check_lease(lease_s: float, low: float, high: float) -> float:
    if not low <= lease_s <= high:
        raise UsageError(f"lease={lease_s!r}: it is in seconds, {low:g} to {high:g}")
    return float(lease_s)
