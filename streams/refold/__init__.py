"""refold: durable, exactly-once conversation and agent state on Kafka.

State is a fold over a log; after a crash you *refold*. Start with :mod:`refold.client` (producers and
readers), ``refold --help`` (the command line) and ``docs/`` (guarantees, operations, internals).
"""

from __future__ import annotations

__version__ = "0.1.0"
