"""Asking a worker's HTTP port whether it is there. Blocks."""

from __future__ import annotations

import http.client
from typing import Final
from urllib.parse import urlsplit

#: A live worker answers its health check in milliseconds; a stopped or dead one not at all.
PROBE_TIMEOUT_S: Final = 2.0


def ask(url: str, path: str) -> tuple[int, bytes] | None:
    """Status and body of ``GET url + path``; ``None`` when nobody answers there or ``url`` is no address."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return None
    make = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = make(parts.hostname, parts.port, timeout=PROBE_TIMEOUT_S)
    try:
        connection.request("GET", f"{parts.path.rstrip('/')}{path}")
        answer = connection.getresponse()
        return answer.status, answer.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
