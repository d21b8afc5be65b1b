"""Readers that wait for a session or a generation to change. Bounded by the HTTP port's own limit on
waiters."""

from __future__ import annotations

import asyncio
from collections.abc import Container


class Waits:
    """By key: of the session, or of the generation's changelog."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, list[asyncio.Future[None]]] = {}

    def publish(self, touched: Container[bytes]) -> None:
        """Wake those whose key was touched by a commit; they look for themselves."""
        if not self._waiting:
            return
        for key in [key for key in self._waiting if key in touched]:
            for future in self._waiting.pop(key):
                if not future.done():
                    future.set_result(None)

    async def changed(self, key: bytes, timeout_s: float) -> bool:
        """``True`` when the key was touched by a commit, ``False`` when time ran out."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, []).append(future)
        try:
            await asyncio.wait_for(future, timeout_s)
        except TimeoutError:
            return False
        finally:
            futures = self._waiting.get(key)
            if futures and future in futures:
                futures.remove(future)
                if not futures:
                    del self._waiting[key]
        return True
