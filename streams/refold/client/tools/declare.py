"""Declaring a tool, once: what it is called, what effect it has, how to ask whether it took effect."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias, overload

from refold.client.tools.bodies import in_thread, run_body
from refold.client.tools.call import ToolCall
from refold.client.tools.outcomes import EFFECTS, Done, Effect, Lookup, LookupAnswer
from refold.client.tools.schema import Parameters
from refold.errors import UsageError
from refold.formats.ids import TOOL_NAME

TIMEOUT_S_DEFAULT: Final = 30.0
#: The first try and two retries (product rule: at most two, then a person).
ATTEMPTS_DEFAULT: Final = 3
ATTEMPTS_MAX: Final = 10

LookupFunction: TypeAlias = Callable[[str], LookupAnswer | Awaitable[LookupAnswer]]
#: ``True``, or asked with the call's arguments: ``lambda arguments: arguments["amount"] > 100``.
Approval: TypeAlias = bool | Callable[[Mapping[str, Any]], bool | Awaitable[bool]]


class Tool:
    """Made by :func:`tool`. Calling it calls the function as it is, without refold: for tests and for use
    inside other tools."""

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        effect: Effect,
        lookup: LookupFunction | None = None,
        approval: Approval = False,
        timeout: float | None = TIMEOUT_S_DEFAULT,
        retry_on: type[BaseException] | Sequence[type[BaseException]] = (),
        attempts_max: int = ATTEMPTS_DEFAULT,
        name: str | None = None,
        description: str | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.name: str = name or str(getattr(function, "__name__", ""))
        self.effect = check_effect(self.name, effect)
        self.lookup = lookup
        self.approval = approval
        self.timeout = timeout
        self.retry_on: tuple[type[BaseException], ...] = (
            (retry_on,) if isinstance(retry_on, type) else tuple(retry_on)
        )
        self.attempts_max = attempts_max
        self.description = description if description is not None else _first_paragraph(function)
        self._check()
        self.parameters = Parameters(function, ToolCall)

    def _check(self) -> None:
        if not TOOL_NAME.fullmatch(self.name):
            raise UsageError(
                f"tool name {self.name!r}: providers take 1 to 64 letters, digits, _ and -; give name=…"
            )
        if self.lookup is not None and not callable(self.lookup):
            raise UsageError(f"tool {self.name}: lookup must be a function of the idempotency key")
        if self.timeout is not None and not self.timeout > 0:
            raise UsageError(f"tool {self.name}: timeout is in seconds and above 0, or None")
        if not 1 <= self.attempts_max <= ATTEMPTS_MAX:
            raise UsageError(f"tool {self.name}: attempts_max must be 1 to {ATTEMPTS_MAX}")
        for kind in self.retry_on:
            if not (isinstance(kind, type) and issubclass(kind, Exception)):
                raise UsageError(f"tool {self.name}: retry_on takes exception classes, not {kind!r}")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def __repr__(self) -> str:
        return f"Tool({self.name}, effect={self.effect!r})"

    async def run(self, call: ToolCall, arguments: dict[str, Any], check: Callable[[], None]) -> Any:
        """The body, ``check`` directly before it, within the time-out."""
        given = dict(arguments)
        if self.parameters.handle is not None:
            given[self.parameters.handle] = call
        return await run_body(self.function, given, check, self.timeout)

    @property
    def json_schema(self) -> dict[str, Any]:
        """Of the parameters, an object schema."""
        schema: dict[str, Any] = self.parameters.json_schema
        return schema

    def openai_schema(self, *, strict: bool = False) -> dict[str, Any]:
        """For ``tools=[…]`` of chat completions. ``strict``: as declared to the API; its own rules about
        schemas (no defaults, everything required) are then yours to keep."""
        function = {"name": self.name, "description": self.description, "parameters": self.json_schema}
        return {"type": "function", "function": {**function, "strict": True} if strict else function}

    def openai_responses_schema(self, *, strict: bool = False) -> dict[str, Any]:
        """For ``tools=[…]`` of the Responses API, which wants the same without nesting."""
        return {
            "type": "function",
            "name": self.name,
            "description": self.description,
            "parameters": self.json_schema,
            "strict": strict,
        }

    def anthropic_schema(self) -> dict[str, Any]:
        return {"name": self.name, "description": self.description, "input_schema": self.json_schema}


@overload
def tool(
    function: Callable[..., Any],
    *,
    effect: Effect,
    lookup: LookupFunction | None = None,
    approval: Approval = False,
    timeout: float | None = TIMEOUT_S_DEFAULT,
    retry_on: type[BaseException] | Sequence[type[BaseException]] = (),
    attempts_max: int = ATTEMPTS_DEFAULT,
    name: str | None = None,
    description: str | None = None,
) -> Tool: ...


@overload
def tool(
    function: None = None,
    *,
    effect: Effect,
    lookup: LookupFunction | None = None,
    approval: Approval = False,
    timeout: float | None = TIMEOUT_S_DEFAULT,
    retry_on: type[BaseException] | Sequence[type[BaseException]] = (),
    attempts_max: int = ATTEMPTS_DEFAULT,
    name: str | None = None,
    description: str | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...


def tool(
    function: Callable[..., Any] | None = None,
    *,
    effect: Effect | None = None,
    lookup: LookupFunction | None = None,
    approval: Approval = False,
    timeout: float | None = TIMEOUT_S_DEFAULT,
    retry_on: type[BaseException] | Sequence[type[BaseException]] = (),
    attempts_max: int = ATTEMPTS_DEFAULT,
    name: str | None = None,
    description: str | None = None,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Declare a function, sync or async, as a tool. The rules are in ``docs/guides/tools.md``.

    ``effect``: ``"none"`` may simply run again; ``"idempotent"`` may run again under the same key;
    ``"external"`` runs again only when ``lookup(key)`` answered ``NOT_DONE``. ``approval``: somebody must say
    yes first. ``timeout`` in seconds. ``retry_on``: exceptions after which another try makes sense, at most
    ``attempts_max`` tries, where it is safe at all. ``description``: default the docstring's first paragraph.
    """

    def declare(declared: Callable[..., Any]) -> Tool:
        if effect is None:
            raise UsageError(
                f"tool {name or getattr(declared, '__name__', '?')}: say what running it twice would do,"
                f" effect={' or '.join(repr(known) for known in EFFECTS)}; see docs/guides/tools.md"
            )
        return Tool(
            declared,
            effect=effect,
            lookup=lookup,
            approval=approval,
            timeout=timeout,
            retry_on=retry_on,
            attempts_max=attempts_max,
            name=name,
            description=description,
        )

    return declare if function is None else declare(function)


def check_effect(name: str, effect: str) -> Effect:
    for known in EFFECTS:
        if effect == known:
            return known
    raise UsageError(f"tool {name}: effect {effect!r} must be one of {', '.join(EFFECTS)}")


async def needs_approval(approval: Approval, arguments: Mapping[str, Any]) -> bool:
    if isinstance(approval, bool):
        return approval
    answer = approval(arguments)
    return bool(await answer if inspect.isawaitable(answer) else answer)


async def ask_lookup(lookup: LookupFunction, key: str) -> LookupAnswer:
    """One question. Plain functions are asked in a thread. Raises UsageError for an answer that is none."""
    if inspect.iscoroutinefunction(lookup):
        answer = await lookup(key)
    else:
        answer = await in_thread(lambda: lookup(key))
        if inspect.isawaitable(answer):
            answer = await answer
    if not isinstance(answer, Done | Lookup):
        raise UsageError(f"a lookup answers Done(result), NOT_DONE or UNKNOWN, not {type(answer).__name__}")
    return answer


def _first_paragraph(function: Callable[..., Any]) -> str:
    text = inspect.getdoc(function) or ""
    return " ".join(text.split("\n\n")[0].split())
