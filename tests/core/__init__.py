"""Tests of the session fold."""

from __future__ import annotations
