"""A command that waits for a broker says so: which one, and until when. A person who sees nothing for ten
seconds takes it for a hang."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from refold.telemetry.plaintext import plain

#: A cluster that is well answers within this.
SILENT_S_MAX: Final = 2.0


@contextmanager
def waiting(bootstrap: str, seconds_max: float) -> Iterator[None]:
    """Around what waits for the brokers' first answer, for ``seconds_max`` at most. One line on stderr after
    ``SILENT_S_MAX``."""
    timer = threading.Timer(SILENT_S_MAX, say, (bootstrap, seconds_max - SILENT_S_MAX))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def say(bootstrap: str, seconds: float) -> None:
    until = time.strftime("%H:%M:%S", time.localtime(time.time() + seconds))
    text = f"waiting for a broker at {plain(bootstrap)}, until {until} (Ctrl-C ends it)"
    print(text, file=sys.stderr, flush=True)
