"""What the SDK refuses before it sends: ids and values that no session takes."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import refold.core
from client.test_undecided import Wire, unconnected, wire
from refold.client.client import Refold
from refold.client.connection import Connection
from refold.client.receipts import Refused
from refold.client.refusal import NotSent
from refold.client.session import Session
from refold.core.envelope import Actor
from refold.errors import UsageError
from refold.wire.parts import tool_call

__all__ = ["unconnected", "wire"]  # fixtures

LONG = "x" * 257
#: Whose ids the fold makes, and whoever names one may go on with it.
MADE = "@" + "e" * 200

Call = Callable[[Session], Awaitable[Any]]


def session(made: Connection) -> Session:
    return Session(made, "t", "s", None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s: s.append("hi", message_id=LONG), "message_id is longer than 256 bytes"),
        (lambda s: s.append("hi", message_id="é" * 129), "message_id is longer than 256 bytes"),
        (lambda s: s.append("hi", message_id="@m"), "message_id begins with @"),
        (lambda s: s.append("hi", event_id=LONG), "event_id is longer than 256 bytes"),
        (lambda s: s.append("hi", parent=LONG), "the parent's id is longer than 256 bytes"),
        (lambda s: s.append("hi", parent="m", replaces=LONG), "replaces is longer than 256 bytes"),
        (lambda s: s.append("hi", message_id="m", parent="m"), "a message cannot follow itself"),
        (lambda s: s.append("hi", actor=Actor("user", LONG)), "the actor's id is longer than 256 bytes"),
        (
            lambda s: s.append([tool_call(LONG, "look", "{}")], role="assistant"),
            "call_id is longer than 256 bytes",
        ),
        (lambda s: s.set_fact(LONG, 1), "the fact's name is longer than 256 bytes"),
        (lambda s: s.set_fact("", 1), "the fact's name is empty"),
        (lambda s: s.set_fact("f", "x" * 9_000), "a fact has at most 8192 bytes"),
        (lambda s: s.configure({"a": "x" * 40_000}), "the configuration is longer than 32768 bytes"),
        (lambda s: s.open(window_messages=0), "window_messages must be 1 to 100"),
        (lambda s: s.summarize("x" * 40_000, "m"), "the text is longer than 32768 bytes"),
        (lambda s: s.tool_intended(LONG, "look", {}), "operation_id is longer than 256 bytes"),
        (lambda s: s.tool_intended("op", "", {}), "the tool's name is empty"),
        (
            lambda s: s.tool_intended("op", "look", {}, asked_by=LONG),
            "the asking message's id is longer than 256 bytes",
        ),
        (
            lambda s: s.tool_completed("op", "ok", result_message_id=LONG),
            "the result message's id is longer than 256 bytes",
        ),
        (lambda s: s.tool_started("op", holder=LONG), "holder is longer than 256 bytes"),
        (lambda s: s.tool_started("op", holder="h", lease_ms=-1), "lease_ms must be 0 to"),
        (lambda s: s.tool_completed(None), "operation_id and call_id are both missing"),
        (lambda s: s.tool_failed("op", "no", call_id=LONG), "call_id is longer than 256 bytes"),
    ],
)
async def test_it_is_refused_with_the_limit_and_nothing_is_sent(
    unconnected: Connection, wire: Wire, call: Call, words: str
) -> None:
    """A ruling said so, which nobody asks for after a plain append: the message was never there."""
    with pytest.raises(UsageError, match="Nothing was sent") as caught:
        await call(session(unconnected))
    assert words in str(caught.value)
    assert isinstance(caught.value, NotSent)
    assert isinstance(caught.value, Refused), "as a ruling would have been, for whoever waits for one"
    assert (caught.value.ruling.status, caught.value.exit_code) == ("rejected", 64)
    assert wire.values == []


async def test_what_the_fold_takes_is_sent(unconnected: Connection, wire: Wire) -> None:
    s = session(unconnected)
    await s.append("hi", message_id="x" * 256, parent=MADE)
    await s.append("hi", event_id="é" * 128, parent="")
    await s.append([tool_call("c", "look", "not JSON")], role="assistant")
    await s.append("hi", actor=Actor("user", "@someone"))
    await s.tool_completed(MADE, "done")
    await s.publish("MyOwn", b"\0\0\0\0\7anything")
    await s.set_fact("f" * 256, "x" * 8_190)
    assert len(wire.values) == 7


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda s: s.append("hi", event_id=""), "event_id is empty"),
        (lambda s: s.append("hi", message_id=""), "message_id is empty"),
        (lambda s: s.append({"role": "tool", "content": "r"}), "needs the call's id as tool_call_id"),
        (lambda s: s.append({"role": "user", "contents": "r"}), "it has contents, role"),
    ],
)
async def test_what_nobody_can_mean_is_refused(unconnected: Connection, call: Call, words: str) -> None:
    """Goal: an empty variable in the place of an id, and a misspelt message, are told and not mended."""
    with pytest.raises(UsageError, match=words):
        await call(session(unconnected))


@pytest.mark.parametrize("bootstrap", ["", "no host", "http://broker:9092", "broker:kafka"])
def test_what_can_be_no_address_is_refused_at_once(bootstrap: str) -> None:
    with pytest.raises(UsageError, match="host:port"):
        Refold(bootstrap=bootstrap)


#: Values and keys that a caller writes out, and fields that only the SDK itself or another writer fills in.
SAID: Final = frozenset(
    {"by_digest", "not_done", "on_busy", "summary_bytes", "summary_messages", "ttl_action", "ttl_ms"}
)
OF_THE_WIRE: Final = frozenset(
    {"arguments_ref", "input_ref", "last_seq", "output_digest", "output_ref", "source_seq"}
)


def test_reasons_call_what_callers_give_by_the_callers_names() -> None:
    """Goal: who reads a reason finds the argument it speaks of. Method: every name with an underscore in a
    reason of the fold is an argument of the SDK, or one of a closed list."""
    arguments = {
        name
        for method, function in inspect.getmembers(Session, inspect.isfunction)
        if not method.startswith("_")
        for name in inspect.signature(function).parameters
    }
    found: dict[str, str] = {}
    for path in sorted(Path(refold.core.__file__).parent.glob("*.py")):
        for said, line in _reasons(ast.parse(path.read_text(encoding="utf-8"))):
            for name in re.findall(r"\b[a-z]+(?:_[a-z0-9]+)+\b", said):
                found.setdefault(name, f"{path.name}:{line}")
    assert {"message_id", "lease_ms"} <= set(found), "the search finds nothing any more"
    strange = {name: place for name, place in found.items() if name not in arguments}
    assert set(strange) == SAID | OF_THE_WIRE, strange


def _reasons(module: ast.Module) -> Iterator[tuple[str, int]]:
    """Texts in rejections, and the names that are given to the checks of ids and values."""
    for node in ast.walk(module):
        searched: list[ast.expr] = []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "Rejected" or node.func.id.lstrip("_").startswith("bad_"):
                searched = node.args[1:]
        elif isinstance(node, ast.For) and isinstance(node.iter, ast.Tuple):
            searched = [node.iter]
        for one in searched:
            for part in ast.walk(one):
                if isinstance(part, ast.Constant) and isinstance(part.value, str):
                    yield part.value, part.lineno
