"""The reading half of a session: the owner answers; topics answer when no owner does."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final

from refold.client.completion import complete
from refold.client.connection import Connection
from refold.client.context import Context, ContextFormat, render
from refold.client.events import SessionEvent
from refold.client.history import session_events
from refold.client.owners import NoOwnerAnswers
from refold.client.payloads import load_parts
from refold.client.recovery import Recovery, recover
from refold.client.reduced import ReducedPart, shaped_part
from refold.client.snapshots import SnapshotView
from refold.core.slots import make_key
from refold.errors import TransientError, UsageError
from refold.missing import no_parent, no_session
from refold.wire.parts import Part

log = logging.getLogger("refold.client")

#: Ids in a warning: a turn has few calls, and what is known by a call id alone waits for its turn only.
NAMED_MAX: Final = 8


class SessionReads:
    """Mixed into :class:`refold.client.session.Session`."""

    tenant: str
    id: str
    key: bytes
    _connection: Connection

    async def state(
        self, *, min_seq: int | None = None, timeout: float | None = None, stale: bool = False
    ) -> SnapshotView | None:
        """The committed snapshot, ``None`` for a session that does not exist.

        ``min_seq``: wait until the snapshot holds that seq; default: the last one this client saw accepted.
        Answered by the owning worker in milliseconds. When none answers within ``timeout`` (seconds; default
        the request timeout), or none is running, the state topic's partition is scanned: committed and exact
        as of its records, but as slow as the partition is long, and marked ``stale``.

        ``stale``: while the owner is gone or restoring, a standby's copy will do: the answer comes at once
        and says how old it is (``staleness``). It waits for no seq.

        Raises TransientError when ``min_seq`` was not reached.
        """
        if stale:
            return await self._stale_state(min_seq, timeout)
        connection = self._connection
        wanted = connection.memory(self.key).last_seq if min_seq is None else min_seq
        patience = connection.request_timeout_s if timeout is None else timeout
        partition = connection.partition_of(self.key)
        from_topic = False
        try:
            raw = await connection.owners.snapshot(
                partition, self.tenant, self.id, min_seq=wanted, timeout_s=patience
            )
        except NoOwnerAnswers:
            raw, from_topic = await connection.fallback.snapshot(partition, self.key), True
        view = None if raw is None else SnapshotView.of(raw, stale=from_topic)
        if wanted and from_topic and (view is None or view.seq < wanted):
            raise TransientError(
                f"no worker answers and the state topic has not reached seq {wanted} "
                f"(it has {0 if view is None else view.seq}): start a worker, or ask for min_seq=0"
            )
        return view

    async def _stale_state(self, min_seq: int | None, timeout: float | None) -> SnapshotView | None:
        if min_seq:
            raise UsageError("stale=True takes what a copy has and waits for no seq: leave min_seq out")
        connection = self._connection
        patience = connection.request_timeout_s if timeout is None else timeout
        partition = connection.partition_of(self.key)
        staleness, from_topic = None, False
        try:
            raw, staleness = await connection.owners.stale_snapshot(
                partition, self.tenant, self.id, timeout_s=patience
            )
        except NoOwnerAnswers:
            raw, from_topic = await connection.fallback.snapshot(partition, self.key), True
        if raw is None:
            return None
        return SnapshotView.of(raw, stale=from_topic or staleness is not None, staleness=staleness)

    async def reduced(
        self, name: str, *, min_seq: int | None = None, timeout: float | None = None
    ) -> ReducedPart | None:
        """The part that the reducer ``name`` folds; ``None`` where the session, or the part, is not there.

        ``value`` has the shape of the reducer's ``schema`` where this process declares it, and is upcast
        where the part is older; else plain JSON. ``min_seq`` and the rest as :meth:`state`. Raises UsageError
        for a part that is newer than the reducer of this process.
        """
        view = await self.state(min_seq=min_seq, timeout=timeout)
        rows = [] if view is None else view.data["reduced"]
        row = next((row for row in rows if row["name"] == name), None)
        return None if row is None else shaped_part(row)

    async def context(
        self,
        format: ContextFormat = "openai",  # noqa: A002 - the word of the whole SDK
        *,
        min_seq: int | None = None,
        timeout: float | None = None,
        load_blobs: bool = False,
        stale: bool = False,
        view: str | None = None,
    ) -> Context:
        """What to send to a model: system messages, the summary where it applies, the newest messages.

        Always a transcript the provider accepts; calls without a result are shown as unresolved. Content that
        the state leaves out (one message too large for it; the beginning of a path that was edited far back)
        is read from the journal. ``load_blobs``: also fetch content kept in the blob store, and check it.
        ``view``: an agent's name (the id of its actor): its own words and calls are the assistant's, other
        agents' words the user's, with their names; not for ``raw``.

        Where the path was begun with a wrong ``parent``, nothing before it is shown: ``missing_parent`` of
        the answer names it, and so does a warning in the log ``refold.client``; another one names the ids of
        tool results that no call has.

        Raises NotFound for a session that does not exist, and as :meth:`state`.
        """
        found = await self.state(min_seq=min_seq, timeout=timeout, stale=stale)
        if found is None:
            raise no_session(self.tenant, self.id)
        data = await complete(self._connection, found, self._events_of, load_blobs=load_blobs)
        if (missing := data["context"]["missing_parent"]) is not None:
            heads = [branch["head_message_id"] for branch in data["branches"]]
            log.warning(
                "tenant %s: %s (docs/guides/producing.md#parents)",
                self.tenant,
                no_parent(self.id, missing, heads),
            )
        if found.data["context"]["waiting_results"] and (names := _without_call(found)):
            log.warning(
                "tenant %s: no call of session %s has the ids of results that wait outside its context: %s"
                " (docs/guides/producing.md#results)",
                self.tenant,
                self.id,
                ", ".join(names[:NAMED_MAX]),
            )
        return render(found, data, format, view)

    async def completed(self, view: SnapshotView) -> dict[str, Any]:
        """The snapshot's public part with nothing missing that the journal has: elided content, the beginning
        of a path as far as the window has room. Content in the blob store stays there."""
        return await complete(self._connection, view, self._events_of, load_blobs=False)

    async def events(self, after: int = 0, limit: int | None = None) -> AsyncGenerator[SessionEvent, None]:
        """Accepted events with ``seq > after`` in order, from the journal; nothing for an unknown session.

        Read by seeking through the owner's index: the cost depends on this session only. Without an owner the
        partition of the journal is scanned.
        """
        async with aclosing(self._all_events(after, limit)) as source:
            async for event in source:
                yield event

    async def load(self, parts: Sequence[Part]) -> list[Part]:
        """Parts of a message with their bytes: those kept in the blob store are fetched and checked. Raises
        StorageError for what is not there, or is not what was put there."""
        return await load_parts(parts, self._connection.blobs)

    async def recover(self, *, timeout: float | None = None) -> Recovery:
        """What an agent needs to go on after a crash: the newest state, and what to do with each open call.

        The snapshot is folded up to the end of the journal, so it is exact even when no worker is running.
        Raises NotFound for a session that does not exist.
        """
        view = await self.state(min_seq=0, timeout=timeout)
        async with aclosing(self._all_events(0 if view is None else view.seq, None)) as source:
            events = [event async for event in source]
        if view is None and not events:
            raise no_session(self.tenant, self.id)
        return recover(self.tenant, self.id, view, events)

    def _events_of(self, session: str, after: int, limit: int | None) -> AsyncGenerator[SessionEvent, None]:
        """Of any session of the tenant."""
        key = make_key(self.tenant, session)
        return session_events(self._connection, self.tenant, session, key, after, limit)

    def _all_events(self, after: int, limit: int | None) -> AsyncGenerator[SessionEvent, None]:
        return session_events(self._connection, self.tenant, self.id, self.key, after, limit)


def _without_call(view: SnapshotView) -> list[str]:
    """Ids of the results that wait because no call has them, each as the result names it. A call that is
    known, whose message has not come, is as it should be."""
    rows = view.data["tools"]
    known = {row["operation_id"] for row in rows} | {row["call_id"] for row in rows}
    named = [(one.operation_id, one.call_id) for one in view.waiting_results]
    return [
        repr(operation or call) for operation, call in named if known.isdisjoint({operation, call} - {None})
    ]
