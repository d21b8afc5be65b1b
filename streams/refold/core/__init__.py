"""The session fold: pure functions over values. Start at :mod:`refold.core.decide` and ``evolve``.

No I/O, no clock, no randomness, no logging; imports the standard library and ``refold.errors`` only.
"""

from __future__ import annotations

from refold.core.decide import decide
from refold.core.envelope import Envelope
from refold.core.events import Event
from refold.core.evolve import evolve
from refold.core.fold import fold
from refold.core.invariants import well_formed
from refold.core.rulings import Accepted, Duplicate, Parked, Rejected, Ruling
from refold.core.session import Session, initial

__all__ = [
    "Accepted",
    "Duplicate",
    "Envelope",
    "Event",
    "Parked",
    "Rejected",
    "Ruling",
    "Session",
    "decide",
    "evolve",
    "fold",
    "initial",
    "well_formed",
]
