"""``RefoldSession``: the Agents SDK's ``Session``, kept by a session of refold.

An item is one message of the session. Removing the last one makes the message before it the head again, as
``switch_branch`` does: nothing is taken out of the journal. Two things cannot be left that way, a path's only
message and a pinned system message; their ids go into the fact ``POPPED``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from refold.client.ids import new_id
from refold.client.operations.past import Placed
from refold.client.ordering import EarlierEventFailed
from refold.client.receipts import Refused
from refold.client.session import Session
from refold.client.snapshots import SnapshotView
from refold.errors import TransientError, UsageError
from refold.formats.openai_responses import item_in
from refold.formats.parts import as_part
from refold.integrations.openai_agents.history import History, Path
from refold.integrations.openai_agents.items import Item, items_of
from refold.wire.codec import decode_body
from refold.wire.events import MESSAGE_SUBJECT

#: Fact with the ids of messages that were removed and stand where they stood.
POPPED: Final = "openai_agents.popped"

#: A removal that others' writes overtook is tried again; each try costs two round trips.
TRIES_MAX: Final = 16


class RefoldSession:
    """History of one conversation for ``Runner.run(…, session=RefoldSession(rf.session("chat-1")))``.

    Any number of processes may use one session: each sees what the others added. Use one object from one
    event loop. ``session_settings``: the Agents SDK's; its ``limit`` is the default of :meth:`get_items`.
    """

    def __init__(self, session: Session, *, session_settings: Any = None) -> None:
        self.session = session
        self.session_id = session.id
        self.session_settings = session_settings
        self._history = History(session)
        # The history is folded by one call at a time, and items are added in the order of the calls.
        self._turn = asyncio.Lock()

    async def get_items(self, limit: int | None = None) -> list[Item]:
        """Items of the active path, oldest first; with ``limit`` the newest so many (negative: all).

        Costs a pass over the session's events at first, then over what is new. Raises NotFound where
        retention has cut the journal's beginning, and as ``session.state``.
        """
        wanted = self._limit() if limit is None else limit
        if wanted == 0:
            return []
        async with self._turn:
            _, found = await self._path()
            items: list[Item] = []
            for placed in reversed(found):
                items[:0] = await self._items(placed)
                if wanted is not None and 0 < wanted <= len(items):
                    return items[-wanted:]
            return items

    async def add_items(self, items: Sequence[Mapping[str, Any]]) -> None:
        """Append the items in order; returns when all are accepted.

        Raises UsageError for what is no item, before anything is sent; Refused where the session refuses one
        (it is closed, say); TransientError where it is not known whether what was sent is in. The next call
        sends that again first, so nothing is lost and nothing is there twice.
        """
        for item in items:
            if not isinstance(item, Mapping):
                raise UsageError(f"an item is a dict of the Responses API, not {type(item).__name__}")
        if not items:
            return
        async with self._turn:
            await self._add(items, _root(await self.session.state()))

    async def pop_item(self) -> Item | None:
        """Remove the newest item of the active path and return it; ``None`` where there is none.

        What others add meanwhile is not lost: the removal is of what was newest when it is accepted. Raises
        TransientError after ``TRIES_MAX`` writes of others in between, and as :meth:`get_items`.
        """
        async with self._turn:
            for _ in range(TRIES_MAX):
                path, shown = await self._path()
                if not shown:
                    return None
                items = await self._items(shown[-1])
                try:
                    await self._remove(path, shown)
                except Refused as refused:
                    if refused.ruling.code != "expected_seq":
                        raise
                    continue
                if items[:-1]:
                    # A message from elsewhere that is more than one item: the others stay.
                    await self._add(items[:-1], _root(await self.session.state()))
                return items[-1]
        raise TransientError(
            f"session {self.session.tenant}/{self.session_id} was written to {TRIES_MAX} times while its"
            " last item was to be removed: nothing was removed, try again"
        )

    async def clear_session(self) -> None:
        """Delete the session's state: items, and whatever else it holds (facts, calls, configuration). The
        journal keeps its events; the next item begins it anew."""
        async with self._turn:
            await self.session.delete(wait="accepted")

    async def _path(self) -> tuple[Path, list[Placed]]:
        """The active path, and what of it was not removed."""
        view = await self.session.state()
        path = await self._history.path(view)
        popped = _popped(view)
        return path, [one for one in path.messages if one.message.id not in popped]

    async def _items(self, placed: Placed) -> list[Item]:
        body = decode_body(MESSAGE_SUBJECT, placed.body)
        parts = await self.session.load([as_part(part) for part in body["content"]])
        return items_of({**body, "content": parts})

    async def _add(self, items: Sequence[Mapping[str, Any]], parent: str | None) -> None:
        receipts = []
        for item in items:
            body = item_in(item, message_id=new_id(), parent_id=parent)
            try:
                receipts.append(await self.session.append(body))
            except EarlierEventFailed:
                await self.session.retry()
                receipts.append(await self.session.append(body))
            parent = None
        for receipt in receipts:
            await receipt.accepted()

    async def _remove(self, path: Path, shown: list[Placed]) -> None:
        last = shown[-1].message.id
        if last == path.head and path.before:
            options: dict[str, Any] = {"expected_seq": path.seq, "wait": "accepted"}
            try:
                await self.session.switch_branch(path.before, **options)
            except Refused as refused:
                if refused.ruling.code != "unknown_message":
                    raise
                # Further back than the state reaches.
                await self.session.switch_branch(path.before, rebuild=True, **options)
            return
        there = {one.message.id for one in path.messages}
        gone = [*(there - {one.message.id for one in shown}), last]
        await self.session.facts.set(POPPED, sorted(gone), expected_seq=path.seq, wait="accepted")

    def _limit(self) -> int | None:
        settings = self.session_settings
        found = settings.get("limit") if isinstance(settings, Mapping) else getattr(settings, "limit", None)
        return None if found is None else int(found)


def _popped(view: SnapshotView | None) -> frozenset[str]:
    found = None if view is None else view.facts.get(POPPED)
    return frozenset(found) if isinstance(found, list) else frozenset()


def _root(view: SnapshotView | None) -> str | None:
    """The parent of what is added: a new root where the path's only message was removed, else the head."""
    recent = [] if view is None else view.data["context"]["recent_messages"]
    return "" if recent and recent[-1]["message_id"] in _popped(view) else None
