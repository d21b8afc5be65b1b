"""Requests that providers took and what they answered, as recorded: lossless, and valid to the validators."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from refold.formats import anthropic, openai, openai_responses
from refold.formats.export import export_session
from refold.formats.jsonio import first_difference
from refold.formats.validate import problems_anthropic, problems_openai

from .support import DATA, body_through_bytes, kept_whole, read, through_bytes

HTTP_OK = 200


def _files(folder: str) -> list[Path]:
    found = sorted((DATA / folder).glob("*.jsonl"))
    if not found:
        pytest.skip(f"no recorded {folder}; set REFOLD_SHARED_DATA")
    return found


def _exchanges() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """(address, request, response) of the recorded HTTP calls with a JSON request."""
    for path in _files("http-cassettes"):
        for line in path.read_text("utf-8").splitlines():
            call = json.loads(line)
            body = call["request"].get("parsed_body") or call["request"].get("body")
            if isinstance(body, dict):
                yield call["request"]["uri"], body, call["response"]


def test_requests_that_were_accepted_break_no_rule() -> None:
    """The validators are strict, not stricter than the providers."""
    seen: Counter[str] = Counter()
    for uri, body, response in _exchanges():
        status = response["status"]["code"] if isinstance(response["status"], dict) else response["status"]
        if status != HTTP_OK:
            continue
        if "anthropic" in uri:
            request = {key: body[key] for key in ("system", "messages") if key in body}
            assert problems_anthropic(request) == [], uri
            seen["anthropic"] += 1
        elif uri.endswith("/chat/completions"):
            assert problems_openai(body["messages"]) == [], uri
            seen["openai"] += 1
    assert seen["anthropic"] >= 3
    assert seen["openai"] >= 3


def test_requests_and_answers_come_back(tmp_path: Path) -> None:
    """Imported as files: the request whole; answers and Responses items through the mappers."""
    seen: Counter[str] = Counter()
    for uri, body, response in _exchanges():
        if isinstance(body.get("messages"), list):
            path = tmp_path / "request.jsonl"
            path.write_text(json.dumps(body), "utf-8")
            (session,) = read(path)
            exported = export_session([through_bytes(event) for event in session.events])
            assert first_difference([body], exported) is None, uri
            seen["request"] += 1
        for item in body["input"] if isinstance(body.get("input"), list) else []:
            _check_item(item)
            seen["input item"] += 1
        answer = response.get("parsed_body")
        if isinstance(answer, dict) and answer.get("type") == "message":
            made = anthropic.message_in(answer, message_id="m")
            assert first_difference(answer, anthropic.message_out(body_through_bytes(made))) is None
            assert kept_whole(made) == []
            assert made["usage"]["output"] > 0
            seen["answer"] += 1
    assert min(seen[kind] for kind in ("request", "input item", "answer")) > 0


def _check_item(item: dict[str, Any]) -> None:
    made = openai_responses.item_in(item, message_id="m")
    assert first_difference(item, openai_responses.item_out(body_through_bytes(made))) is None
    assert kept_whole(made) == []


def test_blocks_and_items_of_recorded_streams_come_back() -> None:
    """Every content block, Responses item and chat delta that the recorded streams show, in real bytes."""
    seen: Counter[str] = Counter()
    for path in _files("stream-chunks"):
        for line in path.read_text("utf-8").splitlines():
            chunk = json.loads(line)
            if not isinstance(chunk, dict):
                continue
            if chunk.get("type") == "content_block_start":
                message = {"role": "assistant", "content": [chunk["content_block"]]}
                made = anthropic.message_in(message, message_id="m")
                assert first_difference(message, anthropic.message_out(body_through_bytes(made))) is None
                seen[chunk["content_block"]["type"]] += 1
            items = [chunk["item"]] if isinstance(chunk.get("item"), dict) else []
            response = chunk.get("response")
            if isinstance(response, dict) and isinstance(response.get("output"), list):
                items += response["output"]
            for item in items:
                _check_item(item)
                seen[item["type"]] += 1
            for choice in chunk.get("choices") or []:
                delta = choice.get("delta") if isinstance(choice, dict) else None
                if isinstance(delta, dict) and isinstance(delta.get("role"), str):
                    made = openai.message_in(delta, message_id="m")
                    assert first_difference(delta, openai.message_out(body_through_bytes(made))) is None
                    seen["delta"] += 1
    kinds = {
        "text",
        "tool_use",
        "server_tool_use",
        "mcp_tool_use",
        "web_search_tool_result",
        "mcp_tool_result",
    }
    kinds |= {"message", "function_call", "reasoning", "web_search_call", "compaction", "delta"}
    assert kinds <= seen.keys(), kinds - seen.keys()
