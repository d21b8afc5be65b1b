"""A schema registry of another team: knows a newer Envelope whose actor kind has a symbol we do not."""

from __future__ import annotations

import copy
import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import fastavro

from refold.core.envelope import Envelope
from refold.wire.envelope import to_record
from refold.wire.schemas import registry

#: The id that registry gave to the newer schema; one of ours would be from 0x52460001 up.
NEWER_ID = 9_001
NEW_SYMBOL = "robot"


def newer_schema() -> dict[str, Any]:
    """Our envelope with one more kind of actor, as a newer release would write it."""
    schema: dict[str, Any] = copy.deepcopy(registry().get("refold.Envelope").schema)
    [kind] = [node for node in _walk(schema) if node.get("name", "").endswith("ActorKind")]
    kind["symbols"].append(NEW_SYMBOL)
    return schema


def newer_body(env: Envelope) -> bytes:
    """``env`` by an actor of the new kind, in the newer schema, without a frame."""
    out = io.BytesIO()
    record = {**to_record(env), "actor": {"kind": NEW_SYMBOL, "id": "r-1", "name": None}}
    fastavro.schemaless_writer(out, fastavro.parse_schema(newer_schema()), record)
    return out.getvalue()


def _walk(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        for child in node.values():
            yield from _walk(child)
    elif isinstance(node, list):
        for child in node:
            yield from _walk(child)


@contextmanager
def serving() -> Iterator[str]:
    """The registry's URL while it runs."""
    answer = json.dumps({"schema": json.dumps(newer_schema())}).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path == f"/schemas/ids/{NEWER_ID}"
            body = answer if known else b'{"error_code":40403,"message":"Schema not found"}'
            self.send_response(200 if known else 404)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)
