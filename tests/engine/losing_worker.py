"""A worker whose consumer loses the partition that is begun first, as librdkafka can: assigned, started,
never fetched. Run as `refold worker` is, with the same arguments."""

from __future__ import annotations

from confluent_kafka import TopicPartition

from refold.cli.main import main
from refold.engine.poll import Poller

_begin = Poller._begin
_lost: list[int] = []


def _losing(self: Poller, number: int, epoch: int, fetch_epoch: int, offset: int, anew: bool) -> None:
    _begin(self, number, epoch, fetch_epoch, offset, anew)
    if not _lost:
        _lost.append(number)
        # Behind the poller's back: it believes that the partition is fetched.
        self._consumer.pause([TopicPartition(self._topic, number)])
        print(f"lost partition {number}", flush=True)


if __name__ == "__main__":
    Poller._begin = _losing  # type: ignore[method-assign]
    main()
