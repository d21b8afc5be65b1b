"""``MODULE:OBJECT`` on a command line: the user's module, imported."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any, NamedTuple

from refold.errors import UsageError


class Target(NamedTuple):
    """``found``: what stands under the name in the module, ``None`` where nothing does."""

    module_name: str
    name: str
    module: ModuleType
    found: Any


def find_target(target: str, form: str, example: str) -> Target:
    """Raises UsageError, with the ``form`` and an ``example``, for what is no name, and for a module that is
    not there. What the module raises is its own."""
    module_name, _, name = target.partition(":")
    if not module_name or not name:
        raise UsageError(f"{target!r} is not {form}, as in {example}.")
    # As with `python -m`: a module beside the caller is found.
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as err:
        if err.name != module_name and not module_name.startswith(f"{err.name}."):
            raise
        raise UsageError(f"there is no module {module_name!r} here or on the Python path.") from None
    return Target(module_name, name, module, getattr(module, name, None))
