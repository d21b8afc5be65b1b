"""Gemini's ``streamGenerateContent`` chunks (Google GenAI, Vertex).

The message is ``{"role": "model", "parts": [...]}``. Texts of one kind that follow each other are one part;
a part with a signature stays on its own, as Google asks. Arguments that come in pieces by path
(``partialArgs``) are put together as a value; they have no raw text of their own, so their delta is the
whole value, at the end.
"""

from __future__ import annotations

from typing import Any

from refold.core.progress import TokenUsage
from refold.errors import UsageError
from refold.formats.body import Body
from refold.formats.jsonio import dumps_text
from refold.formats.streams.base import Parser, size_of
from refold.formats.streams.blocks import GOOGLE, block_in, message_in
from refold.formats.streams.chunks import Payload
from refold.formats.streams.delta import OTHER, REASONING, TEXT, TOOL_CALL
from refold.formats.streams.google_arguments import PartialArguments
from refold.formats.streams.openai import count
from refold.formats.streams.pieces import Piece


class _Block:
    __slots__ = ("call", "partial", "piece", "rest")

    def __init__(self, piece: Piece, rest: dict[str, Any], call: dict[str, Any] | None = None) -> None:
        self.piece = piece
        self.rest = rest
        self.call = call
        self.partial = PartialArguments()

    def value(self) -> dict[str, Any]:
        if self.piece.kind in (TEXT, REASONING):
            return {"text": self.piece.text, **self.rest}
        if self.call is None:
            return self.rest
        call = {key: value for key, value in self.call.items() if key not in ("willContinue", "partialArgs")}
        if self.partial.used:
            call["args"] = self.partial.value
        return {"functionCall": call, **self.rest}


class GoogleParser(Parser):
    format = GOOGLE

    def __init__(self) -> None:
        super().__init__()
        self._about: dict[str, Any] = {}
        self._blocks: list[_Block] = []
        self._open_call: _Block | None = None

    def _take(self, payload: Payload) -> None:
        candidates = payload.get("candidates")
        if payload.get("error") is not None:
            self._failed(payload["error"])
        elif not isinstance(candidates, list) and not {"usageMetadata", "promptFeedback"} & payload.keys():
            self._not_known(payload.get("type"), payload)
            return
        self._about.update(
            {k: v for k, v in payload.items() if k not in ("candidates", "error") and v is not None}
        )
        if isinstance(payload.get("modelVersion"), str):
            self.model = payload["modelVersion"]
        if isinstance(payload.get("responseId"), str):
            self.provider_response_id = payload["responseId"]
        usage = payload.get("usageMetadata")
        if isinstance(usage, dict) and "totalTokenCount" in usage:
            self._used(usage_of(usage))
        for candidate in candidates if isinstance(candidates, list) else []:
            if isinstance(candidate, dict):
                self._candidate(candidate)
        feedback = payload.get("promptFeedback")
        if isinstance(feedback, dict):
            self._finish_marker(feedback.get("blockReason"))

    def _candidate(self, candidate: dict[str, Any]) -> None:
        if candidate.get("index") not in (None, 0):
            raise UsageError(
                "the stream has several candidates: a generation is one answer. Ask with candidate_count=1"
            )
        content = candidate.get("content")
        parts = content.get("parts") if isinstance(content, dict) else None
        for item in parts if isinstance(parts, list) else []:
            if isinstance(item, dict):
                self._part(dict(item))
        kept = {
            k: v
            for k, v in candidate.items()
            if k not in ("content", "index", "finishReason", "logprobsResult")
        }
        if kept:
            self._about.setdefault("candidate", {}).update(kept)
        self._finish_marker(candidate.get("finishReason"))

    def _part(self, item: dict[str, Any]) -> None:
        if isinstance(item.get("text"), str):
            said = item.pop("text")
            last = self._blocks[-1] if self._blocks else None
            kind = REASONING if item.get("thought") is True else TEXT
            own = "thoughtSignature" in item
            if last is None or own or last.piece.kind != kind or last.rest != item:
                last = _Block(self._piece(kind), item)
                self._blocks.append(last)
            self._say(last.piece, said)
        elif isinstance(item.get("functionCall"), dict):
            self._call(item.pop("functionCall"), item)
        else:
            self._keep(size_of(item))
            name = next((key for key in item if key not in ("thought", "thoughtSignature")), "part")
            self._blocks.append(_Block(self._piece(OTHER, None, name), item))
            self._say(self._blocks[-1].piece, "")

    def _call(self, call: dict[str, Any], rest: dict[str, Any]) -> None:
        block = self._open_call
        if block is None or block.call is None or call.get("name"):
            self._end_call()
            piece = self._piece(TOOL_CALL, call.get("id"), call.get("name"))
            block = _Block(piece, rest, dict(call))
            self._blocks.append(block)
        else:
            block.rest.update(rest)
            block.call = {**block.call, **call}
        pieces = call.get("partialArgs")
        for one in pieces if isinstance(pieces, list) else []:
            if not block.partial.take(one):
                self._not_known("partialArgs", understood=True)
        if call.get("willContinue"):
            self._open_call = block
            self._say(block.piece, "")
            return
        self._open_call = block
        self._end_call()

    def _end_call(self) -> None:
        block, self._open_call = self._open_call, None
        if block is not None:
            args = block.value()["functionCall"].get("args")
            self._say(block.piece, "" if args is None else dumps_text(args))

    def _body(self, message_id: str, fields: dict[str, Any]) -> Body:
        parts = [block_in(block.value(), GOOGLE) for block in self._blocks]
        message = {"role": "model"}
        return message_in(
            message, parts, GOOGLE, message_id=message_id, **{"provider": "gcp.gemini", **fields}
        )

    def _response(self) -> dict[str, Any]:
        return self._about


def usage_of(usage: dict[str, Any]) -> TokenUsage:
    """Typed usage. Google counts thoughts beside the candidates' tokens; refold's output has all."""
    thoughts = count(usage, "thoughtsTokenCount")
    return TokenUsage(
        input=count(usage, "promptTokenCount") + count(usage, "toolUsePromptTokenCount"),
        output=count(usage, "candidatesTokenCount") + thoughts,
        cached=count(usage, "cachedContentTokenCount"),
        reasoning=thoughts,
    )
