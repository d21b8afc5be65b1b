"""Does a tool keep what its declaration promises? Crashes at the two places that matter, on the real rules.

::

    async def test_refund() -> None:
        await assert_idempotent(refund, {"order": "A1", "amount": 3}, effects=count_refunds)

Two processes run the call, without Kafka (:mod:`refold.testing.memory`). The first dies *after the effect and
before its record*, then, in a second run, *in front of the effect*; the other takes over when the lease is
over. Each time the operation must have taken effect exactly once. What that asks of the tool:

- ``idempotent``: a second run under the same key changes nothing.
- ``external``: the lookup answers ``Done`` for a key that took effect and not for one that did not, and a key
  it called ``NOT_DONE`` takes no effect any more (rule L11), however late its first runner comes.
- ``none``: nothing takes effect.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from refold.client.ids import new_id
from refold.client.tools.call import ToolCall
from refold.client.tools.declare import Tool, ask_lookup
from refold.client.tools.lease import LEASE_S_MIN
from refold.client.tools.outcomes import Done
from refold.client.tools.schema import BadArguments
from refold.errors import UsageError
from refold.formats.jsonio import dumps_text
from refold.testing.memory import MemoryLog, MemorySession

#: Told an operation id, says how often it took effect: its keys are ``<operation id>/<attempt>``.
Effects = Callable[[str], int | Awaitable[int]]


class _Died(BaseException):
    """The first process ended here."""


@dataclass(slots=True)
class _Play:
    """One operation, run by a process that dies and taken over by another."""

    tool: Tool
    arguments: Mapping[str, Any]
    effects: Effects | None
    message_id: str = field(default_factory=lambda: f"idempotency-{new_id()[:12]}")
    log: MemoryLog = field(default_factory=MemoryLog)
    #: Keys under which the body was begun, in order.
    keys: list[str] = field(default_factory=list)
    first_error: BaseException | None = None

    @property
    def operation_id(self) -> str:
        return f"{self.message_id}:call"

    async def run(self, process: str, *, before_effect: bool = False, before_record: bool = False) -> None:
        session = MemorySession(self.log, process)

        def die(event_type: str) -> None:
            if before_record and event_type in (
                "ToolCallCompleted",
                "ToolCallFailed",
                "ToolCallOutcomeUnknown",
            ):
                session.dead = True
                raise _Died

        session.before = die
        tool = copy.copy(self.tool)
        tool.approval = False
        real = self.tool.run

        async def watched(call: ToolCall, arguments: dict[str, Any], check: Callable[[], None]) -> Any:
            if before_effect:
                session.dead = True
                raise _Died
            self.keys.append(call.key)
            try:
                return await real(call, arguments, check)
            except Exception as error:
                self.first_error = self.first_error or error
                raise

        tool.run = watched  # type: ignore[method-assign]
        call = {
            "type": "tool_use",
            "id": "call",
            "name": tool.name,
            "input": dumps_text(dict(self.arguments)),
        }
        try:
            await session.run_tools([call], tools=[tool], message_id=self.message_id, lease=LEASE_S_MIN)
        except _Died:
            return

    async def times(self) -> int | None:
        """How often it took effect, ``None`` where nobody can say."""
        if self.effects is None:
            return None
        found = self.effects(self.operation_id)
        return await found if inspect.isawaitable(found) else found

    @property
    def why(self) -> str | None:
        return self.log.state.calls[self.operation_id].error

    @property
    def state(self) -> str:
        return self.log.state.calls[self.operation_id].state


async def assert_idempotent(
    tool: Tool, arguments: Mapping[str, Any], *, effects: Effects | None = None
) -> None:
    """Raises AssertionError, saying what would happen in production, when the tool does not keep its promise.

    ``arguments``: ones with which it succeeds; it really runs, two or three times, under keys never used
    before. ``effects(operation_id)``: your observer, how often that operation took effect, counting all its
    attempts; an ``external`` tool may do without one, then its lookup is believed. Takes about a second (two
    shortest leases). Raises UsageError when there is nothing to check by.
    """
    if tool.effect == "external" and tool.lookup is None:
        raise UsageError(
            f"{tool.name} is external and has no lookup: after a crash nobody can be asked, every call in "
            "doubt waits for a person (`refold review`). There is nothing to check; declare lookup=…"
        )
    if tool.effect != "external" and effects is None:
        raise UsageError(f"{tool.name}: effects=… is needed, a function that counts what took effect")
    try:
        tool.parameters.read(dumps_text(dict(arguments)))
    except BadArguments as error:
        raise AssertionError(f"{tool.name} cannot be run with these arguments: {error}") from None
    await _dies_after_the_effect(_Play(tool, arguments, effects))
    await _dies_before_the_effect(_Play(tool, arguments, effects))


async def _dies_after_the_effect(play: _Play) -> None:
    name, effect = play.tool.name, play.tool.effect
    await play.run("first", before_record=True)
    if play.first_error is not None:
        raise AssertionError(f"{name} raised {play.first_error!r}: give arguments with which it succeeds")
    once = await play.times()
    if effect == "none":
        if once:
            raise AssertionError(f"{name} is declared effect='none' and took effect {once} times")
        return
    if once not in (None, 1):
        raise AssertionError(
            f"one run of {name} took effect {once} times by effects({play.operation_id!r}): it must be 1. "
            "Does the tool hand call.key on, and does the observer count by it?"
        )
    await play.run("second")
    when = f"{name} ran, its process died before the result was recorded, another one took over"
    if effect == "external":
        _judge_lookup(play, when)
    again = await play.times()
    if again not in (None, 1):
        raise AssertionError(
            f"{when}: it took effect {again} times. A repeat under the same key {play.keys[0]!r} must change "
            "nothing; if the system cannot do that, declare effect='external' with a lookup"
        )


def _judge_lookup(play: _Play, when: str) -> None:
    if len(play.keys) > 1:
        raise AssertionError(
            f"{when}: the lookup said NOT_DONE for {play.keys[0]!r}, which had taken effect, so it ran again "
            f"as {play.keys[1]!r}. In production it would have happened twice"
        )
    if play.state == "unknown":
        raise AssertionError(
            f"{when}: the lookup could not tell ({play.why}). Every such crash waits for a person; it should "
            "find the operation by its key"
        )


async def _dies_before_the_effect(play: _Play) -> None:
    name = play.tool.name
    await play.run("first", before_effect=True)
    await play.run("second")
    when = f"the process of {name} died in front of the effect, another one took over"
    if play.tool.effect == "none":
        return
    if play.tool.effect == "external" and play.state == "unknown":
        raise AssertionError(
            f"{when}: the lookup could not tell ({play.why}). That is safe, but every such crash waits for a "
            "person"
        )
    if not play.keys:
        raise AssertionError(f"{when}: the lookup said Done for a key that was never sent. It would be lost")
    if play.first_error is not None:
        raise AssertionError(f"{when}: the second attempt raised {play.first_error!r}")
    times = await play.times()
    if times not in (None, 1):
        raise AssertionError(f"{when}: it took effect {times} times, it must be 1")
    if play.tool.effect == "external":
        await _late_runner(play)


async def _late_runner(play: _Play) -> None:
    """L11: the first process was not dead but stopped, and goes on behind its last look at the lease."""
    tool = play.tool
    key = f"{play.operation_id}/1"
    session: Any = MemorySession(play.log, "late")
    arguments = tool.parameters.read(dumps_text(dict(play.arguments)))
    call = ToolCall(session, play.operation_id, tool.name, arguments, key, 1, None, tool.timeout)
    refused = False
    try:
        await tool.run(call, arguments, lambda: None)
    except Exception:
        refused = True
    times = await play.times()
    if times is None and tool.lookup is not None:
        times = 1 + (not refused and isinstance(await ask_lookup(tool.lookup, key), Done))
    if times != 1:
        raise AssertionError(
            f"{tool.name}: the lookup said NOT_DONE for {key!r}, and a late request with that key took "
            "effect all the same. NOT_DONE must be authoritative (rule L11): let the lookup void the key, "
            "or answer UNKNOWN"
        )
