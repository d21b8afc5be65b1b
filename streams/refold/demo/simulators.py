"""The tools: stateful simulators of bfcl-eval, each session with its own instances, every call in a ledger.

The ledger is the judge of "did it run once": it is written by the simulator side, at the moment a call really
runs, and knows nothing of refold. Only the simulator modules are imported (they need ``mpmath`` at most); the
wheel's other modules would pull in a whole evaluation suite.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from refold.demo.dataset import Call, Conversation
from refold.errors import ConfigError

_MODULES: Final = "bfcl_eval.eval_checker.multi_turn_eval.func_source_code"
#: Simulator class -> module. A closed list: what the 200 conversations use.
_CLASSES: Final[Mapping[str, str]] = {
    "GorillaFileSystem": "gorilla_file_system",
    "MathAPI": "math_api",
    "MessageAPI": "message_api",
    "TicketAPI": "ticket_api",
    "TradingBot": "trading_bot",
    "TravelAPI": "travel_booking",
    "TwitterAPI": "posting_api",
    "VehicleControlAPI": "vehicle_control",
}


class ToolError(Exception):
    """The tool raised: the outcome is known, the call failed."""


@dataclass(slots=True)
class Simulators:
    """The tools of one session. ``ledger`` holds (tool, arguments JSON) of every call that ran, in order."""

    ledger: list[Call] = field(default_factory=list)
    _methods: dict[str, Callable[..., Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, conversation: Conversation) -> Simulators:
        """Fresh instances at the conversation's initial state. Imports the simulator modules on first use."""
        made = cls()
        for name in conversation.tools:
            instance = _class(name)()
            if hasattr(instance, "_load_scenario"):
                # Deep copy: the simulators mutate what they are given, and a second run must start the same.
                instance._load_scenario(copy.deepcopy(conversation.initial_config.get(name, {})))
            for method, bound in inspect.getmembers(instance, predicate=inspect.ismethod):
                if not method.startswith("_"):
                    made._methods[method] = bound
        return made

    def run(self, call: Call) -> str:
        """Run the call and return its result as text. Raises :class:`ToolError` when the tool raises."""
        arguments: dict[str, Any] = json.loads(call.arguments)
        method = self._methods.get(call.tool)
        self.ledger.append(call)
        if method is None:
            raise ToolError(f"no tool named {call.tool}")
        try:
            result = method(**arguments)
        except Exception as err:  # whatever a simulator raises is that call's outcome, not ours
            raise ToolError(f"{type(err).__name__}: {err}") from err
        return result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)


def _class(name: str) -> type[Any]:
    module = _CLASSES.get(name)
    if module is None:
        raise ConfigError(f"bfcl-eval names a simulator this demo does not know: {name}")
    try:
        found: type[Any] = getattr(importlib.import_module(f"{_MODULES}.{module}"), name)
    except (ImportError, AttributeError) as err:
        raise ConfigError(
            f"simulator {name} cannot be imported ({err}); reinstall: "
            "pip install --no-deps -r requirements/demo.lock"
        ) from err
    return found
