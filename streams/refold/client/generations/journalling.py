"""The journal events of a generation: appended in the session's order, waited for, outlasting what passes.

A generation's task has nobody above it that could decide about a failed event, so it sends its own again (the
same bytes and stamp: absorbed if it had been written after all). Another writer's failed event of the same
session is that writer's to decide; until then events here wait, like everybody's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from refold.client.ordering import EarlierEventFailed
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
    failed = False
    pause = PAUSE_S
    while True:
        try:
            if receipt is None:
                if failed:
                    # Ours is the first that failed: what followed it goes out behind it.
                    receipt = next(iter(await session.retry()), None)
                    failed = False
                if receipt is None:
                    receipt = await session.publish(event_type, payload, **options)
            return await receipt.ruling(max(0.05, deadline - loop.time()))
        except EarlierEventFailed:
            if loop.time() >= deadline:
                raise
        except (TransientError, UnavailableError):
            if receipt is None:
                failed = _is_first(session, event_type)
            if loop.time() >= deadline:
                raise
        await asyncio.sleep(min(pause, max(0.0, deadline - loop.time())))
        pause = min(2 * pause, PAUSE_S_MAX)


def _is_first(session: Session, event_type: str) -> bool:
    """Whether the event that just failed is the one the session's lane stopped at."""
    lane = session.publisher.memory.lane
    return bool(lane.failed) and lane.failed[0].type == event_type
