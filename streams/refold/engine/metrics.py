"""The engine's view of metrics: a small port. ``refold.telemetry.metrics`` implements it, the default does
nothing.

Names are those of the closed list in ``refold.telemetry``; the engine calls per commit and per chunk, never
per event.
"""

from __future__ import annotations

from typing import Protocol


class Metrics(Protocol):
    """Counters and observations the engine reports. Called on the event loop; must not block."""

    def count(self, name: str, amount: float = 1, **labels: str) -> None: ...

    def observe(self, name: str, value: float, **labels: str) -> None: ...

    def gauge(self, name: str, value: float, **labels: str) -> None: ...

    def forget(self, name: str, **labels: str) -> None: ...


class NoMetrics:
    """The default: an engine without telemetry is still an engine."""

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        return None

    def observe(self, name: str, value: float, **labels: str) -> None:
        return None

    def gauge(self, name: str, value: float, **labels: str) -> None:
        return None

    def forget(self, name: str, **labels: str) -> None:
        return None
