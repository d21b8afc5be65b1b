"""The demo's conversations and tools: complete, parsed and not evaluated, equal on every run."""

from __future__ import annotations

import importlib.util
import json

import pytest

from refold.demo.dataset import Call, load, parse_call
from refold.demo.model import RESULT_WORDS_MAX, LocalModel
from refold.demo.simulators import Simulators, ToolError
from refold.errors import InvariantViolation

needs_data = pytest.mark.skipif(
    importlib.util.find_spec("bfcl_eval") is None,
    reason="the demo's data is not installed: make demo (or pip install --no-deps -r requirements/demo.lock)",
)


@needs_data
def test_all_conversations_are_there() -> None:
    """Goal: the demo plays the whole category. Method: the published counts."""
    conversations = load()
    assert len(conversations) == 200
    assert len({c.session for c in conversations}) == 200
    assert sum(len(c.turns) for c in conversations) == 734
    assert sum(len(c.calls) for c in conversations) == 1142


@needs_data
def test_every_expected_call_runs_and_lands_in_the_ledger() -> None:
    """Goal: the ledger can be compared with the data. Method: run all 1142 calls, twice, equal results."""

    def results() -> list[str]:
        out = []
        for conversation in load():
            tools = Simulators.of(conversation)
            out += [tools.run(call) for call in conversation.calls]
            assert tuple(tools.ledger) == conversation.calls
        return out

    first = results()
    assert len(first) == 1142
    assert first == results()


@needs_data
def test_an_unknown_tool_fails_and_is_still_in_the_ledger() -> None:
    tools = Simulators.of(load(1)[0])
    with pytest.raises(ToolError, match="no tool named format_disk"):
        tools.run(Call("format_disk", "{}"))
    assert tools.ledger == [Call("format_disk", "{}")]


def test_a_call_becomes_json() -> None:
    call = parse_call(
        "sort('final.pdf', reverse=True, limit=2.5, tags=['a'])", {"sort": ("file_name", "reverse")}
    )
    assert call.tool == "sort"
    assert json.loads(call.arguments) == {
        "file_name": "final.pdf",
        "reverse": True,
        "limit": 2.5,
        "tags": ["a"],
    }


@pytest.mark.parametrize(
    "source",
    ["__import__('os').system('id')", "f(open('x'))", "f(**{})", "f(", "f", "1 + 1", "f(1)", "g(1, x=2)"],
)
def test_nothing_but_literal_calls_is_read(source: str) -> None:
    """Goal: data is never executed."""
    with pytest.raises(InvariantViolation, match="cannot read the expected call"):
        parse_call(source, {"g": ("x",)})


async def test_the_local_model_is_a_function_of_its_input() -> None:
    model = LocalModel()
    results = ['{"status": "ok"}', " ".join(f"w{n}" for n in range(50))]
    answer = await model.close([], results)
    assert answer == await LocalModel().close([], results)
    assert "status ok" in answer
    assert f"w{RESULT_WORDS_MAX}" not in answer
    assert answer != await model.close([], results[:1])
    assert await model.close([], [])
