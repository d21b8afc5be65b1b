"""Faults planted into the rules of a restore that is hot first, and of timers and work, each by taking one
piece of them away.

Not switches of the product: nobody outside of the tests has a use for them, and each is one method."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any, Final

from refold.engine import markers, rows
from refold.engine.overlay import Output
from refold.engine.rows import Frontier
from refold.engine.timers import Asked, Timers
from refold.engine.warming.fold import WarmFold
from refold.engine.warming.parking import Parking
from refold.engine.warming.piece import Piece
from refold.engine.warming.scan import Scan
from refold.engine.warming.unread import Unread
from refold.engine.work import work_outputs

from . import disk


def _nothing(*_: Any) -> None:
    return None


def _never(*_: Any) -> bool:
    return False


def _always(*_: Any) -> bool:
    return True


_changes: Final = Piece.changes


def _only_rows(piece: Piece) -> Iterator[tuple[bytes, bytes | None]]:
    """Nothing that says of a session that its deletion is newer."""
    return (change for change in _changes(piece) if not change[0].startswith(rows.KNOWN))


def _without_hole(unread: Unread, frontier: Frontier) -> Frontier:
    return frontier


def _never_again(asked: Asked, now: float) -> None:
    asked.again = math.inf


def _only_items(*given: Any) -> list[Output]:
    return [out for out in work_outputs(*given) if out.value is not None]


#: What is broken -> (where, name, what stands there instead).
PLANTED: Final[dict[str, tuple[Any, str, Callable[..., Any]]]] = {
    "what was handled beyond the offset is handled again": (Parking, "skips", _never),
    "the offset passes records that wait": (WarmFold, "_bound", _nothing),
    "later records of a session overtake the one that waits": (Parking, "__contains__", _never),
    "an unknown session is taken for absent": (Unread, "knows", _always),
    "older ranges overwrite newer rows": (Unread, "newer", _never),
    "deletions are forgotten": (Piece, "changes", _only_rows),
    "what was written is not remembered": (Unread, "writes", _nothing),
    "who was met by a scan is taken for absent": (Scan, "met", _never),
    "a crash forgets what was not read": (Unread, "holed", _without_hole),
    "older history overwrites newer blocks": (disk.Batch, "known_block", _nothing),
}


#: The same of timers and work.
TIMERS: Final[dict[str, tuple[Any, str, Callable[..., Any]]]] = {
    "a deadline has no row": (Timers, "changed", _nothing),
    "the row of a former deadline stays": (Timers, "drop", _nothing),
    "a deadline that another worker wrote is not looked for": (Timers, "unknown", _nothing),
    "a proposal is made once": (Asked, "made", _never_again),
    "work is not withdrawn where a session is deleted": (markers, "work_outputs", _only_items),
}


@contextlib.contextmanager
def planted(name: str) -> Iterator[None]:
    kind, method, instead = {**PLANTED, **TIMERS}[name]
    before = getattr(kind, method)
    setattr(kind, method, instead)
    try:
        yield
    finally:
        setattr(kind, method, before)
