"""Ids the SDK makes: 128 random bits as 32 hex digits."""

from __future__ import annotations

import os
from typing import Final

#: Ids made by one call of the system's generator, which costs 1 to 40 us however few bytes are asked for; a
#: tool call takes four ids. 4 KiB of random bytes.
BATCH_IDS: Final = 256

_ID_BYTES: Final = 16

#: Made and not given out. ``list.pop`` is atomic, so any thread may take one; each thread that finds it empty
#: adds a batch.
_made: Final[list[str]] = []


def new_id() -> str:
    """Unique without coordination. Any thread."""
    try:
        return _made.pop()
    except IndexError:
        digits = os.urandom(_ID_BYTES * BATCH_IDS).hex()
        step = 2 * _ID_BYTES
        first, *others = (digits[at : at + step] for at in range(0, len(digits), step))
        _made.extend(others)
        return first


# A child must not give out the ids its parent is going to give out.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_made.clear)
