"""librdkafka's consumer as the group's committed offsets are asked through it (measured: see
``refold.topology.groupoffsets``, which is the product's own here): an offset that a transaction holds is
asked for again and again, until there is one or the time is over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from .broker import Broker
from .group import slot_of
from .kafka import raised
from .kernel import Kernel
from .producer import Trouble

#: How long a coordinator is silent that a plan has time out: mostly longer than a takeover asks for, and
#: sometimes so long only that the answer is a slow one.
SILENT_S: Final = (0.05, 6.0, 6.0, 6.0)


class GroupReader:
    def __init__(self, kernel: Kernel, broker: Broker, trouble: Trouble, config: dict[str, Any]) -> None:
        self._kernel = kernel
        self._broker = broker
        self._trouble = trouble
        self._process = kernel.caller
        self._stable = config["isolation.level"] == "read_committed"
        self._again_s = config["retry.backoff.ms"] / 1000
        self._silent_until = 0.0

    def committed(self, partitions: Sequence[TopicPartition], *, timeout: float) -> list[TopicPartition]:
        kernel, end = self._kernel, self._kernel.monotonic() + timeout
        kernel.pause()
        self._linked(end)
        if self._trouble.times_out("list_offsets") is not None:
            self._silent_until = kernel.monotonic() + kernel.chance.choice(SILENT_S)
        self._passed(self._silent_until, end)
        group = self._broker.group
        places = [slot_of(tp.topic, tp.partition) for tp in partitions]
        while self._stable and any(map(group.unstable, places)):
            self._passed(kernel.monotonic() + self._again_s, end)
            self._linked(end)
        found = []
        for tp, place in zip(partitions, places, strict=True):
            known = group.offsets.get(place)
            offset, metadata = (-1001, "") if known is None else (known.offset, known.metadata)
            found.append(TopicPartition(tp.topic, tp.partition, offset, metadata))
        kernel.pause()
        return found

    def _linked(self, end: float) -> None:
        if not self._kernel.linked(self._process, max(0.0, end - self._kernel.monotonic())):
            raise _silent()

    def _passed(self, moment: float, end: float) -> None:
        """Wait for it; no answer where the time is over before."""
        now = self._kernel.monotonic()
        if moment > now:
            self._kernel.sleep(max(0.0, min(moment, end) - now))
        if moment > end:
            raise _silent()


def _silent() -> KafkaException:
    return raised(KafkaError._TIMED_OUT, "no answer", retriable=True)
