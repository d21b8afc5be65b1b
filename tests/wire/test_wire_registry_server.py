"""The read-only endpoint, asked by the real Confluent client over a real socket."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.serialization import MessageField, SerializationContext

from refold.core.envelope import Envelope
from refold.wire.codec import decode, encode
from refold.wire.envelope import decode_envelope, encode_envelope, to_record
from refold.wire.framing import guid_frame
from refold.wire.journal import journal_value
from refold.wire.registry_server import BODY_BYTES_MAX, RegistryServer
from refold.wire.schemas import registry
from wire.served import Served
from wire.support import SUBJECTS, sample

#: Those whose values have a subject of ours.
TOPICS = ("inbox", "journal", "state", "history", "batches", "generations", "review", "work", "evals")

ENVELOPE = Envelope("e-1", "acme", "s-1", "MessageAppended", event_time_ms=1, payload=b"\0\1")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with Served(RegistryServer(registry(), prefix="app").application()) as served:
        yield served.url


@pytest.fixture
def client(url: str) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": url}) as made:
        yield made


def test_a_plain_deserializer_reads_journal_and_state(client: SchemaRegistryClient) -> None:
    """A program that never imports refold: the id in the frame is enough."""
    deserialize = AvroDeserializer(client)
    env = decode_envelope(encode_envelope(ENVELOPE))
    journal = journal_value(7, 8, 3, 4711, env)
    context = SerializationContext("app.journal", MessageField.VALUE)
    expected = {"seq": 7, "time_ms": 8, "inbox_partition": 3, "inbox_offset": 4711, "event": to_record(env)}
    assert deserialize(journal, context) == expected
    snapshot = sample(registry().get("refold.SessionSnapshot").schema)
    state = encode("refold.SessionSnapshot", snapshot)
    assert deserialize(state, SerializationContext("app.state", MessageField.VALUE)) == snapshot
    assert deserialize(None, SerializationContext("app.state", MessageField.VALUE)) is None
    payload = encode("refold.event.FactSet", {"name": "n", "value": "1"})
    assert deserialize(payload, None) == {"name": "n", "value": "1", "extra": None}


def test_a_plain_deserializer_reads_a_frame_by_guid(client: SchemaRegistryClient) -> None:
    value = guid_frame(registry().get("refold.event.FactRemoved").guid) + b"\x02n"
    assert AvroDeserializer(client)(value, None) == {"name": "n"}


def test_a_plain_deserializer_with_the_latest_version(client: SchemaRegistryClient) -> None:
    deserialize = AvroDeserializer(client, conf={"use.latest.version": True})
    read = deserialize(encode_envelope(ENVELOPE), SerializationContext("app.inbox", MessageField.VALUE))
    assert read == to_record(ENVELOPE)


@pytest.mark.parametrize("auto_register", [True, False])
def test_a_plain_serializer_writes_envelopes_we_read(
    client: SchemaRegistryClient, auto_register: bool
) -> None:
    """Stock producers begin by registering or looking up their schema: both give the pinned id."""
    schema = registry().get("refold.Envelope")
    serialize = AvroSerializer(
        client, schema.text, conf={"auto.register.schemas": auto_register, "normalize.schemas": False}
    )
    value = serialize(to_record(ENVELOPE), SerializationContext("app.inbox", MessageField.VALUE))
    assert value == encode_envelope(ENVELOPE)
    assert decode(value).record == to_record(ENVELOPE)


def test_the_client_finds_subjects_versions_ids_and_guids(client: SchemaRegistryClient) -> None:
    aliases = {f"app.{topic}-value" for topic in TOPICS}
    assert set(client.get_subjects()) == {*SUBJECTS, *aliases}
    for subject in SUBJECTS:
        entry = registry().get(subject)
        assert client.get_versions(subject) == list(range(1, entry.version + 1))
        latest = client.get_latest_version(subject)
        assert (latest.schema_id, latest.version, latest.subject) == (entry.id, entry.version, subject)
        assert json.loads(latest.schema.schema_str) == entry.schema
        assert client.get_version(subject, entry.version).schema_id == entry.id
        assert client.get_schema(entry.id).schema_str == entry.text
        assert client.get_schema_by_guid(str(entry.guid)).schema_str == entry.text
        assert client.lookup_schema(subject, Schema(entry.text, "AVRO")).schema_id == entry.id
    state = client.get_latest_version("app.state-value")
    assert state.schema_id == registry().get("refold.SessionSnapshot").id
    assert client.get_schema_types() == ["AVRO"]
    assert client.get_compatibility("refold.Envelope") == "FULL_TRANSITIVE"
    assert client.get_config().compatibility_level == "FULL_TRANSITIVE"


def test_the_client_may_ask_whether_a_change_is_compatible(client: SchemaRegistryClient) -> None:
    schema = json.loads(registry().get("refold.Envelope").text)
    schema["fields"].append({"name": "region", "type": ["null", "string"], "default": None})
    assert client.test_compatibility("refold.Envelope", Schema(json.dumps(schema), "AVRO"))
    del schema["fields"][-1]["default"]
    assert not client.test_compatibility("refold.Envelope", Schema(json.dumps(schema), "AVRO"))
    assert not client.test_compatibility("app.inbox-value", Schema(json.dumps(schema), "AVRO"), version=1)


def refusal(call: Any) -> tuple[int, int]:
    with pytest.raises(SchemaRegistryError) as caught:
        call()
    return caught.value.http_status_code, caught.value.error_code


def test_what_is_not_there_has_the_codes_clients_know(client: SchemaRegistryClient) -> None:
    assert refusal(lambda: client.get_latest_version("nonsense")) == (404, 40401)
    assert refusal(lambda: client.get_versions("nonsense")) == (404, 40401)
    assert refusal(lambda: client.get_version("refold.Envelope", 99)) == (404, 40402)
    assert refusal(lambda: client.get_schema(5)) == (404, 40403)
    assert refusal(lambda: client.get_schema_by_guid("b5a4a0b0-0000-4000-8000-000000000000")) == (404, 40403)
    unknown = Schema('{"type":"record","name":"X","fields":[]}', "AVRO")
    assert refusal(lambda: client.lookup_schema("refold.Envelope", unknown)) == (404, 40403)


def test_writes_are_refused(client: SchemaRegistryClient, url: str) -> None:
    unknown = Schema('{"type":"record","name":"X","fields":[]}', "AVRO")
    assert refusal(lambda: client.register_schema("refold.Envelope", unknown)) == (405, 42205)
    assert refusal(lambda: client.register_schema("mine-value", unknown)) == (405, 42205)
    assert refusal(lambda: client.delete_subject("refold.Envelope")) == (405, 42205)
    assert refusal(lambda: client.delete_version("refold.Envelope", 1)) == (405, 42205)
    assert refusal(lambda: client.set_compatibility("refold.Envelope", "NONE")) == (405, 42205)
    answer = httpx.put(f"{url}/mode/refold.Envelope", json={"mode": "IMPORT"})
    assert (answer.status_code, answer.json()["error_code"]) == (405, 42205)
    assert httpx.get(f"{url}/mode").json() == {"mode": "READONLY"}
    assert httpx.get(f"{url}/mode/refold.Envelope").json() == {"mode": "READONLY"}


def test_the_remaining_paths(url: str) -> None:
    entry = registry().get("refold.Envelope")
    with httpx.Client(base_url=url) as http:
        assert http.get("/").json() == {}
        assert http.get("/contexts").json() == ["."]
        assert http.get(f"/schemas/ids/{entry.id}/schema").json() == entry.schema
        assert http.get("/subjects/refold.Envelope/versions/latest/schema").json() == entry.schema
        assert http.get("/subjects/refold.Envelope/versions/-1").json()["version"] == entry.version
        assert http.get(f"/schemas/ids/{entry.id}/subjects").json() == ["refold.Envelope", "app.inbox-value"]
        assert http.get(f"/schemas/ids/{entry.id}/versions").json() == [
            {"subject": "refold.Envelope", "version": entry.version},
            {"subject": "app.inbox-value", "version": entry.version},
        ]
        assert (
            http.get(f"/schemas/ids/{entry.id}", params={"subject": "whatever-value"}).json()["schema"]
            == entry.text
        )
        assert http.get("/subjects", params={"subjectPrefix": "app."}).json() == sorted(
            f"app.{topic}-value" for topic in TOPICS
        )
        rows = http.get("/schemas", params={"subjectPrefix": "refold.part.", "latestOnly": "true"}).json()
        assert {row["subject"] for row in rows} == {s for s in SUBJECTS if s.startswith("refold.part.")}
        assert http.get("/subjects/refold.Envelope/versions/1/referencedby").json() == []
        for path, code in (
            ("/subjects/refold.Envelope/versions/zero", 42202),
            ("/subjects/refold.Envelope/versions/0", 42202),
            ("/schemas/ids/abc", 40403),
            ("/schemas/guids/abc", 40403),
            ("/config/nonsense", 40401),
            ("/nonsense", 404),
        ):
            answer = http.get(path)
            assert answer.status_code in (404, 422)
            assert answer.json()["error_code"] == code, path
            assert answer.headers["content-type"].startswith("application/vnd.schemaregistry.v1+json")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"schema": 5}',
        b'{"schema": "\\"string\\""}',
        b'{"schema": "{"}',
        b'{"schema": "{}", "schemaType": "JSON"}',
        b'{"schema": "' + b"[" * 100_000 + b'"}',
    ],
    ids=range(8),
)
def test_bad_bodies_are_refused_not_crashed_on(url: str, body: bytes) -> None:
    for path in ("/subjects/refold.Envelope", "/compatibility/subjects/refold.Envelope/versions/latest"):
        answer = httpx.post(url + path, content=body)
        assert (answer.status_code, answer.json()["error_code"]) == (422, 42201)


@pytest.mark.parametrize(
    "schema", ['{"type": "record"}', '{"type":"record","name":"R","fields":[{"name":"a","type":"X"}]}', "{}"]
)
def test_schemas_that_are_none_are_refused(url: str, schema: str) -> None:
    answer = httpx.post(
        f"{url}/compatibility/subjects/refold.Envelope/versions/latest", json={"schema": schema}
    )
    assert (answer.status_code, answer.json()["error_code"]) == (422, 42201)
    assert (
        httpx.post(f"{url}/subjects/refold.Envelope", json={"schema": schema}).json()["error_code"] == 42201
    )


def test_an_endless_body_is_cut_off(url: str) -> None:
    answer = httpx.post(f"{url}/subjects/refold.Envelope", content=b" " * (BODY_BYTES_MAX + 1))
    assert answer.status_code == 413


def test_why_a_change_is_refused_is_said(url: str) -> None:
    schema = json.loads(registry().get("refold.Envelope").text)
    schema["fields"][0]["type"] = "bytes"
    answer = httpx.post(
        f"{url}/compatibility/subjects/refold.Envelope/versions",
        params={"verbose": "true"},
        json={"schema": json.dumps(schema)},
    ).json()
    assert answer["is_compatible"] is False
    assert "refold.Envelope.event_id" in answer["messages"][0]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "record", "name": "t.R"},
        {"type": "record", "name": "t.R", "aliases": [1.5], "fields": []},
        {"type": "record", "name": "t.R", "fields": [{"name": [], "type": "int"}]},
        {"type": "record", "name": "t.R", "fields": [{"name": {}, "type": "int"}]},
        {"type": "record", "name": "t.R", "fields": [{"name": "\ud800", "type": "int"}]},
        {"type": "error", "name": "t.R", "fields": []},
    ],
)
def test_a_schema_that_is_none_is_answered_as_the_api_says(url: str, schema: dict[str, Any]) -> None:
    """Some are let pass by the parser; none may be an internal error with a traceback in the log."""
    for path in (
        "/subjects/refold.HistoryBlock",
        "/subjects/refold.HistoryBlock/versions",
        "/compatibility/subjects/refold.HistoryBlock/versions/latest?verbose=true",
    ):
        answer = httpx.post(url + path, json={"schema": json.dumps(schema)})
        assert answer.status_code == 422, answer.text
        assert answer.json()["error_code"] == 42201


def test_a_version_of_thousands_of_digits_is_no_version(url: str) -> None:
    answer = httpx.get(f"{url}/subjects/refold.HistoryBlock/versions/{'9' * 5_000}")
    assert (answer.status_code, answer.json()["error_code"]) == (422, 42202)
