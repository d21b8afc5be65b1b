"""refold: durable, exactly-once conversation and agent state on Kafka.

State is a fold over a log; after a crash you *refold*. Start with :mod:`refold.client` (producers and
readers), :class:`refold.Agent` (durable agents), ``refold --help`` (the command line) and ``docs/``
(guarantees, operations, internals).

The names below are loaded when they are used: ``import refold`` alone costs nothing and needs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from refold.client import Refold as Refold
    from refold.client.agents import Agent as Agent
    from refold.client.agents import NonRetryable as NonRetryable
    from refold.client.agents import Run as Run
    from refold.client.agents import RunFailed as RunFailed
    from refold.client.agents import Step as Step
    from refold.client.tools import tool as tool
    from refold.reducers import reducer as reducer

__version__ = "0.1.0"

#: Name → the module that has it. None of them needs more than the base install.
_HOMES: Final = {
    "Agent": "refold.client.agents",
    "NonRetryable": "refold.client.agents",
    "Refold": "refold.client",
    "Run": "refold.client.agents",
    "RunFailed": "refold.client.agents",
    "Step": "refold.client.agents",
    "reducer": "refold.reducers",
    "tool": "refold.client.tools",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
