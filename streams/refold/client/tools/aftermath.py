"""Work that must go on although whoever started it was cancelled: saying what came of a call."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, TypeVar, cast

T = TypeVar("T")

#: How long a cancelled caller waits for the outcome to be recorded; the recording itself goes on as long as
#: the event loop does.
SETTLE_S: Final = 10.0

#: asyncio keeps only weak references to tasks.
_RUNNING: Final[set[asyncio.Task[Any]]] = set()


def in_background(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    task = asyncio.get_running_loop().create_task(work, name="refold-aftermath")
    _RUNNING.add(task)
    task.add_done_callback(_ended)
    return task


def _ended(task: asyncio.Task[Any]) -> None:
    _RUNNING.discard(task)
    if not task.cancelled():
        # Looked at, or asyncio prints "never retrieved": who reconciles the call finds what is missing.
        task.exception()


async def finish(work: Coroutine[Any, Any, T]) -> T:
    """The result of work that a cancellation must not break off: the effect has happened, its outcome has to
    be recorded. A cancelled caller waits ``SETTLE_S`` for it and is cancelled then."""
    task = in_background(work)
    try:
        return cast("T", await asyncio.shield(task))
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=SETTLE_S)
        raise


async def settle(work: Coroutine[Any, Any, Any]) -> None:
    """Do it now, at most ``SETTLE_S`` of the caller's time; a further cancellation ends only the wait."""
    await asyncio.wait([in_background(work)], timeout=SETTLE_S)
