"""The effects harness' outside world: what it runs, refuses, repeats and says."""

from __future__ import annotations

import importlib.util
import itertools
import json
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from refold.demo.dataset import Call, Conversation, load
from refold.ops.effects import ledger
from refold.ops.effects.crew import Progress
from refold.ops.effects.gatewayclient import AnswerLost, GatewayClient, KeyVoided, TurnedAway
from refold.ops.effects.gatewayprocess import GatewayProcess
from refold.ops.effects.plan import EffectsPlan, Kind, Weather, cannot_say, kind_of, weather

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("bfcl_eval") is None,
    reason="the conversations are not installed: pip install --no-deps -r requirements/demo.lock",
)

SEED = 1
CONVERSATIONS = 12


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    made = GatewayProcess(
        EffectsPlan(seed=SEED, conversations=CONVERSATIONS), tmp_path_factory.mktemp("gateway")
    )
    made.start()
    yield made
    made.stop()


@pytest.fixture
async def gateway(process: GatewayProcess) -> AsyncIterator[GatewayClient]:
    async with GatewayClient(process.url) as client:
        yield client


def a_call(kind: Kind) -> tuple[Conversation, Call]:
    """A call whose tool is of that kind under the seed."""
    return next(
        (c, call)
        for c in load(CONVERSATIONS)
        for call in c.calls
        if kind_of(SEED, c.session, call.tool) == kind
    )


_NUMBERS = itertools.count()


def a_key(session: str, fits: Callable[[Weather], bool], *, answers: bool = True) -> str:
    """A fresh key whose first request meets that weather, and whose lookups are answered or not."""
    return next(
        key
        for n in _NUMBERS
        if fits(weather(SEED, session, key := f"op{n}/1", 0))
        and cannot_say(SEED, session, key) is not answers
    )


def fair(sky: Weather) -> bool:
    return not (sky.refuse or sky.drop)


async def run(gateway: GatewayClient, conversation: Conversation, call: Call, key: str) -> str:
    return await gateway.execute(conversation.session, key, call.tool, json.loads(call.arguments))


async def executed(gateway: GatewayClient, conversation: Conversation, key: str) -> int:
    return len(await gateway.truth(conversation.session, key.rpartition("/")[0]))


async def sure(gateway: GatewayClient, conversation: Conversation, call: Call, key: str) -> str:
    """Run it whatever the weather of the second request is."""
    while True:
        try:
            return await run(gateway, conversation, call, key)
        except (TurnedAway, AnswerLost):
            continue


@pytest.mark.parametrize(("kind", "times"), [("lookup", 1), ("idempotent", 1), ("plain", 2)])
async def test_a_key_runs_once_where_the_system_knows_keys(
    gateway: GatewayClient, kind: Kind, times: int
) -> None:
    conversation, call = a_call(kind)
    key = a_key(conversation.session, fair)
    first = await run(gateway, conversation, call, key)
    again = await sure(gateway, conversation, call, key)
    assert await executed(gateway, conversation, key) >= times
    if times == 1:
        assert again == first
        assert await executed(gateway, conversation, key) == 1


async def test_not_done_voids_the_key(gateway: GatewayClient) -> None:
    """Goal: rule L11. Method: ask first, run late."""
    conversation, call = a_call("lookup")
    key = a_key(conversation.session, fair)
    assert await gateway.lookup(conversation.session, key, call.tool) == {"outcome": "not_done"}
    with pytest.raises(KeyVoided):
        await run(gateway, conversation, call, key)
    assert await executed(gateway, conversation, key) == 0


async def test_done_is_told_with_the_first_result(gateway: GatewayClient) -> None:
    conversation, call = a_call("lookup")
    key = a_key(conversation.session, fair)
    result = await run(gateway, conversation, call, key)
    found = await gateway.lookup(conversation.session, key, call.tool)
    assert found == {"outcome": "done", "result": result}


@pytest.mark.parametrize("kind", ["lookup", "idempotent", "plain"])
async def test_who_cannot_say_says_so_and_voids_nothing(gateway: GatewayClient, kind: Kind) -> None:
    conversation, call = a_call(kind)
    key = a_key(conversation.session, fair, answers=False)
    assert await gateway.lookup(conversation.session, key, call.tool) == {"outcome": "unknown"}
    await run(gateway, conversation, call, key)
    assert await executed(gateway, conversation, key) == 1


async def test_bad_weather_is_told_apart(gateway: GatewayClient) -> None:
    """Goal: "nothing happened" and "nobody knows" are different errors. Method: a key of each weather."""
    conversation, call = a_call("lookup")
    refused = a_key(conversation.session, lambda sky: sky.refuse)
    with pytest.raises(TurnedAway):
        await run(gateway, conversation, call, refused)
    assert await executed(gateway, conversation, refused) == 0
    dropped = a_key(conversation.session, lambda sky: sky.drop)
    with pytest.raises(AnswerLost):
        await run(gateway, conversation, call, dropped)
    assert await executed(gateway, conversation, dropped) == 1


async def test_the_ledger_is_on_disk_before_the_answer(
    gateway: GatewayClient, process: GatewayProcess
) -> None:
    conversation, call = a_call("plain")
    key = a_key(conversation.session, fair)
    await run(gateway, conversation, call, key)
    [entry] = [e for e in ledger.read(process.ledger) if e.key == key and e.what == "executed"]
    assert (entry.session, entry.tool) == (conversation.session, call.tool)
    assert entry.arguments == json.loads(call.arguments)
    assert (await gateway.counters())["executed"] >= 1


def test_a_conversation_that_began_never_waits_for_permission() -> None:
    """Goal: what a dead process played goes on at once, also when no new conversation may begin."""
    progress = Progress(deque([("new", 0), ("taken back", 3)]), total=2, allowed=1, begun={"taken back"})
    assert progress.next() == ("taken back", 3)
    assert progress.next() is None
    progress.allowed = 2
    assert progress.next() == ("new", 0)
    progress.ended.add("new")
    progress.given_up["taken back"] = "why"
    assert progress.over
