"""The outside world: a process that does what it is asked, remembers it, and is never killed. Loopback only.

- ``POST /execute {run, step, key, keyed}`` happens: with ``keyed`` once per key, else each time it is asked.
  409 for a key that a lookup has given up for good.
- ``POST /lookup {key}`` -> ``{"done": result|null}``; a key that was not executed is void from then on (rule
  L11), unless the world was started with ``--keeps-keys-open``.
- ``POST /mark {run, turn, process, what, at}``: an execution of a run's body (a *turn*) begins something: the
  body itself, or a step's function. ``at``: the machine's wall clock, s, as the caller saw it.
- ``GET /book`` -> ``{"executed": {"run/step": times}, "repeated", "refused", "looked_up", "marks":
  [[run, turn, process, what, at]]}``.

It prints its port as the first line of stdout and ends when stdin does.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from typing import Any

from aiohttp import web


class World:
    """The request handlers; one at a time, so what the book says has an order."""

    def __init__(self, *, voids: bool) -> None:
        self._voids = voids
        self._void: set[str] = set()
        self._results: dict[str, str] = {}
        self.executed: Counter[str] = Counter()
        self.counters: Counter[str] = Counter()
        self.marks: list[list[Any]] = []

    def application(self) -> web.Application:
        app = web.Application()
        for name in ("execute", "lookup", "mark"):
            app.router.add_post(f"/{name}", getattr(self, name))
        app.router.add_get("/book", self.book)
        return app

    async def execute(self, request: web.Request) -> web.Response:
        asked = await request.json()
        key, what = asked["key"], f"{asked['run']}/{asked['step']}"
        if key in self._void:
            self.counters["refused"] += 1
            return web.json_response({"error": "the key was given up"}, status=409)
        if asked["keyed"] and key in self._results:
            self.counters["repeated"] += 1
        else:
            self.executed[what] += 1
            self._results[key] = f"{what} #{self.executed[what]}"
        return web.json_response({"result": self._results[key]})

    async def lookup(self, request: web.Request) -> web.Response:
        key = (await request.json())["key"]
        found = self._results.get(key) if self._voids else None
        self.counters["looked_up"] += 1
        if found is None and self._voids:
            self._void.add(key)
        return web.json_response({"done": found})

    async def mark(self, request: web.Request) -> web.Response:
        asked = await request.json()
        self.marks.append([asked[name] for name in ("run", "turn", "process", "what", "at")])
        return web.json_response({})

    async def book(self, _request: web.Request) -> web.Response:
        found: dict[str, Any] = {name: self.counters[name] for name in ("repeated", "refused", "looked_up")}
        found |= {"executed": dict(self.executed), "marks": self.marks}
        return web.json_response(found)


async def serve(world: World) -> None:
    """Serve on a free loopback port until stdin ends."""
    runner = web.AppRunner(world.application(), access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--keeps-keys-open", action="store_true")
    options = parser.parse_args()
    asyncio.run(serve(World(voids=not options.keeps_keys_open)))


if __name__ == "__main__":
    main()
