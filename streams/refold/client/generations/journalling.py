"""The journal events of a generation: appended in the session's order, waited for, outlasting what passes.

A generation's task has nobody above it that could decide about a failed event, so it sends its own again (the
same bytes and stamp: absorbed if it had been written after all). Another writer's failed event of the same
session is that writer's to decide; until then events here wait, like everybody's. Where that writer has gone
(cancelled, or out of time) it is sent again by the next one: else nothing of the session could be sent by
this process any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from refold.client.ordering import EarlierEventFailed, NotAcknowledged
from refold.client.receipts import Receipt, Ruling
from refold.errors import TransientError, UnavailableError

if TYPE_CHECKING:
    from refold.client.session import Session

PAUSE_S: Final = 0.1
PAUSE_S_MAX: Final = 1.0

#: The fold has spoken: this attempt is not (or no longer) the one that may write.
LOST: Final = frozenset({"stale_holder", "unknown_generation", "already_final"})


async def ruled(
    session: Session,
    event_type: str,
    payload: Mapping[str, Any],
    *,
    timeout_s: float,
    **options: Any,
) -> Ruling:
    """Append and wait for the ruling, at most ``timeout_s``; sends again what failed in passing.

    Raises TransientError or UnavailableError when time ran out (the event may be written all the same), and
    what :meth:`SessionWrites.publish` raises for an event that cannot be sent at all.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    receipt: Receipt | None = None
    #: Of our event, while it waits to be sent again.
    failed: str | None = None
    blocked = False
    pause = PAUSE_S
    try:
        while True:
            try:
                if blocked:
                    await session.publisher.retry_left()
                    blocked = False
                if receipt is None and failed is not None:
                    # The receipt must be its own: another event's ruling would be taken for ours.
                    receipt = await session.publisher.retry_own(failed)
                    failed = None
                if receipt is None:
                    receipt = await session.publish(event_type, payload, **options)
                return await receipt.ruling(max(0.05, deadline - loop.time()))
            except (NotAcknowledged, EarlierEventFailed) as error:
                # Behind another's that failed it was queued all the same: what is retried there brings it to
                # the front, where it is ours to decide.
                blocked = isinstance(error, EarlierEventFailed)
                failed = (error.event_id if isinstance(error, NotAcknowledged) else error.own) or failed
                if loop.time() >= deadline:
                    raise
            except (TransientError, UnavailableError):
                if loop.time() >= deadline:
                    raise
            await asyncio.sleep(min(pause, max(0.0, deadline - loop.time())))
            pause = min(2 * pause, PAUSE_S_MAX)
    except BaseException:
        if failed is not None:
            session.publisher.leave(failed)
        raise
