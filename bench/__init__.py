"""Benchmarks: refold and its peers side by side in one run.

Each module prints one JSON object as its last line with ``--json``.
"""

from __future__ import annotations
