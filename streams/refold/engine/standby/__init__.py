"""Copies of partitions that other workers own, kept fresh (rules S1 to S4 of docs/internals/recovery.md)."""

from __future__ import annotations
