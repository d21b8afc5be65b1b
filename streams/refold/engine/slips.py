"""A decoder of ours that raises what it should not: the record's ruling, instead of the worker's end."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from refold.errors import InvalidRecord, RefoldError

From = TypeVar("From")
To = TypeVar("To")


def read(decoder: Callable[[From], To], value: From) -> To:
    """``decoder(value)``. Raises InvalidRecord, and whatever says that it is not the record's fault (a
    registry does not answer). What one record meets otherwise would end the worker at every restart, and its
    partition would stand still."""
    try:
        return decoder(value)
    except RefoldError:
        raise
    except Exception as error:
        raise InvalidRecord(
            "undecodable",
            f"reading it ended with {type(error).__name__}, which is a fault of refold's: please report it,"
            " and replay the record when it is mended",
        ) from error
