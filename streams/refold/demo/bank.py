"""The outside world of the demo's opening: a bank and a letter box, in the demo's own process, with a book.

Refunds are de-duplicated and can be asked for by key; "not done" voids the key. A letter is posted and gone:
posting it twice is two letters, and nobody can be asked.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Self

from aiohttp import web


@dataclass(slots=True)
class Bank:
    """``book``: everything that really happened, in order. ``async with Bank() as bank: … bank.url``."""

    book: list[str] = field(default_factory=list)
    url: str = ""
    _results: dict[str, str] = field(default_factory=dict)
    _void: set[str] = field(default_factory=set)
    _runner: web.AppRunner | None = None

    async def __aenter__(self) -> Self:
        app = web.Application()
        app.router.add_post("/execute", self._execute)
        app.router.add_post("/lookup", self._lookup)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def happened(self, word: str) -> list[str]:
        return [line for line in self.book if line.startswith(word)]

    async def _execute(self, request: web.Request) -> web.Response:
        asked = await request.json()
        key, what = asked["key"], asked["what"]
        keyed = what.startswith("refund")
        if keyed and key in self._void:
            return web.json_response({"error": "the key is void"}, status=409)
        if not keyed or key not in self._results:
            self.book.append(what)
            self._results[key] = f"{what}: booked as number {len(self.book)}"
        return web.json_response({"result": self._results[key]})

    async def _lookup(self, request: web.Request) -> web.Response:
        key = (await request.json())["key"]
        if key in self._results:
            return web.json_response({"outcome": "done", "result": self._results[key]})
        self._void.add(key)
        return web.json_response({"outcome": "not_done"})
