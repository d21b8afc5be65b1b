"""How young a blob is left alone. Apart from what collects: ``--help`` needs no more than this."""

from __future__ import annotations

from typing import Final

#: How long an event may be on its way after its blob was stored: a producer that waits for a broker.
GRACE_HOURS_DEFAULT: Final = 24.0
GRACE_HOURS_MIN: Final = 1.0
