"""HTTP to the owning worker, with routing and retries: the answer, or a clear error, before a deadline.

421 and connection errors look the owner up again; 503 waits as long as the owner says; 504 and 404 are
answers. What is asked is only ever read, so retrying is always safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import aiohttp
import orjson
from yarl import URL

from refold.client.limits import (
    ANSWER_BYTES_MAX,
    OWNER_WAIT_MS_MAX,
    PARTITIONS_TIMEOUT_S,
    RETRY_PAUSE_S,
    SILENT_S,
    STALE_ATTEMPT_S,
    STANDBYS_ASKED_MAX,
)
from refold.client.routing import Owner, Router
from refold.client.snapshots import Staleness
from refold.errors import PermissionDenied, RefoldError, TransientError, UnavailableError, UsageError
from refold.wire.owner import HistoryAnswer, RulingLine
from refold.wire.usageanswer import UsageAnswer

#: Connections at once to all owners (long polls hold one each); more requests than that wait for one.
CONNECTIONS_MAX: Final = 512


class NoOwnerAnswers(UnavailableError):
    """No worker answered for this partition in time; topics still can (the callers' fallback)."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    code: str | None = None
    seq: int | None = None
    staleness: Staleness | None = None


#: The way out wherever no worker answers.
START_ONE: Final = "`refold worker status` says who is there, `refold worker run` starts one"


def _path(noun: str, *parts: str) -> str:
    """Percent-encoded path; dots too, because ``..`` would be resolved away as a path segment."""
    return "/".join((f"/v1/{noun}", *(quote(part, safe="").replace(".", "%2E") for part in parts)))


def session_path(tenant: str, session: str) -> str:
    return _path("sessions", tenant, session)


def generation_path(tenant: str, session: str, generation: str) -> str:
    return _path("generations", tenant, session, generation)


def usage_path(tenant: str, subject: str, model: str) -> str:
    return _path("usage", tenant, subject, model)


class Owners:
    """One pool of connections to all workers. Use as an async context manager."""

    def __init__(self, router: Router, *, token: str | None, request_timeout_s: float) -> None:
        self.router = router
        self._headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self._request_timeout_s = request_timeout_s
        self._http: aiohttp.ClientSession | None = None
        #: Workers that did not answer, by URL, and until when they are asked last.
        self._silent: dict[str, float] = {}

    async def __aenter__(self) -> Self:
        self._http = aiohttp.ClientSession(
            headers=self._headers,
            connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX, keepalive_timeout=30),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._request_timeout_s),
            # The address comes from the group description, a proxy setting of the shell does not apply.
            trust_env=False,
            auto_decompress=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._http is not None:
            await self._http.close()

    @property
    def is_open(self) -> bool:
        return self._http is not None and not self._http.closed

    @property
    def http(self) -> aiohttp.ClientSession:
        if self._http is None:
            raise UsageError("the client is not open: use `async with Refold(...) as rf:`")
        if self._http.closed:
            raise UnavailableError("the client was closed: nobody can be asked through it any more")
        return self._http

    async def snapshot(
        self, partition: int, tenant: str, session: str, *, min_seq: int, timeout_s: float
    ) -> bytes | None:
        """The framed committed snapshot, ``None`` when the session does not exist."""
        answer = await self._ask(
            partition, session_path(tenant, session), {"min_seq": min_seq} if min_seq else {}, timeout_s
        )
        return None if answer.status == 404 else answer.body

    async def stale_snapshot(
        self, partition: int, tenant: str, session: str, *, timeout_s: float
    ) -> tuple[bytes | None, Staleness | None]:
        """The owner's snapshot where it answers at once, a standby's where it does not, and what that one
        says of its age (``None``: the owner's). The snapshot is ``None`` when the session does not exist."""
        path, deadline = session_path(tenant, session), time.monotonic() + timeout_s
        last = "no worker has this partition"
        while (remaining := deadline - time.monotonic()) > 0:
            pause = RETRY_PAUSE_S
            for worker in await self._candidates(partition, remaining):
                left = min(deadline - time.monotonic(), STALE_ATTEMPT_S)
                if left <= 0:
                    break
                try:
                    answer = await self._get(worker, path, {"stale": "ok"}, left)
                except (aiohttp.ClientError, TimeoutError, OSError) as error:
                    last = f"{worker.instance} at {worker.url}: {type(error).__name__}"
                    self._silent[worker.url] = time.monotonic() + SILENT_S
                    continue
                if answer.status == 200 or answer.code == "unknown_session":
                    if answer.staleness is not None:
                        # The owner did not answer: whoever asks next may find another one.
                        self.router.refresh_soon()
                    return (None if answer.status == 404 else answer.body), answer.staleness
                last, pause = self._refusal(worker, answer)
            if self.router.members == 0:
                break
            await asyncio.sleep(max(0.0, min(pause, deadline - time.monotonic())))
            await self.refresh(deadline - time.monotonic())
        raise NoOwnerAnswers(
            f"no worker, and no standby, answered for partition {partition} within {timeout_s:g} s ({last}): "
            f"{START_ONE}",
            retry_after_s=1.0,
        )

    async def _candidates(self, partition: int, remaining_s: float) -> list[Owner]:
        """The owner, then who may have a copy; who did not answer a moment ago is asked last."""
        owner = await self._owner(partition, remaining_s)
        found = [] if owner is None else [owner]
        found += self.router.in_line(partition)[:STANDBYS_ASKED_MAX]
        now = time.monotonic()
        self._silent = {url: until for url, until in self._silent.items() if until > now}
        return sorted(found, key=lambda worker: worker.url in self._silent)

    async def history(
        self, partition: int, tenant: str, session: str, *, after: int, limit: int, timeout_s: float
    ) -> tuple[HistoryAnswer, int | None] | None:
        """One page of the history index and the session's committed seq; ``None``: no such session."""
        path = session_path(tenant, session) + "/history"
        answer = await self._ask(partition, path, {"after": after, "limit": limit}, timeout_s)
        return None if answer.status == 404 else (HistoryAnswer.from_bytes(answer.body), answer.seq)

    async def generation(
        self, partition: int, tenant: str, session: str, generation: str, *, wait_ms: int, timeout_s: float
    ) -> dict[str, Any] | None:
        """``row`` and ``progress`` of a generation, committed; ``None`` when neither is known.

        ``wait_ms``: how long the owner waits for the begin to be folded; ``progress`` is ``None`` until then.
        """
        path = generation_path(tenant, session, generation)
        params = {"wait_ms": wait_ms} if wait_ms else {}
        answer = await self._ask(partition, path, params, timeout_s, not_reached_is_an_answer=True)
        if answer.status == 504:
            return {"row": None, "progress": None}
        return None if answer.status == 404 else _problem(answer.body)

    async def ruling(
        self, partition: int, offset: int, timeout_s: float, *, wait_s: float = 0.0
    ) -> RulingLine | None:
        """One direct look-up, the owner waiting up to ``wait_s``. ``None``: not ruled on yet.

        Raises :class:`RulingForgotten` when the owner has ruled and no longer remembers.
        """
        params = {"wait_ms": int(wait_s * 1000)} if wait_s else {}
        answer = await self._ask(
            partition,
            f"/v1/rulings/{partition}/{offset}",
            params,
            timeout_s + wait_s,
            not_reached_is_an_answer=True,
        )
        if answer.status == 404:
            raise RulingForgotten("the owner ruled on this record, but no longer remembers how")
        return None if answer.status == 504 else RulingLine.from_bytes(answer.body)

    async def usage(
        self, worker: Owner, tenant: str, subject: str, model: str, timeout_s: float
    ) -> UsageAnswer | None:
        """What a worker says of a subject's usage in its partitions; ``None`` when it does not answer."""
        try:
            answer = await self._get(worker, usage_path(tenant, subject, model), {}, timeout_s)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None
        if answer.status == 200:
            return UsageAnswer.from_bytes(answer.body)
        self._refusal(worker, answer)
        return None

    async def partitions(self, worker: Owner) -> list[dict[str, Any]] | None:
        """What a worker says of the partitions it owns or copies; ``None`` when it does not answer."""
        try:
            answer = await self._get(worker, "/healthz/partitions", {}, PARTITIONS_TIMEOUT_S)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None
        rows = _problem(answer.body).get("partitions")
        return rows if answer.status == 200 and isinstance(rows, list) else None

    async def _ask(
        self,
        partition: int,
        path: str,
        params: dict[str, int],
        timeout_s: float,
        *,
        not_reached_is_an_answer: bool = False,
    ) -> Answer:
        deadline = time.monotonic() + timeout_s
        last = "the group has no member that owns this partition"
        while True:
            pause = RETRY_PAUSE_S
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise NoOwnerAnswers(
                    f"no worker answered for partition {partition} within {timeout_s:g} s ({last}): "
                    f"is one running that this machine can reach at the URL it advertises? {START_ONE}",
                    retry_after_s=1.0,
                )
            owner = await self._owner(partition, remaining)
            if owner is not None:
                try:
                    answer = await self._get(owner, path, params, remaining)
                except (aiohttp.ClientError, TimeoutError, OSError) as error:
                    last = f"{owner.instance} at {owner.url}: {type(error).__name__}"
                else:
                    if answer.status == 200 or (answer.status == 404 and answer.code != "unknown_path"):
                        return answer
                    if answer.status == 504:
                        if not_reached_is_an_answer:
                            return answer
                        if deadline - time.monotonic() > RETRY_PAUSE_S:
                            # The owner has waited; this side has more time than one request takes.
                            continue
                        raise TransientError(
                            f"session did not reach seq {params.get('min_seq')} on {owner.instance} in time: "
                            "the worker is behind, or that event was never accepted"
                        )
                    last, pause = self._refusal(owner, answer)
            elif self.router.members == 0:
                raise NoOwnerAnswers(
                    self.router.failure
                    or f"no worker is running for this application (its group is empty): {START_ONE}",
                    retry_after_s=1.0,
                )
            await asyncio.sleep(max(0.0, min(pause, deadline - time.monotonic())))
            await self.refresh(deadline - time.monotonic())

    async def _owner(self, partition: int, remaining_s: float) -> Owner | None:
        try:
            async with asyncio.timeout(remaining_s):
                return await self.router.owner(partition)
        except (UnavailableError, TimeoutError):
            return None

    async def refresh(self, remaining_s: float) -> None:
        # The cluster may be away for a moment, or not answer at all; the deadline decides. The look itself
        # goes on for whoever asks next.
        with contextlib.suppress(UnavailableError, TimeoutError):
            async with asyncio.timeout(max(0.0, remaining_s)):
                await self.router.refresh()

    async def _get(
        self, owner: Owner, path: str, params: Mapping[str, int | str], remaining_s: float
    ) -> Answer:
        per_request = min(remaining_s, self._request_timeout_s)
        query = "&".join(f"{name}={value}" for name, value in params.items())
        if params.get("min_seq"):
            # The owner answers 504 a little before this side gives up.
            query += f"&wait_ms={min(OWNER_WAIT_MS_MAX, max(1, int(per_request * 900)))}"
        url = URL(f"{owner.url}{path}" + (f"?{query}" if query else ""), encoded=True)
        timeout = aiohttp.ClientTimeout(total=per_request)
        async with self.http.get(url, timeout=timeout, allow_redirects=False) as response:
            body = bytearray()
            async for chunk in response.content.iter_any():
                body += chunk
                if len(body) > ANSWER_BYTES_MAX:
                    raise UnavailableError(f"{owner.url} answered with more than {ANSWER_BYTES_MAX} bytes")
            code = None
            if response.status >= 400:
                code = _problem(bytes(body)).get("code")
            seq = response.headers.get("Refold-Seq", "")
            return Answer(
                response.status,
                bytes(body),
                code if isinstance(code, str) else None,
                int(seq) if seq.isascii() and seq.isdigit() else None,
                _staleness(response.headers),
            )

    @staticmethod
    def _refusal(owner: Owner, answer: Answer) -> tuple[str, float]:
        """What an unhelpful answer means and how long to wait; raises for those that time does not mend."""
        problem = _problem(answer.body)
        detail = problem.get("detail")
        if answer.status in (401, 403):
            raise PermissionDenied(
                f"{owner.instance} at {owner.url} asks for another bearer token: "
                "set REFOLD_CLIENT__BEARER_TOKEN to the workers' token"
            )
        if answer.status == 400:
            raise UsageError(f"{owner.instance} refused the request: {detail}")
        hint = problem.get("retry_after_s")
        pause = float(hint) if isinstance(hint, int | float) else RETRY_PAUSE_S
        return f"{owner.instance} at {owner.url}: {answer.status} {detail or ''}".rstrip(), max(0.02, pause)


class RulingForgotten(RefoldError):
    """Ruled on too long ago for the owner to remember. The topics know; see ``fallback``."""


def _staleness(headers: Mapping[str, str]) -> Staleness | None:
    if headers.get("X-Served-By") != "standby":
        return None
    try:
        return Staleness(
            int(headers["Refold-Position"]), int(headers["Refold-Behind"]), float(headers["Refold-Age"])
        )
    except (KeyError, ValueError):
        raise UnavailableError("a standby answered without saying how old its copy is") from None


def _problem(body: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
