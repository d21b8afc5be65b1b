"""What is settled about a generation before anything is generated: by its caller, or read back from the
journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from refold.client.events import SessionEvent
from refold.client.generations.ids import answer_id, check_name, generation_id
from refold.client.generations.limits import LEASE_S_MAX, LEASE_S_MIN
from refold.client.generations.metering import Meter, Metered
from refold.core.limits import PARAMS_BYTES_MAX
from refold.errors import UsageError
from refold.formats.jsonio import dumps_text

Asked = tuple[str, str | None, str, str | None, str]
"""Message id, reply_to, generator, params, durability: what makes two starts under one key the same."""


@dataclass(frozen=True, slots=True)
class Terms:
    """``params``: JSON text. ``lease_s``: seconds."""

    generation_id: str
    message_id: str
    reply_to: str | None
    key: str | None
    generator: str
    params: str | None
    lease_s: float
    durability: str
    meter: Meter | None = None

    @property
    def values(self) -> Any:
        return None if self.params is None else orjson.loads(self.params)

    @property
    def lease_ms(self) -> int:
        return int(self.lease_s * 1000)

    @property
    def asked(self) -> Asked:
        """As the fold compares it: holder and lease are who asks, not what is asked."""
        return (self.message_id, self.reply_to, self.generator, self.params, self.durability)

    @property
    def strict(self) -> bool:
        return self.durability == "strict"

    def started(self, holder: str, context_seq: int) -> dict[str, Any]:
        """The payload of GenerationStarted."""
        return {
            "generation_id": self.generation_id,
            "message_id": self.message_id,
            "reply_to": self.reply_to,
            "holder": holder,
            "lease_ms": self.lease_ms,
            "generator": self.generator,
            "params": self.params,
            "config_digest": None,
            "context_seq": context_seq,
            "durability": self.durability,
            "extra": None if self.meter is None else self.meter.to_extra(),
        }


def make_terms(
    session_key: bytes,
    generator: str,
    *,
    reply_to: str | None,
    key: str | None,
    params: Any,
    lease: float,
    durability: str,
    message_id: str | None,
    meter: Metered | None = None,
) -> Terms:
    """Raises UsageError for what the fold would refuse."""
    if not LEASE_S_MIN <= lease <= LEASE_S_MAX:
        raise UsageError(f"lease={lease!r}: {LEASE_S_MIN:g} to {LEASE_S_MAX:g} seconds are possible")
    if durability not in ("strict", "relaxed"):
        raise UsageError(f"durability={durability!r}: it must be 'strict' or 'relaxed'")
    text = None if params is None else dumps_text(params)
    if text is not None and len(text.encode()) > PARAMS_BYTES_MAX:
        raise UsageError(
            f"params are longer than {PARAMS_BYTES_MAX} bytes: append what is large as a message, name it "
            "here"
        )
    made = generation_id(session_key, key)
    if message_id is not None:
        check_name("message_id", message_id)
    message_id = message_id or answer_id(made)
    return Terms(made, message_id, reply_to, key, generator, text, lease, durability, Meter.of(meter))


def terms_of(event: SessionEvent) -> Terms | None:
    """Read back from the journal; ``None`` when this is not a GenerationStarted that this reader knows."""
    payload: Mapping[str, Any] | None = event.payload if event.type == "GenerationStarted" else None
    if payload is None:
        return None
    return Terms(
        payload["generation_id"],
        payload["message_id"],
        payload["reply_to"],
        event.envelope.correlation_id,
        payload["generator"],
        payload["params"],
        payload["lease_ms"] / 1000,
        payload["durability"],
        Meter.from_extra(payload["extra"]),
    )
