"""librdkafka's own log lines: how grave they are for a worker, and not twenty of the same a second.

librdkafka logs each failed connection attempt of each client, and as an error, although it connects again by
itself; and each aborted transaction as an error, although the engine sends it again (rule A). Whatever is
final ends the process and is said there. In an outage of the whole cluster, which is said once
(:mod:`refold.topology.outage`), lines about connections are withheld altogether.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

#: One line per facility and level in this time; the next one says how many were left out.
EVERY_S: Final = 5.0

#: A line is handed over when its client is polled. A producer's are not while it waits in a call, which may
#: last for its limit (``commit.CALL_TIMEOUT_S``) and as long again (measured: 11 s, and 1 s after the end).
LATE_S: Final = 10.0

#: Facilities that report what happens to a connection.
_CONNECTION: Final = frozenset({"FAIL", "ERROR"})

#: What passes by itself, in librdkafka's words. Refused credentials or certificates are not among them.
_TRANSPORT: Final = (
    "Connect to ",
    "Connection re",  # refused, reset
    "Connection setup timed out",
    "brokers are down",
    "Disconnected",
    "Receive failed",
    "Send failed",
    "Failed to resolve",
    "timed out",
)

#: Codes of an aborted transaction that is sent again with fresh group metadata.
_RESENT: Final = ("ILLEGAL_GENERATION", "REBALANCE_IN_PROGRESS")

#: The same of one whose records were not acknowledged in time, which is no news in an outage.
_UNDELIVERED: Final = "_INCONSISTENT"


class KafkaLogFilter(logging.Filter):
    """On the logger the clients are given, which librdkafka calls with the arguments facility, client and
    text. Holds one entry per facility and level, both closed sets of librdkafka's. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        #: When the last line was let through, and how many were not since.
        self._last: dict[tuple[str, int], tuple[float, int]] = {}
        #: Until when lines about connections are withheld, because nobody answers and that has been said.
        self._outage_until = float("-inf")

    def outage(self, on: bool) -> None:
        """Whether the cluster is known not to answer. Any thread."""
        self._outage_until = float("inf") if on else self._clock() + LATE_S

    def filter(self, record: logging.LogRecord) -> bool:
        arguments = record.args
        if not isinstance(arguments, tuple) or len(arguments) != 3:
            return True
        facility, text = str(arguments[0]), str(arguments[2])
        outage = self._clock() < self._outage_until
        passes = _passes(facility, text) or (outage and facility == "TXNERR" and _UNDELIVERED in text)
        if outage and passes and facility in _CONNECTION and record.levelno > logging.DEBUG:
            return False
        if record.levelno == logging.ERROR and passes:
            record.levelno, record.levelname = logging.WARNING, logging.getLevelName(logging.WARNING)
            if not logging.getLogger(record.name).isEnabledFor(logging.WARNING):
                return False
        if record.levelno <= logging.DEBUG or record.levelno >= logging.CRITICAL:
            # Debug lines are there because somebody asked for all of them.
            return True
        now, key = self._clock(), (facility, record.levelno)
        with self._lock:
            last, suppressed = self._last.get(key, (float("-inf"), 0))
            if now - last < EVERY_S:
                self._last[key] = (last, suppressed + 1)
                return False
            self._last[key] = (now, 0)
        if suppressed:
            record.suppressed = suppressed
        return True


def _passes(facility: str, text: str) -> bool:
    if facility in _CONNECTION:
        return any(words in text for words in _TRANSPORT)
    if facility == "ADDOFFSETS":
        # The call is made again.
        return "Timed out" in text
    return facility == "TXNERR" and any(code in text for code in _RESENT)
