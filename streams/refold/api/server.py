"""The worker's HTTP port, on the same event loop as the fold.

Invariants: nothing is served but committed state (the view guarantees it); every queue and wait is bounded
(``api/limits.py``); it never listens beyond loopback without a bearer token; every error is problem+json and
no traceback leaves the process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from refold.api.auth import bearer, check_exposure, route_of
from refold.api.handlers import STREAM_ROUTE, Handlers
from refold.api.limits import PATH_SHOWN_CHARS_MAX, REQUEST_BODY_BYTES_MAX, STOP_GRACE_S
from refold.api.problems import Problem
from refold.api.view import OwnerView
from refold.errors import StorageError, UnavailableError
from refold.telemetry.metrics import Metrics, NoMetrics

log = structlog.get_logger(__name__)


def prometheus_text() -> bytes:
    """The process's default registry. Imported late: the SDK's environment has no prometheus_client."""
    from prometheus_client import generate_latest

    return bytes(generate_latest())


@web.middleware
async def problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn every error into problem+json; unexpected ones are logged here and named ``internal`` outside."""
    try:
        return await handler(request)
    except Problem as problem:
        return problem.response()
    except web.HTTPNotFound:
        return Problem("unknown_path", f"no endpoint at {_printable(request.path)}").response()
    except web.HTTPMethodNotAllowed:
        return Problem("method_not_allowed", "this port only answers GET").response()
    except web.HTTPException as error:
        return Problem("bad_request", error.reason).response()
    except (asyncio.CancelledError, ConnectionError):
        raise
    except StorageError:
        # The engine has been told by the store itself. Never "absent": what cannot be read may be there.
        return Problem(
            "restoring", "the partition's store could not be read: it is restored", retry_after_s=1.0
        ).response()
    except Exception:
        log.exception("http_request_failed", route=route_of(request))
        return Problem("internal", "a fault of refold: the worker's log has the details").response()


def _printable(path: str) -> str:
    """The head of a path as valid UTF-8, whatever bytes the request line had."""
    return path[:PATH_SHOWN_CHARS_MAX].encode("utf-8", "backslashreplace").decode()


def measured(metrics: Metrics) -> Middleware:
    """Count every answer and time it, by route pattern: bounded labels, nothing from the request. A ruling
    stream is counted when it ends and not timed: how long it was open says nothing about this port."""

    @web.middleware
    async def measure(request: web.Request, handler: Handler) -> web.StreamResponse:
        began = time.perf_counter()
        route = route_of(request)
        status = "aborted"
        try:
            response = await handler(request)
            status = f"{response.status // 100}xx"
            return response
        finally:
            metrics.count("refold_http_requests_total", route=route, status=status)
            if route != STREAM_ROUTE:
                metrics.observe("refold_http_request_seconds", time.perf_counter() - began, route=route)

    return measure


class OwnerServer:
    """``await start()``, read :attr:`url`, ``await stop()``. One per worker process.

    ``port`` 0 lets the system choose. ``metrics`` returns the Prometheus text and must not block;
    ``reports_to`` is told of every request.
    """

    def __init__(
        self,
        view: OwnerView,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        token: str | None = None,
        metrics: Callable[[], bytes] = prometheus_text,
        reports_to: Metrics | None = None,
    ) -> None:
        check_exposure(host, token)
        self._host = host
        self._port = port
        self._handlers = Handlers(view, metrics)
        app = web.Application(
            middlewares=[measured(reports_to or NoMetrics()), problems, bearer(token)],
            client_max_size=REQUEST_BODY_BYTES_MAX,
        )
        app.add_routes(self._handlers.routes())
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=STOP_GRACE_S)
        self._bound_port: int | None = None

    @property
    def port(self) -> int:
        """The port listened on; raises before :meth:`start`."""
        if self._bound_port is None:
            raise UnavailableError("the HTTP port is not open yet: await start() first")
        return self._bound_port

    @property
    def url(self) -> str:
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{self.port}"

    async def start(self) -> None:
        """Open the port; raises :class:`UnavailableError` naming it when it is taken."""
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port)
        try:
            await site.start()
        except OSError as error:
            await self._runner.cleanup()
            raise UnavailableError(
                f"cannot listen on {self._host}:{self._port} ({error.strerror or error}): "
                "another process has the port; choose another one, or 0 for any free one"
            ) from None
        self._bound_port = int(self._runner.addresses[0][1])

    async def stop(self) -> None:
        """End streams at once, give other requests ``STOP_GRACE_S``, close the port."""
        self._handlers.end_streams()
        await self._runner.cleanup()
