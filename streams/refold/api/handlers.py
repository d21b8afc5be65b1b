"""The endpoints. Each is: check the arguments, ask the view, wrap bytes. No handler decodes on the fold's
loop unless JSON was asked for, and none waits longer than ``WAIT_MS_MAX``."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping

import orjson
from aiohttp import web

from refold.api.limits import (
    HISTORY_LIMIT_DEFAULT,
    HISTORY_LIMIT_MAX,
    PRODUCER_ID_CHARS_MAX,
    STREAMS_MAX,
    WAIT_MS_DEFAULT,
    WAIT_MS_MAX,
    WAITERS_MAX,
)
from refold.api.problems import Problem
from refold.api.rulingstream import RulingStream
from refold.api.view import OwnerView, StandbyAnswer, WorkerHealth
from refold.core.limits import ID_BYTES_MAX
from refold.core.usage import WINDOWS
from refold.wire.owner import public_json
from refold.wire.snapshot import decode_snapshot
from refold.wire.usageanswer import usage_json

#: Kafka's record keys are limited to 512 bytes by the contract; percent-encoding triples that at most.
KEY_BYTES_MAX = 512
GENERATION_ID_BYTES_MAX = ID_BYTES_MAX
OFFSET_MAX = 2**63 - 1

STREAM_ROUTE = "/v1/rulings/stream"


class Handlers:
    """All endpoints over one :class:`OwnerView`. ``stopping`` ends streams and refuses new waits."""

    def __init__(self, view: OwnerView, metrics: Callable[[], bytes]) -> None:
        self._view = view
        self._metrics = metrics
        self._streams: set[RulingStream] = set()
        self._waiters = 0
        self.stopping = False

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/healthz/startup", self.startup),
            web.get("/healthz/ready", self.ready),
            web.get("/healthz/live", self.live),
            web.get("/healthz/partitions", self.partitions),
            web.get("/metrics", self.metrics),
            web.get(STREAM_ROUTE, self.ruling_stream),
            web.get("/v1/rulings/{partition}/{offset}", self.ruling),
            web.get("/v1/sessions/{tenant}/{session}", self.session),
            web.get("/v1/sessions/{tenant}/{session}/history", self.history),
            web.get("/v1/generations/{tenant}/{session}/{generation}", self.generation),
            web.get("/v1/usage/{tenant}/{subject}/{model}", self.usage),
        ]

    def end_streams(self) -> None:
        self.stopping = True
        for stream in self._streams:
            stream.end()

    # Probes and metrics

    async def startup(self, request: web.Request) -> web.Response:
        return self._probe(self._view.health(), "startup")

    async def ready(self, request: web.Request) -> web.Response:
        return self._probe(self._view.health(), "ready")

    async def live(self, request: web.Request) -> web.Response:
        return self._probe(self._view.health(), "live")

    def _probe(self, health: WorkerHealth, probe: str) -> web.Response:
        good = bool(getattr(health, probe)) and not (probe == "ready" and self.stopping)
        body = orjson.dumps({"probe": probe, "ok": good, **health.detail})
        return web.Response(status=200 if good else 503, body=body, content_type="application/json")

    async def partitions(self, request: web.Request) -> web.Response:
        # Numbers and words of the lifecycle: as open as the probes.
        body = orjson.dumps({"partitions": self._view.partitions()})
        return web.Response(body=body, content_type="application/json")

    async def metrics(self, request: web.Request) -> web.Response:
        headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        return web.Response(body=self._metrics(), headers=headers)

    # Sessions

    async def session(self, request: web.Request) -> web.Response:
        key = self._key(request)
        partition = self._view.partition_of(key)
        stale = _stale(request)
        min_seq = _number(request, "min_seq", 0, 0, OFFSET_MAX)
        if stale and not min_seq and self._view.status(partition) != "live":
            # Who waits for a seq has a promise to keep, which a copy cannot.
            copied = self._view.standby(key)
            if copied is not None:
                return self._from_standby(request, copied)
        self._require_live(partition, key)
        wait_ms = _number(request, "wait_ms", WAIT_MS_DEFAULT if min_seq else 0, 0, WAIT_MS_MAX)
        if min_seq > self._view.seq_of(key):
            with self._waiting():
                reached = await self._view.wait_seq(key, min_seq, wait_ms / 1000)
            self._require_live(partition, key)  # Ownership may have moved while we waited.
            if not reached:
                raise Problem(
                    "not_reached",
                    f"seq {min_seq} was not reached within {wait_ms} ms",
                    retry_after_s=1.0,
                    seq=self._view.seq_of(key),
                )
        labels = {"X-Served-By": "active"} if stale else {}
        return _snapshot(request, self._view.seq_of(key), self._view.snapshot(key), labels)

    @staticmethod
    def _from_standby(request: web.Request, copied: StandbyAnswer) -> web.Response:
        labels = {
            "X-Served-By": "standby",
            "Refold-Position": str(copied.position),
            "Refold-Behind": str(copied.behind),
            "Refold-Age": f"{copied.age_s:.3f}",
        }
        return _snapshot(request, copied.seq, copied.snapshot, labels)

    async def history(self, request: web.Request) -> web.Response:
        key, _ = self._owned_key(request)
        after = _number(request, "after", 0, 0, OFFSET_MAX)
        limit = _number(request, "limit", HISTORY_LIMIT_DEFAULT, 1, HISTORY_LIMIT_MAX)
        seq = self._view.seq_of(key)
        if seq == 0:
            raise Problem("unknown_session", "no such session: it was never opened, or it was deleted")
        answer = self._view.history(key, after, limit)
        # The seq lets a reader that must scan from ``scan_from`` stop at the session's last event.
        headers = {"Refold-Seq": str(seq), "Cache-Control": "no-store"}
        return web.Response(body=answer.to_bytes(), content_type="application/json", headers=headers)

    # Generations

    async def generation(self, request: web.Request) -> web.Response:
        key, partition = self._owned_key(request)
        generation_id = request.match_info["generation"]
        if len(generation_id.encode(errors="replace")) > GENERATION_ID_BYTES_MAX:
            raise Problem("bad_request", f"generation: longer than {GENERATION_ID_BYTES_MAX} bytes")
        if "#" in generation_id:
            raise Problem("bad_request", "generation: must not contain '#'")
        wait_ms = _number(request, "wait_ms", 0, 0, WAIT_MS_MAX)
        if wait_ms:
            with self._waiting():
                await self._view.wait_generation(key, generation_id, wait_ms / 1000)
            self._require_live(partition, key)
        answer = self._view.generation(key, generation_id)
        if answer is None:
            raise Problem(
                "unknown_generation", "no such generation: not begun, forgotten, or its session deleted"
            )
        headers = {"Cache-Control": "no-store"}
        return web.Response(body=answer.to_bytes(), content_type="application/json", headers=headers)

    # Usage

    async def usage(self, request: web.Request) -> web.Response:
        tenant, subject, model = (request.match_info[name] for name in ("tenant", "subject", "model"))
        for name, value in (("tenant", tenant), ("subject", subject), ("model", model)):
            if len(value.encode(errors="replace")) > KEY_BYTES_MAX:
                raise Problem("bad_request", f"{name}: longer than {KEY_BYTES_MAX} bytes")
        window = request.query.get("window")
        if window is not None and window not in WINDOWS:
            raise Problem("bad_request", f"window: one of {', '.join(WINDOWS)} is needed")
        now_ms = _number(request, "at_ms", time.time_ns() // 1_000_000, 0, OFFSET_MAX)
        try:
            with self._waiting():
                rows, restoring = await self._view.usage(tenant, subject, model)
        except UnicodeEncodeError:
            raise Problem("bad_request", "tenant, subject and model must be valid UTF-8") from None
        body = usage_json(now_ms, rows, restoring, WINDOWS if window is None else (window,))
        headers = {"Cache-Control": "no-store"}
        return web.Response(body=body, content_type="application/json", headers=headers)

    # Rulings

    async def ruling(self, request: web.Request) -> web.Response:
        partition = _path_number(request, "partition")
        offset = _path_number(request, "offset")
        wait_ms = _number(request, "wait_ms", 0, 0, WAIT_MS_MAX)
        self._require_live(partition)
        line = self._view.ruling(partition, offset)
        if line is None and offset >= self._view.frontier(partition) and wait_ms:
            with self._waiting():
                line = await self._view.wait_ruling(partition, offset, wait_ms / 1000)
            self._require_live(partition)
        if line is None:
            if offset < self._view.frontier(partition):
                raise Problem(
                    "ruling_forgotten",
                    "ruled on, but no longer remembered here: read the journal and the rejected topic",
                )
            raise Problem("not_reached", f"no ruling within {wait_ms} ms", retry_after_s=1.0)
        return web.Response(body=line.to_bytes(), content_type="application/json")

    async def ruling_stream(self, request: web.Request) -> web.StreamResponse:
        producer = request.query.get("producer", "")
        if not producer or len(producer) > PRODUCER_ID_CHARS_MAX:
            raise Problem("bad_request", f"producer: 1 to {PRODUCER_ID_CHARS_MAX} characters are needed")
        if self.stopping:
            raise Problem("stopping", "this worker is stopping", retry_after_s=1.0)
        if len(self._streams) >= STREAMS_MAX:
            raise Problem("too_many_requests", f"{STREAMS_MAX} ruling streams are open", retry_after_s=5.0)
        stream = RulingStream()
        self._streams.add(stream)
        try:
            return await stream.run(request, self._view, producer)
        finally:
            self._streams.discard(stream)

    # Shared checks

    def _owned_key(self, request: web.Request) -> tuple[bytes, int]:
        key = self._key(request)
        partition = self._view.partition_of(key)
        self._require_live(partition, key)
        return key, partition

    def _key(self, request: web.Request) -> bytes:
        tenant, session = request.match_info["tenant"], request.match_info["session"]
        if "/" in tenant:
            raise Problem("bad_request", "tenant: must not contain '/'")
        try:
            key = f"{tenant}/{session}".encode()
        except UnicodeEncodeError:
            raise Problem("bad_request", "tenant and session must be valid UTF-8") from None
        if len(key) > KEY_BYTES_MAX:
            raise Problem("bad_request", f"tenant/session: longer than {KEY_BYTES_MAX} bytes")
        return key

    def _require_live(self, partition: int, key: bytes | None = None) -> None:
        status = self._view.status(partition) if key is None else self._view.session_status(key)
        if status == "live":
            return
        if status == "absent":
            raise Problem(
                "not_owner",
                f"this worker does not own partition {partition}: look up its owner in the group description",
                partition=partition,
            )
        raise Problem(
            "restoring",
            f"partition {partition} is {status}: its state is not loaded yet"
            if key is None or self._view.status(partition) != "live"
            else f"partition {partition} is being restored: this session is not loaded yet",
            retry_after_s=self._view.retry_after_s(partition),
            partition=partition,
        )

    @contextlib.contextmanager
    def _waiting(self) -> Iterator[None]:
        if self.stopping:
            raise Problem("stopping", "this worker is stopping", retry_after_s=1.0)
        if self._waiters >= WAITERS_MAX:
            raise Problem("too_many_requests", f"{WAITERS_MAX} requests are waiting", retry_after_s=1.0)
        self._waiters += 1
        try:
            yield
        finally:
            self._waiters -= 1


def _snapshot(
    request: web.Request, seq: int, framed: bytes | None, labels: Mapping[str, str]
) -> web.Response:
    if framed is None:
        raise Problem(
            "unknown_session", "no such session: it was never opened, or it was deleted", headers=labels
        )
    etag = f'"{seq}"'
    headers = {
        "ETag": etag,
        "Refold-Seq": str(seq),
        "Cache-Control": "no-cache",
        "Vary": "Accept",
        **labels,
    }
    if _matches(request.headers.get("If-None-Match"), etag):
        return web.Response(status=304, headers=headers)
    if _wants_json(request):
        body = public_json(decode_snapshot(framed))
        return web.Response(body=body, content_type="application/json", headers=headers)
    return web.Response(body=framed, content_type="application/avro", headers=headers)


def _stale(request: web.Request) -> bool:
    """Whether a copy's answer will do."""
    raw = request.query.get("stale")
    if raw not in (None, "ok"):
        raise Problem("bad_request", "stale: only `ok` is known, for an answer of a standby")
    return raw is not None


def _number(request: web.Request, name: str, default: int, low: int, high: int) -> int:
    raw = request.query.get(name)
    return default if raw is None else _parse(name, raw, low, high)


def _path_number(request: web.Request, name: str) -> int:
    return _parse(name, request.match_info[name], 0, OFFSET_MAX)


def _parse(name: str, raw: str, low: int, high: int) -> int:
    # isascii: int() also reads other scripts' digits, signs and underscores, which no client of ours sends.
    if raw.isascii() and raw.isdigit() and len(raw) <= 19 and low <= (value := int(raw)) <= high:
        return value
    raise Problem("bad_request", f"{name}: a whole number from {low} to {high} is needed")


def _wants_json(request: web.Request) -> bool:
    accept = request.headers.get("Accept", "")
    return "application/json" in accept and "application/avro" not in accept


def _matches(if_none_match: str | None, etag: str) -> bool:
    if if_none_match is None:
        return False
    candidates = (candidate.strip().removeprefix("W/") for candidate in if_none_match.split(","))
    return any(candidate in ("*", etag) for candidate in candidates)
