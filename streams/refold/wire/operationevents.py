"""Payloads of session operations as the values the fold understands.

A fork's base and a restored message come from whoever sends the event, and their bytes end up in public state
records: so each is read strictly and written anew, down to the data of its parts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from refold.core.envelope import Envelope
from refold.core.events import Event, MessageAppended
from refold.core.operationevents import ContextRestored, RestoredMessage, SessionForked, SessionPruned
from refold.errors import InvalidRecord
from refold.wire.foreign import MESSAGE_LISTS
from refold.wire.parts import check_parts, from_wire
from refold.wire.snapshot import decode_foreign


def _forked(record: dict[str, Any], _: Envelope) -> SessionForked:
    base, data = decode_foreign(record["base"])
    for name in MESSAGE_LISTS:
        for message in data["context"][name]:
            check_parts([from_wire(part) for part in message["content"]])
    return SessionForked(record["source"], record["source_seq"], base)


def restored_with(
    read_message: Callable[[bytes], MessageAppended],
) -> Callable[[dict[str, Any], Envelope], ContextRestored]:
    def message_of(item: dict[str, Any]) -> RestoredMessage:
        body: bytes | None = None
        if item["body"] is not None:
            nested = read_message(item["body"])
            if (nested.message_id, nested.role) != (item["message_id"], item["role"]):
                raise InvalidRecord("bad_message", "a restored message's body is another message's")
            body = nested.body
        return RestoredMessage(
            item["message_id"],
            item["parent"],
            item["seq"],
            item["time_ms"],
            item["role"],
            actor=item["actor"],
            turn_start=item["turn_start"],
            from_tool_event=item["from_tool_event"],
            answers=tuple(item["answers"]),
            body=body,
            length=item["length"],
            sha256=item["sha256"],
        )

    def restored(record: dict[str, Any], _: Envelope) -> ContextRestored:
        return ContextRestored(
            record["head_message_id"],
            record["through_message_id"],
            record["through"],
            record["uncovered"],
            tuple([message_of(item) for item in record["messages"]]),
        )

    return restored


def _pruned(record: dict[str, Any], _: Envelope) -> SessionPruned:
    return SessionPruned(
        tuple(record["branches"]), record["all_branches"], record["ended"], tuple(record["facts"])
    )


DECODERS: Final[dict[str, Callable[[dict[str, Any], Envelope], Event]]] = {
    "SessionForked": _forked,
    "SessionPruned": _pruned,
}
