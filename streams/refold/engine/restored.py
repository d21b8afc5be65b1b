"""What a restore hands to the event loop."""

from __future__ import annotations

from dataclasses import dataclass

from refold.engine.plan import Written
from refold.engine.warming.beyond import Beyond
from refold.engine.warming.warmer import Warmer


@dataclass(frozen=True, slots=True)
class Restored:
    """Ready to be fed from ``offset`` of the inbox and ``batches`` of batches. ``claim``: the group's
    metadata does not name this worker yet. ``beyond``: what was handled beyond the offset (rule H5).
    ``warmer``: reads what is still unread (rule H2); the partition is served meanwhile."""

    offset: int
    batches: int
    written: Written
    claim: bool
    records: int
    waited_s: float
    seconds: float
    set_aside: str | None
    beyond: Beyond | None = None
    warmer: Warmer | None = None
