"""What there is to do for one agent: the runs of the work topic, as heard. Pure; time is an argument.

The topic is compacted and has one record per open run, so a reader that begins at its beginning knows all of
them. Only *ready* ones are kept: what is leased comes back as ready when its lease is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final

from refold.client.agents.limits import AVOID_S, WORK_ITEMS_MAX
from refold.core.work import WorkItem

#: Ready runs looked at when one is chosen: the longest ready ones. Processes choose among them at random, so
#: that they do not all ask for the same one.
CHOICE_MAX: Final = 32


@dataclass(slots=True)
class Heard:
    """``not_before``: on the caller's clock."""

    item: WorkItem
    not_before: float = 0.0


class WorkTable:
    """``process``: what this process's holder names begin with."""

    def __init__(
        self, agent: str, versions: Sequence[str], process: str, *, items_max: int = WORK_ITEMS_MAX
    ) -> None:
        self._agent = agent
        self._versions = frozenset(versions)
        self._process = process
        self._items_max = items_max
        #: In the order in which they became ready, as far as this process heard.
        self._ready: dict[bytes, Heard] = {}

    def __len__(self) -> int:
        return len(self._ready)

    def hear(self, key: bytes, item: WorkItem | None, now: float) -> None:
        """``None``: nothing is to be done any more. ``now``: the caller's clock, in seconds."""
        if item is None or item.state != "ready" or not self._fits(item):
            self._ready.pop(key, None)
            return
        held = self._ready.get(key)
        if held is None and len(self._ready) >= self._items_max:
            # The fold announces it again when nobody has taken it (N8).
            return
        not_before = 0.0 if held is None or held.item.epoch != item.epoch else held.not_before
        if item.avoid is not None and item.avoid.startswith(f"{self._process}/") and not item.notices:
            not_before = max(not_before, now + AVOID_S)
        self._ready[key] = Heard(item, not_before)

    def _fits(self, item: WorkItem) -> bool:
        return (
            item.kind == "run"
            and item.agent == self._agent
            and (item.pin is None or item.pin in self._versions)
        )

    def still(self, key: bytes, epoch: int) -> bool:
        """Whether it is ready as it was when it was chosen."""
        held = self._ready.get(key)
        return held is not None and held.item.epoch == epoch

    def choose(
        self, busy: Callable[[bytes], bool], now: float, pick: Callable[[int], int]
    ) -> WorkItem | None:
        """One that may be asked for now. ``busy``: whether this process is at it; ``pick(n)``: 0 to n - 1."""
        found = list(
            islice(
                (
                    heard.item
                    for key, heard in self._ready.items()
                    if heard.not_before <= now and not busy(key)
                ),
                CHOICE_MAX,
            )
        )
        return found[pick(len(found))] if found else None

    def later(self, key: bytes, now: float, pause_s: float) -> None:
        """Leave it alone for a while."""
        held = self._ready.get(key)
        if held is not None:
            held.not_before = max(held.not_before, now + pause_s)

    def forget(self, key: bytes) -> None:
        """It is ours, or not for us, until something new is heard of it."""
        self._ready.pop(key, None)

    def next_due(self, now: float) -> float | None:
        """Seconds until one may be asked for that may not be now."""
        later = [heard.not_before - now for heard in self._ready.values() if heard.not_before > now]
        return min(later, default=None)
