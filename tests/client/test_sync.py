"""The synchronous face's thread: what ends with it. No broker."""

from __future__ import annotations

import asyncio
import threading

import pytest

from refold.client.sync import _LoopThread
from refold.errors import RefoldError, TransientError, UsageError


def test_a_call_of_another_thread_ends_with_the_client() -> None:
    """Goal: nobody waits for ever for a loop that has stopped, and what comes later is refused."""
    loop = _LoopThread()
    begun = threading.Event()
    told: list[BaseException] = []

    async def ruling() -> None:
        begun.set()
        await asyncio.Event().wait()

    def call() -> None:
        try:
            loop.run(ruling())
        except RefoldError as error:
            told.append(error)

    caller = threading.Thread(target=call, daemon=True)
    caller.start()
    assert begun.wait(10)
    loop.stop()
    caller.join(10)
    assert not caller.is_alive()
    assert isinstance(told[0], TransientError)
    with pytest.raises(UsageError, match="closed"):
        loop.run(ruling())
