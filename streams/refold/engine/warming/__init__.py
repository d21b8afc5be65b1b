"""Hot first: a partition is served while the older part of its state is still read (rules H1 to H7 of
docs/internals/recovery.md)."""

from __future__ import annotations
