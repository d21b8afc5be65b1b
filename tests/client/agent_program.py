"""An agent for the tests' processes: ``refold agent run client.agent_program:agent``.

``REFOLD_TEST_AGENT``: a directory for what happens outside: ``ledger`` (executed keys), ``ran`` (a line per
body that ran), ``gate`` (the step ``long`` waits until it exists).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import refold
from client.file_gateway import FileGateway
from refold.client import Generation
from refold.client.agents import Run, Step, StepResult

HERE = Path(os.environ.get("REFOLD_TEST_AGENT", "."))

agent = refold.Agent("reporter", version=os.environ.get("REFOLD_TEST_AGENT_VERSION", "1"), lease=2.0)
gateway = FileGateway(HERE, fenced=True)


def ran(what: str) -> None:
    with (HERE / "ran").open("a") as file:
        file.write(f"{what}\n")


def outline(topic: str) -> dict[str, Any]:
    ran("outline")
    return {"topic": topic, "long": "x" * 5_000}


async def long(plan: dict[str, Any]) -> str:
    ran("long")
    while not (HERE / "gate").exists():  # noqa: ASYNC110 - a file of another process
        await asyncio.sleep(0.02)
    return f"all about {plan['topic']}"


async def publish(text: str, step: Step) -> str:
    ran("publish")
    return str(gateway.execute(step.key, {"published": text})["published"])


@agent.run
async def report(run: Run) -> StepResult:
    plan = await run.step("outline", outline, run.input)
    text = await run.step("long", long, plan)
    return await run.step("publish", publish, text, effect="external", lookup=gateway.lookup)


# --- a model's answer that outlives its process ------------------------------------------------------------

WORDS = [f"word{n} " for n in range(20)]

talker = refold.Agent("talker", version="1", lease=2.0)


@talker.generator("say", overlap=False)
async def say(g: Generation) -> None:
    ran(f"say:{g.params['temperature']}")

    async def stream() -> AsyncGenerator[str, None]:
        text = "".join(WORDS)[len(g.prefix) :]
        for at in range(0, len(text), 6):
            yield text[at : at + 6]
            if at > 30 and not (HERE / "gate").exists():
                ran("half")
                while not (HERE / "gate").exists():  # noqa: ASYNC110 - a file of another process
                    await asyncio.sleep(0.02)

    async for _ in g.record(stream(), format="text"):
        pass


@talker.run
async def talk(run: Run) -> str:
    answer = await run.model("say", params={"temperature": float(os.environ["REFOLD_TEST_TEMPERATURE"])})
    return answer.text
