"""What tools act upon in the tests: an external system with a ledger, and deaths at named points."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from client.memory_session import MemorySession
from refold.client.tools import NOT_DONE, UNKNOWN, Done, LookupAnswer, Tool, ToolCall, tool
from refold.client.tools.lease import Lease
from refold.client.tools.points import POINTS


class Killed(BaseException):
    """The process died here. No handler of ours runs for it but ``finally``."""


class Refusal(Exception):
    """The external system was told that this key is dead."""


class Gateway:
    """Executes operations and answers lookups by key. A key it has called *not done* it refuses for ever
    (L11). ``ledger``: what took effect, in order; a key twice in it is money paid twice."""

    def __init__(self) -> None:
        self.ledger: list[str] = []
        self.asked: list[str] = []
        self._results: dict[str, Any] = {}
        self._dead: set[str] = set()

    def execute(self, key: str, result: Any) -> Any:
        if key in self._dead:
            raise Refusal(key)
        self.ledger.append(key)
        self._results[key] = result
        return result

    def execute_once(self, key: str, result: Any) -> Any:
        """For idempotent tools: the key counts once."""
        return self._results[key] if key in self._results else self.execute(key, result)

    async def lookup(self, key: str) -> LookupAnswer:
        self.asked.append(key)
        if key in self._results:
            return Done(self._results[key])
        self._dead.add(key)
        return NOT_DONE

    async def cannot_tell(self, key: str) -> LookupAnswer:
        self.asked.append(key)
        return UNKNOWN

    @property
    def operations(self) -> list[str]:
        """Operation ids that took effect."""
        return [key.rsplit("/", 1)[0] for key in self.ledger]


def payment(gateway: Gateway, effect: Any, *, lookup: bool, **options: Any) -> Tool:
    """``pay(order, amount)`` with the given effect."""

    async def pay(order: str, amount: int, call: ToolCall) -> dict[str, Any]:
        """Pay an order."""
        run = gateway.execute_once if effect == "idempotent" else gateway.execute
        return dict(run(call.key, {"paid": order, "amount": amount}))

    return tool(pay, effect=effect, lookup=gateway.lookup if lookup else None, **options)


def asked(
    name: str = "pay", call_id: str = "c1", arguments: str = '{"order":"A","amount":3}'
) -> dict[str, Any]:
    """A call as OpenAI's chat completions give it."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


@contextmanager
def dying_at(session: MemorySession, point: str, nth: int = 1) -> Iterator[None]:
    """The process of ``session`` dies the nth time it reaches the point."""
    left = nth
    real = POINTS.reach

    def reach(name: str, operation_id: str, tool_name: str) -> None:
        nonlocal left
        if name == point:
            left -= 1
            if left == 0:
                session.dead = True
                raise Killed(point)

    POINTS.reach = reach  # type: ignore[method-assign]
    try:
        yield
    finally:
        POINTS.reach = real  # type: ignore[method-assign]


async def until_over(lease: Lease) -> None:
    """Wait until a lease has run out."""
    deadline = asyncio.get_running_loop().time() + 30
    while lease.held():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.02)
