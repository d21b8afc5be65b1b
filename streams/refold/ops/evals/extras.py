"""Modules of the extra ``eval``, imported when they are used."""

from __future__ import annotations

import importlib
from typing import Any


def extra(module: str) -> Any:
    """The module, untyped. ModuleNotFoundError names it; the CLI turns that into the extra to install."""
    return importlib.import_module(module)
