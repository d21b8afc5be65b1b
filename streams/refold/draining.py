"""How a process that serves is told to end: by a signal, and by a second one if it takes too long."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from typing import Final

from refold.errors import TransientError

CUT_SHORT: Final = TransientError.exit_code
SIGNAL_BASE: Final = 128


def drain_on_signal(stop: asyncio.Event, held_up_s: float, told: Callable[[], None]) -> None:
    """Let SIGTERM and SIGINT set ``stop``, then call ``told``. To be called in the main thread's loop.

    A process that is still there ``held_up_s`` seconds later ends with exit status CUT_SHORT, whatever holds
    it up: user code that does not let itself be cancelled, a broker that is away. A second signal ends it
    where it is, with 128 + its number.
    """
    loop = asyncio.get_running_loop()

    def on_signal(number: int) -> None:
        if stop.is_set():
            os._exit(SIGNAL_BASE + number)
        stop.set()
        loop.call_later(held_up_s, os._exit, CUT_SHORT)
        told()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)
