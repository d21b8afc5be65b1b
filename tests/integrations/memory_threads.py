"""A client on folds in this process, for the checkpointer: sessions, their journal, a blob store."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Callable
from types import SimpleNamespace
from typing import Any, cast

from refold.client import Refold
from refold.client.events import SessionEvent
from refold.integrations.langgraph import RefoldSaver
from refold.testing.memory import MemoryLog, MemorySession
from refold.wire.blobs import BlobStore


class Thread(MemorySession):
    """With the events of the session's present life."""

    async def events(self, after: int = 0, limit: int | None = None) -> AsyncGenerator[SessionEvent, None]:
        self.before("read")
        life: list[SessionEvent] = []
        for event in self.log.journal:
            life.append(event)
            if event.type == "SessionDeleted":
                life = []
        for event in life[after : None if limit is None else after + limit]:
            yield event


class Memory:
    """What several clients have in common. ``before``: as of MemorySession, for all sessions."""

    tenant = "default"

    def __init__(self, *, inline_bytes_max: int = 64 * 1024) -> None:
        self.logs: dict[str, MemoryLog] = {}
        self.connection = SimpleNamespace(
            blobs=BlobStore(f"memory://{uuid.uuid4().hex}"), inline_bytes_max=inline_bytes_max
        )
        self.before: Callable[[str], None] = lambda _: None

    def session(self, session: str) -> Thread:
        made = Thread(self.logs.setdefault(session, MemoryLog(session)))
        made.before = lambda what: self.before(what)
        return made

    async def journal(self) -> AsyncGenerator[Any, None]:
        for log in self.logs.values():
            for event in log.journal:
                yield SimpleNamespace(event=event)

    def saver(self, **options: Any) -> RefoldSaver:
        """Of a new process, as far as what it remembers goes."""
        return RefoldSaver(cast("Refold", self), **options)
