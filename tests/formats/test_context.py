"""Contexts: what a provider is sent is accepted whatever the session went through (labels T1 to T5)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from refold.core.rulings import Accepted
from refold.errors import UsageError
from refold.formats import anthropic, openai
from refold.formats.context import render
from refold.formats.markers import MARK, NOT_KNOWN, STARTS_WITH_ASSISTANT, SUMMARY_BEGIN, is_marker
from refold.formats.parts import Part, part, text, tool_call, tool_result
from refold.formats.transcript import transcript
from refold.formats.validate import problems
from refold.wire.parts import BlobRef

from .folding import Folded
from .support import snapshot

PROVIDERS = ("openai", "anthropic")
IMAGE = b"\x89PNG\r\n\x1a\n"


def _said(role: str, content: Any, message_id: str, **fields: Any) -> dict[str, Any]:
    parts = [text(content)] if isinstance(content, str) else content
    return {
        "message_id": message_id, "parent_id": None, "role": role, "content": parts, "name": None,
        "group_id": None, "extra_format": None, "extra": None, **fields,
    }  # fmt: skip


def _user(content: Any = "hi", message_id: str = "u") -> dict[str, Any]:
    return _said("user", content, message_id)


def _asks(*calls: str, message_id: str = "a", words: str = "") -> dict[str, Any]:
    parts = [tool_call(call, "refund", '{"order":7}') for call in calls]
    return _said("assistant", [*([text(words)] if words else []), *parts], message_id)


def _answers(call: str, words: str = "ok", message_id: str = "r") -> dict[str, Any]:
    return _said("tool", [tool_result(call, [text(words)])], message_id)


def _both(*messages: dict[str, Any], **more: Any) -> tuple[list[Any], dict[str, Any]]:
    """The context in both providers' formats, accepted by both."""
    shown = snapshot(messages, **more)
    made = {name: render(shown, name) for name in PROVIDERS}
    for name, context in made.items():
        assert problems(context, name) == []
    return made["openai"]["messages"], made["anthropic"]


def test_a_call_and_its_result() -> None:
    """T1: the plain case, in both shapes."""
    messages, request = _both(
        _user(), _asks("c1", words="wait"), _answers("c1"), _said("assistant", "done", "b")
    )
    assert messages == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "wait",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "refund", "arguments": '{"order":7}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
        {"role": "assistant", "content": "done"},
    ]
    assert request["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "hi"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "wait"},
                {"type": "tool_use", "id": "c1", "name": "refund", "input": {"order": 7}},
            ],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "ok"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "done"}]},
    ]


def test_results_are_shown_in_the_order_asked() -> None:
    """T1, D05: answered out of order, shown in order."""
    messages, request = _both(
        _user(), _asks("c1", "c2"), _answers("c2", "two", "r2"), _answers("c1", "one", "r1")
    )
    assert [m["content"] for m in messages if m["role"] == "tool"] == ["one", "two"]
    assert [b["content"] for b in request["messages"][2]["content"]] == ["one", "two"]


def test_a_late_result_goes_to_its_call() -> None:
    """T1: also when the conversation went on in between; what was said stays in its order."""
    messages, _ = _both(_user(), _asks("c1"), _user("and?", "u2"), _answers("c1", "late"))
    assert [(m["role"], m["content"]) for m in messages[2:]] == [("tool", "late"), ("user", "and?")]


def test_two_assistant_messages_ask_before_any_answer() -> None:
    """T1: each message's calls are answered right after it."""
    messages, _ = _both(
        _user(),
        _asks("c1", message_id="a1"),
        _asks("c2", message_id="a2"),
        _answers("c1", "1", "r1"),
        _answers("c2", "2", "r2"),
    )
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "assistant", "tool"]
    assert [m["content"] for m in messages if m["role"] == "tool"] == ["1", "2"]


def test_an_id_used_again_pairs_with_its_own_turn() -> None:
    """T2, D07: both results, each with its own call; ids are unique where the provider wants it."""
    turn = [_asks("call_0", message_id="a1"), _answers("call_0", "first", "r1")]
    again = [_asks("call_0", message_id="a2"), _answers("call_0", "second", "r2")]
    messages, request = _both(_user(), *turn, _user("again", "u2"), *again)
    assert [m["content"] for m in messages if m["role"] == "tool"] == ["first", "second"]
    used = [b["id"] for m in request["messages"] for b in m["content"] if b["type"] == "tool_use"]
    assert used[0] == "call_0"
    assert len(set(used)) == 2


def test_one_id_twice_in_one_message_pairs_in_order() -> None:
    """T2: parallel calls that share an id keep their own results."""
    messages, _ = _both(_user(), _asks("x", "x"), _answers("x", "1", "r1"), _answers("x", "2", "r2"))
    assert [m["content"] for m in messages if m["role"] == "tool"] == ["1", "2"]


def test_orphans_are_left_out_and_early_results_join() -> None:
    """T3, D06: a result without a call is not shown; one that came before its call is."""
    messages, _ = _both(
        _user(), _answers("c9", "nobody asked", "r9"), _answers("c1", "early", "r1"), _asks("c1")
    )
    assert "nobody asked" not in str(messages)
    assert [m["content"] for m in messages if m["role"] == "tool"] == ["early"]


def test_a_tool_message_without_a_result_says_nothing() -> None:
    """T3:

    words of a tool that nobody called are no user's words; beside a result they are (Anthropic's user
    turn).
    """
    stray = _said("tool", [text("stray")], "r0")
    beside = _said("tool", [tool_result("c1", [text("ok")]), text("and hurry")], "r1")
    messages, request = _both(_user(), stray, _asks("c1"), beside)
    assert "stray" not in str(messages) + str(request)
    assert [(m["role"], m["content"]) for m in messages[2:]] == [("tool", "ok"), ("user", "and hurry")]


def test_a_second_result_for_one_call_is_left_out() -> None:
    """T3: the first one stands."""
    messages, _ = _both(_user(), _asks("c1"), _answers("c1", "first", "r1"), _answers("c1", "again", "r2"))
    assert [m["content"] for m in messages if m["role"] == "tool"] == ["first"]


@pytest.mark.parametrize(
    ("row", "words", "failed"),
    [
        (None, "unresolved", True),
        ({"state": "intended"}, "has not started", True),
        ({"state": "awaiting_approval"}, "waits for approval", True),
        ({"state": "started"}, "outcome is not known yet", True),
        ({"state": "unknown"}, "outcome of this call is not known", True),
        ({"state": "denied"}, "not approved", True),
        ({"state": "failed", "error": "no such order"}, "no such order", True),
        ({"state": "done", "result_summary": "refunded"}, "refunded", False),
        ({"state": "done", "result_summary": None}, "not in the context", False),
        ({"state": "a later version's"}, "not known", True),
    ],
)
def test_a_call_without_a_result_gets_a_marked_one(
    row: dict[str, Any] | None, words: str, failed: bool
) -> None:
    """T1, T5, D04: it says what the ledger knows, and never looks like a tool's words."""
    full = {"operation_id": "o", "call_id": "c1", "message_id": "a", "tool": "refund", **(row or {})}
    messages, request = _both(_user(), _asks("c1"), _user("well?", "u2"), tools=[full] if row else [])
    shown = messages[2]["content"]
    assert words in shown
    assert is_marker(shown)
    assert request["messages"][2]["content"][0].get("is_error", False) is failed


def test_a_row_belongs_to_its_own_message() -> None:
    """T1: an id used again must not show the other call's outcome."""
    rows = [
        {"operation_id": "o1", "call_id": "x", "message_id": "a1", "state": "denied"},
        {"operation_id": "o2", "call_id": "x", "message_id": "a2", "state": "started"},
    ]
    messages, _ = _both(
        _user(), _asks("x", message_id="a1"), _user("2", "u2"), _asks("x", message_id="a2"), tools=rows
    )
    shown = [m["content"] for m in messages if m["role"] == "tool"]
    assert "not approved" in shown[0]
    assert "not known yet" in shown[1]


def test_records_of_one_model_message_are_one_message() -> None:
    """T4: thinking, text and calls over several records, a result in between."""
    own = {"group_id": "msg_1", "extra_format": "claude-code"}
    thinking = part("reasoning", "hm", {"signature": "c2ln"})
    messages, request = _both(
        _user(),
        _said("assistant", [thinking], "a1", **own),
        _said("assistant", [tool_call("c1", "f", "{}")], "a2", **own),
        _answers("c1", "1", "r1"),
        _said("assistant", [tool_call("c2", "f", "{}")], "a3", **own),
        _answers("c2", "2", "r2"),
    )
    assert [b["type"] for b in request["messages"][1]["content"]] == ["thinking", "tool_use", "tool_use"]
    assert request["messages"][1]["content"][0] == {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
    assert [m["role"] for m in messages] == ["user", "assistant", "tool", "tool"]


@pytest.mark.parametrize(
    ("messages", "kept"),
    [
        ([[part("reasoning", "hm", {"signature": "s"}), text("yes")]], True),
        ([[part("reasoning", None, {"encrypted": "e", "redacted": True}), text("yes")]], True),
        ([[part("reasoning", "hm"), text("yes")]], False),
        ([[text("yes"), part("reasoning", "hm", {"signature": "s"})]], False),
        ([[part("reasoning", "hm", {"signature": "s"})]], False),
        ([[text("yes")], [part("reasoning", "hm", {"signature": "s"}), text("more")]], False),
    ],
)
def test_thinking_is_shown_only_where_it_is_valid(messages: list[list[Part]], kept: bool) -> None:
    """Signed, first in its turn, never last; else it is left out rather than refused."""
    bodies = [
        _said("assistant", parts, f"a{at}", extra_format="anthropic") for at, parts in enumerate(messages)
    ]
    _, request = _both(_user(), *bodies, _user("go on", "u2"))
    assert ("thinking" in str(request)) is kept
    foreign = [{**body, "extra_format": "openai"} for body in bodies]
    _, request = _both(_user(), *foreign, _user("go on", "u2"))
    assert "thinking" not in str(request)


def test_arguments_that_are_no_object() -> None:
    """D08: OpenAI gets the raw text, Anthropic an object that says so; never a silent ``{}``."""
    raws = ['{"command": "ls -', "", "[1]", "null", '{"a": "\\ud83d"}', "{'a': 1}"]
    calls = [tool_call(f"c{at}", "bash", raw) for at, raw in enumerate(raws)]
    messages, request = _both(_user(), _said("assistant", calls, "a"))
    assert [call["function"]["arguments"] for call in messages[1]["tool_calls"]] == raws
    assert [block["input"] for block in request["messages"][1]["content"]] == [
        {"_invalid_arguments": raw} for raw in raws
    ]


def test_ids_and_names_no_provider_takes() -> None:
    """Too long, of a foreign alphabet, empty: replaced, the same ones every time."""
    calls = [
        tool_call("c" * 80, "a.b/c", "{}"),
        tool_call("call:1|x y", "", "{}"),
        tool_call("", "n" * 200, "{}"),
    ]
    first = _both(_user(), _said("assistant", calls, "a"), _answers("c" * 80))
    assert first == _both(_user(), _said("assistant", calls, "a"), _answers("c" * 80))
    assert [call["function"]["name"] for call in first[0][1]["tool_calls"]] == [
        "a_b_c",
        "unnamed_tool",
        "n" * 64,
    ]
    assert first[0][2]["content"] == "ok"


def test_system_first_then_the_summary_clearly_delimited() -> None:
    """D03: the system message stays first; the summary cannot be taken for somebody's words."""
    messages, request = _both(_user(), system=[_said("system", "be brief", "s")], summary="they greeted")
    assert messages[0] == {"role": "system", "content": "be brief"}
    assert messages[1]["role"] == "system"
    assert messages[1]["content"].startswith(SUMMARY_BEGIN + "\nthey greeted\n" + MARK)
    assert [block["text"] for block in request["system"]] == ["be brief", messages[1]["content"]]


def test_an_inactive_summary_is_not_shown() -> None:
    shown = snapshot([_user()], summary="of another branch")
    shown["context"]["summary_active"] = False
    assert "another branch" not in str(
        [render(shown, name) for name in ("openai", "anthropic", "otel", "raw")]
    )


def test_developer_and_system_do_not_mix() -> None:
    """OpenAI takes one of the two names in a request."""
    messages, _ = _both(_user(), system=[_said("developer", "d", "s1")], summary="x")
    assert [m["role"] for m in messages] == ["developer", "developer", "user"]
    messages, _ = _both(_user(), system=[_said("developer", "d", "s1"), _said("system", "s", "s2")])
    assert [m["role"] for m in messages] == ["system", "system", "user"]


def test_a_system_message_in_the_middle() -> None:
    """Anthropic has no place for it but a user turn; it never separates a call from its result."""
    _, request = _both(_user(), _asks("c1"), _said("system", "be careful", "s"), _answers("c1"))
    (result, note) = request["messages"][2]["content"]
    assert result["type"] == "tool_result"
    assert "be careful" in note["text"]
    assert is_marker(note["text"])


def test_anthropic_begins_with_the_user_and_alternates() -> None:
    """An assistant's greeting, users in a row, assistants in a row, blank texts in between."""
    _, request = _both(
        _said("assistant", "hello", "a0"),
        _user("one", "u1"),
        _user(" \n", "u2"),
        _user("two", "u3"),
        _said("assistant", "", "a1"),
        _said("assistant", "three", "a2"),
        _said("assistant", "four  \n", "a3"),
    )
    assert [(m["role"], [b["text"] for b in m["content"]]) for m in request["messages"]] == [
        ("user", [STARTS_WITH_ASSISTANT]),
        ("assistant", ["hello"]),
        ("user", ["one", "two"]),
        ("assistant", ["three", "four"]),
    ]


def test_media_goes_where_it_may_and_is_marked_elsewhere() -> None:
    """Images from bytes and addresses, PDFs; in a tool result OpenAI takes text only."""
    image = part("image", None, {"media_type": "image/png", "data": IMAGE})
    linked = part("image", None, {"url": "https://example.com/a.png", "detail": "low"})
    pdf = part(
        "file", None, {"media_type": "application/pdf", "data": b"%PDF", "filename": "a.pdf", "title": "A"}
    )
    odd = [
        part("image", None, {"file_id": "f"}),
        part("audio", "hey", {"data": b"x", "format": "ogg"}),
        part("uri", None, {"uri": "gs://x"}),
    ]
    shown = tool_result("c1", [text("see"), image])
    messages, request = _both(_user([image, linked, pdf, *odd]), _asks("c1"), _said("tool", [shown], "r"))
    kinds = [piece["type"] for piece in messages[0]["content"]]
    assert kinds == ["image_url", "image_url", "file", "text", "text", "text"]
    assert [block["type"] for block in request["messages"][0]["content"]] == [
        "image",
        "image",
        "document",
        "text",
        "text",
        "text",
    ]
    assert messages[2]["content"].startswith("see\n" + MARK)
    assert [block["type"] for block in request["messages"][2]["content"][0]["content"]] == ["text", "image"]
    # An assistant's image has no place in either.
    messages, request = _both(_user(), _said("assistant", [image], "a"))
    assert is_marker(messages[1]["content"])
    assert is_marker(request["messages"][1]["content"][0]["text"])


def test_a_web_search_goes_back_only_whole() -> None:
    """Anthropic's own search with its result stays as it was;

    half of one, or another tool, is a marked text.
    """
    use = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "q"}}
    found = {
        "type": "web_search_tool_result",
        "tool_use_id": "srvtoolu_1",
        "content": [{"type": "web_search_result", "encrypted_content": "E=="}],
    }
    said = {
        "type": "text",
        "text": "so",
        "citations": [{"type": "web_search_result_location", "url": "u", "encrypted_index": "E"}],
    }

    def shown(*blocks: dict[str, Any]) -> list[Any]:
        body = anthropic.message_in({"role": "assistant", "content": list(blocks)}, message_id="a")
        _, request = _both(_user(), body, _user("more", "u2"))
        return request["messages"][1]["content"]

    assert shown(use, found, said) == [use, found, {"type": "text", "text": "so"}]
    assert [block["type"] for block in shown(use, said)] == ["text", "text"]
    code = {"type": "server_tool_use", "id": "srvtoolu_2", "name": "code_execution", "input": {}}
    assert [block["type"] for block in shown(code)] == ["text"]


def test_a_refusal() -> None:
    messages, request = _both(
        _user(), openai.message_in({"role": "assistant", "content": None, "refusal": "no"}, message_id="a")
    )
    assert messages[1]["content"] == [{"type": "refusal", "refusal": "no"}]
    assert request["messages"][1]["content"] == [{"type": "text", "text": "no"}]


def test_content_kept_outside_is_marked_unless_loaded() -> None:
    """Parts in the blob store and sealed parts; a loader puts the bytes in place."""
    ref = BlobRef("file:///x", "0" * 64, 5_000_000, "text/plain", "text")
    outside = Part("text", None, ref=ref)
    sealed = part(
        "sealed",
        None,
        {
            "key_id": "k",
            "algorithm": "A",
            "nonce": b"n",
            "ciphertext": b"c",
            "plain_length": 3,
            "part_type": "text",
        },
    )
    messages, _ = _both(_user([outside, sealed]))
    assert "5000000 bytes" in messages[0]["content"][0]["text"]
    assert is_marker(messages[0]["content"][1]["text"])
    loaded = render(snapshot([_user([outside])]), "openai", load_part=lambda one: text("all of it"))
    assert loaded["messages"][0]["content"] == "all of it"


def test_elided_messages_keep_their_calls_and_results() -> None:
    """D23: a body too large for the state leaves a marker; its calls come back from the ledger's rows."""
    rows = [
        {"operation_id": f"@1.{n}", "call_id": f"c{n}", "message_id": "a", "tool": "f",
         "arguments": None if n else "{}", "arguments_length": 9_000,
         "state": "done", "result_summary": f"r{n}", "order": n}
        for n in (1, 0)
    ]  # fmt: skip
    gone = {**_said("assistant", [], "a"), "elided": {"length": 90_000, "sha256": ""}}
    result = {**_said("tool", [], "r"), "elided": {"length": 70_000, "sha256": ""}}
    messages, request = _both(_user(), gone, result, _answers("c1", "whole", "r1"), tools=rows)
    assert is_marker(messages[1]["content"])
    assert [call["id"] for call in messages[1]["tool_calls"]] == ["c0", "c1"]
    assert [m["content"].split("\n")[0] for m in messages if m["role"] == "tool"] == ["r0", "whole"]
    assert request["messages"][1]["content"][2]["input"] == {
        "_elided": "9000 bytes of arguments are not shown"
    }
    full = render(snapshot([_user(), gone]), "openai", load_message=lambda _: [text("all of it")])
    assert full["messages"][1]["content"] == "all of it"


def test_tool_events_answer_the_message_that_asked() -> None:
    """Through the fold: the SDK's own way, results by operation id and never as a message of their own."""
    folded = Folded()
    folded.append("MessageAppended", _user())
    folded.append("MessageAppended", _asks("c1", "c2", message_id="a"))
    for at, call in enumerate(("c1", "c2")):
        intent = {
            "operation_id": f"op{at}",
            "call_id": call,
            "message_id": "a",
            "tool": "refund",
            "arguments": "{}",
        }
        assert isinstance(folded.append("ToolCallIntended", intent), Accepted)
    folded.append(
        "ToolCallStarted", {"operation_id": "op0", "attempt": 1, "holder": "h", "lease_ms": 1, "fencing": 0}
    )
    done = {"operation_id": "op0", "call_id": None, "content": [text("refunded")], "is_error": False}
    assert isinstance(folded.append("ToolCallCompleted", done), Accepted)
    for name in PROVIDERS:
        context = render(folded.snapshot(), name)
        assert problems(context, name) == []
        assert "refunded" in str(context)
        assert "has not started" in str(context)


def test_raw_leaves_nothing_out() -> None:
    """The messages as they are, orphans included, parts as values."""
    context = render(
        snapshot([_user(), _answers("c9")], system=[_said("system", "s", "s")], summary="x"), "raw"
    )
    assert [m["role"] for m in context["messages"]] == ["user", "tool"]
    assert isinstance(context["messages"][1]["content"][0], Part)
    assert (context["summary"], context["system"][0]["role"]) == ("x", "system")


def test_otel_pairs_calls_and_answers() -> None:
    context = render(
        snapshot([_user(), _asks("c1")], system=[_said("system", "s", "s")], summary="x"), "otel"
    )
    assert [m["role"] for m in context["messages"]] == ["user", "assistant", "tool"]
    assert context["messages"][1]["parts"][0] == {
        "type": "tool_call",
        "id": "c1",
        "name": "refund",
        "arguments": {"order": 7},
    }
    assert context["messages"][2]["parts"][0]["response"] == NOT_KNOWN
    assert [one["type"] for one in context["system_instructions"]] == ["text", "text"]


def test_an_unknown_format_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="openai, anthropic, otel or raw"):
        render(snapshot([]), "gemini")


def test_the_snapshot_is_not_changed() -> None:
    shown = snapshot([_user(), _asks("c1")], system=[_said("developer", "d", "s")])
    before = repr(shown)
    for name in ("openai", "anthropic", "otel", "raw"):
        render(shown, name)
    assert repr(shown) == before


def _check(shown: dict[str, Any], found: Counter[str]) -> None:
    source = transcript(shown)
    for step in source.steps:
        assert all(call.answered or call.stand_in for call in step.calls)
    spoken = [step for step in source.steps if step.role in ("user", "assistant")]
    for name in PROVIDERS:
        context = render(shown, name)
        if not context["messages"]:
            assert not [one for one in spoken if one.calls]
            continue
        assert problems(context, name) == []
        found["contexts"] += 1
    render(shown, "otel")


_pool = st.sampled_from(["c0", "c1", "c0", "c1", "c2", "bad id!", "x" * 60])
_words = st.sampled_from(["", " ", "hi", "\0", "two\nlines ", "\U0001f600"])
_arguments = st.sampled_from(["{}", '{"a":1}', '{"a', "", "[]", '"\\ud83d"', "NaN"])
_kinds = st.sampled_from(
    ["text", "call", "thinking", "unsigned", "redacted", "image", "refusal", "search", "outside", "citation"]
)


def _piece(kind: str, words: str, call: str, arguments: str) -> Part:
    match kind:
        case "call":
            return tool_call(call, "f", arguments)
        case "thinking":
            return part("reasoning", words, {"signature": "s"})
        case "unsigned":
            return part("reasoning", words)
        case "redacted":
            return part("reasoning", None, {"encrypted": "e", "redacted": True})
        case "image":
            return part("image", None, {"media_type": "image/png", "data": IMAGE})
        case "refusal":
            return part("refusal", words)
        case "search":
            return part(
                "provider_tool_call",
                None,
                {"call_id": f"srvtoolu_{len(call)}", "name": "web_search", "arguments": "{}"},
            )
        case "outside":
            return Part("text", None, ref=BlobRef("file:///x", "0" * 64, 7, "text/plain", "text"))
        case "citation":
            return part("citation", words, {"kind": "k"})
        case _:
            return text(words)


@st.composite
def _histories(draw: st.DrawFn) -> list[tuple[str, dict[str, Any]]]:
    """Events that collide:

    few call ids, results in any order, tool events, edits, summaries, any role anywhere.
    """
    events: list[tuple[str, dict[str, Any]]] = []
    for at in range(draw(st.integers(1, 14))):
        kind = draw(
            st.sampled_from(["say", "say", "say", "result", "result", "tool", "tool", "summary", "switch"])
        )
        earlier = draw(st.integers(0, max(at - 1, 0)))
        if kind == "say":
            role = draw(st.sampled_from(["user", "assistant", "assistant", "system", "developer"]))
            pieces = [
                _piece(draw(_kinds), draw(_words), draw(_pool), draw(_arguments))
                for _ in range(draw(st.integers(0, 3)))
            ]
            kept = [one for one in pieces if role == "assistant" or one.type != "tool_call"]
            made_by = draw(st.sampled_from([None, "openai", "anthropic", "claude-code"]))
            group = draw(st.sampled_from([None, None, "g1", "g2"])) if role == "assistant" else None
            parent = draw(st.sampled_from([None, None, None, "", f"m{earlier}"]))
            events.append(
                (
                    "MessageAppended",
                    _said(role, kept, f"m{at}", extra_format=made_by, group_id=group, parent_id=parent),
                )
            )
        elif kind == "result":
            answers = [
                tool_result(
                    draw(_pool), [text(draw(_words))] * draw(st.integers(0, 2)), is_error=draw(st.booleans())
                )
                for _ in range(draw(st.integers(1, 2)))
            ]
            beside = [text(draw(_words))] if draw(st.booleans()) else []
            events.append(("MessageAppended", _said("tool", [*answers, *beside], f"m{at}")))
        elif kind == "tool":
            events.append(_tool_event(draw, at, earlier))
        elif kind == "summary":
            events.append(("ContextSummarized", {"text": "so far", "through_message_id": f"m{earlier}"}))
        else:
            events.append(("BranchSwitched", {"head_message_id": f"m{earlier}"}))
    return events


def _tool_event(draw: st.DrawFn, at: int, earlier: int) -> tuple[str, dict[str, Any]]:
    operation = f"op{draw(st.integers(0, 2))}"
    kind = draw(
        st.sampled_from(
            ["Intended", "Intended", "Started", "Completed", "Failed", "Denied", "OutcomeUnknown"]
        )
    )
    if kind == "Intended":
        return "ToolCallIntended", {
            "operation_id": operation, "call_id": draw(_pool | st.none()), "message_id": f"m{earlier}",
            "tool": "f", "arguments": draw(_arguments), "approval_required": draw(st.booleans()),
        }  # fmt: skip
    if kind == "Started":
        return "ToolCallStarted", {
            "operation_id": operation,
            "attempt": 1,
            "holder": "h",
            "lease_ms": 1,
            "fencing": 0,
        }
    if kind in ("Completed", "Failed"):
        return f"ToolCall{kind}", {"operation_id": operation, "content": [text(draw(_words))]}
    return f"ToolCall{kind}", {"operation_id": operation}


@settings(suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large], deadline=None)
@given(_histories())
def test_any_history_gives_contexts_both_providers_take(history: list[tuple[str, dict[str, Any]]]) -> None:
    """Whatever happened, in whatever order, accepted by the fold or not: after each event the rules hold."""
    folded = Folded()
    for type_, payload in history:
        folded.append(type_, payload)
        if folded.state.seq:
            _check(folded.snapshot(), Counter())
