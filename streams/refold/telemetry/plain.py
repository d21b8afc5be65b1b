"""structlog as where rich is not installed, which it supports: without what it would load rich for.

That is tracebacks for a terminal. Ours are :mod:`refold.telemetry.tracebacks`, also there. rich comes with
the command line; to load it takes 28 ms of a worker's start (measured), in which its partitions wait.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any


def load_structlog() -> None:
    """Import structlog; where rich or structlog itself is loaded already, as always. Before threads are
    started: for a moment rich cannot be imported. Raises ModuleNotFoundError."""
    if "rich" in sys.modules or "structlog" in sys.modules:
        importlib.import_module("structlog")
        return
    modules: dict[str, Any] = sys.modules
    modules["rich"] = None
    try:
        importlib.import_module("structlog")
    finally:
        del modules["rich"]
