"""The outside world: a process with the simulators, a durable ledger, and answers by key. Loopback only.

- ``POST /execute {session, key, tool, arguments}`` runs the simulator of that session. A tool of kind
  ``lookup`` or ``idempotent`` runs a key at most once and gives the first result again; ``plain`` ignores
  keys: asked twice, it happens twice. 409 for a voided key, 503 when turned away before anything happened
  (both say ``executed: false``); a dropped connection says nothing, and the operation has run.
- ``POST /lookup {session, key, tool}`` -> ``done`` with the result, ``not_done``, or ``unknown``.
  ``not_done`` is authoritative (rule L11): from then on the key is void.
- ``GET /truth?session=&operation=`` -> what ran for an operation id, whatever the kind: the book a
  person would look into. Only the harness's operator asks.
- ``GET /counters`` -> lines of the ledger by kind.

It is never killed: what it says is what happened. It prints its port as the first line of stdout and ends
when stdin does.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from aiohttp import web

from refold.demo.dataset import Call, Conversation, load
from refold.demo.simulators import Simulators, ToolError
from refold.ops.effects.ledger import Entry, Ledger
from refold.ops.effects.plan import cannot_say, kind_of, weather

#: A call's arguments and a simulator's answer are a few kilobytes.
BODY_BYTES_MAX: Final = 1 << 20


class Gateway:
    """The request handlers. Executions of all sessions are one after the other: an operation is atomic."""

    def __init__(self, seed: int, conversations: list[Conversation], ledger: Ledger, *, voids: bool) -> None:
        self._seed = seed
        self._conversations = {c.session: c for c in conversations}
        self._ledger = ledger
        self._voids = voids
        self._simulators: dict[str, Simulators] = {}
        self._first: dict[tuple[str, str], Entry] = {}
        self._void: set[tuple[str, str]] = set()
        self._requests: Counter[tuple[str, str]] = Counter()
        self._counters: Counter[str] = Counter()

    def application(self) -> web.Application:
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.router.add_post("/execute", self.execute)
        app.router.add_post("/lookup", self.lookup)
        app.router.add_get("/truth", self.truth)
        app.router.add_get("/counters", self.counters)
        return app

    async def execute(self, request: web.Request) -> web.StreamResponse:
        asked = await request.json()
        session, key, tool, arguments = (asked[name] for name in ("session", "key", "tool", "arguments"))
        known = session, key
        sky = weather(self._seed, session, key, self._requests[known])
        self._requests[known] += 1
        if sky.refuse:
            self._counters["turned_away"] += 1
            return web.json_response({"executed": False, "error": "try again later"}, status=503)
        keyed = kind_of(self._seed, session, tool) != "plain"
        if keyed and known in self._void:
            self._note("refused", session, key, tool, arguments, "voided")
            return web.json_response({"executed": False, "error": "voided by a lookup"}, status=409)
        first = self._first.get(known)
        if keyed and first is not None:
            self._note("repeated", session, key, tool, arguments, first.result)
            result = first.result
        else:
            result = self._run(session, Call(tool, json.dumps(arguments, ensure_ascii=False)))
            entry = self._note("executed", session, key, tool, arguments, result)
            self._first.setdefault(known, entry)
        if sky.drop and request.transport is not None:
            self._counters["dropped"] += 1
            request.transport.abort()
        await asyncio.sleep(sky.latency_s)
        return web.json_response({"executed": True, "result": result})

    async def lookup(self, request: web.Request) -> web.Response:
        asked = await request.json()
        session, key, tool = (asked[name] for name in ("session", "key", "tool"))
        known = session, key
        if kind_of(self._seed, session, tool) != "lookup" or cannot_say(self._seed, session, key):
            answer = {"outcome": "unknown"}
        elif (first := self._first.get(known)) is not None:
            answer = {"outcome": "done", "result": first.result}
        else:
            answer = {"outcome": "not_done"}
            if self._voids:
                self._void.add(known)
        self._note("lookup", session, key, tool, {}, answer["outcome"])
        return web.json_response(answer)

    async def truth(self, request: web.Request) -> web.Response:
        session, operation = request.query["session"], request.query["operation"]
        rows = [
            asdict(entry)
            for entry in self._ledger.executed.get(session, [])
            if entry.key.rpartition("/")[0] == operation
        ]
        return web.json_response({"executed": rows})

    async def counters(self, _request: web.Request) -> web.Response:
        return web.json_response(dict(self._counters))

    def _run(self, session: str, call: Call) -> str:
        simulators = self._simulators.get(session)
        if simulators is None:
            simulators = self._simulators[session] = Simulators.of(self._conversations[session])
        try:
            return simulators.run(call)
        except ToolError as err:  # it ran, and this is its answer
            return str(err)

    def _note(
        self, what: Any, session: str, key: str, tool: str, arguments: dict[str, Any], result: str
    ) -> Entry:
        self._counters[f"{what}_{result}" if what == "lookup" else what] += 1
        return self._ledger.write(what, session, key, tool, arguments, result)


async def serve(gateway: Gateway) -> None:
    """Serve on a free loopback port until stdin ends."""
    runner = web.AppRunner(gateway.application(), access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--conversations", type=int, required=True)
    parser.add_argument("--ledger", type=Path, required=True)
    parser.add_argument("--keeps-keys-open", action="store_true")
    options = parser.parse_args()
    ledger = Ledger(options.ledger)
    voids = not options.keeps_keys_open
    asyncio.run(serve(Gateway(options.seed, load(options.conversations), ledger, voids=voids)))
    ledger.close()


if __name__ == "__main__":
    main()
