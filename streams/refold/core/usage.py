"""Usage windows: how much of a model a subject used lately, and how many requests of its are under way.

Labels (docs/concepts/usage.md), the same for the worker and for whoever folds the journal again:

W1  Windows are minute, hour and day, of HOPS hops each; the HOPS + 1 newest are kept. A sum over the last
    window is the sum of the hops that touch it: the true count of the window and at most one hop more.
W2  A record counts at ``at_ms``, judged against the journal record's own time: later than it by more than
    FUTURE_MS is *future* (and counted so); whatever is later than it counts at that time, so that no clock
    that runs ahead pushes others' hops out. Earlier than the oldest hop of a window as of that time is *late
    for that window*: it is in the totals and in ``late``, not in the window. So a verdict is a function of
    the journal record alone.
W3  A row is a function of the journal of its partition, in the order of the journal.
W4  A row that was not heard of for more than ROW_MS_MAX begins anew. Leases are shorter than that, so it has
    none.

Windows are aligned to the epoch, not to the first event. Sums stop at COUNT_MAX instead of overflowing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple, TypeAlias

from refold.core.limits import (
    USAGE_LEASE_MS_MAX,
    USAGE_LEASES_MAX,
    USAGE_NAME_BYTES_MAX,
    USAGE_NAME_CHARS_SHORT,
    USAGE_VALUE_MAX,
)
from refold.core.rulings import Rejected

SECOND_MS: Final = 1_000
#: Hops in a window: the sum is at most 1/12 of the window too much.
HOPS: Final = 12
#: Length of one hop, by window: 5 s, 5 min, 2 h.
HOP_MS: Final = {"minute": 5 * SECOND_MS, "hour": 300 * SECOND_MS, "day": 7_200 * SECOND_MS}
WINDOWS: Final = tuple(HOP_MS)

#: A clock that is ahead by less than this is a clock; by more, a mistake that is counted.
FUTURE_MS: Final = 300 * SECOND_MS
#: Two days: twice the longest window, so nothing of it is in any.
ROW_MS_MAX: Final = 2 * 24 * 3_600 * SECOND_MS
#: Sums stay here: two of them still fit 64 bits.
COUNT_MAX: Final = 2**62

#: Sums over all models of a subject.
ANY_MODEL: Final = "*"

_HOP_LENGTHS: Final = tuple(HOP_MS.values())


class UsageEvent:
    """Of one subject and model; the subject is the payload's, else the envelope's. Changes nothing in the
    session."""

    __slots__ = ("model", "subject")

    model: str
    subject: str


class UsageRecorded(UsageEvent):
    __slots__ = ("at_ms", "cached", "input", "output", "reasoning", "requests")

    def __init__(
        self,
        model: str,
        subject: str,
        at_ms: int,
        requests: int = 1,
        input: int = 0,  # noqa: A002 - the names of refold.Usage
        output: int = 0,
        cached: int = 0,
        reasoning: int = 0,
    ) -> None:
        self.model = model
        self.subject = subject
        self.at_ms = at_ms
        self.requests = requests
        self.input = input
        self.output = output
        self.cached = cached
        self.reasoning = reasoning


class UsageAdmitted(UsageEvent):
    """A request is under way, for ``lease_ms`` at most; the same lease again is a renewal."""

    __slots__ = ("lease_id", "lease_ms")

    def __init__(self, lease_id: str, model: str, subject: str, lease_ms: int) -> None:
        self.lease_id = lease_id
        self.model = model
        self.subject = subject
        self.lease_ms = lease_ms


class UsageReleased(UsageEvent):
    __slots__ = ("lease_id",)

    def __init__(self, lease_id: str, model: str, subject: str) -> None:
        self.lease_id = lease_id
        self.model = model
        self.subject = subject


class Counts(NamedTuple):
    requests: int = 0
    input: int = 0
    output: int = 0
    cached: int = 0
    reasoning: int = 0


#: What a hop and the totals are while they grow: the fields of :class:`Counts`, in that order.
Tally: TypeAlias = list[int]


class Lease(NamedTuple):
    """``until_ms``: session time at which it ends by itself."""

    lease_id: str
    session: str
    until_ms: int


class UsageRow:
    """Of one (tenant, subject, model) and partition. ``hops``: per window, index since the epoch -> tally.

    ``late``: records, per window; ``future``: records. ``dropped``: leases that had to go for want of room.
    ``time_ms``: the newest journal time it was told of; ``records``: UsageRecorded events. Mutable, owned by
    whoever folds.
    """

    __slots__ = (
        "dropped",
        "future",
        "hops",
        "late",
        "leases",
        "model",
        "records",
        "subject",
        "tenant",
        "time_ms",
        "totals",
    )

    def __init__(self, tenant: str, subject: str, model: str) -> None:
        self.tenant = tenant
        self.subject = subject
        self.model = model
        self.hops: tuple[dict[int, Tally], ...] = ({}, {}, {})
        self.totals: Tally = [0, 0, 0, 0, 0]
        self.records = 0
        self.future = 0
        self.late: Tally = [0, 0, 0]
        self.dropped = 0
        #: (session, lease id) -> until, the one that was admitted first in front.
        self.leases: dict[tuple[str, str], int] = {}
        self.time_ms = 0


# --- decide ----------------------------------------------------------------------------------------------


def _bad_name(value: str, name: str) -> Rejected | None:
    if not value:
        return Rejected("bad_id", f"{name} is empty: name it in the payload, the subject in the envelope")
    if len(value) > USAGE_NAME_CHARS_SHORT and len(value.encode()) > USAGE_NAME_BYTES_MAX:
        return Rejected("bad_id", f"{name} is longer than {USAGE_NAME_BYTES_MAX} bytes")
    return None


def rule_usage(event: UsageEvent) -> Rejected | None:
    """Whether the event can be counted; the session is not asked."""
    wrong = _bad_name(event.subject, "subject") or _bad_name(event.model, "model")
    if wrong is not None:
        return wrong
    if event.model == ANY_MODEL:
        return Rejected("bad_value", "the model * stands for all models: name one")
    if type(event) is UsageRecorded:
        values = (event.requests, event.input, event.output, event.cached, event.reasoning)
        if min(values) < 0 or max(values) > USAGE_VALUE_MAX:
            return Rejected("bad_value", f"counts must be 0 to {USAGE_VALUE_MAX}")
        return None
    if isinstance(event, UsageAdmitted | UsageReleased):
        wrong = _bad_name(event.lease_id, "the lease's id")
        if wrong is not None:
            return wrong
    if isinstance(event, UsageAdmitted) and not 1 <= event.lease_ms <= USAGE_LEASE_MS_MAX:
        return Rejected("bad_value", f"lease_ms must be 1 to {USAGE_LEASE_MS_MAX}")
    return None


# --- fold ------------------------------------------------------------------------------------------------


def is_over(row: UsageRow, now_ms: int) -> bool:
    """W4: nothing of it is in any window, and no lease is left."""
    return now_ms - row.time_ms > ROW_MS_MAX


def fold_usage(row: UsageRow | None, tenant: str, session: str, event: UsageEvent, time_ms: int) -> UsageRow:
    """The row after an accepted event with this journal time: ``row``, changed, or a new one."""
    if row is None or is_over(row, time_ms):
        row = UsageRow(tenant, event.subject, event.model)
    if time_ms > row.time_ms:
        _advance(row, time_ms)
    if type(event) is UsageRecorded:
        _count(row, event, time_ms)
    elif isinstance(event, UsageAdmitted):
        _admit(row, session, event, time_ms)
    elif isinstance(event, UsageReleased):
        row.leases.pop((session, event.lease_id), None)
    return row


def _advance(row: UsageRow, time_ms: int) -> None:
    """Hops that no window can touch any more go."""
    before, row.time_ms = row.time_ms, time_ms
    for hops, length in zip(row.hops, _HOP_LENGTHS, strict=True):
        newest = time_ms // length
        if newest != before // length:
            for index in [index for index in hops if index < newest - HOPS]:
                del hops[index]


def _count(row: UsageRow, event: UsageRecorded, time_ms: int) -> None:
    row.records += 1
    at_ms = event.at_ms
    if at_ms > time_ms:
        if at_ms - time_ms > FUTURE_MS:
            row.future += 1
        at_ms = time_ms
    values = (event.requests, event.input, event.output, event.cached, event.reasoning)
    _add(row.totals, *values)
    newest_ms = row.time_ms
    for window, length in enumerate(_HOP_LENGTHS):
        index = at_ms // length
        if index < time_ms // length - HOPS:
            row.late[window] += 1
        elif index >= newest_ms // length - HOPS:
            # Else it is in time by its own record and gone by the row's: in no window that can be asked for.
            hops = row.hops[window]
            tally = hops.get(index)
            if tally is None:
                hops[index] = list(values)
            else:
                _add(tally, *values)


def _add(tally: Tally, requests: int, given: int, output: int, cached: int, reasoning: int) -> None:
    # Four times per event: written out, this is a third of a loop's time.
    tally[0] += requests
    tally[1] += given
    tally[2] += output
    if cached:
        tally[3] += cached
    if reasoning:
        tally[4] += reasoning
    if max(tally) > COUNT_MAX:
        tally[:] = [min(value, COUNT_MAX) for value in tally]


def _admit(row: UsageRow, session: str, event: UsageAdmitted, time_ms: int) -> None:
    leases, now = row.leases, row.time_ms
    for key in [key for key, until in leases.items() if until <= now]:
        del leases[key]
    key = (session, event.lease_id)
    until = time_ms + event.lease_ms
    if until <= now:
        leases.pop(key, None)
        return
    if key not in leases and len(leases) >= USAGE_LEASES_MAX:
        # Smallest end first; of equal ones the first that came.
        del leases[min(leases, key=leases.__getitem__)]
        row.dropped += 1
    leases[key] = until


# --- read ------------------------------------------------------------------------------------------------


def window_ms(window: str) -> int:
    return HOPS * HOP_MS[window]


def window_sum(row: UsageRow, window: str, now_ms: int) -> Counts:
    """W1: the hops that touch the window that ends at ``now_ms``. Raises KeyError for an unknown window."""
    oldest = now_ms // HOP_MS[window] - HOPS
    hops = row.hops[WINDOWS.index(window)]
    return total(Counts(*tally) for index, tally in hops.items() if index >= oldest)


def total(counts: Iterable[Counts]) -> Counts:
    """Their sum, field by field."""
    tally = [0, 0, 0, 0, 0]
    for one in counts:
        _add(tally, *one)
    return Counts(*tally)


def leases_at(row: UsageRow, now_ms: int) -> Iterator[Lease]:
    """Those that have not ended, the one that was admitted first in front."""
    for (session, lease_id), until in row.leases.items():
        if until > now_ms:
            yield Lease(lease_id, session, until)
