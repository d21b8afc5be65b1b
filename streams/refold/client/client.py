"""The client: open it, get sessions from it, read topics in bulk through it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from refold.client.bulk import Batch, batches
from refold.client.connection import Connection, Options, new_producer_id, now_ms
from refold.client.events import SessionEvent, event_of
from refold.client.positions import Position
from refold.client.session import Session
from refold.client.snapshots import Frontier, SnapshotView
from refold.core.slots import split_key
from refold.errors import UsageError
from refold.settings import Settings

#: How long closing waits for events in flight.
CLOSE_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Change:
    """One record of the state topic. ``snapshot`` is ``None`` when the session was deleted."""

    tenant: str
    session: str
    snapshot: SnapshotView | None
    frontier: Frontier
    _batch: Batch = field(repr=False, compare=False)
    _index: int = field(repr=False, compare=False)

    @property
    def position(self) -> Position:
        """Restart point after this change: ``rf.states(since=change.position)``."""
        return self._batch.position(self._index)


@dataclass(frozen=True, slots=True)
class JournalItem:
    """One record of the journal with its restart point."""

    event: SessionEvent
    _batch: Batch = field(repr=False, compare=False)
    _index: int = field(repr=False, compare=False)

    @property
    def position(self) -> Position:
        return self._batch.position(self._index)


class Refold:
    """An application's sessions. ``async with Refold(bootstrap="…") as rf: …``

    Settings come from ``settings``, else from environment and ``refold.toml``; the keyword arguments go
    before them. One client serves any number of sessions and tasks of one event loop.

    ``producer_id`` and ``producer_epoch`` identify this process to the fold's de-duplication: by default a
    random id. Give an id only if it names at most one live process; its epoch (start time in ms by default)
    must rise at every start, and an older epoch is refused from then on (``stale_producer``).
    """

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        bootstrap: str | None = None,
        tenant: str | None = None,
        topic_prefix: str | None = None,
        producer_id: str | None = None,
        producer_epoch: int | None = None,
    ) -> None:
        if settings is None:
            flags: dict[str, Any] = {} if topic_prefix is None else {"topic_prefix": topic_prefix}
            settings = Settings(**flags)
        elif topic_prefix is not None and topic_prefix != settings.topic_prefix:
            raise UsageError("topic_prefix is given twice: leave it to the settings")
        self.settings = settings
        self._options = Options(
            settings=settings,
            bootstrap=bootstrap,
            tenant=tenant or settings.tenant,
            producer_id=producer_id or settings.client.producer_id or new_producer_id(),
            producer_epoch=now_ms() if producer_epoch is None else producer_epoch,
        )
        self._connection: Connection | None = None

    async def __aenter__(self) -> Self:
        """Connect. Raises when the cluster does not answer or the inbox topic does not exist."""
        connection = Connection(self._options)
        try:
            await connection.open()
        except BaseException:
            await connection.close(0.0)
            raise
        self._connection = connection
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for events in flight (at most ``CLOSE_TIMEOUT_S``), then disconnect."""
        connection, self._connection = self.connection, None
        await connection.close(CLOSE_TIMEOUT_S)

    @property
    def connection(self) -> Connection:
        if self._connection is None:
            raise UsageError("the client is not open: use `async with Refold(...) as rf:`")
        return self._connection

    @property
    def producer_id(self) -> str:
        return self._options.producer_id

    def session(self, session: str, *, tenant: str | None = None) -> Session:
        """A session by its id; it need not exist. Cheap, and asks nobody. Raises InvalidRecord (bad_key)."""
        return Session(self.connection, tenant or self._options.tenant, session)

    async def states(
        self, since: Position | str | None = None, *, follow: bool = False
    ) -> AsyncGenerator[Change, None]:
        """Every session's newest state, then (``follow``) every change as it commits.

        Without ``follow`` it ends at the log end as of the call. A session may come several times; the last
        counts. Order holds per session, not between them.
        """
        connection = self.connection
        position = Position.of(since, connection.names.state)
        async with aclosing(_batches(connection, connection.names.state, position, follow)) as source:
            async for batch in source:
                for index, message in batch:
                    tenant, session = split_key(message.key())
                    value = message.value()
                    snapshot = None if value is None else SnapshotView.of(value)
                    frontier: Mapping[tuple[str, int], int] = {} if snapshot is None else snapshot.frontier
                    yield Change(tenant, session, snapshot, frontier, batch, index)

    async def journal(
        self, since: Position | str | None = None, *, follow: bool = False
    ) -> AsyncGenerator[JournalItem, None]:
        """Every accepted event of every session, per session in ``seq`` order."""
        connection = self.connection
        position = Position.of(since, connection.names.journal)
        async with aclosing(_batches(connection, connection.names.journal, position, follow)) as source:
            async for batch in source:
                for index, message in batch:
                    yield JournalItem(event_of(message), batch, index)


def _batches(connection: Connection, topic: str, position: Position, follow: bool) -> Any:
    return batches(connection.reader_config, topic, position, follow=follow)
