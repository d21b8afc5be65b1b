"""The validators can fail: every rule, broken once, is found; and a correct request breaks none."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from refold.errors import UsageError
from refold.formats.validate import problems, problems_anthropic, problems_openai

OPENAI: list[dict[str, Any]] = [
    {"role": "system", "content": "s"},
    {"role": "user", "content": [{"type": "text", "text": "hi"}], "name": "ann"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            {"id": "c2", "type": "function", "function": {"name": "f", "arguments": "{}"}},
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "1"},
    {"role": "tool", "tool_call_id": "c2", "content": "2"},
    {"role": "assistant", "content": "done"},
]
ANTHROPIC: dict[str, Any] = {
    "system": [{"type": "text", "text": "s"}],
    "messages": [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "t", "signature": "s"},
                {"type": "tool_use", "id": "c1", "name": "f", "input": {}},
                {"type": "tool_use", "id": "c2", "name": "f", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c1", "content": "1"},
                {"type": "tool_result", "tool_use_id": "c2"},
                {"type": "text", "text": "and?"},
            ],
        },
        {"role": "assistant", "content": [{"type": "text", "text": "done"}]},
    ],
}

Break = Callable[[Any], Any]


def _at(*path: Any, value: Any = None, drop: bool = False) -> Break:
    """A change at a place; without a value the entry is taken out."""

    def change(request: Any) -> Any:
        place = request
        for key in path[:-1]:
            place = place[key]
        if drop:
            del place[path[-1]]
        else:
            place[path[-1]] = value
        return request

    return change


def _swap(*path: Any, a: int, b: int) -> Break:
    def change(request: Any) -> Any:
        place = request
        for key in path:
            place = place[key]
        place[a], place[b] = place[b], place[a]
        return request

    return change


def test_correct_requests_break_no_rule() -> None:
    assert problems_openai(OPENAI) == []
    assert problems_anthropic(ANTHROPIC) == []
    assert problems({"messages": OPENAI}, "openai") == []
    with pytest.raises(UsageError):
        problems(ANTHROPIC, "raw")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda _: [], "empty"),
        (_at(0, "role", value="boss"), "no known role"),
        (lambda m: [*m, {"role": "developer", "content": "d"}], "both system and developer"),
        (_at(1, "x", value=1), "unknown key"),
        (_at(1, "name", value="a b"), "bad name"),
        (_at(1, "content", value=None), "content is missing"),
        (_at(1, "content", value=[]), "at least one part"),
        (_at(1, "content", 0, value={"type": "refusal", "refusal": "x"}), "no user message may have"),
        (_at(1, "content", 0, value={"type": "text", "text": "x", "y": 1}), "unknown keys"),
        (
            _at(1, "content", 0, value={"type": "image_url", "image_url": {"url": "ftp://x"}}),
            "not a image_url",
        ),
        (_at(1, "content", 0, "text", value="\ud83d"), "lone surrogate"),
        (_at(2, "tool_calls", value=[]), "at least one call"),
        (_at(2, "tool_calls", 0, "id", value="x" * 41), "1 to 40"),
        (_at(2, "tool_calls", 0, "id", value="c2"), "used twice"),
        (_at(2, "tool_calls", 0, "type", value="x"), "not a function call"),
        (_at(2, "tool_calls", 0, "function", "arguments", value={}), "must be a string"),
        (_at(2, "tool_calls", 0, "function", "name", value="a.b"), "bad name"),
        (_at(3, drop=True), "without a tool message right after"),
        (_at(3, "tool_call_id", value="c9"), "answers no call"),
        (_swap(a=4, b=5), "without a tool message right after"),
        (lambda m: m[:-2], "calls without a tool message"),
        (
            _at(5, "content", value=[{"type": "text", "text": "x"}, {"type": "refusal", "refusal": "y"}]),
            "one refusal",
        ),
        (_at(5, "content", value=None), "content is missing"),
    ],
)
def test_openai_rules(change: Break, said: str) -> None:
    found = problems_openai(change(copy.deepcopy(OPENAI)))
    assert any(said in one for one in found), found


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_at("messages", value=[]), "empty"),
        (_at("model", value="x"), "unknown key"),
        (_at("system", value=[]), "system: must be"),
        (_at("system", 0, "text", value=" "), "non-blank"),
        (_at("messages", 0, drop=True), "first message must use the user role"),
        (_at("messages", 1, "role", value="user"), "roles must alternate"),
        (_at("messages", 0, "role", value="system"), "role user or assistant"),
        (_at("messages", 0, "content", value=[]), "must not be empty"),
        (_at("messages", 0, "content", value="\ud83d"), "no JSON form"),
        (_at("messages", 0, "content", value="  "), "non-blank"),
        (_at("messages", 0, "content", value=[{"type": "tool_use"}]), "may not stand here"),
        (_at("messages", 1, "content", 0, "signature", drop=True), "field required"),
        (_at("messages", 1, "content", 0, "signature", value=""), "signature required"),
        (_at("messages", 1, "content", 1, "cache", value=1), "extra inputs"),
        (_at("messages", 1, "content", 1, "input", value="x"), "bad id, name or input"),
        (_at("messages", 1, "content", 1, "id", value="a b"), "bad id, name or input"),
        (_at("messages", 1, "content", 1, "id", value="c2"), "ids must be unique"),
        (_swap("messages", 1, "content", a=0, b=1), "must begin with it"),
        (_at("messages", 1, "content", 2, value={"type": "text", "text": "x"}), "must come last"),
        (
            _at("messages", 1, "content", value=[{"type": "thinking", "thinking": "t", "signature": "s"}]),
            "cannot be thinking",
        ),
        (_at("messages", 2, "content", 0, drop=True), "without tool_result blocks immediately after"),
        (_at("messages", 2, "content", 0, "tool_use_id", value="c9"), "without its tool_use"),
        (_at("messages", 2, "content", 0, "tool_use_id", value="c2"), "single result"),
        (_at("messages", 2, "content", 0, "content", value=[{"type": "text", "text": ""}]), "non-blank"),
        (_swap("messages", 2, "content", a=1, b=2), "must come first"),
        (_at("messages", 3, "content", 0, "text", value="done "), "trailing whitespace"),
        (
            _at(
                "messages",
                3,
                "content",
                0,
                value={"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
            ),
            "use and result must be in one turn",
        ),
        (
            _at(
                "messages",
                0,
                "content",
                value=[
                    {"type": "image", "source": {"type": "base64", "media_type": "image/tiff", "data": "AA"}}
                ],
            ),
            "not a source",
        ),
    ],
)
def test_anthropic_rules(change: Break, said: str) -> None:
    found = problems_anthropic(change(copy.deepcopy(ANTHROPIC)))
    assert any(said in one for one in found), found
