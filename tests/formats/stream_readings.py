"""What the recorded streams say, read without the parsers: a few lines of picking per provider."""

from __future__ import annotations

import ast
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from .support import DATA

FOLDERS = ("stream-chunks", "anthropic-sse", "http-cassettes")


@dataclass
class Recording:
    """``payloads`` are the JSON objects, ``body`` the bytes on the wire (made up for JSON lines)."""

    name: str
    payloads: list[dict[str, Any]]
    body: bytes
    streamed: bool = True

    @property
    def chunks(self) -> int:
        """As SOURCES.md counts: of a recorded body the end mark is one too."""
        return len(self.payloads) + ("#" in self.name and self.body.count(b"data: [DONE]"))


@dataclass
class Reading:
    """``arguments`` of every call in the order asked: (name, raw text). ``usage``: input, output."""

    text: str = ""
    reasoning: str = ""
    arguments: list[tuple[str, str]] = field(default_factory=list)
    usage: tuple[int, int] | None = None


def recordings() -> list[Recording]:
    """Every recorded stream; empty where the shared data is not at hand."""
    found = [_lines(path) for path in sorted((DATA / "stream-chunks").glob("*.jsonl"))]
    found += [_sse(path.name, path.read_bytes()) for path in sorted((DATA / "anthropic-sse").glob("*.txt"))]
    for path in sorted((DATA / "http-cassettes").glob("*.jsonl")):
        for number, line in enumerate(path.read_text("utf-8").splitlines()):
            response = json.loads(line)["response"]
            name = f"{path.name}#{number}"
            if "parsed_body" in response:
                answer = response["parsed_body"]
                found.append(Recording(name, [answer], json.dumps(answer).encode(), streamed=False))
                continue
            body = response["body"]["string"]
            found.append(
                _frames(name, ast.literal_eval(body)) if body.startswith("b'") else _sse(name, body.encode())
            )
    return found


def all_recordings() -> list[Any]:
    """For ``parametrize``; without the data one case that skips with the reason."""
    found = recordings()
    if not found:
        reason = f"{DATA / 'stream-chunks'} is not there; set REFOLD_SHARED_DATA"
        return [pytest.param(None, id="absent", marks=pytest.mark.skip(reason=reason))]
    return [pytest.param(one, id=one.name) for one in found]


def _lines(path: Path) -> Recording:
    payloads = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
    body = (
        "".join(f"data: {json.dumps(one, ensure_ascii=False)}\n\n" for one in payloads) + "data: [DONE]\n\n"
    )
    return Recording(path.name, payloads, body.encode())


def _sse(name: str, body: bytes) -> Recording:
    said = re.findall(rb"^data: ?(\{.*)$", body, re.MULTILINE)
    return Recording(name, [json.loads(one) for one in said], body)


def _frames(name: str, body: bytes) -> Recording:
    """AWS frames by pattern: the event's name stands before ``event{``."""
    found = re.finditer(
        rb":event-type\x07..(\w+)\r:content-type.*?event(\{.*?\})....(?=\x00\x00|$)", body, re.DOTALL
    )
    payloads = [{match[1].decode(): _without_padding(json.loads(match[2]))} for match in found]
    return Recording(name, payloads, body)


def _without_padding(value: dict[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in value.items() if key != "p"}


def counts_in_sources() -> dict[str, int]:
    """File -> chunks, of SOURCES.md."""
    text = (DATA / "SOURCES.md").read_text("utf-8")
    return {
        name: int(count)
        for name, count in re.findall(r"^\| `([^`]+)` \|.*\| (\d+) chunks \|", text, re.MULTILINE)
    }


# ---- readings ------------------------------------------------------------------------------------------


def read_openai(payloads: list[dict[str, Any]]) -> Reading:
    made = Reading()
    calls: dict[int, list[str]] = defaultdict(lambda: ["", ""])
    for payload in payloads:
        for choice in payload.get("choices", []):
            delta = choice["delta"]
            made.text += delta.get("content") or ""
            made.reasoning += delta.get("reasoning_content") or delta.get("reasoning") or ""
            for call in delta.get("tool_calls") or []:
                calls[call["index"]][0] += call["function"].get("name") or ""
                calls[call["index"]][1] += call["function"].get("arguments") or ""
        if payload.get("usage"):
            made.usage = (payload["usage"]["prompt_tokens"], payload["usage"]["completion_tokens"])
    made.arguments = [(name, raw) for name, raw in calls.values()]
    return made


def read_responses(payloads: list[dict[str, Any]]) -> Reading:
    made = Reading()
    usage = []
    for payload in payloads:
        match payload["type"]:
            case "response.output_item.done" if payload["item"]["type"] == "message":
                made.text += "".join(one["text"] for one in payload["item"]["content"])
            case "response.reasoning_text.delta":
                made.reasoning += payload["delta"]
            case "response.output_item.done" if payload["item"]["type"] == "function_call":
                made.arguments.append((payload["item"]["name"], payload["item"]["arguments"]))
            case "response.completed":
                usage.append(payload["response"]["usage"])
    if usage:
        made.usage = (sum(one["input_tokens"] for one in usage), sum(one["output_tokens"] for one in usage))
    return made


def read_anthropic(payloads: list[dict[str, Any]]) -> Reading:
    """All messages of the stream; a message broken off by the next start is read as text and usage only."""
    made = Reading()
    calls: list[list[str]] = []
    open_calls: dict[int, list[str]] = {}
    usage: list[dict[str, int]] = []
    stopped = True
    for payload in payloads:
        kind = payload["type"]
        if kind == "message_start":
            if not stopped:
                calls, made.reasoning = [], made.reasoning
            stopped = False
            usage.append({k: v for k, v in payload["message"]["usage"].items() if isinstance(v, int)})
        elif kind == "message_stop":
            stopped = True
        elif kind == "message_delta":
            usage[-1].update({k: v for k, v in payload["usage"].items() if isinstance(v, int)})
        elif kind == "content_block_start" and payload["content_block"]["type"].endswith("tool_use"):
            block = payload["content_block"]
            open_calls[payload["index"]] = [block["name"], "", json.dumps(block["input"])]
            calls.append(open_calls[payload["index"]])
        elif kind == "content_block_delta":
            delta = payload["delta"]
            made.text += delta.get("text", "")
            made.reasoning += delta.get("thinking", "")
            if "partial_json" in delta:
                open_calls[payload["index"]][1] += delta["partial_json"]
    made.arguments = [
        (name, raw or json.dumps(json.loads(whole), separators=(",", ":"))) for name, raw, whole in calls
    ]
    keys = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    made.usage = (
        sum(one.get(key, 0) for one in usage for key in keys),
        sum(one.get("output_tokens", 0) for one in usage),
    )
    return made


def read_anthropic_message(payloads: list[dict[str, Any]]) -> Reading:
    """A whole message, as the API without streaming gives it."""
    (message,) = payloads
    made = Reading()
    for block in message["content"]:
        made.text += block.get("text", "")
        if block["type"] == "tool_use":
            made.arguments.append((block["name"], json.dumps(block["input"], separators=(",", ":"))))
    made.usage = (message["usage"]["input_tokens"], message["usage"]["output_tokens"])
    return made


def read_bedrock(payloads: list[dict[str, Any]]) -> Reading:
    made = Reading()
    calls: dict[int, list[str]] = {}
    for payload in payloads:
        if "contentBlockStart" in payload and "toolUse" in payload["contentBlockStart"]["start"]:
            event = payload["contentBlockStart"]
            calls[event["contentBlockIndex"]] = [event["start"]["toolUse"]["name"], ""]
        if "contentBlockDelta" in payload:
            event = payload["contentBlockDelta"]
            made.text += event["delta"].get("text", "")
            if "toolUse" in event["delta"]:
                calls[event["contentBlockIndex"]][1] += event["delta"]["toolUse"]["input"]
        if "metadata" in payload:
            usage = payload["metadata"]["usage"]
            made.usage = (usage["inputTokens"], usage["outputTokens"])
    made.arguments = [(name, raw or "{}") for name, raw in calls.values()]
    return made


def read_google(payloads: list[dict[str, Any]]) -> Reading:
    made = Reading()
    for payload in payloads:
        for part in payload["candidates"][0]["content"]["parts"]:
            made.text += part.get("text", "")
            call = part.get("functionCall")
            if call and "name" in call:
                made.arguments.append((call["name"], json.dumps(call.get("args", {}), separators=(",", ":"))))
            for piece in (call or {}).get("partialArgs", []):  # The recordings have one path only.
                name, raw = made.arguments[-1]
                value = json.loads(raw)
                value["location"] = value.get("location", "") + piece["stringValue"]
                made.arguments[-1] = (name, json.dumps(value, separators=(",", ":")))
        usage = payload["usageMetadata"]
        if "promptTokenCount" in usage:
            made.usage = (
                usage["promptTokenCount"],
                usage["candidatesTokenCount"] + usage["thoughtsTokenCount"],
            )
    return made


def read_interactions(payloads: list[dict[str, Any]]) -> Reading:
    made = Reading()
    for payload in payloads:
        step, delta = payload.get("step", {}), payload.get("delta", {})
        made.text += delta.get("text", "")
        if step.get("type") == "function_call":
            made.arguments.append((step["name"], ""))
        if "arguments" in delta:
            made.arguments[-1] = (made.arguments[-1][0], made.arguments[-1][1] + delta["arguments"])
        usage = payload.get("interaction", {}).get("usage")
        if usage:
            made.usage = (
                usage["total_input_tokens"],
                usage["total_output_tokens"] + usage["total_thought_tokens"],
            )
    return made


def read_cohere(payloads: list[dict[str, Any]]) -> Reading:
    made = Reading()
    for payload in payloads:
        delta = payload.get("delta", {})
        message = delta.get("message", {})
        if payload["type"] == "content-delta":
            made.text += message["content"]["text"]
        made.reasoning += message.get("tool_plan", "") if payload["type"] == "tool-plan-delta" else ""
        if payload["type"] == "tool-call-start":
            made.arguments.append(
                (message["tool_calls"]["function"]["name"], message["tool_calls"]["function"]["arguments"])
            )
        if "usage" in delta:
            made.usage = (delta["usage"]["tokens"]["input_tokens"], delta["usage"]["tokens"]["output_tokens"])
    return made


def reading_of(recording: Recording) -> tuple[str, Reading]:
    """(format, reading), the format told by the file's name."""
    provider = recording.name.split("__")[0]
    payloads = recording.payloads
    if not recording.streamed:
        return "anthropic", read_anthropic_message(payloads)
    if "bedrock" in recording.name:
        return "bedrock", read_bedrock(payloads)
    if provider == "google":
        of_interactions = any("event_type" in one for one in payloads)
        return (
            ("google-interactions", read_interactions(payloads))
            if of_interactions
            else ("google", read_google(payloads))
        )
    if provider == "cohere":
        return "cohere", read_cohere(payloads)
    if any(str(one.get("type", "")).startswith("response.") for one in payloads):
        return "openai-responses", read_responses(payloads)
    if any("choices" in one for one in payloads):
        return "openai", read_openai(payloads)
    return "anthropic", read_anthropic(payloads)


def cut(body: bytes, random: Any) -> Iterator[bytes]:
    """``body`` in random cuts, inside characters too."""
    at = 0
    while at < len(body):
        size = random.choice((1, 2, 3, 17, 100, 1000, 5000))
        yield body[at : at + size]
        at += size
