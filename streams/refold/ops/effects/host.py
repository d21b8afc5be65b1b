"""An agent process: plays conversations turn by turn, any number at once, until it is told or made to stop.

It is told what to do by JSON lines on stdin (``{"play": session, "turn": n}``) and says what happened by JSON
lines on its original stdout: ``ready``, ``began`` and ``turn`` (a turn, by number), ``ended`` (a
conversation), ``failed`` (a turn raised: the harness gives it to somebody again). Everything an agent prints
goes to its log. It ends when stdin does, so it never outlives the harness unless it is frozen.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final

from refold.demo.dataset import Conversation, load
from refold.errors import RefoldError
from refold.ops.effects.boundaries import Boundaries
from refold.ops.effects.gatewayclient import GatewayClient
from refold.ops.effects.gatewaytools import GatewayTools
from refold.ops.effects.protocol import Agent, AgentTurn, load_agent
from refold.ops.effects.watched import WatchedRefold
from refold.settings import Settings

#: Of a paced run: conversations begin within this part of it, and each takes this part.
STARTS_FRACTION: Final = 0.25
LENGTH_FRACTION: Final = 0.72


class Host:
    """Plays what it is told with one agent."""

    def __init__(
        self,
        agent: Agent,
        client: WatchedRefold,
        tools: GatewayTools,
        options: argparse.Namespace,
        out: IO[str],
    ) -> None:
        self._agent = agent
        self._client = client
        self._tools = tools
        self._options = options
        self._out = out
        self._conversations = {c.session: c for c in load(options.conversations)}

    def say(self, **row: Any) -> None:
        self._out.write(json.dumps(row) + "\n")
        self._out.flush()

    async def play(self, session: str, first: int) -> None:
        conversation = self._conversations[session]
        for number in range(first, len(conversation.turns)):
            await self._pace(session, number)
            self.say(began=session, turn=number)
            turn = self._turn(conversation, number)
            try:
                await self._agent(turn)
            except RefoldError as err:
                return self.say(failed=session, turn=number, error=f"{type(err).__name__}: {err}"[:500])
            except Exception as err:  # a user's agent may raise anything: it is shown, not hidden
                return self.say(failed=session, turn=number, error=f"{type(err).__name__}: {err}"[:500])
            self.say(turn=number, of=session, waits_ms=turn.session.take_waits_ms())
        return self.say(ended=session)

    async def _pace(self, session: str, number: int) -> None:
        """Conversations begin in the first quarter of the time given and take the rest: an even load."""
        length = self._options.paced_s
        if length:
            index = list(self._conversations).index(session)
            start = length * STARTS_FRACTION * index / len(self._conversations)
            turns = len(self._conversations[session].turns)
            due = self._options.paced_from + start + length * LENGTH_FRACTION * number / turns
            await asyncio.sleep(max(0.0, due - time.time()))

    def _turn(self, conversation: Conversation, number: int) -> AgentTurn:
        turn = conversation.turns[number]
        turn_id = f"{conversation.session}/t{number}"
        session = self._client.session(conversation.session)
        return AgentTurn(
            client=self._client,
            session=session,
            turn_id=turn_id,
            number=number,
            user=turn.user,
            calls=[provider_call(f"{turn_id}/c{index}", call) for index, call in enumerate(turn.calls)],
            tools=self._tools.declare(session, {call.tool for call in conversation.calls}),
            lease_s=self._options.lease_s,
            sabotage=self._options.sabotage,
        )


def provider_call(call_id: str, call: Any) -> dict[str, Any]:
    """A tool call as an OpenAI-shaped model asks for it."""
    function = {"name": call.tool, "arguments": call.arguments}
    return {"id": call_id, "type": "function", "function": function}


async def run(options: argparse.Namespace, out: IO[str]) -> None:
    agent = load_agent(options.agent)
    boundaries = Boundaries(options.point_file)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    client = WatchedRefold(settings=Settings(), boundaries=boundaries, sabotage=options.sabotage)
    async with client, GatewayClient(options.gateway) as gateway:
        tools = GatewayTools(gateway, options.seed, boundaries, options.sabotage)
        host = Host(agent, client, tools, options, out)
        playing: set[asyncio.Task[None]] = set()
        host.say(ready=os.getpid())
        while line := await reader.readline():
            asked: Mapping[str, Any] = json.loads(line)
            task = asyncio.create_task(host.play(asked["play"], asked["turn"]))
            playing.add(task)
            task.add_done_callback(playing.discard)
        for task in playing:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*playing, return_exceptions=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--agent", required=True)
    parser.add_argument("--gateway", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--conversations", type=int, required=True)
    parser.add_argument("--lease-s", type=float, required=True)
    parser.add_argument("--paced-s", type=float, default=0.0)
    parser.add_argument("--paced-from", type=float, default=0.0)
    parser.add_argument("--point-file", type=Path)
    parser.add_argument("--sabotage")
    options = parser.parse_args()
    # The harness reads this pipe line by line; whatever an agent prints must not get into it.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.path.insert(0, str(Path.cwd()))
    asyncio.run(run(options, out))


if __name__ == "__main__":
    main()
