"""For tests of your own tools and agents: :func:`assert_idempotent`, sessions and agents without Kafka, an
embedded Kafka.

``pytest_plugins = ["refold.testing.kafka"]`` gives the ``kafka`` fixture. The names here are imported when
they are used, so that the plugin costs nothing at pytest's start.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from refold.testing.agents import MemoryProcess
    from refold.testing.idempotency import assert_idempotent
    from refold.testing.memory import MemoryLog, MemorySession

__all__ = ["MemoryLog", "MemoryProcess", "MemorySession", "assert_idempotent"]

_HOMES: Final = {
    "MemoryLog": "refold.testing.memory",
    "MemoryProcess": "refold.testing.agents",
    "MemorySession": "refold.testing.memory",
    "assert_idempotent": "refold.testing.idempotency",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
