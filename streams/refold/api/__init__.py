"""The worker's HTTP port: reads and rulings of the sessions this worker owns (architecture.md, section 8)."""

from __future__ import annotations
