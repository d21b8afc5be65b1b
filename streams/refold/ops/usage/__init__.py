"""Proof of usage windows: a second count of them (`recount`), and `refold verify usage` (`run`)."""

from __future__ import annotations
