"""From whatever thread, on the event loop: what only the loop may change is told there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


def on_loop(loop: asyncio.AbstractEventLoop, call: Callable[..., Any], *arguments: Any) -> None:
    """At once where this is the loop; soon, and without waiting for it, from any other thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        loop.call_soon_threadsafe(call, *arguments)
    else:
        call(*arguments)
