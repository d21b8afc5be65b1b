"""Declaring tools, providers' objects in and out, keys, results: everything that needs no session."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from refold.client.tools import NotDone, OutcomeNotKnown, Tool, ToolCall, ToolError, tool
from refold.client.tools.keys import idempotency_key, operation_id
from refold.client.tools.outcomes import CallOutcome
from refold.client.tools.points import NAMES, Points
from refold.client.tools.providers import read_calls
from refold.client.tools.results import JSON_EXTRA, content_of, text_of, value_of
from refold.client.tools.schema import BadArguments
from refold.client.tools.verdicts import describe, judge, retryable, stricter
from refold.errors import ConfigError, InvariantViolation, UsageError
from refold.wire.parts import text


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Address(BaseModel):
    street: str
    city: str = "Ulm"


@tool(effect="external")
async def ship(
    order: str,
    to: Address,
    size: Size = Size.SMALL,
    speed: Literal["slow", "fast"] = "slow",
    weight: Annotated[float, Field(gt=0, description="In kg.")] = 1.0,
    schema: int | None = None,
    *,
    call: ToolCall,
) -> str:
    """Ship an order.

    Not for the model.
    """
    return f"{order} to {to.city} {size.value} {speed} {weight} {call.key}"


def test_the_schema_is_what_providers_take() -> None:
    """Goal: types, defaults, enums and descriptions of the annotations; nothing of the handle, no titles."""
    schema = ship.openai_schema()
    assert schema["type"] == "function"
    assert schema["function"]["name"] == "ship"
    assert schema["function"]["description"] == "Ship an order."
    parameters = schema["function"]["parameters"]
    assert set(parameters["properties"]) == {"order", "to", "size", "speed", "weight", "schema"}
    assert parameters["required"] == ["order", "to"]
    assert parameters["additionalProperties"] is False
    assert parameters["properties"]["speed"]["enum"] == ["slow", "fast"]
    assert parameters["properties"]["weight"]["description"] == "In kg."
    assert parameters["properties"]["weight"]["exclusiveMinimum"] == 0
    assert "title" not in str(parameters)
    assert ship.anthropic_schema() == {
        "name": "ship",
        "description": "Ship an order.",
        "input_schema": parameters,
    }
    assert ship.openai_responses_schema()["parameters"] == parameters
    assert ship.openai_schema(strict=True)["function"]["strict"] is True


def test_a_parameter_called_title_is_a_parameter() -> None:
    @tool(effect="none")
    def book(title: str) -> str:
        return title

    assert book.json_schema["properties"] == {"title": {"type": "string"}}


def test_arguments_become_values() -> None:
    read = ship.parameters.read('{"order": "A", "to": {"street": "x"}, "size": "large"}')
    assert read["to"] == Address(street="x")
    assert read["size"] is Size.LARGE
    assert (read["speed"], read["weight"], read["schema"]) == ("slow", 1.0, None)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ('{"order": "A"', "not valid JSON"),
        ('{"order": "A", "to": {"street": "x"}, "weight": NaN}', "not valid JSON"),
        ("[1]", "do not fit"),
        ('{"order": "A"}', "to: Field required"),
        ('{"order": "A", "to": {"street": "x"}, "weight": -1}', "weight: "),
        ('{"order": "A", "to": {"street": "secret-value"}, "more": 1}', "more: Extra inputs"),
        ("", "order: Field required"),
    ],
)
def test_arguments_that_do_not_fit_say_which_and_why(raw: str, said: str) -> None:
    """Goal: the model can mend it; values are not repeated."""
    with pytest.raises(BadArguments, match=said) as error:
        ship.parameters.read(raw)
    assert "secret-value" not in str(error.value)


def test_no_arguments_may_be_an_empty_text() -> None:
    """Goal: some providers send an empty text where a tool takes nothing."""

    @tool(effect="none")
    def now() -> int:
        return 1

    assert now.parameters.read("") == {}
    assert now.parameters.read("{}") == {}


def test_a_tool_is_still_the_function() -> None:
    @tool(effect="none", name="add_up")
    def add(a: int, b: int = 2) -> int:
        """Add."""
        return a + b

    assert add(1) == 3
    assert add.name == "add_up"
    assert add.__doc__ == "Add."
    assert isinstance(add, Tool)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "say what running it twice would do, effect='none' or 'idempotent' or 'external'"),
        ({"effect": "maybe"}, "effect 'maybe' must be one of none, idempotent, external"),
        ({"effect": "none", "name": "a b"}, "providers take 1 to 64"),
        ({"effect": "none", "timeout": 0}, "timeout is in seconds and above 0"),
        ({"effect": "none", "attempts_max": 0}, "attempts_max must be 1 to 10"),
        ({"effect": "none", "retry_on": (int,)}, "retry_on takes exception classes"),
        ({"effect": "none", "lookup": 3}, "lookup must be a function"),
    ],
)
def test_a_wrong_declaration_is_refused_where_it_stands(options: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        tool(lambda: None, **{"name": "f", **options})


def test_functions_no_model_can_call_are_refused() -> None:
    with pytest.raises(UsageError, match="must be an ordinary named parameter"):

        @tool(effect="none")
        def many(*names: str) -> None: ...

    with pytest.raises(UsageError, match="no JSON schema"):

        @tool(effect="none")
        def odd(thing: SimpleNamespace) -> None: ...

    with pytest.raises(UsageError, match="must name something that exists at run time"):

        @tool(effect="none")
        def lost(thing: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


# Keys


def test_an_operation_is_named_by_run_step_message_and_call() -> None:
    assert operation_id("m1", "c1") == "m1:c1"
    assert operation_id("m1", "c1", run="r", step="s") == "r/s/m1:c1"
    assert operation_id("m1", "c1", repeat=1) == "m1:c1:2"
    assert idempotency_key("m1:c1", 2) == "m1:c1/2"


def test_different_calls_never_share_a_name() -> None:
    """Goal: separators inside ids cannot make two calls one (D07 is only the common case)."""
    names = [
        operation_id("a:b", "c"),
        operation_id("a", "b:c"),
        operation_id("a", "b", repeat=1),
        operation_id("a", "b:2"),
        operation_id("m", "c", run="r/s"),
        operation_id("m", "c", run="r", step="s"),
        operation_id("@m", "c"),
        operation_id("m" * 300, "c"),
        operation_id("m" * 300, "d"),
    ]
    assert len(set(names)) == len(names)
    assert all(len(name.encode()) <= 256 and name[0] != "@" for name in names)
    with pytest.raises(UsageError, match="must not be empty"):
        operation_id("m", "")


# Providers


@dataclass
class SdkFunction:
    name: str
    arguments: str


@dataclass
class SdkCall:
    """As an SDK's object: attributes, and ``model_dump``."""

    id: str
    function: SdkFunction
    type: str = "function"

    def model_dump(self) -> dict[str, Any]:
        return {"id": self.id, "type": self.type, "function": {**self.function.__dict__}}


def done(said: str, *, is_error: bool = False) -> CallOutcome:
    return CallOutcome("op", "pay", "done", said, is_error, 1)


def test_openai_chat_calls() -> None:
    given = [
        SdkCall("c1", SdkFunction("pay", '{"a":1}')),
        {"id": "c2", "type": "function", "function": {"name": "pay", "arguments": '{"a":'}},
        SimpleNamespace(id="c3", type="function", function=SimpleNamespace(name="pay", arguments="{}")),
    ]
    calls = read_calls(given)
    assert [(c.call_id, c.name, c.arguments) for c in calls] == [
        ("c1", "pay", '{"a":1}'),
        ("c2", "pay", '{"a":'),
        ("c3", "pay", "{}"),
    ]
    assert calls[0].result(done("ok")) == {"role": "tool", "tool_call_id": "c1", "content": "ok"}


def test_openai_responses_items() -> None:
    output = [
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "message", "role": "assistant", "content": []},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "pay", "arguments": "{}"},
    ]
    (call,) = read_calls(output)
    assert call.result(done("ok")) == {
        "type": "function_call_output",
        "call_id": "call_1",
        "output": "ok",
    }


def test_anthropic_blocks() -> None:
    content = [
        {"type": "text", "text": "I will pay."},
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []},
        {"type": "tool_use", "id": "toolu_1", "name": "pay", "input": {"a": "ü"}},
    ]
    (call,) = read_calls(content)
    assert call.arguments == '{"a":"ü"}'
    assert call.result(done("ok")) == {"type": "tool_result", "tool_use_id": "toolu_1", "content": "ok"}
    assert call.result(done("no", is_error=True))["is_error"] is True


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("text", "takes a list"),
        ({"id": "c1"}, "takes a list"),
        ([{"type": "custom", "id": "c", "custom": {}}], "type 'custom' is no function call"),
        ([{"type": "function", "function": {"name": "f", "arguments": ""}}], "without an id"),
        ([{"type": "tool_use", "id": "t", "input": {}}], "names no tool"),
        ([3], "int is no tool call"),
    ],
)
def test_what_is_no_call_is_refused(given: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_calls(given)


def test_a_message_without_calls() -> None:
    assert read_calls(None) == []
    assert read_calls([]) == []


# Results


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"a": [1, None]}, '{"a":[1,null]}'),
        (None, "null"),
        (3, "3"),
        (Address(street="x"), '{"street":"x","city":"Ulm"}'),
        (datetime(2026, 1, 2, tzinfo=UTC), '"2026-01-02T00:00:00Z"'),
        ({"n": float("nan")}, '{"n":null}'),
        (b"\xff\x00", '"_wA="'),
    ],
)
def test_a_value_is_json_and_comes_back(value: Any, said: str) -> None:
    content, extra = content_of(value)
    assert text_of(content) == said
    assert extra == JSON_EXTRA
    assert value_of(content, extra) is not None or said == "null"


def test_text_and_parts_are_themselves() -> None:
    assert content_of("plain") == ([text("plain")], None)
    assert value_of([text("12")], None) == "12"
    parts = [text("a"), text("b")]
    assert content_of(parts) == (parts, None)
    assert text_of(parts) == "a\nb"


def test_what_no_codec_takes_is_recorded_all_the_same() -> None:
    """Goal: the effect has happened; a circular value or half of a surrogate pair must not lose it (D25)."""
    circular: list[Any] = []
    circular.append(circular)
    content, extra = content_of(circular)
    assert "..." in value_of(content, extra)
    assert text_of(content_of("a\ud83db\x00")[0]) == "a\ufffdb\x00"
    text_of(content_of({"a": "\ud83d"})[0]).encode()


# Verdicts


@pytest.mark.parametrize(
    ("effect", "error", "verdict"),
    [
        ("external", ToolError("x"), "done"),
        ("external", NotDone("x"), "not_done"),
        ("external", ValueError("x"), "ask"),
        ("external", TimeoutError(), "ask"),
        ("external", OutcomeNotKnown("x"), "ask"),
        ("idempotent", ValueError("x"), "repeat"),
        ("idempotent", TimeoutError(), "repeat"),
        ("idempotent", OutcomeNotKnown("x"), "ask"),
        ("idempotent", NotDone("x"), "not_done"),
        ("none", ValueError("x"), "not_done"),
        ("none", TimeoutError(), "not_done"),
        ("none", OutcomeNotKnown("x"), "not_done"),
        ("none", ToolError("x"), "done"),
    ],
)
def test_the_verdict_table(effect: Any, error: Exception, verdict: str) -> None:
    assert judge(effect, error) == verdict


def test_retries_are_for_what_was_named() -> None:
    assert retryable(ConnectionResetError(), (ConnectionError,))
    assert not retryable(ValueError(), (ConnectionError,))
    assert retryable(NotDone("x", retryable=True), ())
    assert not retryable(NotDone("x"), ())


def test_a_call_is_reconciled_by_the_stricter_effect() -> None:
    assert stricter("none", "external") == "external"
    assert stricter("external", "none") == "external"
    assert stricter("none", "idempotent") == "idempotent"
    assert stricter("none", "") == "none"


def test_failures_in_words() -> None:
    assert describe(ToolError("no stock", code="stock"), None) == ("stock", "no stock")
    assert describe(TimeoutError(), 3.0) == ("timeout", "no answer within 3 s")
    assert describe(KeyError("a"), None) == ("KeyError", "KeyError: 'a'")


# Points


def test_a_point_is_armed_for_one_tool_and_the_nth_time() -> None:
    points = Points("before_effect:raise:2:pay")
    points.reach("before_effect", "op", "other")
    points.reach("before_effect", "op", "pay")
    with pytest.raises(InvariantViolation, match="before_effect"):
        points.reach("before_effect", "op", "pay")
    assert points.armed is None
    points.reach("before_effect", "op", "pay")


@pytest.mark.parametrize(
    "spec", ["nowhere:kill", "before_effect", "before_effect:burn", "before_effect:kill:0"]
)
def test_a_wrong_point_is_refused(spec: str) -> None:
    with pytest.raises(ConfigError, match="REFOLD_TOOL_POINT"):
        Points(spec)
    assert len(NAMES) == len(set(NAMES))


def test_not_done_of_a_repeat_says_nothing_about_the_first_time() -> None:
    """Goal: an idempotent body that ran once and whose repeat is turned away gets no new key."""
    assert judge("idempotent", NotDone("turned away"), again=True) == "repeat"
    assert judge("external", NotDone("turned away"), again=True) == "not_done"
    assert judge("none", NotDone("turned away"), again=True) == "not_done"
