"""Who may ask. Loopback needs nothing; other addresses need a bearer token, compared in constant time."""

from __future__ import annotations

import hmac

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from refold.api.problems import Problem
from refold.errors import ConfigError
from refold.settings import is_loopback

#: Probes carry no token in most orchestrators, and answer only names and counts. Compared with the pattern of
#: the route that was matched: what is served is what is checked.
OPEN_PREFIX = "/healthz/"


def route_of(request: web.Request) -> str:
    """The matched route's pattern; ``unknown`` where none matched. Never the path: that is the caller's word,
    and holds the session id."""
    resource = request.match_info.route.resource
    return resource.canonical if resource is not None else "unknown"


def check_exposure(host: str, token: str | None) -> None:
    """Refuse to open a port beyond loopback without authentication; raises :class:`ConfigError`."""
    if token is not None and not token.strip():
        raise ConfigError("the HTTP bearer token is empty: set a token, or unset it and bind to 127.0.0.1")
    if token is None and not is_loopback(host):
        raise ConfigError(
            f"the HTTP port would listen on {host}, beyond this machine, without a bearer token: "
            "set REFOLD_WORKER__BEARER_TOKEN (or REFOLD_WORKER__BEARER_TOKEN_FILE), or bind to 127.0.0.1"
        )


def bearer(token: str | None) -> Middleware:
    """Middleware that asks for ``Authorization: Bearer <token>`` on everything but the probes."""
    expected = None if token is None else f"Bearer {token}".encode()

    @web.middleware
    async def check(request: web.Request, handler: Handler) -> web.StreamResponse:
        if expected is not None and not route_of(request).startswith(OPEN_PREFIX):
            given = request.headers.get("Authorization", "").encode("utf-8", "surrogateescape")
            if not hmac.compare_digest(given, expected):
                raise Problem("unauthorized", "this port asks for a bearer token: Authorization: Bearer …")
        return await handler(request)

    return check
