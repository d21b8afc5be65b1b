"""A real registry beside the file registry: foreign ids, newer writers, registration."""

from __future__ import annotations

import json
import socket
import threading
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp import web

from refold.errors import ConfigError, InvalidRecord, PermissionDenied, UnavailableError
from refold.wire.codec import decode, encode, encode_body, unknown_symbols
from refold.wire.confluent import MISS_TTL_S, ConfluentRegistry, use_registry
from refold.wire.envelope import decode_envelope
from refold.wire.framing import frame, guid_frame
from refold.wire.registry_server import RegistryServer
from refold.wire.schemafiles import schema_root
from refold.wire.schemas import SchemaRegistry, load_registry, registry
from wire.served import Served
from wire.support import SchemaDir, installed, minimal, newest, sample


class FakeRegistry:
    """As much of a writable Confluent registry as is needed: ids by counting, import mode where allowed."""

    def __init__(self, *, imports: bool = True) -> None:
        self.schemas: dict[int, dict[str, Any]] = {}
        self.imports = imports
        self.modes: dict[str, str] = {}
        self.requests: list[str] = []
        self.status: int | None = None
        self.mode_status = 422

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._count])
        app.add_routes(
            [
                web.get("/schemas/ids/{id}", self._by_id),
                web.get("/schemas/guids/{guid}", self._by_guid),
                web.post("/subjects/{subject}", self._lookup),
                web.post("/subjects/{subject}/versions", self._register),
                web.put("/mode/{subject}", self._mode),
            ]
        )
        return app

    def add(self, schema: dict[str, Any], guid: str | None = None, **more: Any) -> int:
        number = max([0, *(n for n in self.schemas if n < 10_000)]) + 1
        self.schemas[number] = {"schema": json.dumps(schema), "id": number, "guid": guid, **more}
        return number

    @web.middleware
    async def _count(self, request: web.Request, handler: Any) -> web.StreamResponse:
        self.requests.append(f"{request.method} {request.path}")
        if self.status is not None:
            return web.json_response({"error_code": self.status, "message": "no"}, status=self.status)
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _by_id(self, request: web.Request) -> web.Response:
        found = self.schemas.get(int(request.match_info["id"]))
        return self._answer(found)

    async def _by_guid(self, request: web.Request) -> web.Response:
        guid = request.match_info["guid"]
        return self._answer(next((s for s in self.schemas.values() if s["guid"] == guid), None))

    def _answer(self, found: dict[str, Any] | None) -> web.Response:
        if found is None:
            return web.json_response({"error_code": 40403, "message": "Schema not found"}, status=404)
        return web.json_response(found)

    async def _lookup(self, request: web.Request) -> web.Response:
        body = await request.json()
        subject = request.match_info["subject"]
        for number, row in self.schemas.items():
            if row.get("subject") == subject and row["schema"] == body["schema"]:
                return web.json_response({"id": number})
        return web.json_response({"error_code": 40401, "message": "no"}, status=404)

    async def _register(self, request: web.Request) -> web.Response:
        body = await request.json()
        subject = request.match_info["subject"]
        if "id" in body:
            assert self.modes.get(subject) == "IMPORT"
            number = body["id"]
        else:
            number = max([0, *self.schemas]) + 1
        self.schemas[number] = {"schema": body["schema"], "subject": subject, "guid": None, "id": number}
        return web.json_response({"id": number})

    async def _mode(self, request: web.Request) -> web.Response:
        if not self.imports:
            return web.json_response(
                {"error_code": 42205, "message": "not permitted"}, status=self.mode_status
            )
        mode = (await request.json())["mode"]
        self.modes[request.match_info["subject"]] = mode
        return web.json_response({"mode": mode})


@pytest.fixture
def known() -> Iterator[SchemaRegistry]:
    """A registry of our own for the test, used by the codec."""
    with installed(load_registry(schema_root())) as made:
        yield made


@pytest.fixture
def fake() -> FakeRegistry:
    return FakeRegistry()


@pytest.fixture
def served(fake: FakeRegistry) -> Iterator[Served]:
    with Served(fake.app()) as made:
        yield made


def code(value: bytes) -> str:
    with pytest.raises(InvalidRecord) as caught:
        decode(value)
    return caught.value.code


def test_a_record_with_a_foreign_id_is_read_by_what_its_schema_is(
    known: SchemaRegistry, fake: FakeRegistry, served: Served
) -> None:
    """A third-party producer registered our envelope with its registry and got an id of that registry."""
    schema = newest("refold.Envelope").schema
    stripped = json.loads(json.dumps(schema))
    stripped.pop("doc")
    number = fake.add(stripped, guid="0f3a0000-0000-4000-8000-000000000001")
    record = sample(schema)
    body = encode_body("refold.Envelope", record)
    assert code(frame(number) + body) == "unknown_schema"
    ConfluentRegistry(served.url, known).attach()
    decoded = decode(frame(number) + body)
    assert decoded == ("refold.Envelope", newest("refold.Envelope").version, record)
    env = decode_envelope(frame(number) + body)
    assert env.raw == body
    guid = uuid.UUID("0f3a0000-0000-4000-8000-000000000001")
    assert decode(guid_frame(guid) + body).record == record
    for _ in range(5):
        decode(frame(number) + body)
    assert fake.requests == [f"GET /schemas/ids/{number}", f"GET /schemas/guids/{guid}"]


def test_d26_a_newer_writer_is_read_through_its_own_registry(known: SchemaRegistry, tmp_path: Any) -> None:
    """D26, forward: the newer field is dropped, the unknown symbol becomes the default and is counted."""
    directory = SchemaDir(tmp_path)
    actor = directory.read("shared/actor/v1.avsc")
    actor["fields"][0]["type"]["symbols"].append("robot")
    directory.write("shared/actor/v2.avsc", actor)
    directory.add_version("refold.Actor", 2, "shared/actor/v2.avsc")
    schema = directory.read("envelope/v1.avsc")
    schema["fields"].insert(0, {"name": "region", "type": "string", "default": "eu", "doc": "Region."})
    directory.write("envelope/v2.avsc", schema)
    directory.add_version("refold.Envelope", 2, "envelope/v2.avsc", {"refold.Actor": 2})
    newer = directory.lock()
    record = {
        **minimal(newer.get("refold.Envelope").schema),
        "region": "us",
        "actor": {"kind": "robot", "name": "r2"},
    }
    with installed(newer):
        value = encode("refold.Envelope", record)
    assert code(value) == "unknown_schema"
    with Served(RegistryServer(newer).application()) as remote:
        ConfluentRegistry(remote.url, known).attach()
        before = unknown_symbols["refold.ActorKind", "robot"]
        env = decode_envelope(value)
    assert env.actor is not None
    assert (env.actor.kind, env.actor.name) == ("unknown", "r2")
    assert unknown_symbols["refold.ActorKind", "robot"] == before + 1
    assert decode_envelope(known.get("refold.Envelope").frame + env.raw) == env


@pytest.mark.parametrize(
    "schema",
    [
        pytest.param({"type": "record", "name": "their.Order", "fields": []}, id="not ours"),
        pytest.param({"type": "record", "name": "refold.Envelope", "fields": []}, id="ours by name only"),
        pytest.param({"type": "record", "name": "refold.Envelope"}, id="no schema"),
        pytest.param("string", id="no record"),
        pytest.param(["null", "string"], id="a union"),
    ],
)
def test_a_schema_that_is_not_ours_stays_unknown(
    known: SchemaRegistry, fake: FakeRegistry, served: Served, schema: Any
) -> None:
    number = fake.add(schema)
    ConfluentRegistry(served.url, known).attach()
    assert code(frame(number) + b"\0") == "unknown_schema"


def test_schemas_of_other_kinds_stay_unknown(
    known: SchemaRegistry, fake: FakeRegistry, served: Served
) -> None:
    number = fake.add(newest("refold.Envelope").schema, schemaType="JSON")
    ConfluentRegistry(served.url, known).attach()
    assert code(frame(number) + b"\0") == "unknown_schema"


def with_field(kind: Any) -> dict[str, Any]:
    """Our envelope with a first field of somebody else's."""
    schema = json.loads(newest("refold.Envelope").text)
    schema["fields"].insert(0, {"name": "theirs", "type": kind})
    return dict(schema)


def lists(depth: int, items: Any) -> Any:
    for _ in range(depth):
        items = {"type": "array", "items": items}
    return items


RING = {"type": "record", "name": "their.Ring", "fields": [{"name": "next", "type": ["null", "their.Ring"]}]}


@pytest.mark.parametrize(
    "kind",
    [
        # Python's compiler refuses more than 20 loops within each other, and more than 100 indentations.
        pytest.param(lists(11, "long"), id="lists in lists"),
        pytest.param(lists(60, "long"), id="more lists in lists"),
        pytest.param({"type": "enum", "name": "their.E", "symbols": [["a"], "b"]}, id="no symbol"),
    ],
)
def test_d24_a_schema_that_cannot_be_compiled_is_unknown(
    known: SchemaRegistry, fake: FakeRegistry, served: Served, kind: Any
) -> None:
    """D24: a record that names it is rejected; the worker goes on."""
    number = fake.add(with_field(kind))
    ConfluentRegistry(served.url, known).attach()
    assert code(frame(number) + b"\0" * 100) == "unknown_schema"


def test_d24_a_record_that_is_nested_without_end_is_refused(
    known: SchemaRegistry, fake: FakeRegistry, served: Served
) -> None:
    number = fake.add(with_field(RING))
    ConfluentRegistry(served.url, known).attach()
    value = frame(number) + b"\2" * 100_000 + b"\0"
    for read in (decode, decode_envelope):
        with pytest.raises(InvalidRecord) as caught:
            read(value)
        assert caught.value.code == "undecodable"
    good = encode_body("refold.Envelope", minimal(newest("refold.Envelope").schema))
    assert decode_envelope(frame(number) + b"\2\2\0" + good).raw == good


@pytest.mark.parametrize(
    "items",
    [
        "null",
        {"type": "record", "name": "their.Nothing", "fields": []},
        {"type": "fixed", "name": "their.None", "size": 0},
        {"type": "record", "name": "their.N", "fields": [{"name": "n", "type": "null"}]},
    ],
)
def test_d24_lists_of_what_has_no_bytes_are_unknown(
    known: SchemaRegistry, fake: FakeRegistry, served: Served, items: Any
) -> None:
    """A few bytes would be a million items, block after block: minutes and gigabytes for one record."""
    number = fake.add(with_field({"type": "array", "items": items}))
    ConfluentRegistry(served.url, known).attach()
    assert code(frame(number) + b"\0" * 100) == "unknown_schema"


@pytest.mark.parametrize("status", [400, 405, 422])
def test_d24_a_registry_that_does_not_take_the_question_does_not_know_the_schema(
    known: SchemaRegistry, fake: FakeRegistry, served: Served, status: int
) -> None:
    """D24: the number comes from the record. Some refuse one beyond 31 bits, or know no GUIDs: that must not
    stop the worker as a wrong configuration does."""
    ConfluentRegistry(served.url, known).attach()
    fake.status = status
    assert code(frame(2**32 - 1) + b"\0") == "unknown_schema"
    assert code(guid_frame(uuid.UUID(int=7)) + b"\0") == "unknown_schema"


@pytest.mark.parametrize("number", ["x", None, -1, 2**32, {}])
def test_an_answer_by_guid_need_not_have_a_sensible_id(
    known: SchemaRegistry, fake: FakeRegistry, served: Served, number: Any
) -> None:
    guid = uuid.UUID("0f3a0000-0000-4000-8000-000000000001")
    fake.add(newest("refold.HistoryBlock").schema, guid=str(guid))
    fake.schemas[1]["id"] = number
    ConfluentRegistry(served.url, known).attach()
    assert code(guid_frame(guid) + b"\2\0") == "unknown_schema"


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(b"hello\r\n\r\n", id="no HTTP"),
        pytest.param(b"", id="nothing"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", id="a list"),
        pytest.param(b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000, id="nested JSON"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", id="bad chunk"),
        pytest.param(b"HTTP/1.1 503 no\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", id="bad chunk of 503"),
    ],
)
def test_what_is_no_registry_is_one_that_does_not_answer(known: SchemaRegistry, answer: bytes) -> None:
    """Another service's port in the setting, a proxy's page: named as such, and no record is rejected."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with server.accept()[0] as peer:
                peer.recv(10_000)
                peer.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        ConfluentRegistry(f"http://u:secret@127.0.0.1:{server.getsockname()[1]}", known).attach()
        with pytest.raises(UnavailableError, match=r"registry_url|answered 503") as caught:
            decode(frame(1) + b"\0")
        assert "secret" not in str(caught.value)
        thread.join(10)


def test_a_miss_is_asked_again_later(known: SchemaRegistry, fake: FakeRegistry, served: Served) -> None:
    """The writer may be about to register; until then one question per TTL, not one per record."""
    now = 100.0
    remote = ConfluentRegistry(served.url, known, clock=lambda: now)
    assert remote.resolve(1) is None
    assert remote.resolve(1) is None
    assert len(fake.requests) == 1
    fake.add(newest("refold.HistoryBlock").schema)
    now += MISS_TTL_S
    entry = remote.resolve(1)
    assert entry is not None
    assert entry.subject == "refold.HistoryBlock"
    assert len(fake.requests) == 2


def test_a_registry_that_does_not_answer_is_no_reason_to_reject(
    known: SchemaRegistry, fake: FakeRegistry, served: Served
) -> None:
    ConfluentRegistry(served.url, known).attach()
    for status, error in ((503, UnavailableError), (429, UnavailableError), (401, PermissionDenied)):
        fake.status = status
        with pytest.raises(error):
            decode(frame(1) + b"\0")
    ConfluentRegistry("http://user:secret@127.0.0.1:9", known, timeout_s=1).attach()
    with pytest.raises(UnavailableError) as caught:
        decode(frame(1) + b"\0")
    assert "127.0.0.1:9" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_the_setting_decides(fake: FakeRegistry, served: Served) -> None:
    """One call at start: with a URL foreign ids are looked up, without one they are unknown."""
    number = fake.add(newest("refold.HistoryBlock").schema)
    body = encode_body("refold.HistoryBlock", {"first_seq": 1, "offsets": [2]})
    try:
        use_registry(served.url)
        assert decode(frame(number) + body).record == {"first_seq": 1, "offsets": [2]}
    finally:
        use_registry(None)
    assert code(frame(number) + body) == "unknown_schema"


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "registry:8081",
        "http://",
        "ftp://x",
        "http://u:secret@[::1",
        "http://u:secret@x:port",
    ],
)
def test_a_registry_url_must_be_http(known: SchemaRegistry, url: str) -> None:
    with pytest.raises(ConfigError, match="registry_url") as caught:
        ConfluentRegistry(url, known)
    assert "secret" not in str(caught.value)


def test_registering_keeps_the_pinned_ids_where_there_is_an_import_mode(
    fake: FakeRegistry, served: Served
) -> None:
    remote = ConfluentRegistry(served.url, registry())
    entries = registry().entries
    done = remote.register(entries)
    assert [(r.subject, r.version, r.outcome, r.id) for r in done] == [
        (e.subject, e.version, "pinned", e.id) for e in entries
    ]
    assert {n: json.loads(row["schema"]) for n, row in fake.schemas.items()} == {
        e.id: e.schema for e in entries
    }
    assert set(fake.modes.values()) == {"READWRITE"}
    count = len(fake.requests)
    assert remote.register(entries) == done
    assert len(fake.requests) == count + len(entries)


@pytest.mark.parametrize("status", [422, 403])
def test_registering_says_where_the_registry_chose_other_ids(
    fake: FakeRegistry, served: Served, status: int
) -> None:
    """No import mode, or not for us."""
    fake.imports = False
    fake.mode_status = status
    entries = registry().entries[:3]
    done = ConfluentRegistry(served.url, registry()).register(entries)
    assert [(r.outcome, r.id) for r in done] == [("other_id", 1), ("other_id", 2), ("other_id", 3)]
