"""The admin client's calls that a takeover makes, and rule G10."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import (
    ConsumerGroupState,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec

from .broker import Broker
from .kafka import raised
from .kernel import Kernel
from .producer import Trouble


class Answer:
    """A future that is done."""

    def __init__(self, value: Any = None, failure: KafkaException | None = None) -> None:
        self._value = value
        self._failure = failure

    def result(self, timeout: float | None = None) -> Any:
        if self._failure is not None:
            raise self._failure
        return self._value


class _Offset:
    def __init__(self, offset: int) -> None:
        self.offset = offset


class _Described:
    """A group's description, or a member's."""

    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


class Admin:
    def __init__(self, kernel: Kernel, broker: Broker, trouble: Trouble, topic: str) -> None:
        """``topic``: the one that the group's members subscribe to."""
        self._kernel = kernel
        self._topic = topic
        self._broker = broker
        self._trouble = trouble
        self._process = kernel.caller

    def _late(self, timeout_s: float) -> KafkaException | None:
        if self._kernel.linked(self._process, timeout_s):
            return None
        return raised(KafkaError._TIMED_OUT, "no answer", retriable=True)

    def list_offsets(
        self, wanted: Mapping[TopicPartition, OffsetSpec], *, isolation_level: Any, request_timeout: float
    ) -> Mapping[TopicPartition, Answer]:
        """``latest``: the high watermark, or the last stable offset where ``READ_COMMITTED`` is asked for."""
        self._kernel.pause()
        if (late := self._late(request_timeout)) is not None:
            return {tp: Answer(failure=late) for tp in wanted}
        committed = isolation_level is IsolationLevel.READ_COMMITTED
        latest = OffsetSpec.latest()
        found = {}
        for tp, spec in wanted.items():
            log = self._broker.log(tp.topic, tp.partition)
            end = log.stable if committed else log.end
            found[tp] = Answer(_Offset(end if spec is latest else log.start))
        self._kernel.pause()
        return found

    def describe_consumer_groups(
        self, names: Sequence[str], *, request_timeout: float
    ) -> Mapping[str, Answer]:
        self._kernel.pause()
        if (late := self._late(request_timeout)) is not None:
            return dict.fromkeys(names, Answer(failure=late))
        group = self._broker.group
        members = [
            _Described(
                client_id=f"sim|{m.instance}|",
                group_instance_id=m.instance,
                member_id=m.member_id,
                assignment=_Described(
                    topic_partitions=[TopicPartition(self._topic, number) for number in sorted(m.given)]
                ),
            )
            for m in group.members.values()
        ]
        state = ConsumerGroupState.PREPARING_REBALANCING if group.preparing else ConsumerGroupState.STABLE
        self._kernel.pause()
        return dict.fromkeys(names, Answer(_Described(members=members, state=state)))
