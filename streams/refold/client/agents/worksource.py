"""The work topic through an open client."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from refold.client.agents.limits import HOLDER_PROCESS_CHARS, WORK_ITEMS_MAX
from refold.client.bulk import Batch, batches
from refold.client.positions import Position
from refold.core.work import WorkItem
from refold.errors import InvalidRecord
from refold.wire.work import decode_work

if TYPE_CHECKING:
    from refold.client.client import Refold
    from refold.client.session import Session

log = logging.getLogger("refold.client")


def process_name(rf: Refold) -> str:
    """The same for all runs of a process, another at every start of one."""
    return f"{rf.producer_id[-HOLDER_PROCESS_CHARS:]}-{rf.connection.options.producer_epoch}"


class ClientSource:
    def __init__(self, rf: Refold) -> None:
        self._rf = rf

    def session(self, tenant: str, session: str) -> Session:
        return self._rf.session(session, tenant=tenant)

    async def work(self, *, follow: bool = True) -> AsyncGenerator[dict[bytes, WorkItem | None], None]:
        """What is to be done as of now, by key; then (``follow``) what changes; ``None``: nothing any more.

        What lies in the topic already is told as it ends: a run that was ready yesterday and is long over is
        not asked for by everybody who reads past it.
        """
        connection = self._rf.connection
        topic = connection.names.work
        position = Position.of(None, topic)
        now: dict[bytes, WorkItem | None] = {}
        async with aclosing(batches(connection.reader_config, topic, position, follow=False)) as source:
            async for batch in source:
                now.update(_told(batch))
                position = batch.position(len(batch.records) - 1)
                if len(now) >= WORK_ITEMS_MAX:
                    yield now
                    now = {}
        yield now
        if follow:
            async with aclosing(batches(connection.reader_config, topic, position, follow=True)) as source:
                async for batch in source:
                    yield _told(batch)


def _told(batch: Batch) -> dict[bytes, WorkItem | None]:
    """The last word on each key."""
    told: dict[bytes, WorkItem | None] = {}
    for _, message in batch:
        value = message.value()
        try:
            told[message.key()] = None if value is None else decode_work(value)
        except InvalidRecord as error:
            # A kind of work of a later version: not for us.
            log.debug("work_item_unknown: %s", error.code)
    return told
