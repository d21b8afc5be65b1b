"""Cohere's v2 chat events.

The message is ``{"role", "tool_plan", "content", "tool_calls", "citations"}`` as the API without streaming
gives it. Its calls and content are those of chat completions, so :mod:`refold.formats.openai` reads it; the
plan and the citations stay in ``extra``. The plan is told as reasoning.
"""

from __future__ import annotations

from typing import Any, Final

from refold.core.progress import TokenUsage
from refold.formats import openai
from refold.formats.body import Body
from refold.formats.jsonio import dumps_text
from refold.formats.streams.base import Parser, index_of, word
from refold.formats.streams.chunks import Payload
from refold.formats.streams.delta import REASONING, TEXT
from refold.formats.streams.openai import count
from refold.formats.streams.openai_calls import Calls
from refold.formats.streams.pieces import Piece

FORMAT: Final = "cohere"
EVENTS: Final = frozenset(
    {"message-start", "content-start", "content-delta", "content-end", "tool-plan-delta", "tool-call-start",
     "tool-call-delta", "tool-call-end", "citation-start", "citation-end", "message-end", "debug"}
)  # fmt: skip


class CohereParser(Parser):
    format = FORMAT

    def __init__(self) -> None:
        super().__init__()
        self._about: dict[str, Any] = {}
        self._items: dict[int, tuple[str, Piece]] = {}
        self._plan: Piece | None = None
        self._calls = Calls(self)
        self._citations: list[Any] = []

    def _take(self, payload: Payload) -> None:
        delta = payload.get("delta")
        delta = delta if isinstance(delta, dict) else {}
        message = delta.get("message")
        message = message if isinstance(message, dict) else {}
        index = index_of(payload.get("index"))
        match word(payload.get("type")):
            case "message-start":
                if isinstance(payload.get("id"), str):
                    self.provider_response_id = payload["id"]
            case "content-start" | "content-delta":
                self._content(index, message.get("content"))
            case "tool-plan-delta":
                self._plan = self._plan or self._piece(REASONING)
                self._say(self._plan, message.get("tool_plan"))
            case "tool-call-start" | "tool-call-delta":
                call = message.get("tool_calls")
                if isinstance(call, dict):
                    self._calls.take({**call, "index": index})
            case "citation-start":
                self._citations.append(message.get("citations"))
                self._announce("citation", text=dumps_text(message.get("citations")))
            case "message-end":
                self._end(delta)
            case "content-end" | "tool-call-end" | "citation-end" | "debug":
                pass
            case kind:
                self._not_known(kind, payload)

    def _content(self, index: int, content: Any) -> None:
        content = content if isinstance(content, dict) else {}
        if index not in self._items:
            kind = "thinking" if content.get("type") == "thinking" or "thinking" in content else "text"
            self._items[index] = (kind, self._piece(REASONING if kind == "thinking" else TEXT))
        kind, piece = self._items[index]
        self._say(piece, content.get(kind))

    def _end(self, delta: dict[str, Any]) -> None:
        self._about = {key: value for key, value in delta.items() if key != "finish_reason"}
        if delta.get("error"):
            self._failed(delta["error"])
        if isinstance(delta.get("usage"), dict):
            self._used(usage_of(delta["usage"]))
        self._finish_marker(delta.get("finish_reason"))

    def _body(self, message_id: str, fields: dict[str, Any]) -> Body:
        message: dict[str, Any] = {"role": "assistant"}
        if self._plan is not None:
            message["tool_plan"] = self._plan.text
        if self._items:
            message["content"] = [{"type": kind, kind: piece.text} for kind, piece in self._items.values()]
        if calls := self._calls.values():
            message["tool_calls"] = calls
        if self._citations:
            message["citations"] = self._citations
        body = openai.message_in(message, message_id=message_id, **{"provider": FORMAT, **fields})
        return {**body, "extra_format": body["extra_format"] and FORMAT}

    def _response(self) -> dict[str, Any]:
        return self._about


def usage_of(usage: dict[str, Any]) -> TokenUsage:
    """Typed usage, of ``tokens`` (what the model read and wrote), not of ``billed_units``."""
    tokens = usage.get("tokens")
    return TokenUsage(
        input=count(tokens, "input_tokens"),
        output=count(tokens, "output_tokens"),
        cached=count(usage, "cached_tokens"),
        reasoning=0,
    )
