"""Something that ends, while other things go on beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

_T = TypeVar("_T")


async def with_beside(main: Coroutine[Any, Any, _T], *others: Coroutine[Any, Any, None]) -> _T:
    """What ``main`` returns or raises; the others are cancelled then. Whatever fails among them ends it at
    once, and is raised. None of them outlives the call."""
    playing = asyncio.create_task(main)
    beside = [asyncio.create_task(other) for other in others]
    try:
        await asyncio.wait([playing, *beside], return_when=asyncio.FIRST_COMPLETED)
        for task in beside:
            if task.done():
                task.result()
        return await playing
    finally:
        for each in (playing, *beside):
            each.cancel()
        await asyncio.gather(playing, *beside, return_exceptions=True)
