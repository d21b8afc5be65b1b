"""The work topic through an open client."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING

from refold.client.agents.limits import HOLDER_PROCESS_CHARS
from refold.client.bulk import batches
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

    async def work(self, *, follow: bool = True) -> AsyncGenerator[list[tuple[bytes, WorkItem | None]], None]:
        """All items from the beginning, then (``follow``) as they come; ``None``: nothing to do any more."""
        connection = self._rf.connection
        topic = connection.names.work
        source = batches(connection.reader_config, topic, Position.of(None, topic), follow=follow)
        async with aclosing(source):
            async for batch in source:
                told: list[tuple[bytes, WorkItem | None]] = []
                for _, message in batch:
                    key, value = message.key(), message.value()
                    try:
                        told.append((key, None if value is None else decode_work(value)))
                    except InvalidRecord as error:
                        # A kind of work of a later version: not for us.
                        log.debug("work_item_unknown: %s", error.code)
                yield told
