"""An AdminClient that outlives the group's coordinator.

librdkafka 2.16, measured with a bare client: where a request to the group's coordinator runs out of time
while no broker answers, the process is aborted once one does (``rd_kafka_enq_once_del_source_return:
Assertion `eonce->refcnt > 0'``). One that is left to wait is answered instead. So librdkafka is given
``OPERATION_S`` for it, and whoever asked is told after the time they gave.

Also measured: requests to the coordinator by a client that was there before the coordinator's broker went
away may never be answered, while a new client's are. So after such a timeout the client is replaced.

A client with a request under way must not be freed, which crashes too: those replaced are kept until nothing
of theirs is open, ``RETIRED_MAX`` at most; while there are that many, none is replaced. For the end of the
process, when Python frees everything, one whose request is left to wait holds a reference to itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, Final, cast

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

#: An outage of the cluster that is longer ends with the risk above; librdkafka takes no more than an hour.
OPERATION_S: Final = 3_600.0
#: None is replaced sooner after the one before.
RENEW_S_MIN: Final = 10.0
#: Three threads and 1 MB each.
RETIRED_MAX: Final = 3
#: Of the caller, where none is given: librdkafka's own.
REQUEST_S_DEFAULT: Final = 60.0


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
        self._retired: list[AdminClient] = []
        #: Requests under way, by the id of the client that was asked.
        self._open: Counter[int] = Counter()
        #: Those that hold a reference to themselves.
        self._held: list[AdminClient] = []

    def describe_consumer_groups(self, *arguments: Any, **options: Any) -> Any:
        return self._asked("describe_consumer_groups", arguments, options)

    def _asked(self, call: str, arguments: Any, options: dict[str, Any]) -> dict[str, Future[Any]]:
        seconds = float(options.pop("request_timeout", REQUEST_S_DEFAULT))
        client = self._present(asking=True)
        try:
            asked = getattr(client, call)(*arguments, request_timeout=OPERATION_S, **options)
            return {name: self._told(client, future, seconds) for name, future in asked.items()}
        finally:
            with self._lock:
                self._open[id(client)] -= 1

    def _told(self, client: AdminClient, asked: Future[Any], seconds: float) -> Future[Any]:
        """What ``asked`` will say, or that it said nothing for so long."""
        told: Future[Any] = Future()
        late = threading.Timer(seconds, self._late, (client, told, seconds))
        late.daemon = True

        def done(future: Future[Any]) -> None:
            # On the client's own thread, which must not be the one to give it up.
            late.cancel()
            with self._lock:
                self._open[id(client)] -= 1
            error = future.exception()
            if error is not None:
                self._note(error)
                _settle(told, error=error)
            else:
                _settle(told, result=future.result())

        with self._lock:
            self._open[id(client)] += 1
        late.start()
        asked.add_done_callback(done)
        return told

    def _late(self, client: AdminClient, told: Future[Any], seconds: float) -> None:
        with self._lock:
            if self._open[id(client)] and client not in self._held:
                self._held.append(client)
                ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))
        error = KafkaException(KafkaError(KafkaError._TIMED_OUT, f"no answer within {seconds:.0f} s"))
        self._note(error)
        _settle(told, error=error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._present(), name)

    def _note(self, error: BaseException) -> None:
        inner = error.args[0] if isinstance(error, KafkaException) and error.args else None
        if isinstance(inner, KafkaError) and inner.code() == KafkaError._TIMED_OUT:
            self._timed_out = True

    def _present(self, *, asking: bool = False) -> AdminClient:
        """``asking``: the caller counts as a request under way, from before anybody else can give the client
        up, until it says that it does not."""
        with self._lock:
            for client in [held for held in self._held if not self._open[id(held)]]:
                self._held.remove(client)
                ctypes.pythonapi.Py_DecRef(ctypes.py_object(client))
            self._retired = [client for client in self._retired if self._open[id(client)]]
            self._open += Counter()  # without those that have none
            if (
                self._timed_out
                and len(self._retired) < RETIRED_MAX
                and self._now() - self._made_at >= RENEW_S_MIN
            ):
                self._retired.append(self._client)
                self._client, self._made_at, self._timed_out = self._make(), self._now(), False
            self._open[id(self._client)] += asking
            return self._client


def _settle(told: Future[Any], *, result: Any = None, error: BaseException | None = None) -> None:
    """Only the first word counts; whoever asked may have given up."""
    with contextlib.suppress(InvalidStateError):
        if error is not None:
            told.set_exception(error)
        else:
            told.set_result(result)
