"""Chat completion chunks, of OpenAI and of the many servers that speak like it.

The message is put together as the API without streaming gives it, and read by :mod:`refold.formats.openai`.
Reasoning comes under ``reasoning_content`` or ``reasoning``, which stay two keys; Mistral's content lists
stay lists. Log probabilities are dropped. What a chunk says about the answer as a whole (``id``, ``usage``,
``citations``, …) is kept under ``$refold.response``, the last value of each key.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, Final

from refold.core.progress import TokenUsage
from refold.errors import UsageError
from refold.formats import openai
from refold.formats.body import Body
from refold.formats.jsonio import dumps_text
from refold.formats.streams.base import Parser
from refold.formats.streams.chunks import Payload
from refold.formats.streams.delta import OTHER, REASONING, REFUSAL, TOOL_CALL
from refold.formats.streams.openai_calls import Calls
from refold.formats.streams.openai_content import Content, Details
from refold.formats.streams.pieces import Piece

_DROPPED: Final = frozenset({"choices", "usage", "model", "obfuscation", "object", "error"})
_CHOICE_DROPPED: Final = frozenset({"index", "delta", "message", "text", "logprobs", "finish_reason"})


class OpenAIParser(Parser):
    format = openai.FORMAT

    def __init__(self) -> None:
        super().__init__()
        self._about: dict[str, Any] = {}
        self._choice: dict[str, Any] = {}
        self._rest: dict[str, Any] = {}
        self._role = "assistant"
        self._content = Content(self)
        self._details = Details()
        self._said: dict[str, Piece] = {}
        self._empty: set[str] = set()
        self._calls = Calls(self)
        self._function: Piece | None = None
        self._annotations: list[Any] = []
        self._audio: dict[str, Any] = {}
        self._audio_data: list[str] = []

    def _take(self, payload: Payload) -> None:
        if payload.get("type") == "chunk" and isinstance(payload.get("chunk"), dict):
            payload = payload["chunk"]  # An event of the SDK's stream helper.
        choices = payload.get("choices")
        if payload.get("error") is not None:
            self._failed(payload["error"])
        elif not isinstance(choices, list) and not isinstance(payload.get("usage"), dict):
            self._not_known(payload.get("type") or payload.get("object"), payload)
            return
        self._head(payload)
        for choice in choices if isinstance(choices, list) else []:
            if isinstance(choice, dict):
                self._take_choice(choice)

    def _head(self, payload: Payload) -> None:
        for key, value in payload.items():
            if key not in _DROPPED and (value is not None or key not in self._about):
                self._about[key] = value
        if isinstance(payload.get("model"), str) and payload["model"]:
            self.model = payload["model"]
        if isinstance(payload.get("id"), str) and payload["id"]:
            self.provider_response_id = payload["id"]
        groq = payload.get("x_groq")
        for usage in (payload.get("usage"), groq.get("usage") if isinstance(groq, dict) else None):
            if isinstance(usage, dict) and usage:
                self._used(usage_of(usage))
                self._about["usage"] = usage
                break

    def _take_choice(self, choice: dict[str, Any]) -> None:
        if choice.get("index") not in (None, 0):
            raise UsageError(
                "the stream has several choices (n > 1): a generation is one answer. Ask with n=1, or start "
                "one generation per answer"
            )
        self._choice.update({k: v for k, v in choice.items() if k not in _CHOICE_DROPPED and v is not None})
        delta = choice.get("delta")
        if isinstance(choice.get("text"), str):
            delta = {"content": choice["text"]}  # The completions API of old.
        elif delta is None and isinstance(choice.get("message"), dict) and not self._pieces:
            delta = choice["message"]  # A whole completion, as the API without streaming gives it.
        if isinstance(delta, dict):
            self._take_delta(delta)
        self._finish_marker(choice.get("finish_reason"))

    def _take_delta(self, delta: dict[str, Any]) -> None:
        reasoning = [key for key in openai.REASONING_KEYS if isinstance(delta.get(key), str)]
        twice = len(reasoning) > 1 and delta[reasoning[0]] == delta[reasoning[1]]
        for key, value in delta.items():
            if key in openai.REASONING_KEYS and isinstance(value, str):
                self._reasoning(key, value, silent=twice and key != reasoning[0])
            elif key == "content":
                self._content.take(value)
            elif key == "refusal" and isinstance(value, str):
                self._text("refusal", REFUSAL, value)
            elif key == "tool_calls" and isinstance(value, list):
                for entry in value:
                    if not self._calls.take(entry):
                        self._not_known("tool_calls", understood=True)
            elif key == "function_call" and isinstance(value, dict):
                self._function_call(value)
            elif key == "annotations" and isinstance(value, list):
                self._annotations += value
                for item in value:
                    self._announce("citation", text=dumps_text(item))
            elif key == "reasoning_details" and isinstance(value, list):
                self._keep(self._details.take(value))
            elif key == "audio" and isinstance(value, dict):
                self._take_audio(value)
            elif key == "role":
                self._role = value if isinstance(value, str) and value else self._role
            elif key != "index" and (value is not None or key not in self._rest):
                self._rest[key] = value

    def _reasoning(self, key: str, value: str, *, silent: bool) -> None:
        """The same words under both keys are told once; the message has them under both."""
        if silent:
            self._said.setdefault(key, Piece(REASONING, -1)).add(value)
        else:
            self._text(key, REASONING, value)

    def _text(self, key: str, kind: str, value: str, name: str | None = None) -> None:
        if key not in self._said:
            if not value:
                self._empty.add(key)
                return
            self._said[key] = self._piece(kind, None, name)
        self._say(self._said[key], value)

    def _function_call(self, value: dict[str, Any]) -> None:
        if self._function is None:
            self._function = self._piece(TOOL_CALL)
        if isinstance(value.get("name"), str) and value["name"]:
            self._function.name = (self._function.name or "") + value["name"]
        self._say(self._function, value.get("arguments") or "")

    def _take_audio(self, value: dict[str, Any]) -> None:
        for key, item in value.items():
            if key == "transcript" and isinstance(item, str):
                self._text("audio", OTHER, item, name="audio_transcript")
            elif key == "data" and isinstance(item, str):
                self._audio_data.append(item)
                self._keep(len(item))
            else:
                self._audio[key] = item

    # ---- the end ---------------------------------------------------------------------------------------

    def _body(self, message_id: str, fields: dict[str, Any]) -> Body:
        message: dict[str, Any] = {"role": self._role, **self._rest}
        for key in (*openai.REASONING_KEYS, "refusal"):
            piece = self._said.get(key)
            if piece is not None:
                message[key] = piece.text
            elif key in self._empty and key != "refusal":
                message[key] = ""
        message.update(self._content.value())
        if details := self._details.values():
            message["reasoning_details"] = details
        if "audio" in self._said or self._audio_data or self._audio:
            message["audio"] = self._audio_value()
        if self._annotations:
            message["annotations"] = self._annotations
        if calls := self._calls.values():
            message["tool_calls"] = calls
        if self._function is not None:
            named = {"name": self._function.name or "", "arguments": self._function.text}
            message["function_call"] = named
        return openai.message_in(message, message_id=message_id, **fields)

    def _audio_value(self) -> dict[str, Any]:
        made = dict(self._audio)
        if "audio" in self._said:
            made["transcript"] = self._said["audio"].text
        if self._audio_data:
            try:  # Pieces are encoded one by one, so each may have its own padding.
                raw = b"".join(base64.b64decode(item, validate=True) for item in self._audio_data)
                made["data"] = base64.b64encode(raw).decode("ascii")
            except (binascii.Error, ValueError):
                made["data"] = "".join(self._audio_data)
        return made

    def _response(self) -> dict[str, Any]:
        about = {key: value for key, value in self._about.items() if value is not None}
        return {**about, "choice": self._choice} if self._choice else about


def usage_of(usage: dict[str, Any]) -> TokenUsage:
    """Typed usage. Cached input and reasoning are parts of input and output here, as in refold.

    They stand in the details, or where DeepSeek (cache hits) and Perplexity (reasoning) put them.
    """
    inputs, outputs = usage.get("prompt_tokens_details"), usage.get("completion_tokens_details")
    return TokenUsage(
        input=count(usage, "prompt_tokens"),
        output=count(usage, "completion_tokens"),
        cached=count(inputs, "cached_tokens") or count(usage, "prompt_cache_hit_tokens"),
        reasoning=count(outputs, "reasoning_tokens") or count(usage, "reasoning_tokens"),
    )


def count(holder: Any, key: str) -> int:
    """A number of tokens; anything that is none is 0."""
    value = holder.get(key) if isinstance(holder, dict) else None
    return value if type(value) is int and 0 <= value < 1 << 62 else 0
