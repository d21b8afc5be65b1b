"""The conversations: multi-turn entries of the Berkeley Function-Calling Leaderboard.

They come from the installed wheel ``bfcl-eval`` (Apache-2.0), which ``make demo`` installs without its
dependencies; nothing of it is kept in this repository. Only its data files are read here. A ground-truth call
is Python source such as ``mv(source='a', destination='b')``; it is parsed, never evaluated, and its arguments
become JSON, which is what a model would have sent.
"""

from __future__ import annotations

import ast
import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from refold.errors import ConfigError, InvariantViolation

#: The category with complete calls for every turn: 200 conversations, 734 user turns, 1142 tool calls.
CATEGORY: Final = "BFCL_v4_multi_turn_base.json"


@dataclass(frozen=True, slots=True)
class Call:
    """One expected tool call. ``arguments`` is a JSON object by parameter name."""

    tool: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Turn:
    """What the user says, and the calls that answer it, in order (possibly none)."""

    user: str
    calls: tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """One session of the demo. ``initial_config`` is per simulator class."""

    session: str
    turns: tuple[Turn, ...]
    tools: tuple[str, ...]
    initial_config: Mapping[str, Any]

    @property
    def calls(self) -> tuple[Call, ...]:
        return tuple(call for turn in self.turns for call in turn.calls)


def data_directory() -> Path:
    """Where the wheel keeps its data. Raises :class:`ConfigError` when it is not installed."""
    spec = importlib.util.find_spec("bfcl_eval")
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(
            "the demo's conversations are not installed. `make demo` does it; by hand: "
            "pip install --no-deps -r requirements/demo.lock"
        )
    return Path(next(iter(spec.submodule_search_locations))) / "data"


def parse_call(source: str, parameters: Mapping[str, Sequence[str]]) -> Call:
    """``f(1, x='y')`` -> Call. ``parameters``: tool -> parameter names in order, for positional arguments.

    Raises :class:`InvariantViolation` for anything but literal arguments.
    """
    try:
        node = ast.parse(source.strip(), mode="eval").body
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            raise ValueError("not a plain call")
        tool = node.func.id
        names = parameters.get(tool, ())
        if len(node.args) > len(names):
            raise ValueError(f"{tool} has {len(names)} parameters")
        arguments: dict[str, Any] = {}
        for name, argument in zip(names, node.args, strict=False):
            arguments[name] = ast.literal_eval(argument)
        for keyword in node.keywords:
            if keyword.arg is None or keyword.arg in arguments:
                raise ValueError("** is not a literal, and a name is given once")
            arguments[keyword.arg] = ast.literal_eval(keyword.value)
    except (SyntaxError, ValueError) as err:
        raise InvariantViolation(f"cannot read the expected call {source!r}: {err}") from err
    return Call(tool, json.dumps(arguments, ensure_ascii=False))


def parameter_names(directory: Path) -> Mapping[str, Sequence[str]]:
    """tool -> its parameters in order, from the tools' own descriptions."""
    return {
        row["name"]: tuple(row["parameters"]["properties"])
        for path in sorted((directory / "multi_turn_func_doc").glob("*.json"))
        for row in _lines(path)
    }


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)
    except (OSError, ValueError) as err:
        raise ConfigError(
            f"{path.name} of bfcl-eval cannot be read ({err}); reinstall it: make demo"
        ) from err


def load(limit: int | None = None) -> list[Conversation]:
    """The first ``limit`` conversations (all 200 by default), in file order. Reads data files; no
    simulator.
    """
    directory = data_directory()
    names = parameter_names(directory)
    truth = {row["id"]: row["ground_truth"] for row in _lines(directory / "possible_answer" / CATEGORY)}
    conversations = []
    for row in _lines(directory / CATEGORY):
        answers = truth[row["id"]]
        if len(answers) != len(row["question"]):
            raise InvariantViolation(f"{row['id']}: {len(row['question'])} turns, {len(answers)} answers")
        turns = tuple(
            Turn(
                "\n".join(m["content"] for m in messages),
                tuple(parse_call(source, names) for source in calls),
            )
            for messages, calls in zip(row["question"], answers, strict=True)
        )
        conversations.append(
            Conversation(row["id"], turns, tuple(row["involved_classes"]), row.get("initial_config", {}))
        )
        if limit is not None and len(conversations) == limit:
            break
    return conversations
