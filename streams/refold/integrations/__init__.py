"""Refold behind the interfaces of agent frameworks, one package each."""

from __future__ import annotations
