"""What ``run.model`` gives back, and how a finished generation becomes that value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, overload

from refold.client.agents.handles import StepResult
from refold.client.tools.rows import event_at
from refold.errors import NotFound
from refold.wire.codec import decode
from refold.wire.events import MESSAGE_SUBJECT
from refold.wire.parts import from_wire

if TYPE_CHECKING:
    from refold.client.session import Session


class Calls(Sequence[Mapping[str, Any]]):
    """The tool calls of one answer, as ``run.tools`` and ``session.run_tools`` take them (OpenAI's shape);
    they know the message they came in and the step that asked."""

    def __init__(self, source: StepResult) -> None:
        self.source = source
        self.message_id: str = source.value["message_id"] or source.step_id
        self._items: list[Mapping[str, Any]] = [
            {
                "type": "function",
                "id": call["id"],
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for call in source.value["calls"]
        ]

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Mapping[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> Any:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)


class Answer(StepResult):
    """A step's output that is a message of the session. ``value``: a dict of what the properties say."""

    @classmethod
    def of(cls, result: StepResult) -> Answer:
        return cls(
            result.step_id, result.value, result.digest, result.attempt, result.summary, result.replayed
        )

    @property
    def text(self) -> str:
        return str(self.value["text"])

    @property
    def message_id(self) -> str | None:
        message_id: str | None = self.value["message_id"]
        return message_id

    @property
    def stopped(self) -> bool:
        """Somebody stopped it: the text is what there was."""
        return bool(self.value["state"] == "stopped")

    @property
    def calls(self) -> Calls:
        """The tools the model asked for, in order."""
        return Calls(self)

    def __str__(self) -> str:
        return self.text


async def answer_value(session: Session, generation_id: str, seq: int) -> dict[str, Any]:
    """Read back from the event that ended the generation, at ``seq``; 0: it is looked for."""
    payload = (await event_at(session, seq)).payload if seq else await _found(session, generation_id)
    if payload is None or "message" not in payload:
        raise NotFound(f"generation {generation_id} has not ended in a message")
    body = decode(payload["message"], expect=MESSAGE_SUBJECT).record
    parts = [from_wire(part) for part in body["content"]]
    return {
        "message_id": body["message_id"],
        "state": "stopped" if payload["stopped"] else "finished",
        "text": "".join(part.text or "" for part in parts if part.type == "text"),
        "calls": [
            {
                "id": part.fields["call_id"],
                "name": part.fields["name"],
                "arguments": part.fields["arguments"],
            }
            for part in parts
            if part.type == "tool_call"
        ],
        "finish_reason": payload["finish_reason"],
        "generation_id": generation_id,
    }


async def _found(session: Session, generation_id: str) -> dict[str, Any] | None:
    async with aclosing(session.events()) as events:
        async for event in events:
            if event.type == "GenerationFinished":
                payload = event.payload
                if payload is not None and payload["generation_id"] == generation_id:
                    return payload
    return None
