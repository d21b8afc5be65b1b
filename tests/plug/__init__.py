"""Pulling the plug: processes with a real RocksDB end by SIGKILL at chosen places, and what comes back is
compared. ``python -m tests.plug``; see docs/internals/simulator.md."""

from __future__ import annotations

import sys
from pathlib import Path

#: ``simulation`` and ``engine`` are packages of the tests' directory, as pytest imports them.
_TESTS = str(Path(__file__).resolve().parents[1])
if _TESTS not in sys.path:
    sys.path.insert(0, _TESTS)
