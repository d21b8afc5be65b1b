"""Rule H10: a checkpoint that is fetched while its partition is served from the changelog's newest end.

Reading on and fetching run side by side, and whichever has it first decides. A checkpoint that is whole while
much is unread ends the reading: the partition is closed and taken over again at once, as if by another
worker, with the checkpoint for its base; so nothing of what was read out of turn has to be put on top of it.
What is known of absence meanwhile is what the checkpoint's key filter proves (rule H3), from when that is
there on.

Looked at by the restore thread between two steps, and by the event loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from refold.engine.checkpoints.manifest import Manifest
from refold.engine.checkpoints.source import AHEAD_RECORDS_MIN
from refold.engine.warming.unread import KeyFilter, Unread


class Arrived(Exception):
    """A checkpoint is there, and saves reading."""


class Fetch(Protocol):
    """As ``checkpoints.fetching.Fetching``."""

    @property
    def filter(self) -> KeyFilter | None: ...

    @property
    def state_next(self) -> int | None: ...

    @property
    def over(self) -> bool: ...

    @property
    def found(self) -> Manifest | None: ...


class Arriving:
    def __init__(
        self, fetch: Fetch, unread: Unread, state_end: int, *, paced: bool, forget: Callable[[], None]
    ) -> None:
        """``state_end``: the mark of the state changelog. ``paced``: bytes are what is short. ``forget``:
        called where nobody will go on from it."""
        self._fetch = fetch
        self._unread = unread
        self._state_end = state_end
        self._paced = paced
        self._forget = forget
        #: :meth:`look` has said so: the next restore goes on from it.
        self.arrived = False

    def look(self) -> bool:
        """False: nothing comes any more. Raises :class:`Arrived`."""
        fetch, unread = self._fetch, self._unread
        self._tell()
        if not fetch.over:
            return True
        found = fetch.found
        if found is None or not unread.reading_state:
            return False
        there = found.frontier
        left = unread.high - unread.low + max(0, unread.history_end - unread.history_next)
        after = max(0, self._state_end - there.state_next)
        after += max(0, unread.history_end - there.history_next)
        if left - after < AHEAD_RECORDS_MIN:
            return False
        self.arrived = True
        raise Arrived

    @property
    def waits(self) -> bool:
        """Whether reading on is to wait for it: where both are paced, what is below it comes with it, and
        would be read twice at the cost of others."""
        self._tell()
        below = self._fetch.state_next
        return self._paced and below is not None and self._unread.high <= below and not self._fetch.over

    def _tell(self) -> None:
        proof = self._fetch.filter
        if proof is not None:
            self._unread.told(proof)

    def close(self) -> None:
        """The reading is over. Returns at once."""
        if not self.arrived:
            self._forget()
