"""Metric names with advice, logging, health. Imported by every part but ``core``.

``names`` is the closed list, ``metrics`` counts, ``logging`` sets up structlog, ``health`` judges the probes.
"""

from __future__ import annotations
