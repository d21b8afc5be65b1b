"""Texts within their limits."""

from __future__ import annotations


def clip(text: str | None, bytes_max: int) -> str | None:
    """The beginning of ``text``, at most ``bytes_max`` UTF-8 bytes, never half a character."""
    if text is None or len(text) * 4 <= bytes_max:
        return text
    data = text.encode()
    return text if len(data) <= bytes_max else data[:bytes_max].decode(errors="ignore")
