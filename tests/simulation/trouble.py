"""What goes wrong inside of a producer's or an admin client's call, as the world's plan has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaError

from .producer import Trouble

if TYPE_CHECKING:
    from .world import World

_SEND_CODES: Final = (
    KafkaError.ILLEGAL_GENERATION,
    KafkaError.UNKNOWN_MEMBER_ID,
    KafkaError.REBALANCE_IN_PROGRESS,
    KafkaError.FENCED_INSTANCE_ID,
    KafkaError.TRANSACTION_ABORTABLE,
)


class PlannedTrouble(Trouble):
    def __init__(self, world: World) -> None:
        self._world = world

    def queue_full(self) -> bool:
        return self._world.strikes("queue_full")

    def delivery_fails(self) -> bool:
        return self._world.strikes("delivery_failure")

    def abortable(self, call: str) -> int | None:
        if self._world.abort_next:
            self._world.abort_next = False
            return int(KafkaError.TRANSACTION_ABORTABLE)
        if not self._world.strikes("abortable"):
            return None
        if call == "commit":
            return int(KafkaError.TRANSACTION_ABORTABLE)
        return int(self._world.seeds.faults.choice(_SEND_CODES))

    def times_out(self, call: str) -> str | None:
        return (
            self._world.seeds.faults.choice(("before", "after")) if self._world.strikes("timeout") else None
        )
