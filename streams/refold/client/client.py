"""The client: open it, get sessions from it, read topics in bulk through it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from refold.client.agents.worksource import ClientSource
from refold.client.bulk import Batch, batches
from refold.client.connection import Connection, Options, new_producer_id, now_ms
from refold.client.events import SessionEvent, event_of
from refold.client.generations.follow import Follow
from refold.client.generations.limits import LOOKBACK_S_DEFAULT
from refold.client.generations.registry import Answer, Generators, Lookup, Mode
from refold.client.generations.service import Generations
from refold.client.generations.supervisor import Supervisor
from refold.client.positions import Position
from refold.client.receipts import Ruling
from refold.client.session import Session
from refold.client.snapshots import Frontier, SnapshotView
from refold.client.summaries.configured import close, summarizer_of
from refold.client.summaries.limits import CONCURRENCY_DEFAULT, DRAIN_S_DEFAULT
from refold.client.summaries.serving import Report, SummaryServer, no_report
from refold.client.usage.names import usage_session
from refold.client.usage.usage import Usage
from refold.core.slots import split_key
from refold.errors import UsageError
from refold.servers import addresses
from refold.settings import Settings

if TYPE_CHECKING:
    from refold.client.agents.handle import RunHandle
    from refold.client.summaries.protocol import Summarizer

#: How long closing waits for events in flight.
CLOSE_TIMEOUT_S: Final = 10.0

A = TypeVar("A", bound=Answer)


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
        if bootstrap is not None:
            try:
                addresses(bootstrap)
            except ValueError as error:
                raise UsageError(f"bootstrap={bootstrap!r}: {error}. It is host:port[,host:port]") from None
        self.settings = settings
        self._options = Options(
            settings=settings,
            bootstrap=bootstrap,
            tenant=tenant or settings.tenant,
            producer_id=producer_id or settings.client.producer_id or new_producer_id(),
            producer_epoch=now_ms() if producer_epoch is None else producer_epoch,
        )
        self._connection: Connection | None = None
        #: What this process can generate, by name; usable before the client is open.
        self.generators = Generators()
        self._generations: Generations | None = None

    async def __aenter__(self) -> Self:
        """Connect. Raises when the cluster does not answer or the inbox topic does not exist, and UsageError
        when the client is open."""
        if self._connection is not None:
            raise UsageError("the client is open already: make another one, or use this one's sessions")
        connection = Connection(self._options)
        try:
            await connection.open()
        except BaseException:
            await connection.close(0.0)
            raise
        self._connection = connection
        self._generations = Generations(connection, self.generators)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let running answers end (a few seconds; the rest is another process's to go on with), wait for
        events in flight (at most ``CLOSE_TIMEOUT_S``), then disconnect."""
        connection, generations = self.connection, self.generations
        try:
            await generations.close()
        finally:
            self._connection = self._generations = None
            await connection.close(CLOSE_TIMEOUT_S)

    @property
    def connection(self) -> Connection:
        if self._connection is None:
            raise UsageError("the client is not open: use `async with Refold(...) as rf:`")
        return self._connection

    @property
    def producer_id(self) -> str:
        return self._options.producer_id

    @property
    def tenant(self) -> str:
        """Of the sessions that are named without one."""
        return self._options.tenant

    def session(self, session: str, *, tenant: str | None = None) -> Session:
        """A session by its id; it need not exist. Cheap, and asks nobody. Raises InvalidRecord (bad_key)."""
        return Session(self.connection, tenant or self._options.tenant, session, self.generations)

    def usage(
        self, subject: str, model: str, *, session: Session | str | None = None, tenant: str | None = None
    ) -> Usage:
        """What ``subject`` uses of ``model`` (``*``: of all, to be read only). What is recorded goes to a
        session of the subject's own, or to ``session``. Cheap, and asks nobody. Raises UsageError."""
        if session is None:
            session = usage_session(subject)
        found = self.session(session, tenant=tenant) if isinstance(session, str) else session
        return Usage(found, subject, model)

    @property
    def generations(self) -> Generations:
        """What runs and is followed in this client."""
        if self._generations is None:
            raise UsageError("the client is not open: use `async with Refold(...) as rf:`")
        return self._generations

    def generator(
        self, name: str, *, lookup: Lookup | None = None, mode: Mode = "continue", overlap: bool = True
    ) -> Callable[[A], A]:
        """Decorator: register an answer function under a name, so that any process with the same name can go
        on with its generations. ``lookup``, ``mode`` and ``overlap`` say how, see
        :class:`refold.client.generations.registry.Generator`."""
        return self.generators.register(name, lookup=lookup, mode=mode, overlap=overlap)

    def follow(
        self, session: Session | str, generation: str, after: int = 0, client: str | None = None
    ) -> Follow:
        """Frames of a generation, from any process: after seq ``after``, then live, until its end.

        ``client`` names the follower for acks. Nothing is read before it is iterated (or ``.sse()`` is).
        Iterating raises NotFound for a generation nobody knows, UnavailableError beyond the followers' limit;
        a broker or worker that is away is waited for.
        """
        found = self.session(session) if isinstance(session, str) else session
        return self.generations.follow(found, generation, after=after, client=client)

    async def summarize_forever(
        self,
        summarizer: Summarizer | None = None,
        *,
        concurrency: int = CONCURRENCY_DEFAULT,
        stop: asyncio.Event | None = None,
        drain_s: float = DRAIN_S_DEFAULT,
        report: Report = no_report,
    ) -> bool:
        """Write a summary for every session whose policy asks for one, until ``stop`` is set or this is
        cancelled; then wait at most ``drain_s`` seconds for those under way. True when all of them ended.

        ``summarizer``: default what the settings say (``[summarizer]``). ``report`` hears of every try. Any
        number of processes may do this at once. A broker or worker that is away is waited for. Raises what no
        waiting mends: no right to read the work topic, no such topic.
        """
        made = summarizer_of(self.settings) if summarizer is None else summarizer
        server = SummaryServer(
            ClientSource(self),
            made,
            concurrency=concurrency,
            bytes_max=self.settings.summarizer.text_bytes,
            report=report,
        )
        try:
            return await server.serve(stop or asyncio.Event(), drain_s)
        finally:
            if summarizer is None:
                await close(made)

    async def stop(self, session: Session | str, generation: str, reason: str | None = None) -> Ruling:
        """End a generation with what is there, from any process, also one whose process died. Returns the
        ruling: ``already_final`` refuses it for one that has ended."""
        found = self.session(session) if isinstance(session, str) else session
        return await self.generations.stop(found, generation, reason)

    async def ack(
        self, session: Session | str, generation: str, client: str, seq: int, *, attempt: int | None = None
    ) -> None:
        """Record that ``client`` has the generation up to ``seq`` (of ``attempt``, default the present
        text's); returns when that is durable. Never goes back, never beyond what exists."""
        found = self.session(session) if isinstance(session, str) else session
        await self.generations.ack(found, generation, client, seq, attempt=attempt)

    def run(self, session: Session | str, run_id: str) -> RunHandle:
        """A durable run by its id, from any process; see :mod:`refold.client.agents`. Asks nobody."""
        from refold.client.agents.handle import RunHandle

        return RunHandle(self.session(session) if isinstance(session, str) else session, run_id)

    async def supervise(self, *generators: Answer | str, lookback: float = LOOKBACK_S_DEFAULT) -> None:
        """Take over generations whose process fell silent; runs until cancelled, as a task of yours.

        ``generators``: functions or names; none: all that are registered here. ``lookback``: how many seconds
        of the past to look through for what was open before this process started. Several processes may
        supervise: the fold grants each attempt once.
        """
        names = frozenset(g if isinstance(g, str) else self.generators.of(g).name for g in generators)
        await Supervisor(self, self.generations, names, lookback).run()

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
