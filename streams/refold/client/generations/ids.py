"""Ids of generations and their messages: derived from session and caller key, so that a retry finds its
own."""

from __future__ import annotations

import hashlib
from typing import Final

from refold.client.ids import new_id
from refold.core.limits import ACK_CLIENT_BYTES_MAX, GENERATION_NAME_BYTES_MAX
from refold.errors import UsageError

#: Hex digits of a derived id: 128 bits, as random ids have.
DIGITS: Final = 32

KEY_BYTES_MAX: Final = 1024


def generation_id(session_key: bytes, key: str | None) -> str:
    """The same for the same session and key, in any process; random without a key."""
    if key is None:
        return f"g-{new_id()}"
    encoded = key.encode("utf-8", "surrogatepass")
    if not key or len(encoded) > KEY_BYTES_MAX:
        raise UsageError(f"a generation's key has 1 to {KEY_BYTES_MAX} bytes; this one has {len(encoded)}")
    return f"g-{hashlib.sha256(session_key + b'#' + encoded).hexdigest()[:DIGITS]}"


def answer_id(generation: str) -> str:
    """The id of the message a generation ends in, where the caller gives none."""
    return f"m-{generation.removeprefix('g-')}"


def check_name(what: str, name: str) -> None:
    """Raises UsageError for a name the fold would refuse or a frame's id could not hold."""
    size = len(name.encode("utf-8", "replace"))
    if not 1 <= size <= GENERATION_NAME_BYTES_MAX or any(letter < " " for letter in name):
        raise UsageError(
            f"{what} {name[:40]!r}: 1 to {GENERATION_NAME_BYTES_MAX} bytes without control characters are "
            "needed"
        )


def check_client(client: str) -> None:
    """Raises UsageError for a client name that acks cannot carry."""
    if not 1 <= len(client.encode("utf-8", "replace")) <= ACK_CLIENT_BYTES_MAX:
        raise UsageError(f"client {client[:40]!r}: 1 to {ACK_CLIENT_BYTES_MAX} bytes are needed")
