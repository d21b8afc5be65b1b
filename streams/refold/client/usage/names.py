"""Names in usage: what the fold would refuse is refused here, before anything is sent."""

from __future__ import annotations

import hashlib
from typing import Final

from refold.core.limits import USAGE_NAME_BYTES_MAX
from refold.core.usage import ANY_MODEL, WINDOWS
from refold.errors import UsageError

#: Hex digits of the subject's SHA-256 in the id of its own session: 128 bits, as random ids have.
_DIGITS: Final = 32


def usage_session(subject: str) -> str:
    """The id of a subject's own session of usage. A session's id says nothing of a person."""
    return f"usage-{hashlib.sha256(subject.encode()).hexdigest()[:_DIGITS]}"


def check_names(subject: str, model: str, *, any_model: bool = False) -> None:
    """Raises UsageError."""
    for what, name in (("subject", subject), ("model", model)):
        if not 1 <= len(name.encode("utf-8", "replace")) <= USAGE_NAME_BYTES_MAX:
            raise UsageError(f"{what} {name[:40]!r}: 1 to {USAGE_NAME_BYTES_MAX} bytes are needed")
    if model == ANY_MODEL and not any_model:
        raise UsageError("the model * stands for all models, to be read only: name one")


def check_window(window: str) -> None:
    """Raises UsageError."""
    if window not in WINDOWS:
        raise UsageError(f"window={window!r}: there are {', '.join(WINDOWS)}")
