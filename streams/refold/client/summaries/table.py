"""Sessions that want a summary, as heard on the work topic. Pure; time is an argument, in seconds.

The topic is compacted and has one record per such session, so a reader from its beginning knows all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from refold.client.summaries.limits import CHOICE_MAX, ITEMS_MAX, PAUSE_S, TRIES_MAX
from refold.core.work import WorkItem


@dataclass(slots=True)
class Wanted:
    item: WorkItem
    tries: int = 0
    not_before: float = 0.0


class SummaryTable:
    def __init__(self, *, items_max: int = ITEMS_MAX) -> None:
        self._items_max = items_max
        #: In the order in which they were heard of.
        self._wanted: dict[bytes, Wanted] = {}

    def __len__(self) -> int:
        return len(self._wanted)

    def hear(self, key: bytes, item: WorkItem | None) -> None:
        """``None``: none is wanted any more. An item that says something new is tried from the beginning."""
        if item is not None and item.kind != "summary":
            return
        held = self._wanted.get(key)
        if item is None:
            self._wanted.pop(key, None)
        elif held is not None:
            if not held.item.same(item):
                self._wanted[key] = Wanted(item)
        elif len(self._wanted) < self._items_max:
            self._wanted[key] = Wanted(item)

    def choose(
        self, busy: Callable[[bytes], bool], now: float, pick: Callable[[int], int]
    ) -> tuple[bytes, WorkItem] | None:
        """One that may be tried now. ``busy``: whether this process is at it; ``pick(n)``: 0 to n - 1."""
        found = list(
            islice(
                (
                    (key, wanted.item)
                    for key, wanted in self._wanted.items()
                    if wanted.not_before <= now and not busy(key)
                ),
                CHOICE_MAX,
            )
        )
        return found[pick(len(found))] if found else None

    def still(self, key: bytes, item: WorkItem) -> bool:
        """Whether it is wanted as it was when it was chosen."""
        held = self._wanted.get(key)
        return held is not None and held.item.same(item)

    def done(self, key: bytes, item: WorkItem) -> None:
        """Nothing more to do for this item. One that was heard of meanwhile stays."""
        if self.still(key, item):
            del self._wanted[key]

    def failed(self, key: bytes, item: WorkItem, now: float, *, again: bool = True) -> None:
        """Try again later, TRIES_MAX times in all; ``again=False``: leave it alone until it says something
        new."""
        if not self.still(key, item):
            return
        held = self._wanted[key]
        held.tries += 1
        if not again or held.tries >= TRIES_MAX:
            del self._wanted[key]
        else:
            held.not_before = now + PAUSE_S * 2 ** (held.tries - 1)

    def next_due(self, now: float) -> float | None:
        """Seconds until one may be tried that may not be now."""
        later = [wanted.not_before - now for wanted in self._wanted.values() if wanted.not_before > now]
        return min(later, default=None)
