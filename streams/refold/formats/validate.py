"""Strict checks of both providers' message rules, for tests of contexts (also your own).

They are written from the providers' documented errors, independently of the renderer, so that the two can
disagree.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from refold.errors import UsageError
from refold.formats.validate_anthropic import problems_anthropic
from refold.formats.validate_openai import problems_openai

__all__ = ["problems", "problems_anthropic", "problems_openai"]


def problems(context: Mapping[str, Any], format: str) -> list[str]:  # noqa: A002 - the public word for it
    """What the provider would refuse in ``context`` (as :func:`refold.formats.context.render` makes it)."""
    if format == "openai":
        return problems_openai(context["messages"])
    if format == "anthropic":
        return problems_anthropic(context)
    raise UsageError(f"there are no message rules for {format!r}; choose openai or anthropic")
