"""Usage windows in the SDK (docs/concepts/usage.md)."""

from __future__ import annotations
