"""What a user's own agent is given, and what it owes. ``refold verify effects --agent module:object``.

The object is an async callable that takes one :class:`AgentTurn`. It must see to it that each of
``turn.calls`` takes effect exactly once, in this order, and then return. It may die at any moment (it will be
killed); the same turn is then given again, in this process or another one, until a call of it returned. What
it needs to know about an earlier try it must read from the session.

The conversations, the calls and their tools come from the harness, so an agent needs no model: it may ask one
all the same, for words. It must call the tools through ``turn.tools`` (their bodies ask the gateway) in any
way it likes; the gateway's ledger is what is judged.
"""

from __future__ import annotations

import importlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from refold.client import Refold
from refold.errors import ConfigError, UsageError
from refold.ops.effects.watched import WatchedSession


@dataclass(frozen=True, slots=True)
class AgentTurn:
    """One turn of one conversation.

    ``turn_id`` is the same in every try and may be used for message ids. ``calls`` are tool calls as an
    OpenAI-shaped model asks for them (``{"id", "type": "function", "function": {"name", "arguments"}}``).
    ``tools`` are declared with :func:`refold.client.tools.tool`. ``lease_s``: the lease that calls should
    take; others wait that long before they take one over.
    """

    client: Refold
    session: WatchedSession
    turn_id: str
    number: int
    user: str
    calls: Sequence[dict[str, Any]]
    tools: Sequence[Any]
    lease_s: float
    sabotage: str | None = None


Agent = Callable[[AgentTurn], Awaitable[None]]


def load_agent(path: str) -> Agent:
    """``module:object`` -> the object. Raises :class:`UsageError` or :class:`ConfigError` saying which part
    is wrong.
    """
    module_name, colon, name = path.partition(":")
    if not (module_name and colon and name):
        raise UsageError(f"--agent {path!r} is not module:object, such as myproject.agent:answer")
    try:
        module = importlib.import_module(module_name)
    except ImportError as err:
        raise ConfigError(
            f"--agent {path}: the module cannot be imported ({err}); is its directory on PYTHONPATH?"
        ) from err
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise ConfigError(f"--agent {path}: {module_name} has no callable {name}")
    agent: Agent = found
    return agent
