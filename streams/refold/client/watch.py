"""Whether the brokers answer, for a client: said once when none does and once when one does again.

librdkafka tries again for ever and says nothing of it to whoever waits (`log_level` in
:mod:`refold.client.connection`). Where one of a client's connections breaks, or a question is not answered,
this asks any broker once a second, until one answers: two lines in the log ``refold.client`` per outage, and
why nobody answers at the end of the errors that are raised meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar

from confluent_kafka import KafkaError

from refold.errors import RefoldError
from refold.servers import why_nobody_answers
from refold.topology.outage import Outage

log = logging.getLogger("refold.client")

#: Between two questions of an outage. One that is over is said so long after it is over, at most.
PAUSE_S: Final = 1.0

EFFECT: Final = "appends and reads wait; librdkafka goes on trying to connect"

#: A connection is gone, or all are. What else librdkafka tells is for whoever asked.
_BROKEN: Final = frozenset({KafkaError._TRANSPORT, KafkaError._RESOLVE, KafkaError._ALL_BROKERS_DOWN})

E = TypeVar("E", bound=RefoldError)

#: Adds the cause to an error where it is known.
Because: TypeAlias = Callable[[RefoldError], RefoldError]


def as_it_is(error: RefoldError) -> RefoldError:
    """For parts that are used without a watch."""
    return error


class Watch:
    """``ask``: a question that any broker can answer; blocks, raises KafkaException. Made on the event loop,
    where all but :meth:`told` and :meth:`because` is called."""

    def __init__(self, bootstrap: str, ask: Callable[[], object]) -> None:
        self._loop = asyncio.get_running_loop()
        self._outage = Outage(
            bootstrap,
            ask,
            log=_Lines(),
            effect=EFFECT,
            quiet=_nothing,
            again_s=float("inf"),
            why=lambda: why_nobody_answers(bootstrap),
        )
        self._watching: asyncio.Task[None] | None = None
        self._closed = False

    def told(self, error: KafkaError) -> None:
        """``error_cb`` of a client. From any thread; returns at once."""
        if error.code() in _BROKEN:
            # The loop is closed: nobody is left to be told.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self.doubt)

    def doubt(self) -> None:
        """Something was not answered: find out whether anything is. Returns at once."""
        if not self._closed and (self._watching is None or self._watching.done()):
            self._watching = self._loop.create_task(self._watch(), name="refold-watch")

    def because(self, error: E) -> E:
        """The error, with the cause at its end while there is an outage. From any thread."""
        if error.cause is None:
            error.cause = self._outage.reason
        return error

    async def close(self) -> None:
        self._closed = True
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.gather(self._watching, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            self._outage.doubt()
            if self._outage.asking is not None:
                await self._outage.asking
            if not self._outage.doubted:
                return
            await asyncio.sleep(PAUSE_S)


class _Lines:
    """What :class:`Outage` says, as lines of ``logging``."""

    def warning(self, event: str, **fields: Any) -> None:
        log.warning("%s %s", event, _said(fields))

    def info(self, event: str, **fields: Any) -> None:
        log.info("%s %s", event, _said(fields))


def _said(fields: dict[str, Any]) -> str:
    return " ".join(
        f"{name}={value!r}" if isinstance(value, str) else f"{name}={value}" for name, value in fields.items()
    )


def _nothing(on: bool) -> None:
    """Nothing is to be kept quiet: librdkafka is."""
