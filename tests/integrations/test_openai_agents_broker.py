"""``docs/guides/openai-agents.md`` as printed; the SDK's Runner on a real broker, its worker killed."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, ModelResponse, Runner, Usage, function_tool, set_tracing_disabled
from agents.memory import SQLiteSession
from agents.models.interface import Model
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText

from client.worker_process import STARTED_S_MAX, refold, worker
from readme.pages import ROOT, blocks
from refold.client import Refold
from refold.integrations.openai_agents import RefoldSession
from refold.settings import Settings
from refold.testing.kafka import Kafka

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.timeout(4 * STARTED_S_MAX)]

(GUIDE,) = blocks((ROOT / "docs/guides/openai-agents.md").read_text("utf-8"), "python")


class Scripted(Model):
    """Asks for the order where the user names one, and answers with what it was told last."""

    def __init__(self) -> None:
        self.seen: list[list[Any]] = []
        self._number = 0

    async def get_response(self, system_instructions: Any, input: Any, *_: Any, **__: Any) -> ModelResponse:
        items = [{"role": "user", "content": input}] if isinstance(input, str) else list(input)
        self.seen.append(items)
        self._number += 1
        last = items[-1]
        made: Any
        if last.get("role") == "user" and "order" in last["content"]:
            made = ResponseFunctionToolCall(
                id=f"fc_{self._number}",
                call_id=f"call_{self._number}",
                name="track",
                arguments='{"order": 17}',
                type="function_call",
            )
        else:
            words = str(last.get("output") or f"it is {len(items)} items later")
            made = ResponseOutputMessage(
                id=f"msg_{self._number}",
                type="message",
                role="assistant",
                status="completed",
                content=[ResponseOutputText(type="output_text", text=words, annotations=[])],
            )
        return ModelResponse(output=[made], usage=Usage(), response_id=None)

    def stream_response(self, *_: Any, **__: Any) -> AsyncIterator[Any]:
        raise NotImplementedError


@function_tool
def track(order: int) -> str:
    """Where an order is."""
    return f"order {order} is out for delivery"


@pytest.fixture(scope="module", autouse=True)
def untraced() -> None:
    set_tracing_disabled(True)


@pytest.fixture(scope="module")
def prefix(kafka: Kafka) -> str:
    name = f"oai-{uuid.uuid4().hex[:8]}"
    refold(kafka.bootstrap, name, "topology", "apply", "--partitions", "2")
    return name


def test_the_guide_as_printed(
    kafka: Kafka,
    prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("REFOLD_BOOTSTRAP", kafka.bootstrap)
    monkeypatch.setenv("REFOLD_TOPIC_PREFIX", prefix)
    program = GUIDE.replace('MODEL = "gpt-5-mini"', "MODEL = SCRIPTED")
    assert program != GUIDE
    failed: list[BaseException] = []

    def run() -> None:
        try:
            exec(compile(program, "guide", "exec"), {"SCRIPTED": Scripted(), "__name__": "__main__"})
        except BaseException as error:
            failed.append(error)

    with worker(kafka.bootstrap, prefix, tmp_path, "w-0"):
        # It has an event loop of its own, and this thread may have one.
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    assert failed == []
    said = capsys.readouterr().out.splitlines()
    assert said == ["order 17 is out for delivery", "it is 5 items later", "6 items"]


async def turns(session: Any, agent: Agent[Any], words: list[str]) -> list[str]:
    return [str((await Runner.run(agent, one, session=session)).final_output) for one in words]


async def test_a_killed_worker_changes_nothing_the_model_sees(
    kafka: Kafka, prefix: str, tmp_path: Path
) -> None:
    """Goal: with its worker killed between turns, and a new client for each, the model is shown what the
    SDK's own session would have shown it, and the history is the same to the last key."""
    questions = ["Where is order 17?", "Thanks!", "And order 18?", "Bye."]
    control, mine = Scripted(), Scripted()
    plain = SQLiteSession("chat")
    wanted = await turns(plain, Agent(name="Support", tools=[track], model=control), questions)
    settings = Settings(topic_prefix=prefix)
    answers: list[str] = []
    agent: Agent[Any] = Agent(name="Support", tools=[track], model=mine)
    for question in questions:
        # Ends by SIGKILL.
        with worker(kafka.bootstrap, prefix, tmp_path, "w-0"):
            async with Refold(settings, bootstrap=kafka.bootstrap, tenant="acme") as rf:
                answers += await turns(RefoldSession(rf.session("chat")), agent, [question])
    assert answers == wanted
    assert mine.seen == control.seen
    with worker(kafka.bootstrap, prefix, tmp_path, "w-0"):
        async with Refold(settings, bootstrap=kafka.bootstrap, tenant="acme") as rf:
            kept = RefoldSession(rf.session("chat"))
            assert await kept.get_items() == await plain.get_items()
            large = {"type": "function_call_output", "call_id": "big", "output": "x" * 400_000}
            asked = {"type": "function_call", "call_id": "big", "name": "track", "arguments": "{}"}
            await kept.add_items([asked, large])
            elsewhere = RefoldSession(rf.session("chat"))
            assert await elsewhere.get_items(2) == [asked, large]
            assert [await elsewhere.pop_item(), await kept.pop_item()] == [large, asked]
            # Two processes add at once: nobody's items are lost, each one's in their order.
            await asyncio.gather(
                *(
                    one.add_items([{"role": "user", "content": f"{name}{n}"} for n in range(5)])
                    for name, one in (("a", kept), ("b", elsewhere))
                )
            )
            both = [item["content"] for item in await kept.get_items(10)]
            assert [c for c in both if c[0] == "a"] == [f"a{n}" for n in range(5)]
            assert [c for c in both if c[0] == "b"] == [f"b{n}" for n in range(5)]
            await kept.clear_session()
            assert await elsewhere.get_items() == []
    plain.close()
