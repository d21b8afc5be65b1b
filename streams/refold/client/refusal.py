"""What the fold would refuse whatever the session holds is refused before it is sent: the caller who gave an
id that is too long learns of it at the call, and not from a ruling nobody asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from refold.client.receipts import Refused, Ruling
from refold.core.alone import TYPES, wrong_alone
from refold.core.codes import WAY_OUT, RejectCode
from refold.core.envelope import Envelope
from refold.core.limits import ID_CHARS_SHORT
from refold.errors import InvalidRecord, UsageError
from refold.wire.events import decode_event

_MESSAGE_IDS: Final = ("message_id", "parent_id", "replaces")


class NotSent(UsageError, Refused):
    """The fold would refuse the event, for ``ruling.code`` and ``ruling.reason``. Nothing was sent.

    A :class:`Refused` too: whoever waits for *accepted* and is ready for a refusal need not tell them apart.
    """

    def __init__(self, event_type: str, event_id: str, code: RejectCode, reason: str) -> None:
        UsageError.__init__(self, f"{event_type}: {reason}. Nothing was sent: {WAY_OUT[code]} ({code}).")
        self.event_id = event_id
        self.ruling = Ruling("rejected", None, code, reason)


def refuse(env: Envelope, payload: Mapping[str, Any] | bytes) -> None:
    """``payload``: as the caller gave it; in ``env`` it is encoded. Raises :class:`NotSent`."""
    event = None
    if not isinstance(payload, bytes) and env.type in TYPES and not _is_plain(env.type, payload):
        try:
            event = decode_event(env)
        except InvalidRecord:
            # Broken content is the fold's to describe: it names the place.
            return
    wrong = wrong_alone(env, event)
    if wrong is not None:
        raise NotSent(env.type, env.event_id, wrong.code, wrong.reason)


def _is_plain(event_type: str, payload: Mapping[str, Any]) -> bool:
    """A message without calls, results and long ids: nearly all of the traffic, which is not read again."""
    if event_type != "MessageAppended" or not payload.get("message_id"):
        return False
    for name in _MESSAGE_IDS:
        value = payload.get(name)
        if value and (len(value) > ID_CHARS_SHORT or value[0] == "@"):
            return False
    return payload.get("parent_id") != payload.get("message_id") and all(
        part.data is None for part in payload.get("content", ())
    )
