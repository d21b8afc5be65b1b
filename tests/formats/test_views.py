"""What one agent of several sees of a session (Y3)."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refold.errors import UsageError
from refold.formats.context import render
from refold.formats.markers import is_marker
from refold.formats.parts import part, text, tool_call, tool_result
from refold.formats.validate import problems
from refold.formats.views import actors

from .support import snapshot


def said(role: str, content: Any, message_id: str, actor: str | None = None, **more: Any) -> dict[str, Any]:
    parts = [text(content)] if isinstance(content, str) else content
    body = {"message_id": message_id, "parent_id": None, "role": role, "content": parts, "actor": actor}
    return {**body, "name": None, "group_id": None, "extra_format": None, "extra": None, **more}


SHARED = snapshot(
    [
        said("user", "Write a report.", "u1", "anna"),
        said("assistant", [text("I look it up."), tool_call("c1", "search", "{}")], "a1", "planner"),
        said("assistant", [text("I check it."), tool_call("c1", "check", "{}")], "a2", "critic"),
        said("tool", [tool_result("c1", [text("critic's result")])], "r2"),
        said("tool", [tool_result("c1", [text("planner's result")])], "r1"),
        said("assistant", [part("reasoning", "hm", {"signature": "s"}), text("Too long.")], "a3", "critic"),
        said("assistant", "Shorter then.", "a4", "planner"),
    ],
    system=[said("system", "Be brief.", "s")],
    summary="they met",
)


def test_own_calls_with_their_results_and_the_words_of_others() -> None:
    """The same call id for two agents' calls: each sees its own result."""
    request = render(SHARED, "openai", view="planner")
    assert request["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "system", "content": render(SHARED, "openai")["messages"][1]["content"]},
        {"role": "user", "content": "Write a report."},
        {
            "role": "assistant",
            "content": "I look it up.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "search", "arguments": "{}"}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "planner's result"},
        {
            "role": "user",
            "name": "critic",
            "content": [
                {"type": "text", "text": "[refold: said by critic]"},
                {"type": "text", "text": "I check it."},
            ],
        },
        {
            "role": "user",
            "name": "critic",
            "content": [
                {"type": "text", "text": "[refold: said by critic]"},
                {"type": "text", "text": "Too long."},
            ],
        },
        {"role": "assistant", "content": "Shorter then."},
    ]
    assert problems(request, "openai") == []


def test_anthropic_puts_the_others_into_the_users_turn() -> None:
    request = render(SHARED, "anthropic", view="critic")
    assert problems(request, "anthropic") == []
    assert "planner's result" not in str(request)
    assert "critic's result" in str(request)
    assert [m["role"] for m in request["messages"]] == ["user", "assistant", "user", "assistant", "user"]
    words = [block["text"] for block in request["messages"][0]["content"]]
    assert words[1:] == ["[refold: said by planner]", "I look it up."]
    assert is_marker(words[1])


def test_who_only_listens_sees_words_alone() -> None:
    for name in ("openai", "anthropic", "otel"):
        shown = str(render(SHARED, name, view="listener"))
        assert "Shorter then." in shown
        assert "result" not in shown
        assert "'hm'" not in shown


def test_a_message_that_says_nothing_to_others_is_not_shown() -> None:
    """Calls alone, thinking alone: no empty message with a name."""
    shared = snapshot(
        [
            said("user", "go", "u"),
            said("assistant", [tool_call("c1", "search", "{}")], "a1", "planner"),
            said("tool", [tool_result("c1", [text("found")])], "r1"),
        ]
    )
    assert render(shared, "openai", view="critic")["messages"] == [{"role": "user", "content": "go"}]


def test_what_has_no_name_is_the_agents_own() -> None:
    shared = snapshot([said("user", "go", "u"), said("assistant", "here", "a")])
    assert render(shared, "openai", view="critic") == render(shared, "openai")


def test_names_of_messages_stand_for_actors() -> None:
    shared = snapshot([said("user", "go", "u"), said("assistant", "here", "a", name="planner")])
    assert actors(shared) == ["planner"]
    assert render(shared, "openai", view="planner")["messages"][1]["role"] == "assistant"
    assert render(shared, "openai", view="critic")["messages"][1]["role"] == "user"
    assert actors(SHARED) == ["anna", "planner", "critic"]


def test_raw_has_no_view() -> None:
    with pytest.raises(UsageError, match="raw is everything"):
        render(SHARED, "raw", view="planner")


_names = st.sampled_from(["a", "b", None, "[odd name]"])


@st.composite
def _talks(draw: st.DrawFn) -> list[dict[str, Any]]:
    messages = []
    for at in range(draw(st.integers(1, 8))):
        role = draw(st.sampled_from(["user", "assistant", "assistant", "tool"]))
        call = draw(st.sampled_from(["c0", "c1"]))
        content = {
            "user": [text(draw(st.sampled_from(["hi", " "])))],
            "assistant": [
                *([text("yes")] if draw(st.booleans()) else []),
                *([part("reasoning", "hm", {"signature": "s"})] if draw(st.booleans()) else []),
                *([tool_call(call, "f", "{}")] if draw(st.booleans()) else []),
            ],
            "tool": [tool_result(call, [text("ok")])],
        }[role]
        made_by = draw(st.sampled_from([None, "anthropic"]))
        messages.append(said(role, content, f"m{at}", draw(_names), extra_format=made_by))
    return messages


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(_talks(), _names)
def test_any_talk_seen_by_any_agent_is_a_transcript(
    messages: list[dict[str, Any]], agent: str | None
) -> None:
    """Both providers take it; no call without its result, no result without its call, nobody else's calls."""
    shown = snapshot(messages)
    view = agent or "nobody"
    own = sum(
        one.type == "tool_call"
        for message in messages
        if message["role"] == "assistant" and message["actor"] in (None, view)
        for one in message["content"]
    )
    for name in ("openai", "anthropic"):
        request = render(shown, name, view=view)
        if request["messages"]:
            assert problems(request, name) == []
        asked = str(request).count("'type': 'function'" if name == "openai" else "'type': 'tool_use'")
        assert asked == own
