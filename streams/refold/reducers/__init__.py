"""Your own state in a session: pure functions that fold event types into a named part (``refold.reducer``).

:func:`reducer` declares one, :class:`Event` is what it gets, :func:`load` makes a process fold them (the
worker does, for the modules in the setting ``worker.reducers``). Rules: :mod:`refold.core.reducers`; guide:
docs/guides/reducers.md.
"""

from __future__ import annotations

from refold.reducers.declaring import Declared, declared, reducer
from refold.reducers.event import Event
from refold.reducers.loading import install, load, words

__all__ = ["Declared", "Event", "declared", "install", "load", "reducer", "words"]
