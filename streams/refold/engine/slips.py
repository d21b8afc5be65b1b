"""A decoder of ours that raises what it should not: the record's ruling, instead of the worker's end."""

from __future__ import annotations

from refold.errors import InvalidRecord


def undecodable(error: Exception) -> InvalidRecord:
    """What one record met would end the worker at every restart, and its partition would stand still."""
    return InvalidRecord(
        "undecodable",
        f"reading it ended with {type(error).__name__}, which is a fault of refold's: please report it, and"
        " replay the record when it is mended",
    )
