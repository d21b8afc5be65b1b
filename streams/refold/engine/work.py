"""Outputs on the work topic (rule N1): what a session wants done is a function of its state, and the
transaction of an event writes what has changed with it.

Taken back with its event when the session is quarantined at the seal (``Output.session``). The quarantine
itself changes it too: nobody may take a run of such a session, so its items go.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from refold.core.session import Session
from refold.core.work import WorkItem, work_changes
from refold.engine.overlay import Output
from refold.topology.names import TopicNames
from refold.wire.work import encode_work, work_key

#: A list: what librdkafka takes. Never changed.
_NO_HEADERS: Final[list[tuple[str, bytes]]] = []


def work_outputs(
    topics: TopicNames, partition: int, key: bytes, before: Mapping[str, WorkItem], session: Session
) -> list[Output]:
    """``before``: :func:`refold.core.work.work_items` in front of the event; ``session``: after it."""
    return [
        Output(
            topics.work,
            partition,
            work_key(key, name),
            None if item is None else encode_work(item),
            _NO_HEADERS,
            key,
        )
        for name, item in work_changes(before, session)
    ]
