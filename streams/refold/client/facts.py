"""A session's named facts as a mapping that is read and written over the network.

::

    await chat.facts.set("profile", {"name": "Anna"})
    goal = await chat.facts.get("goal", "none yet")
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from refold.client.receipts import Receipt
from refold.client.snapshots import SnapshotView


class FactSession(Protocol):
    @property
    def state(self) -> Callable[..., Awaitable[SnapshotView | None]]: ...

    async def set_fact(self, name: str, value: Any, **options: Any) -> Receipt: ...

    async def remove_fact(self, name: str, **options: Any) -> Receipt: ...


class Facts:
    """Reads wait for what this client saw accepted; ``options`` are those of ``state`` and ``publish``.

    Values are any JSON, at most 64 facts, each of 8 192 bytes (UsageError), together 49 152 (rejected with
    ``facts_full``). A session that does not exist has none.
    """

    def __init__(self, session: FactSession) -> None:
        self._session = session

    async def all(self, **options: Any) -> dict[str, Any]:
        """Every fact, in the order they were first set."""
        view = await self._session.state(**options)
        return {} if view is None else dict(view.facts)

    async def get(self, name: str, default: Any = None, **options: Any) -> Any:
        return (await self.all(**options)).get(name, default)

    async def has(self, name: str, **options: Any) -> bool:
        """Tells a fact that is null from one that is not there."""
        return name in await self.all(**options)

    async def set(self, name: str, value: Any, **options: Any) -> Receipt:
        """Set, or set anew. ``wait="accepted"`` to find it at the next read of any process."""
        return await self._session.set_fact(name, value, **options)

    async def remove(self, name: str, **options: Any) -> Receipt:
        """Nothing happens where there is none of that name."""
        return await self._session.remove_fact(name, **options)
