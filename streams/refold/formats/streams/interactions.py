"""Google's Interactions events (``interaction.*``, ``step.*``).

The message is ``{"steps": [...]}``: each step as its start said it, with what its deltas added. Thoughts come
as signatures, a model's output as texts, a call's arguments as raw text.
"""

from __future__ import annotations

from typing import Any, Final

from refold.core.progress import TokenUsage
from refold.formats.body import Body
from refold.formats.jsonio import parse_object
from refold.formats.streams.base import Parser, index_of, word
from refold.formats.streams.blocks import INTERACTIONS, block_in, message_in
from refold.formats.streams.chunks import Payload
from refold.formats.streams.delta import OTHER, REASONING, TEXT, TOOL_CALL
from refold.formats.streams.openai import count
from refold.formats.streams.pieces import Piece
from refold.formats.streams.raw_arguments import with_raw_arguments

_OUTPUT: Final = frozenset({"steps", "outputs"})
_OPEN: Final = (None, "queued", "in_progress")
_KINDS: Final = {"model_output": TEXT, "thought": REASONING, "function_call": TOOL_CALL}


class _Step:
    __slots__ = ("others", "piece", "start", "strings")

    def __init__(self, start: dict[str, Any], piece: Piece) -> None:
        self.start = start
        self.piece = piece
        self.strings: dict[str, str] = {}
        self.others: list[Any] = []

    @property
    def raw(self) -> str:
        return self.piece.text if self.piece.kind == TOOL_CALL else ""

    def value(self) -> dict[str, Any]:
        made = {**self.start, **{k: str(self.start.get(k) or "") + v for k, v in self.strings.items()}}
        said = self.piece.text
        if self.piece.kind == TOOL_CALL and said:
            whole = parse_object(said)
            made["arguments"] = said if whole is None else whole
        elif self.piece.kind == TEXT:
            texts = [{"type": "text", "text": said}] if said else []
            made["content"] = [*texts, *self.others]
        elif said:
            made["summary"] = [{"type": "text", "text": said}]
        return made


class InteractionsParser(Parser):
    format = INTERACTIONS

    def __init__(self) -> None:
        super().__init__()
        self._about: dict[str, Any] = {}
        self._steps: list[_Step] = []
        self._by_index: dict[int, _Step] = {}

    def _take(self, payload: Payload) -> None:
        kind = word(payload.get("event_type"))
        index = index_of(payload.get("index"))
        match kind:
            case str() if kind.startswith("interaction.") and isinstance(payload.get("interaction"), dict):
                self._head(payload["interaction"])
            case "interaction.status_update" | "step.stop":
                pass
            case "step.start":
                self._start(index, payload.get("step"))
            case "step.delta":
                self._delta(index, payload.get("delta"))
            case "error":
                self._failed(payload.get("error"))
            case _:
                self._not_known(kind, payload)

    def _head(self, about: dict[str, Any]) -> None:
        self._about.update({k: v for k, v in about.items() if k not in _OUTPUT and v is not None})
        if isinstance(about.get("id"), str) and about["id"]:
            self.provider_response_id = about["id"]
        if isinstance(about.get("model"), str):
            self.model = about["model"]
        if isinstance(about.get("usage"), dict):
            self._used(usage_of(about["usage"]))
        if about.get("error"):
            self._failed(about["error"])
        if about.get("status") not in _OPEN:
            self._ended = True
            self._finish_marker(about.get("status"))

    def _start(self, index: int, value: Any) -> _Step:
        start = dict(value) if isinstance(value, dict) else {}
        kind = _KINDS.get(str(start.get("type")), OTHER)
        piece = self._piece(
            kind, start.get("id"), start.get("name") or (start.get("type") if kind == OTHER else None)
        )
        step = _Step(start, piece)
        self._steps.append(step)
        self._by_index[index] = step
        if kind in (TOOL_CALL, OTHER):
            self._say(piece, "")
        return step

    def _delta(self, index: int, value: Any) -> None:
        delta = value if isinstance(value, dict) else {}
        step = self._by_index.get(index)
        match word(delta.get("type")):
            case "text":
                self._say((step or self._start(index, {"type": "model_output"})).piece, delta.get("text"))
            case "arguments_delta":
                self._say(
                    (step or self._start(index, {"type": "function_call"})).piece, delta.get("arguments")
                )
            case "thought_signature" if isinstance(delta.get("signature"), str):
                step = step or self._start(index, {"type": "thought"})
                step.strings["signature"] = step.strings.get("signature", "") + delta["signature"]
                self._keep(len(delta["signature"]))
            case "thought_summary":
                content = delta.get("content")
                said = content.get("text") if isinstance(content, dict) else None
                self._say((step or self._start(index, {"type": "thought"})).piece, said)
            case kind if step is not None and step.piece.kind == TEXT:
                step.others.append(delta)
                self._announce(str(kind))
            case kind:
                self._not_known(f"delta {kind}", understood=True)

    def _body(self, message_id: str, fields: dict[str, Any]) -> Body:
        parts = [with_raw_arguments(block_in(step.value(), INTERACTIONS), step.raw) for step in self._steps]
        named = {"provider": "gcp.gemini", **fields}
        return message_in({}, parts, INTERACTIONS, message_id=message_id, **named)

    def _response(self) -> dict[str, Any]:
        return self._about


def usage_of(usage: dict[str, Any]) -> TokenUsage:
    """Typed usage. Google counts thoughts beside the output; refold's output has all."""
    thoughts = count(usage, "total_thought_tokens")
    return TokenUsage(
        input=count(usage, "total_input_tokens") + count(usage, "total_tool_use_tokens"),
        output=count(usage, "total_output_tokens") + thoughts,
        cached=count(usage, "total_cached_tokens"),
        reasoning=thoughts,
    )
