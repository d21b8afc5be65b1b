"""What the journal tells about one session: its conversation, and how its calls came to their outcomes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from refold.wire.codec import decode
from refold.wire.journal import decode_journal


@dataclass(slots=True)
class Told:
    """``spoken``: (role, id, text) of every message and (result, call id, text) of every result, in order.
    ``results``: operation id -> text. ``unknown``, ``not_done``: operation ids, once per time.
    """

    events: int = 0
    spoken: list[tuple[str, str, str]] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    not_done: list[str] = field(default_factory=list)
    results: dict[str, str] = field(default_factory=dict)
    reconciled: set[str] = field(default_factory=set)

    @classmethod
    def by(cls, values: Iterable[bytes]) -> Told:
        """Of a session's journal values, in order."""
        told = cls()
        for value in values:
            told.note(value)
        return told

    @property
    def words(self) -> list[str]:
        """What the assistant said, message by message."""
        return [text for role, _, text in self.spoken if role == "assistant"]

    def note(self, value: bytes) -> None:
        """Take in the next journal value. Raises InvalidRecord for what no worker has written."""
        env = decode_journal(value).env
        self.events += 1
        if env.type != "MessageAppended" and not env.type.startswith("ToolCall"):
            return
        payload = decode(env.payload, f"refold.event.{env.type}").record
        match env.type:
            case "MessageAppended":
                self.spoken.append((payload["role"], payload["message_id"], _text(payload["content"])))
            case "ToolCallOutcomeUnknown":
                self.unknown.append(payload["operation_id"])
            case "ToolCallReconciled" if payload["outcome"] == "not_done":
                self.not_done.append(payload["operation_id"])
            case "ToolCallCompleted" | "ToolCallFailed":
                operation = payload["operation_id"] or ""
                self.results[operation] = _text(payload["content"]) or payload.get("error") or ""
                self.spoken.append(("result", payload["call_id"] or operation, self.results[operation]))
                if payload["reconciled"]:
                    self.reconciled.add(operation)


def _text(content: Iterable[dict[str, object]]) -> str:
    return "".join(str(part["text"] or "") for part in content)
