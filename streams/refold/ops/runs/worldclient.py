"""The world as its callers see it, and its process as the harness starts it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import aiohttp

from refold.client.tools import NOT_DONE, Done, NotDone
from refold.errors import UnavailableError
from refold.ops.fleet.listening import ListeningProcess

#: One answer takes a millisecond; a stalled machine may take seconds.
REQUEST_S_MAX: Final = 20.0


class WorldClient:
    """``async with WorldClient(url) as world: …``; one per process."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def execute(self, run: str, step: str, key: str, *, keyed: bool) -> str:
        """Do it. Raises :class:`NotDone` for a key that was given up: nothing happened then."""
        status, found = await self._post("execute", run=run, step=step, key=key, keyed=keyed)
        if status == 409:
            raise NotDone("the world refuses a key that was given up")
        return str(found["result"])

    async def lookup(self, key: str) -> Any:
        """``Done(result)``, or ``NOT_DONE``, after which the key takes no effect any more."""
        _, found = await self._post("lookup", key=key)
        return NOT_DONE if found["done"] is None else Done(found["done"])

    async def mark(self, run: str, turn: str, process: str, what: str) -> None:
        """This turn of the run begins something now."""
        await self._post("mark", run=run, turn=turn, process=process, what=what, at=time.time())

    async def book(self) -> Mapping[str, Any]:
        try:
            async with self._open().get("/book") as answer:
                answer.raise_for_status()
                found: Mapping[str, Any] = await answer.json()
                return found
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UnavailableError(f"the world does not answer ({type(error).__name__})") from error

    async def _post(self, path: str, **body: Any) -> tuple[int, Mapping[str, Any]]:
        try:
            async with self._open().post(f"/{path}", json=body) as answer:
                if answer.status != 409:
                    answer.raise_for_status()
                return answer.status, await answer.json()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise UnavailableError(f"the world does not answer ({type(error).__name__})") from error

    def _open(self) -> aiohttp.ClientSession:
        if self._http is None:
            # A connection is not kept: a broken one would be tried again by itself, and a try is a request.
            self._http = aiohttp.ClientSession(
                self._url,
                timeout=aiohttp.ClientTimeout(total=REQUEST_S_MAX),
                connector=aiohttp.TCPConnector(force_close=True),
            )
        return self._http


class WorldProcess(ListeningProcess):
    """:mod:`refold.ops.runs.world`."""

    def __init__(self, directory: Path, *, keeps_keys_open: bool) -> None:
        options = ["--keeps-keys-open"] if keeps_keys_open else []
        super().__init__("world", directory, "refold.ops.runs.world", options)
