"""An AdminClient that outlives the group's coordinator.

librdkafka 2.16, measured: after the broker that coordinates a group went away and came back, requests to it
by an admin client that was there before time out, and go on doing so for as long as that client lives, also
where it asked for nothing meanwhile; its other requests work, and a new client's do at once. So after such a
timeout the client is replaced.

What is under way on a replaced client must still be answered, or its future would never be done: the last
``RETIRED_MAX`` are kept, and none is replaced sooner than ``RENEW_S_MIN`` after the one before.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final, cast

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

#: Two retired clients live on for twice this at least: longer than any request of ours may last (15 s).
RENEW_S_MIN: Final = 10.0
RETIRED_MAX: Final = 2


def lasting(make: Callable[[], AdminClient]) -> AdminClient:
    """A client made by ``make``, now and whenever the present one's coordinator requests time out.

    Thread-safe. ``make`` must return at once and may be called on any thread that asks the cluster something.
    """
    return cast(AdminClient, _Lasting(make))


class _Lasting:
    """Passes on what it does not watch."""

    def __init__(self, make: Callable[[], AdminClient], now: Callable[[], float] = time.monotonic) -> None:
        self._make = make
        self._now = now
        self._lock = threading.Lock()
        self._client = make()
        self._made_at = float("-inf")
        self._timed_out = False
        self._retired: deque[AdminClient] = deque(maxlen=RETIRED_MAX)

    def describe_consumer_groups(self, *arguments: Any, **options: Any) -> Any:
        return self._watched(self._present().describe_consumer_groups(*arguments, **options))

    def list_consumer_group_offsets(self, *arguments: Any, **options: Any) -> Any:
        return self._watched(self._present().list_consumer_group_offsets(*arguments, **options))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._present(), name)

    def _watched(self, answers: dict[str, Future[Any]]) -> dict[str, Future[Any]]:
        for future in answers.values():
            future.add_done_callback(self._done)
        return answers

    def _done(self, future: Future[Any]) -> None:
        """On the client's own thread, which must not be the one to give it up: only noted here."""
        error = future.exception()
        inner = error.args[0] if isinstance(error, KafkaException) and error.args else None
        if isinstance(inner, KafkaError) and inner.code() == KafkaError._TIMED_OUT:
            self._timed_out = True

    def _present(self) -> AdminClient:
        with self._lock:
            if self._timed_out and self._now() - self._made_at >= RENEW_S_MIN:
                self._retired.append(self._client)
                self._client, self._made_at, self._timed_out = self._make(), self._now(), False
            return self._client
