"""Rulings read off the topics, over a journal as it may lie there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from refold.client.fallback import Fallback
from refold.client.sender import Delivery
from refold.core.envelope import Envelope
from refold.topology.names import TopicNames
from refold.wire.journal import journal_value
from refold.wire.owner import RulingLine


class Record:
    def __init__(self, seq: int, offset: int) -> None:
        env = Envelope(event_id=f"e-{offset}", tenant="t", session="s", type="MessageAppended")
        self._value = journal_value(seq, 0, 0, offset, env)

    def value(self) -> bytes:
        return self._value


class Topics:
    """A reader of a journal, and of a rejected topic without records."""

    def __init__(self, journal: list[Record]) -> None:
        self._journal = journal

    def offset_at(self, topic: str, partition: int, time_ms: int) -> int:
        return 0

    def mark(self, topic: str, partition: int) -> int:
        return 100

    def sweep(
        self, topic: str, partition: int, first: int, visit: Callable[[Any], bool], *, last: int
    ) -> None:
        for record in self._journal if topic == TopicNames("x").journal else ():
            if not visit(record):
                return


class Pool:
    def __init__(self, topics: Topics) -> None:
        self._topics = topics

    async def scan(self, work: Callable[[Topics], RulingLine]) -> RulingLine:
        return work(self._topics)


class Group:
    async def committed(self, partition: int) -> int:
        return 100


async def test_a_record_that_waited_for_its_session_was_accepted_all_the_same() -> None:
    """Goal: while a partition is restored hot first (rule H5) a record may be journalled after later ones of
    other sessions; it is not taken for a duplicate then."""
    pool = Pool(Topics([Record(1, 9), Record(1, 11), Record(7, 10)]))
    fallback = Fallback(pool, Group(), TopicNames("x"))  # type: ignore[arg-type]
    assert await fallback.ruling(Delivery(0, 10, 0)) == RulingLine(0, 10, "accepted", 7)
    assert await fallback.ruling(Delivery(0, 12, 0)) == RulingLine(0, 12, "duplicate", 0)
