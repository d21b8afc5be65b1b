"""What a reducer gets of an event.

A payload is a plain value: of refold's own types the record of their schema, content parts with their fields
beside ``type`` and ``text`` (as in the JSON of the HTTP port; bytes are ``{"base64": …}``); of your own types
the JSON object that ``publish_json`` has sent, or, where the reducer names an Avro schema for the type, the
framed record of that schema. Which schema a record has is said by the envelope's ``type_version``: nothing is
asked of a registry, so the fold hangs on the journal and the code alone.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from refold.core.envelope import Actor, Envelope
from refold.core.jsontext import is_valid_json
from refold.core.types import IMPLEMENTED_TYPES
from refold.errors import InvalidRecord, UsageError
from refold.wire.codec import decode
from refold.wire.framing import split_frame
from refold.wire.owner import json_ready
from refold.wire.parts import from_wire

#: type_version -> parsed schema.
Schemas = Mapping[int, Any]


@dataclass(frozen=True, slots=True)
class Event:
    """One accepted event. ``seq`` counts the session's events from 1; ``time_ms`` is session time, the only
    clock a reducer may look at; ``raw`` is the payload as it was sent."""

    type: str
    type_version: int
    event_id: str
    seq: int
    time_ms: int
    event_time_ms: int
    tenant: str
    session: str
    subject: str | None
    actor: Actor | None
    raw: bytes
    _schemas: Schemas | None = None

    @property
    def payload(self) -> Any:
        """The payload as a new plain value. Raises InvalidRecord for bytes that are none of what the module
        says: a reducer that lets it through has its part quarantined."""
        if self._schemas is not None:
            return json_ready(_avro(self.type, self._schemas, self.type_version, self.raw))
        if self.type in IMPLEMENTED_TYPES:
            return json_ready(_own(self.type, self.raw))
        if self.raw[:1] != b"{":
            raise InvalidRecord("bad_json", f"the payload of {self.type} is no JSON object; see Event.raw")
        try:
            text = self.raw.decode()
        except UnicodeDecodeError:
            raise InvalidRecord("bad_text", f"the payload of {self.type} is not UTF-8") from None
        if not is_valid_json(text):
            raise InvalidRecord("bad_json", f"the payload of {self.type} is no valid JSON")
        try:
            return json.loads(text)
        except ValueError:
            raise InvalidRecord(
                "bad_json", f"the payload of {self.type} has a number longer than Python reads"
            ) from None


def viewer(schemas: Mapping[str, Schemas]) -> Callable[[Envelope, int, int], Event]:
    """Makes events of envelopes. ``schemas``: those of types that are Avro."""

    def view(env: Envelope, seq: int, time_ms: int) -> Event:
        return Event(
            env.type,
            env.type_version,
            env.event_id,
            seq,
            time_ms,
            env.event_time_ms,
            env.tenant,
            env.session,
            env.subject,
            env.actor,
            env.payload,
            schemas.get(env.type),
        )

    return view


def parse_schemas(kind: str, given: Any) -> Schemas:
    """``given``: an Avro schema, or a mapping of type_version to schemas. Raises UsageError, also for a
    schema by which a payload could end the process: fastavro's reader has no bound of its own."""
    import fastavro

    versions = (
        given if isinstance(given, Mapping) and all(isinstance(key, int) for key in given) else {1: given}
    )
    parsed = {}
    for version, schema in versions.items():
        try:
            parsed[version] = fastavro.parse_schema(json.loads(schema) if isinstance(schema, str) else schema)
        except (ValueError, TypeError, KeyError, fastavro.schema.SchemaParseException) as error:
            raise UsageError(
                f"the schema of {kind}, type_version {version}, is no Avro schema: {error}"
            ) from None
        try:
            _takes_bytes(parsed[version], {}, frozenset())
        except ValueError as error:
            raise UsageError(f"the schema of {kind}, type_version {version}: {error}") from None
    return parsed


def _takes_bytes(schema: Any, known: dict[str, bool], inside: frozenset[str]) -> bool:
    """Whether each value of a parsed schema takes a byte at least. ``known``: of the names so far;
    ``inside``: the records around. Raises ValueError where nothing bounds the depth, or a list's length."""
    if isinstance(schema, str):
        if schema in inside:
            raise ValueError(
                f"{schema} contains itself, and bytes from anybody could nest it until the stack ends"
            )
        return known.get(schema, schema != "null")
    if isinstance(schema, list):
        for one in schema:
            _takes_bytes(one, known, inside)
        return True  # which of them it is
    kind = schema["type"]
    if kind in ("record", "error"):
        name = schema["name"]
        fields = [_takes_bytes(field["type"], known, inside | {name}) for field in schema["fields"]]
        known[name] = any(fields)
        return known[name]
    if kind == "array":
        if not _takes_bytes(schema["items"], known, inside):
            raise ValueError("the items of a list take no bytes, so a few could say that there are billions")
        return True
    if kind == "map":
        _takes_bytes(schema["values"], known, inside)
        return True
    if kind in ("enum", "fixed"):
        known[schema["name"]] = kind == "enum" or schema["size"] > 0
        return known[schema["name"]]
    return _takes_bytes(kind, known, inside)


def _avro(kind: str, schemas: Schemas, version: int, raw: bytes) -> Any:
    import fastavro

    schema = schemas.get(version)
    if schema is None:
        raise InvalidRecord("unknown_schema", f"no schema was named for {kind}, type_version {version}")
    _, at = split_frame(raw)
    source = io.BytesIO(raw)
    source.seek(at)
    try:
        record: Any = fastavro.schemaless_reader(source, schema, None)
    except Exception as error:  # fastavro raises what its readers meet: EOFError, IndexError, struct.error, …
        raise InvalidRecord("undecodable", f"the bytes are no {kind}: {type(error).__name__}") from None
    if source.tell() != len(raw):
        raise InvalidRecord("undecodable", f"{len(raw) - source.tell()} bytes follow the {kind}")
    return record


def _own(kind: str, raw: bytes) -> dict[str, Any]:
    record = decode(raw, expect=f"refold.event.{kind}").record
    if "content" in record:
        record["content"] = [from_wire(part) for part in record["content"]]
    if kind == "GenerationFinished":
        record["message"] = _own("MessageAppended", record["message"])
    return record
