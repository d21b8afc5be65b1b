"""Is the cluster there, and does it let us in? The first question of every command.

librdkafka retries a refused login for ever and reports a timeout; the reason only goes to the error callback,
which is served by ``poll``. So the first try is short, and what the callback was told decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException

from refold.errors import RefoldError
from refold.servers import on_wait
from refold.topology.failures import explain

#: Seconds per try. One is enough for a cluster that is well, and for a refusal; the second is for a slow one.
#: Together they are what a person waits for "no broker answers".
ANSWER_SECONDS: Final = (1.0, 5.0)
_REFUSALS: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError._SSL})

_T = TypeVar("_T")


class Reach:
    """Collects what a client's ``error_cb`` is told: ``config["error_cb"] = reach.told``."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._refusal: KafkaError | None = None

    def told(self, error: KafkaError) -> None:
        if error.code() in _REFUSALS:
            self._refusal = error

    def ask(self, doing: str, call: Callable[[float], _T], poll: Callable[[float], Any]) -> _T:
        """``call(timeout in seconds)``, tried twice. Raises what :func:`.failures.explain` says."""
        for number, timeout in enumerate(ANSWER_SECONDS):
            for tell in on_wait if number else ():
                tell(self.bootstrap, timeout)
            try:
                return call(timeout)
            except KafkaException as err:
                poll(0)
                last = err
                if self._refusal is not None:
                    break
        raise self.explain(doing, last, poll) from last

    def explain(self, doing: str, err: KafkaException, poll: Callable[[float], Any]) -> RefoldError:
        """The error to raise: the refused login where there was one, else ``err``."""
        poll(0)
        return explain(self._refusal or err, doing=doing, bootstrap=self.bootstrap)
