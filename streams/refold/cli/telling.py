"""What commands say alike: instants, and who it is that says so."""

from __future__ import annotations

import getpass
from datetime import UTC, datetime

from refold.errors import UsageError


def iso(time_ms: int) -> str:
    """2026-01-31T12:00:00.000Z"""
    moment = datetime.fromtimestamp(time_ms / 1000, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def login(doing: str = "rules") -> str:
    """Who runs this command, which is what they are ``doing``. Raises UsageError where nobody has a name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # A container whose user has no name.
        raise UsageError(f"who {doing}? Your login has no name here: add --by NAME.") from None
