"""``refold verify eval``: a batch whose runner is killed again and again, counted by others' means."""

from __future__ import annotations
