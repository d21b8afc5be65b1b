"""Says once that the cluster does not answer, and once that it does again.

What a worker hears of an outage is a line of librdkafka per connection and attempt, and nothing when it is
over; what a client hears of it is nothing. Who reads the log needs two lines: since when, and for how long.
So where something is not answered (a worker's: the question that is asked once a second anyway,
:mod:`refold.engine.freshness`; a client's: :mod:`refold.client.watch`), a question decides that any broker
can answer. While none does, a worker withholds librdkafka's lines about connections that it tries again
(:mod:`refold.engine.kafkalog`).

All of it on the event loop, but for the question, which blocks and has a thread of the loop's pool.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException

#: What one question is given. librdkafka makes a connection that broke again within 0.1 s.
ASK_TIMEOUT_S: Final = 1.0

#: Questions in a row without an answer before it is said.
FAILED_MIN: Final = 2

#: An outage that goes on is said again after so long: whoever looks at the last lines sees it.
AGAIN_S: Final = 60.0

#: What it means to a worker.
FOLDING_WAITS: Final = (
    "folding waits; what was acknowledged stays in the log; librdkafka goes on trying to connect"
)


class Outage:
    """``ask``: a question that any broker can answer, within ``ASK_TIMEOUT_S``; raises KafkaException.
    ``effect``: what waits meanwhile, by default a worker's. ``quiet``: told whether there is an outage.
    ``again_s``: it is said again after so long. ``why``: says in words why nobody answers, may block as
    ``ask`` may; by default the question's error stands for it. ``clock``: seconds."""

    def __init__(
        self,
        bootstrap: str,
        ask: Callable[[], object],
        *,
        log: Any,
        effect: str = FOLDING_WAITS,
        quiet: Callable[[bool], None],
        again_s: float = AGAIN_S,
        why: Callable[[], str] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bootstrap = bootstrap
        self._ask = ask
        self._log = log
        self._effect = effect
        self._quiet = quiet
        self._again_s = again_s
        self._why = why
        self._clock = clock
        self._failed = 0
        self._since = 0.0
        self._said_at: float | None = None
        #: In words, from when the outage was said until it is over.
        self.reason: str | None = None
        #: The question under way.
        self.asking: asyncio.Task[None] | None = None

    @property
    def on(self) -> bool:
        return self._said_at is not None

    @property
    def doubted(self) -> bool:
        """The last question was not answered."""
        return self._failed > 0

    def doubt(self) -> None:
        """Something was not answered: ask whether anything is. Returns at once."""
        if self.asking is None or self.asking.done():
            self.asking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        asked_at = self._clock()
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(None, self._ask)
        except KafkaException as raised:
            if not self._failed:
                self._since = asked_at
            self._failed += 1
            if self._failed < FAILED_MIN or (
                self._said_at is not None and self._clock() - self._said_at < self._again_s
            ):
                return
            reason = _text(raised) if self._why is None else await loop.run_in_executor(None, self._why)
            # A broker may have answered meanwhile, whatever it was asked.
            if self._failed:
                self._say(reason)
        else:
            self.answered()

    def _say(self, reason: str) -> None:
        now = self._said_at = self._clock()
        self.reason = reason
        self._quiet(True)
        self._log.warning(
            "cluster_lost",
            bootstrap=self._bootstrap,
            seconds=round(now - self._since, 1),
            reason=reason,
            effect=self._effect,
        )

    def answered(self) -> None:
        """The cluster answered, whatever it was asked."""
        if self._said_at is not None:
            self._quiet(False)
            after = round(self._clock() - self._since, 1)
            self._log.info("cluster_back", bootstrap=self._bootstrap, after_seconds=after)
        self._failed, self._said_at, self.reason = 0, None, None


def _text(raised: KafkaException) -> str:
    error = raised.args[0] if raised.args else None
    return error.str() if isinstance(error, KafkaError) else "no answer"
