"""Named gaps in the commit of a chunk, and rules that can be taken away: what ``verify eval`` changes.

Without it, :func:`reach` does nothing and :func:`broken` is never true.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

#: In the order in which a commit passes them.
POINTS: Final = ("begun", "results", "cursor", "committed")

#: cursor-first: the cursor in a transaction of its own, before the results'. redo-done: a resume takes what
#: is done too. skip-failed: a resume leaves what failed.
SABOTAGES: Final = ("cursor-first", "redo-done", "skip-failed")

_hook: Callable[[str], None] | None = None
_broken: str | None = None


def set_up(hook: Callable[[str], None] | None, sabotage: str | None) -> None:
    """For this process; only a harness calls it."""
    global _hook, _broken
    _hook, _broken = hook, sabotage


def reach(point: str) -> None:
    if _hook is not None:
        _hook(point)


def broken(rule: str) -> bool:
    return _broken == rule
