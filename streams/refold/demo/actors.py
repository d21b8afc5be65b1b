"""The processes that die in the demo's opening. Each is an application's process, as small as it can be.

``python -m refold.demo.actors writer`` generates the chat's answer (or stands by to take one over);
``… runner`` runs one tool call against the bank. Settings come from the environment; what to do from
arguments; what was done is said in JSON lines on stdout. They end when stdin does, if they live that long.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator
from typing import Any, Final

import aiohttp

from refold.client import Refold
from refold.client.generations import Generation
from refold.client.tools import NOT_DONE, UNKNOWN, Done, Tool, ToolCall, tool
from refold.settings import Settings

GENERATOR: Final = "demo-answer"
#: Between words: about the speed of a reader, so that a death in mid-sentence can be seen.
WORD_S: Final = 0.14
#: Short leases, so that the opening waits seconds for a take-over, not half a minute.
GENERATION_LEASE_S: Final = 1.5
CALL_LEASE_S: Final = 2.0
BANK_S_MAX: Final = 10.0

#: What the model "knows": the same words in every process, so that a take-over can be checked to the letter.
ANSWER: Final = (
    "Your order 4711 left our warehouse in Rotterdam on Tuesday, was held for a day at customs because the "
    "invoice named a different consignee, and is on the road again since this morning; the carrier expects "
    "to hand it over between ten and noon tomorrow, and if nobody is at home the driver will leave it with "
    "the neighbour you named, or bring it to the parcel shop around the corner, where it waits for a week."
)


def say(**row: Any) -> None:
    print(json.dumps(row), flush=True)


async def stdin_ends() -> None:
    """Return when the starter is gone or lets go."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    await reader.read()


async def answer(g: Generation) -> None:
    """Record what the model says. After a take-over ``g.prefix`` is what both panes show already."""
    async for _ in g.record(words(g.prefix), format="text"):
        pass


async def words(prefix: str) -> AsyncIterator[str]:
    """The rest of the answer in words, each with the space before it."""
    rest = ANSWER[len(prefix) :]
    start = 0
    while start < len(rest):
        end = rest.find(" ", start + 1)
        end = len(rest) if end < 0 else end
        await asyncio.sleep(WORD_S)
        yield rest[start:end]
        start = end


async def writer(session_id: str, key: str, *, begin: bool) -> None:
    async with Refold(settings=Settings()) as rf:
        # It continues exactly where the text ends, so nothing of an overlap is to be trimmed.
        rf.generator(GENERATOR, overlap=False)(answer)
        standing_by = asyncio.create_task(rf.supervise(GENERATOR))
        if begin:
            session = rf.session(session_id)
            await session.append("Where is my order 4711?", role="user", message_id=f"{key}/question")
            generation = await session.generate(GENERATOR, key=key, lease=GENERATION_LEASE_S)
            say(generation=generation.id)
        else:
            say(ready=True)
        await stdin_ends()
        standing_by.cancel()


def bank_tools(url: str) -> list[Tool]:
    """``refund``: the bank can be asked by key. ``letter``: posted and gone, nobody can be asked."""

    async def post(what: str, body: dict[str, Any]) -> dict[str, Any]:
        timeout = aiohttp.ClientTimeout(total=BANK_S_MAX)
        async with (
            aiohttp.ClientSession(timeout=timeout) as http,
            http.post(f"{url}/{what}", json=body) as it,
        ):
            it.raise_for_status()
            found: dict[str, Any] = await it.json()
            return found

    async def asked(key: str) -> Any:
        found = await post("lookup", {"key": key})
        if found["outcome"] == "unknown":
            return UNKNOWN
        return Done(found["result"]) if found["outcome"] == "done" else NOT_DONE

    async def refund(order: int, amount: float, call: ToolCall) -> str:
        """Pay the amount of an order back."""
        made = await post("execute", {"key": call.key, "what": f"refund {amount:.2f} for order {order}"})
        return str(made["result"])

    async def letter(order: int, call: ToolCall) -> str:
        """Send a letter of apology."""
        made = await post("execute", {"key": call.key, "what": f"letter about order {order}"})
        return str(made["result"])

    return [tool(refund, effect="external", lookup=asked), tool(letter, effect="external")]


async def runner(session_id: str, bank: str, name: str) -> None:
    """Run one call the model asked for; where it dies is armed from outside (REFOLD_TOOL_POINT)."""
    arguments = {"order": 4711, **({"amount": 42.0} if name == "refund" else {})}
    asked_by = f"{session_id}/{name}"
    call = {
        "id": f"call_{name}",
        "type": "function",
        "function": {"name": name, "arguments": json.dumps(arguments)},
    }
    async with Refold(settings=Settings()) as rf:
        session = rf.session(session_id)
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        await session.append(message, message_id=asked_by, wait="accepted")
        say(asked=name)
        results = await session.run_tools(
            [call], tools=bank_tools(bank), message_id=asked_by, lease=CALL_LEASE_S
        )
        say(result=results[0]["content"])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", choices=("writer", "standby", "runner"))
    parser.add_argument("--session", required=True)
    parser.add_argument("--key", default="")
    parser.add_argument("--bank", default="")
    parser.add_argument("--tool", default="")
    options = parser.parse_args()
    if options.role == "runner":
        asyncio.run(runner(options.session, options.bank, options.tool))
    else:
        asyncio.run(writer(options.session, options.key, begin=options.role == "writer"))


if __name__ == "__main__":
    main()
