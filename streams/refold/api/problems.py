"""Errors of the HTTP port as problem+json (RFC 9457), built in one place so that codes stay a closed list."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import orjson
from aiohttp import web

ProblemCode = Literal[
    # 400: the request itself is malformed; the detail names the parameter.
    "bad_request",
    # 401: a bearer token is configured here and the request carries none, or another one.
    "unauthorized",
    # 404: the session does not exist (never opened, or deleted).
    "unknown_session",
    "unknown_generation",
    # 404: ruled on, but too long ago to be remembered; the journal and the rejected topic know.
    "ruling_forgotten",
    # 404: no such path.
    "unknown_path",
    # 405: the path exists, the method does not.
    "method_not_allowed",
    # 421: this worker does not own the key's partition; ask the group description again.
    "not_owner",
    # 429: the named limit of concurrent streams or waiting requests is reached.
    "too_many_requests",
    # 503: owned, but still waiting for or restoring its state; Retry-After says when to come back.
    "restoring",
    # 503: the worker is stopping.
    "stopping",
    # 504: min_seq, or the ruling, was not reached within wait_ms.
    "not_reached",
    # 500: a fault of refold; the worker's log has it.
    "internal",
]

STATUS: Final[dict[ProblemCode, int]] = {
    "bad_request": 400,
    "unauthorized": 401,
    "unknown_session": 404,
    "unknown_generation": 404,
    "ruling_forgotten": 404,
    "unknown_path": 404,
    "method_not_allowed": 405,
    "not_owner": 421,
    "too_many_requests": 429,
    "restoring": 503,
    "stopping": 503,
    "not_reached": 504,
    "internal": 500,
}


class Problem(Exception):
    """Raised by a handler, turned into a response by the middleware."""

    def __init__(
        self,
        code: ProblemCode,
        detail: str,
        *,
        retry_after_s: float | None = None,
        headers: Mapping[str, str] | None = None,
        **extra: object,
    ):
        super().__init__(detail)
        self.code = code
        self.detail = detail
        self.retry_after_s = retry_after_s
        self.headers = headers or {}
        self.extra = extra

    def response(self) -> web.Response:
        status = STATUS[self.code]
        body = {
            "type": f"urn:refold:problem:{self.code}",
            "title": self.code.replace("_", " "),
            "status": status,
            "code": self.code,
            "detail": self.detail,
            **self.extra,
        }
        headers = {**self.headers, "Cache-Control": "no-store"}
        if self.retry_after_s is not None:
            # The header is whole seconds by its RFC; the exact estimate travels in the body.
            headers["Retry-After"] = str(max(1, round(self.retry_after_s)))
            body["retry_after_s"] = round(self.retry_after_s, 3)
        if self.code == "unauthorized":
            headers["WWW-Authenticate"] = 'Bearer realm="refold"'
        return web.Response(
            status=status,
            body=orjson.dumps(body, option=orjson.OPT_SORT_KEYS),
            content_type="application/problem+json",
            headers=headers,
        )
