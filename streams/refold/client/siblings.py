"""What the parts of a session stand on that look at other sessions beside it."""

from __future__ import annotations

from typing import Self

from refold.client.snapshots import SnapshotView
from refold.client.writes import SessionWrites


class SiblingWrites(SessionWrites):
    """Whoever mixes these in has the rest: :class:`refold.client.session.Session`."""

    tenant: str
    id: str

    def sibling(self, session: str) -> Self:
        """Another session of the same tenant and client."""
        raise NotImplementedError

    async def state(
        self, *, min_seq: int | None = None, timeout: float | None = None, stale: bool = False
    ) -> SnapshotView | None:
        raise NotImplementedError
