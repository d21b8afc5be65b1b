"""Garbage collection of the blob store (rule O7)."""

from __future__ import annotations
