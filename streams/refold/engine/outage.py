"""Says once that the cluster does not answer, and once that it does again.

What a worker hears of an outage is a line of librdkafka per connection and attempt, and nothing when it is
over. Who reads the log needs two lines: since when, and for how long. So where the question that is asked
once a second anyway (:mod:`refold.engine.freshness`) fails, another decides that any broker can answer; and
while none does, librdkafka's lines about connections that it tries again are withheld
(:mod:`refold.engine.kafkalog`).

All of it on the event loop, but for the question, which blocks and has a thread of the loop's pool.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from confluent_kafka import KafkaException

from refold.engine.kafkaerrors import error_of

#: What one question is given. librdkafka makes a connection that broke again within 0.1 s.
ASK_TIMEOUT_S: Final = 1.0

#: Questions in a row without an answer before it is said.
FAILED_MIN: Final = 2

#: An outage that goes on is said again after so long: whoever looks at the last lines sees it.
AGAIN_S: Final = 60.0

EFFECT: Final = "folding waits; what was acknowledged stays in the log; librdkafka goes on trying to connect"


class Outage:
    """``ask``: a question that any broker can answer, within ``ASK_TIMEOUT_S``; raises KafkaException.
    ``quiet``: told whether there is an outage. ``clock``: seconds."""

    def __init__(
        self,
        bootstrap: str,
        ask: Callable[[], object],
        *,
        log: Any,
        quiet: Callable[[bool], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bootstrap = bootstrap
        self._ask = ask
        self._log = log
        self._quiet = quiet
        self._clock = clock
        self._failed = 0
        self._since = 0.0
        self._said_at: float | None = None
        #: The question under way.
        self.asking: asyncio.Task[None] | None = None

    @property
    def on(self) -> bool:
        return self._said_at is not None

    def doubt(self) -> None:
        """Something was not answered: ask whether anything is. Returns at once."""
        if self.asking is None or self.asking.done():
            self.asking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        asked_at = self._clock()
        try:
            await asyncio.get_running_loop().run_in_executor(None, self._ask)
        except KafkaException as raised:
            error = error_of(raised)
            self._unanswered("no answer" if error is None else error.str(), asked_at)
        else:
            self.answered()

    def _unanswered(self, reason: str, asked_at: float) -> None:
        if not self._failed:
            self._since = asked_at
        self._failed += 1
        now = self._clock()
        if self._failed < FAILED_MIN or (self._said_at is not None and now - self._said_at < AGAIN_S):
            return
        self._said_at = now
        self._quiet(True)
        self._log.warning(
            "cluster_lost",
            bootstrap=self._bootstrap,
            seconds=round(now - self._since, 1),
            reason=reason,
            effect=EFFECT,
        )

    def answered(self) -> None:
        """The cluster answered, whatever it was asked."""
        if self._said_at is not None:
            self._quiet(False)
            after = round(self._clock() - self._since, 1)
            self._log.info("cluster_back", bootstrap=self._bootstrap, after_seconds=after)
        self._failed, self._said_at = 0, None
