"""The gateway as its callers see it: an HTTP client, and what its answers mean as exceptions."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Any, Final, Self

import aiohttp

from refold.errors import RefoldError, TransientError, UnavailableError

#: One request: the longest latency is 30 ms; ten seconds of a stalled machine are not an outage.
REQUEST_S_MAX: Final = 10.0


class TurnedAway(TransientError):
    """The gateway said that it did nothing: the same call may be tried again."""


class KeyVoided(RefoldError):
    """The key was given up for good by an authoritative "not done": this runner came too late."""

    exit_code = 76


class AnswerLost(RefoldError):
    """The connection broke after the request was sent: nobody here knows whether it ran."""

    exit_code = 69


class GatewayClient:
    """One per process. ``async with GatewayClient(url) as gateway: ...``"""

    def __init__(self, url: str) -> None:
        self.url = url
        self._http: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        # A connection is not kept: a broken one would be tried again by itself, and every try is a request.
        self._http = aiohttp.ClientSession(
            self.url,
            timeout=aiohttp.ClientTimeout(total=REQUEST_S_MAX),
            connector=aiohttp.TCPConnector(force_close=True),
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._http is not None:
            await self._http.close()

    async def execute(self, session: str, key: str, tool: str, arguments: Mapping[str, Any]) -> str:
        """Run it. Raises :class:`TurnedAway`, :class:`KeyVoided` (both: nothing happened), else
        :class:`AnswerLost`.
        """
        body = {"session": session, "key": key, "tool": tool, "arguments": dict(arguments)}
        try:
            async with self._open().post("/execute", json=body) as answer:
                if answer.status == 503:
                    raise TurnedAway(f"the gateway turned {tool} away before it ran: try again")
                if answer.status == 409:
                    raise KeyVoided(f"the gateway refused {tool}: its key was voided by a lookup")
                answer.raise_for_status()
                return str((await answer.json())["result"])
        except (aiohttp.ClientError, TimeoutError) as err:
            raise AnswerLost(f"no answer to {tool} ({type(err).__name__}): it may have run") from err

    async def lookup(self, session: str, key: str, tool: str) -> Mapping[str, Any]:
        """``{"outcome": "done"|"not_done"|"unknown", "result"?}``. Raises :class:`UnavailableError`."""
        try:
            async with self._open().post(
                "/lookup", json={"session": session, "key": key, "tool": tool}
            ) as answer:
                answer.raise_for_status()
                found: Mapping[str, Any] = await answer.json()
                return found
        except (aiohttp.ClientError, TimeoutError) as err:
            raise UnavailableError(f"the gateway does not answer ({type(err).__name__})") from err

    async def truth(self, session: str, operation: str) -> list[Mapping[str, Any]]:
        """Ledger rows of what really ran for an operation id, oldest first."""
        found = await self._get("/truth", {"session": session, "operation": operation})
        rows: list[Mapping[str, Any]] = found["executed"]
        return rows

    async def counters(self) -> Mapping[str, int]:
        return await self._get("/counters", {})

    async def _get(self, path: str, query: Mapping[str, str]) -> Mapping[str, Any]:
        try:
            async with self._open().get(path, params=dict(query)) as answer:
                answer.raise_for_status()
                found: Mapping[str, Any] = await answer.json()
                return found
        except (aiohttp.ClientError, TimeoutError) as err:
            raise UnavailableError(
                f"the gateway process does not answer ({type(err).__name__}); see gateway.log with --keep"
            ) from err

    def _open(self) -> aiohttp.ClientSession:
        if self._http is None:
            raise UnavailableError("the gateway's client is not open: use `async with`")
        return self._http
