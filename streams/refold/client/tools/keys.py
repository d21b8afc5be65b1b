"""Operation ids and idempotency keys: the same call has the same one in every process and after any crash.

An operation is ``run/step/message:call``. The call's id alone would not do: providers hand the same id out
again in a later turn (D07), so it counts within the message that asked. The external system is given
``operation id/attempt``, and the attempt number rises only after the attempt before is known not to be done.
"""

from __future__ import annotations

import hashlib
from typing import Final

from refold.core.limits import ID_BYTES_MAX
from refold.errors import UsageError

#: Of a digest that stands for an id that is too long: 128 bits, as every id the SDK makes.
DIGEST_HEX: Final = 32

_ESCAPED: Final = str.maketrans({"%": "%25", "/": "%2F", ":": "%3A", "@": "%40", "#": "%23"})


def operation_id(
    message_id: str, call_id: str, *, run: str | None = None, step: str | None = None, repeat: int = 0
) -> str:
    """``repeat``: how often this message asked with this call id before (a provider's fault, kept apart)."""
    if not message_id or not call_id:
        raise UsageError("message_id and the call's id must not be empty: they are the operation's name")
    parts = [part.translate(_ESCAPED) for part in (run, step) if part is not None]
    call = f"{message_id.translate(_ESCAPED)}:{call_id.translate(_ESCAPED)}"
    made = "/".join([*parts, call if not repeat else f"{call}:{repeat + 1}"])
    if len(made.encode()) <= ID_BYTES_MAX:
        return made
    return f"sha256:{hashlib.sha256(made.encode()).hexdigest()[:DIGEST_HEX]}"


def idempotency_key(operation: str, attempt: int) -> str:
    """What the external system de-duplicates and is asked by."""
    return f"{operation}/{attempt}"
