"""Bedrock's converse-stream events: as boto3 gives them, or the event stream's own bytes.

The message is ``{"role", "content"}`` as ``converse`` gives it. ``redactedContent`` (bytes in boto3) is
kept in base64, as it is on the wire. Exceptions of the stream end up in :attr:`error`.
"""

from __future__ import annotations

from typing import Any, Final

from refold.core.progress import TokenUsage
from refold.formats.body import Body
from refold.formats.jsonio import dumps_text, parse_object
from refold.formats.parts import encode_base64
from refold.formats.streams.base import Parser, index_of, word
from refold.formats.streams.blocks import BEDROCK, block_in, message_in
from refold.formats.streams.chunks import Payload
from refold.formats.streams.delta import OTHER, REASONING, TEXT, TOOL_CALL
from refold.formats.streams.openai import count
from refold.formats.streams.pieces import Piece
from refold.formats.streams.raw_arguments import with_raw_arguments

EVENTS: Final = frozenset(
    {"messageStart", "contentBlockStart", "contentBlockDelta", "contentBlockStop", "messageStop", "metadata"}
)


class _Block:
    __slots__ = ("citations", "kind", "piece", "redacted", "rest", "signature")

    def __init__(self, kind: str, piece: Piece, rest: dict[str, Any]) -> None:
        self.kind = kind
        self.piece = piece
        self.rest = rest
        self.signature = ""
        self.redacted = ""
        self.citations: list[Any] = []

    @property
    def raw(self) -> str:
        return self.piece.text if self.kind == "toolUse" else ""


class BedrockParser(Parser):
    format = BEDROCK

    def __init__(self) -> None:
        super().__init__()
        self._role = "assistant"
        self._about: dict[str, Any] = {}
        self._blocks: list[_Block] = []
        self._by_index: dict[int, _Block] = {}

    def _take(self, payload: Payload) -> None:
        for name, value in payload.items():
            event = value if isinstance(value, dict) else {}
            index = index_of(event.get("contentBlockIndex"))
            match name:
                case "messageStart":
                    self._role = str(event.get("role") or self._role)
                case "contentBlockStart":
                    self._start(index, event.get("start"))
                case "contentBlockDelta":
                    self._delta(index, event.get("delta"))
                case "contentBlockStop":
                    self._by_index.pop(index, None)
                case "messageStop":
                    self._about.update({k: v for k, v in event.items() if k != "stopReason"})
                    self._finish_marker(event.get("stopReason"))
                case "metadata":
                    self._about.update(event)
                    if isinstance(event.get("usage"), dict):
                        self._used(usage_of(event["usage"]))
                case _ if name.endswith("Exception"):
                    self._failed({"code": name, **(event or {"message": str(value)})})
                case _:
                    self._not_known(name, payload)

    def _start(self, index: int, start: Any) -> None:
        use = start.get("toolUse") if isinstance(start, dict) else None
        if isinstance(use, dict):
            rest = {key: value for key, value in use.items() if key not in ("name", "toolUseId")}
            block = self._new(index, "toolUse", TOOL_CALL, rest)
            block.piece.call_id, block.piece.name = word(use.get("toolUseId")), word(use.get("name"))
            self._say(block.piece, "")
        elif isinstance(start, dict) and start:
            self._new(index, next(iter(start)), OTHER, start)

    def _new(self, index: int, kind: str, delta: str, rest: dict[str, Any] | None = None) -> _Block:
        block = _Block(kind, self._piece(delta), rest or {})
        self._blocks.append(block)
        self._by_index[index] = block
        return block

    def _delta(self, index: int, delta: Any) -> None:
        for key, value in (delta if isinstance(delta, dict) else {}).items():
            block = self._by_index.get(index)
            if key == "text":
                self._say((block or self._new(index, "text", TEXT)).piece, value)
            elif key == "toolUse" and isinstance(value, dict):
                self._say((block or self._new(index, "toolUse", TOOL_CALL)).piece, value.get("input"))
            elif key == "reasoningContent" and isinstance(value, dict):
                self._reasoning(block or self._new(index, "reasoningContent", REASONING), value)
            elif key == "citation":
                (block or self._new(index, "text", TEXT)).citations.append(value)
                self._announce("citation", text=dumps_text(value))
            else:
                self._not_known(f"delta {key}", understood=True)

    def _reasoning(self, block: _Block, value: dict[str, Any]) -> None:
        self._say(block.piece, value.get("text"))
        if isinstance(value.get("signature"), str):
            block.signature += value["signature"]
        redacted = value.get("redactedContent")
        if redacted is not None:
            block.redacted += encode_base64(redacted) if isinstance(redacted, bytes) else str(redacted)
        self._keep(len(block.signature) + len(block.redacted))

    def _body(self, message_id: str, fields: dict[str, Any]) -> Body:
        parts = [with_raw_arguments(block_in(_value(block), BEDROCK), block.raw) for block in self._blocks]
        fields = {"provider": "aws.bedrock", **fields}
        return message_in({"role": self._role}, parts, BEDROCK, message_id=message_id, **fields)

    def _response(self) -> dict[str, Any]:
        return self._about


def _value(block: _Block) -> dict[str, Any]:
    said = block.piece.text
    if block.kind == "toolUse":
        named = {"toolUseId": block.piece.call_id, "name": block.piece.name}
        whole = parse_object(said)
        # Without any text there are no arguments, which converse gives as an empty object.
        value = {} if said == "" else said if whole is None else whole
        return {
            "toolUse": {**{k: v for k, v in named.items() if v is not None}, **block.rest, "input": value}
        }
    if block.kind == "reasoningContent":
        if block.redacted:
            return {"reasoningContent": {"redactedContent": block.redacted}}
        signed = {"signature": block.signature} if block.signature else {}
        return {"reasoningContent": {"reasoningText": {"text": said, **signed}}}
    if block.kind != "text":
        return block.rest
    return {"text": said, **({"citations": block.citations} if block.citations else {})}


def usage_of(usage: dict[str, Any]) -> TokenUsage:
    """Typed usage. Bedrock counts cached input beside ``inputTokens``; refold's input has all."""
    cached = count(usage, "cacheReadInputTokens")
    return TokenUsage(
        input=count(usage, "inputTokens") + cached + count(usage, "cacheWriteInputTokens"),
        output=count(usage, "outputTokens"),
        cached=cached,
        reasoning=0,
    )
