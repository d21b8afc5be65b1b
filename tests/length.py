"""How long what could go on for ever goes on: `make test` plays a part of it, `make test-long` all.

Only numbers are here: how many random cases of one kind. Nothing is left out by kind: every point, fault and
rule is in the short run.
"""

from __future__ import annotations

import os
from typing import Final

LONG: Final = os.environ.get("LONG_TESTS", "0") not in ("", "0")


def cases(short: int, long: int) -> int:
    return long if LONG else short
