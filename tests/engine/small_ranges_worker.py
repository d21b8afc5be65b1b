"""A worker to which a tenth is much: what makes a restore worth serving early, its ranges, and what makes a
checkpoint worth going over to. Run as `refold worker` is, with the same arguments.

The rules do not know the numbers; with the real ones a test has to write 70 000 sessions before it begins.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from refold.cli.main import main
from refold.engine.checkpoints import source
from refold.engine.warming import arriving, interval, opening

FIRST_OFFSETS: Final = interval.FIRST_OFFSETS // 10
HOT_OFFSETS_MIN: Final = opening.HOT_OFFSETS_MIN // 10
AHEAD_RECORDS_MIN: Final = source.AHEAD_RECORDS_MIN // 10
#: The second range may be twice the first.
TWO_RANGES: Final = 3 * FIRST_OFFSETS

COMMAND: Final = [sys.executable, str(Path(__file__))]

if __name__ == "__main__":
    interval.FIRST_OFFSETS = FIRST_OFFSETS  # type: ignore[misc]
    opening.HOT_OFFSETS_MIN = HOT_OFFSETS_MIN  # type: ignore[misc]
    source.AHEAD_RECORDS_MIN = arriving.AHEAD_RECORDS_MIN = AHEAD_RECORDS_MIN  # type: ignore[misc]
    main()
