"""May one more request be made? (W5)

What is decided on: the sums as read, and what this client itself has admitted since they were read. So a
client never admits past a limit by itself, and clients that decide at the same time do by at most as many
requests as the others have admitted and not yet been seen to.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import Final

from refold.client.usage.reads import Key, UsageNow
from refold.core.usage import HOP_MS, HOPS, window_ms
from refold.errors import TransientError

#: Of one subject and model that are remembered after their end: more than a client makes within any staleness
#: worth having.
TICKETS_MAX: Final = 10_000
#: Subjects and models that are remembered.
GATES_MAX: Final = 1_024
#: An admission that is over is forgotten when no read can be older than it.
STALENESS_S_MAX: Final = 60.0


class Overlimit(TransientError):
    """One more request would be over ``limit``. ``what``: requests, tokens or concurrency; ``used``: as
    decided on; ``retry_after_s``: when it may fit, if nothing else comes."""

    def __init__(self, what: str, used: int, limit: int, retry_after_s: float) -> None:
        super().__init__(
            f"{what}: {used} of {limit} are used; try again in {retry_after_s:.1f} s, or raise the limit"
        )
        self.what = what
        self.used = used
        self.limit = limit
        self.retry_after_s = retry_after_s


class Ticket:
    """One admission of this client. Times are monotonic; ``None``: not yet."""

    __slots__ = ("accepted_at", "released_at")

    def __init__(self) -> None:
        self.accepted_at: float | None = None
        self.released_at: float | None = None


class Gate:
    """This client's admissions of one subject and model."""

    def __init__(self) -> None:
        self._tickets: list[Ticket] = []

    def enter(
        self, now: UsageNow, *, window: str, limit: int | None, tokens: int | None, concurrency: int | None
    ) -> Ticket:
        """Reserve a place. Raises :class:`Overlimit`."""
        # Accepted before the read was begun: it is in what was read.
        unseen = [t for t in self._tickets if t.accepted_at is None or t.accepted_at >= now.asked_at]
        active = len(now.lease_ends())
        counts = now.window(window)
        if limit is not None:
            used = counts.requests + active + len(unseen)
            if used >= limit:
                raise Overlimit("requests", used, limit, _until_room(now, window, limit, len(unseen)))
        if tokens is not None and counts.input + counts.output >= tokens:
            used = counts.input + counts.output
            raise Overlimit("tokens", used, tokens, _until_fewer(now, window, tokens))
        if concurrency is not None:
            used = active + sum(ticket.released_at is None for ticket in unseen)
            if used >= concurrency:
                raise Overlimit("concurrency", used, concurrency, _until_free(now, used - concurrency))
        self._forget()
        ticket = Ticket()
        self._tickets.append(ticket)
        return ticket

    def refused(self, ticket: Ticket) -> None:
        """It was not admitted after all."""
        self._tickets.remove(ticket)

    def _forget(self) -> None:
        before = time.monotonic() - STALENESS_S_MAX
        kept = [t for t in self._tickets if t.released_at is None or (t.accepted_at or before) > before]
        self._tickets = kept[-TICKETS_MAX:]


class Gates:
    """Of one connection, the most recently used."""

    def __init__(self) -> None:
        self._gates: OrderedDict[Key, Gate] = OrderedDict()

    def of(self, key: Key) -> Gate:
        gate = self._gates.pop(key, None) or Gate()
        self._gates[key] = gate
        if len(self._gates) > GATES_MAX:
            self._gates.popitem(last=False)
        return gate


def _leaves(now: UsageNow, window: str) -> list[int]:
    """When each hop of the window leaves it, ascending."""
    length = HOP_MS[window]
    place = tuple(HOP_MS).index(window)
    indexes = {index for row in now.all_rows() for index in row.hops[place]}
    return sorted((index + HOPS + 1) * length for index in indexes)


def _until_room(now: UsageNow, window: str, limit: int, unseen: int) -> float:
    for at_ms in sorted({*_leaves(now, window), *now.lease_ends()}):
        if at_ms > now.now_ms:
            used = now.window(window, at_ms).requests + len(now.lease_ends(at_ms)) + unseen
            if used < limit:
                return (at_ms - now.now_ms) / 1000
    return window_ms(window) / 1000


def _until_fewer(now: UsageNow, window: str, tokens: int) -> float:
    for at_ms in _leaves(now, window):
        counts = now.window(window, at_ms)
        if at_ms > now.now_ms and counts.input + counts.output < tokens:
            return (at_ms - now.now_ms) / 1000
    return window_ms(window) / 1000


def _until_free(now: UsageNow, over: int) -> float:
    """Until enough leases have ended by themselves; those that are over sooner say so."""
    ends = now.lease_ends()
    if not ends:
        return 1.0
    return (ends[min(over, len(ends) - 1)] - now.now_ms) / 1000


class Admission:
    """A request under way. ``lease_id`` names it in the journal; its lease ends at ``ends_at`` (monotonic)
    unless it is renewed: longer requests then count no more."""

    __slots__ = ("ends_at", "lease_id", "now")

    def __init__(self, lease_id: str, now: UsageNow, ends_at: float) -> None:
        self.lease_id = lease_id
        #: What was decided on.
        self.now = now
        self.ends_at = ends_at
