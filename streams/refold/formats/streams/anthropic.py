"""Anthropic's message events.

The message is put together as the API without streaming gives it (:meth:`AnthropicParser.message`). An
input of a tool is the streamed text itself, in the part as well; rendering the part parses it again.

A ``message_start`` while a message is open: with the same id it is a repeat (some gateways send it twice);
with another one a proxy began anew, and the message is the new one's. What was broken off is kept under
``$refold.stream.superseded``, counted in :attr:`restarts`, told by a delta named ``restart``, and its tokens
stay in the usage. After a ``message_stop`` a further message goes on where the first ended.
"""

from __future__ import annotations

from typing import Any, Final

from refold.core.progress import TokenUsage
from refold.formats import anthropic
from refold.formats.anthropic_blocks import block_in
from refold.formats.body import Body, mark_format
from refold.formats.jsonio import dumps_text, parse_object
from refold.formats.parts import Part
from refold.formats.streams.base import Parser, size_of, word
from refold.formats.streams.chunks import Payload
from refold.formats.streams.delta import OTHER, REASONING, TEXT, TOOL_CALL
from refold.formats.streams.pieces import Piece
from refold.formats.streams.raw_arguments import with_raw_arguments

#: Events that SDK helpers derive from the others: nothing new is in them.
_DERIVED: Final = frozenset({"text", "thinking", "input_json", "citation", "signature", "compaction"})
_USES: Final = {"tool_use": TOOL_CALL, "server_tool_use": OTHER, "mcp_tool_use": OTHER}
#: Kind of delta -> (its key, type of the block it belongs to, for a block whose start did not come).
_TEXTS: Final = {"text_delta": ("text", "text"), "thinking_delta": ("thinking", "thinking")}


class _Block:
    __slots__ = ("citations", "piece", "start", "strings")

    def __init__(self, start: dict[str, Any], piece: Piece) -> None:
        self.start = start
        self.piece = piece
        self.citations: list[Any] = []
        self.strings: dict[str, str] = {}


class AnthropicParser(Parser):
    format = anthropic.FORMAT

    def __init__(self) -> None:
        super().__init__()
        self._message: dict[str, Any] = {}
        self._blocks: list[_Block] = []
        self._by_index: dict[int, _Block] = {}
        self._usage: dict[str, Any] = {}
        self._broken_off: list[dict[str, Any]] = []
        self._open = False

    def _take(self, payload: Payload) -> None:
        match word(payload.get("type")):
            case "message_start":
                self._start(payload.get("message"))
            case "content_block_start":
                self._block_start(payload.get("index"), payload.get("content_block"))
            case "content_block_delta":
                self._block_delta(payload.get("index"), payload.get("delta"))
            case "message_delta":
                self._message_delta(payload)
            case "message_stop":
                self._ended, self._open = True, False
            case "error":
                self._failed(payload.get("error"))
            case "content_block_stop" | "ping":
                pass
            case "message" if isinstance(payload.get("content"), list):
                self._whole(payload)
            case kind if kind in _DERIVED:
                pass
            case kind:
                self._not_known(kind, payload)

    # ---- the message -----------------------------------------------------------------------------------

    def _start(self, value: Any) -> None:
        message = dict(value) if isinstance(value, dict) else {}
        if self._message and self._open and self._message.get("id") != message.get("id"):
            self._begin_anew()
        elif self._message and not self._open:
            self._by_index.clear()
            self.finish_reason = None
            self._bank()
        self._open, self._ended = True, False
        usage = message.pop("usage", None)
        blocks = message.pop("content", None)
        self._message = {**self._message, **message}
        self._use(usage)
        if isinstance(message.get("id"), str) and message["id"]:
            self.provider_response_id = message["id"]
        if isinstance(message.get("model"), str):
            self.model = message["model"]
        for block in blocks if isinstance(blocks, list) and not self._blocks else []:
            self._block_start(None, block)

    def _whole(self, message: dict[str, Any]) -> None:
        """A whole message, as the API without streaming (or a look-up) gives it."""
        self._start(message)
        self._finish_marker(message.get("stop_reason"))
        self._ended, self._open = message.get("stop_reason") is not None, False

    def _begin_anew(self) -> None:
        self._broken_off.append(self.message())
        self.restarts += 1
        self.finish_reason = None
        self._announce("restart")
        self._message, self._blocks, self._by_index = {}, [], {}
        self._bank()

    def _bank(self) -> None:
        """A new message counts its own tokens: those of the one before stay."""
        self._usage_before = self.usage or TokenUsage()
        self._usage = {}

    def _message_delta(self, payload: Payload) -> None:
        delta = payload.get("delta")
        for key, value in (delta if isinstance(delta, dict) else {}).items():
            self._message[key] = value
        for key, value in payload.items():
            if key not in ("type", "delta", "usage"):
                self._message[key] = value
        self._use(payload.get("usage"))
        self._finish_marker(self._message.get("stop_reason") if isinstance(delta, dict) else None)

    def _use(self, usage: Any) -> None:
        if not isinstance(usage, dict):
            return
        self._usage.update({k: v for k, v in usage.items() if v is not None or k not in self._usage})
        now = anthropic.usage_of(self._usage) or {}
        self._used(TokenUsage(**now))

    # ---- blocks ----------------------------------------------------------------------------------------

    def _block_start(self, index: Any, value: Any) -> None:
        start = dict(value) if isinstance(value, dict) else {"type": "unknown", "value": value}
        kind = word(start.get("type"))
        if kind == "text":
            piece, said = self._piece(TEXT), start.get("text")
        elif kind == "thinking":
            piece, said = self._piece(REASONING), start.get("thinking")
        elif kind in _USES:
            piece, said = self._use_piece(start), ""
        else:
            piece, said = self._piece(OTHER, word(start.get("tool_use_id")), word(kind) or "unknown"), ""
            self._keep(size_of(start))
        block = _Block(start, piece)
        self._blocks.append(block)
        if type(index) is int:
            self._by_index[index] = block
        self._say(piece, said)
        cited = start.get("citations")
        for citation in cited if isinstance(cited, list) else []:
            self._announce("citation", text=dumps_text(citation))

    def _use_piece(self, start: dict[str, Any]) -> Piece:
        piece = self._piece(_USES[start["type"]], word(start.get("id")), word(start.get("name")))
        whole = start.get("input")
        if whole not in ({}, None):  # The whole input at once, as it is in a message that was not streamed.
            self._say(piece, whole if isinstance(whole, str) else dumps_text(whole))
        return piece

    def _block_delta(self, index: Any, value: Any) -> None:
        delta = value if isinstance(value, dict) else {}
        kind = word(delta.get("type"))
        block = self._by_index.get(index) if type(index) is int else None
        if block is None:
            block = self._implied(index, kind)
        if kind in _TEXTS:
            self._say(block.piece, delta.get(_TEXTS[kind][0]))
        elif kind == "input_json_delta":
            self._say(block.piece, delta.get("partial_json"))
        elif kind == "citations_delta":
            block.citations.append(delta.get("citation"))
            self._announce("citation", text=dumps_text(delta.get("citation")))
        elif kind == "signature_delta":
            self._string(block, "signature", delta.get("signature"))
        elif kind == "compaction_delta":
            for key in ("content", "encrypted_content"):
                self._string(block, key, delta.get(key))
        else:
            self._not_known(kind, delta, understood=True)

    def _string(self, block: _Block, key: str, value: Any) -> None:
        if isinstance(value, str):
            block.strings[key] = block.strings.get(key, "") + value
            self._keep(len(value))

    def _implied(self, index: Any, kind: Any) -> _Block:
        """A block whose start did not come: the stream was joined in the middle."""
        of = _TEXTS.get(str(kind), ("", ""))[1]
        of = of or {"input_json_delta": "tool_use", "citations_delta": "text"}.get(str(kind), "thinking")
        self._block_start(index, {"type": of})
        return self._blocks[-1]

    # ---- the end ---------------------------------------------------------------------------------------

    def message(self) -> dict[str, Any]:
        """The message as far as it came, in the API's own shape."""
        made = {"type": "message", **self._message}
        made["role"] = word(made.get("role")) or "assistant"
        made["content"] = [_value(block) for block in self._blocks]
        if self._usage:
            made["usage"] = dict(self._usage)
        return made

    def _body(self, message_id: str, fields: dict[str, Any]) -> Body:
        content: list[Part] = []
        for block in self._blocks:
            parts = block_in(_value(block))
            if word(block.start.get("type")) in _USES:
                parts = [with_raw_arguments(parts[0], block.piece.text)]
            content += parts
        body = anthropic.message_in({**self.message(), "content": []}, message_id=message_id, **fields)
        body["content"] = content
        return mark_format(body, anthropic.FORMAT)

    def _superseded(self) -> list[Any]:
        return self._broken_off


def _value(block: _Block) -> dict[str, Any]:
    made, said = dict(block.start), block.piece.text
    kind = word(made.get("type"))
    if kind in ("text", "thinking"):
        made[kind] = said
    elif kind in _USES and said:
        whole = parse_object(said)
        made["input"] = said if whole is None else whole
    for key, value in block.strings.items():
        before = made.get(key)
        made[key] = (before if isinstance(before, str) else "") + value
    if block.citations:
        before = made.get("citations")
        made["citations"] = [*(before if isinstance(before, list) else []), *block.citations]
    return made
