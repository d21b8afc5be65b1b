"""``assert_idempotent`` passes what keeps its promise and says of everything else what would happen."""

from __future__ import annotations

from typing import Any

import pytest

from client.tool_world import Gateway, payment
from refold.client.tools import NOT_DONE, UNKNOWN, Done, LookupAnswer, Tool, ToolCall, ToolError, tool
from refold.errors import UsageError
from refold.testing import assert_idempotent

ARGUMENTS = {"order": "A", "amount": 3}


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


def counted(gateway: Gateway) -> Any:
    return lambda operation: gateway.operations.count(operation)


@pytest.mark.parametrize(
    ("effect", "lookup"), [("external", True), ("idempotent", False), ("idempotent", True)]
)
async def test_a_good_tool_passes(gateway: Gateway, effect: Any, lookup: bool) -> None:
    pay = payment(gateway, effect, lookup=lookup, approval=True)
    await assert_idempotent(pay, ARGUMENTS, effects=counted(gateway))
    assert len(gateway.ledger) == 2
    assert pay.approval is True


async def test_a_lookup_may_be_the_observer(gateway: Gateway) -> None:
    await assert_idempotent(payment(gateway, "external", lookup=True), ARGUMENTS)


async def test_an_observer_may_be_async_and_a_body_plain(gateway: Gateway) -> None:
    @tool(effect="idempotent")
    def pay(order: str, call: ToolCall) -> Any:
        return gateway.execute_once(call.key, order)

    async def effects(operation: str) -> int:
        return gateway.operations.count(operation)

    await assert_idempotent(pay, {"order": "A"}, effects=effects)


async def test_a_harmless_tool(gateway: Gateway) -> None:
    await assert_idempotent(tool(lambda: 1, name="f", effect="none"), {}, effects=counted(gateway))
    with pytest.raises(AssertionError, match="declared effect='none' and took effect 1 times"):
        await assert_idempotent(payment(gateway, "none", lookup=False), ARGUMENTS, effects=counted(gateway))


async def test_a_repeat_that_counts_twice(gateway: Gateway) -> None:
    @tool(effect="idempotent")
    async def pay(order: str, amount: int, call: ToolCall) -> Any:
        return gateway.execute(call.key, order)

    with pytest.raises(AssertionError, match=r"it took effect 2 times\. A repeat under the same key"):
        await assert_idempotent(pay, ARGUMENTS, effects=counted(gateway))


async def test_a_tool_that_hands_on_no_key(gateway: Gateway) -> None:
    @tool(effect="idempotent")
    async def pay(order: str, amount: int) -> Any:
        return gateway.execute("always-the-same/1", order)

    with pytest.raises(AssertionError, match=r"took effect 0 times .* Does the tool hand call.key on"):
        await assert_idempotent(pay, ARGUMENTS, effects=counted(gateway))


def with_lookup(gateway: Gateway, answers: Any) -> Tool:
    async def lookup(key: str) -> LookupAnswer:
        return answers(key)  # type: ignore[no-any-return]

    async def pay(order: str, amount: int, call: ToolCall) -> Any:
        return gateway.execute(call.key, order)

    return tool(pay, effect="external", lookup=lookup)


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        (lambda key: NOT_DONE, "said NOT_DONE for .* which had taken effect.*would have happened twice"),
        (lambda key: UNKNOWN, "the lookup could not tell .*should find the operation by its key"),
        (lambda key: Done("x"), "said Done for a key that was never sent. It would be lost"),
    ],
)
async def test_lookups_that_are_wrong(gateway: Gateway, answers: Any, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        await assert_idempotent(with_lookup(gateway, answers), ARGUMENTS, effects=counted(gateway))


@pytest.mark.parametrize("observed", [True, False])
async def test_a_lookup_that_is_not_authoritative(gateway: Gateway, observed: bool) -> None:
    """L11: it says what it sees, and does not void the key."""
    pay = with_lookup(gateway, lambda key: Done("A") if key in gateway.ledger else NOT_DONE)
    with pytest.raises(AssertionError, match="must be authoritative"):
        await assert_idempotent(pay, ARGUMENTS, effects=counted(gateway) if observed else None)


async def test_a_lookup_that_cannot_tell_before_the_effect(gateway: Gateway) -> None:
    pay = with_lookup(gateway, lambda key: Done("A") if key in gateway.ledger else UNKNOWN)
    with pytest.raises(AssertionError, match="That is safe, but every such crash waits for a person"):
        await assert_idempotent(pay, ARGUMENTS, effects=counted(gateway))


async def test_nothing_to_check_by(gateway: Gateway) -> None:
    with pytest.raises(UsageError, match="has no lookup"):
        await assert_idempotent(payment(gateway, "external", lookup=False), ARGUMENTS)
    with pytest.raises(UsageError, match="effects=… is needed"):
        await assert_idempotent(payment(gateway, "idempotent", lookup=False), ARGUMENTS)


async def test_a_run_that_does_not_succeed(gateway: Gateway) -> None:
    @tool(effect="idempotent")
    async def pay(order: str, amount: int) -> Any:
        raise ToolError("closed")

    with pytest.raises(AssertionError, match="give arguments with which it succeeds"):
        await assert_idempotent(pay, ARGUMENTS, effects=counted(gateway))
    with pytest.raises(AssertionError, match=r"cannot be run with these arguments: .*amount: Field required"):
        await assert_idempotent(pay, {"order": "A"}, effects=counted(gateway))
