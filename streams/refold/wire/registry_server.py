"""The file registry as a read-only Confluent-compatible HTTP endpoint: plain Avro programs decode our topics.

Nothing can be written: registering a schema that is already pinned answers with its id (that is how stock
serializers begin), everything else that would change something is refused with code 42205.

Beside its own name, the newest schema of a topic's values answers to ``{prefix}.{topic}-value``, which stock
(de)serializers derive from the topic.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Awaitable, Callable
from typing import Any, Final

import fastavro
from aiohttp import web
from fastavro.schema import SchemaParseException, UnknownType

from refold.errors import InvalidRecord
from refold.wire.canonical import canonical_form
from refold.wire.compat import incompatibilities
from refold.wire.schemafiles import Schema
from refold.wire.schemas import SchemaEntry, SchemaRegistry

CONTENT_TYPE: Final = "application/vnd.schemaregistry.v1+json"

#: Largest request body: a schema of ours has at most 20 KB with its docs; 1 MiB leaves room for any other.
BODY_BYTES_MAX: Final = 1024 * 1024

#: Error codes as the Confluent API documents them.
SUBJECT_NOT_FOUND: Final = 40401
VERSION_NOT_FOUND: Final = 40402
SCHEMA_NOT_FOUND: Final = 40403
INVALID_SCHEMA: Final = 42201
INVALID_VERSION: Final = 42202
NOT_PERMITTED: Final = 42205


class RegistryError(Exception):
    """Answered as ``{"error_code": …, "message": …}``."""

    def __init__(self, status: int, code: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class RegistryServer:
    """Handlers over one registry. ``prefix``: of the topics whose ``-value`` subjects are answered too."""

    def __init__(self, registry: SchemaRegistry, *, prefix: str = "refold") -> None:
        self._registry = registry
        self._aliases = {
            f"{prefix}.{info.topic}-value": subject
            for subject, info in registry.subjects.items()
            if info.topic is not None
        }

    def application(self) -> web.Application:
        app = web.Application(middlewares=[_errors], client_max_size=BODY_BYTES_MAX)
        app.add_routes(
            [
                web.get("/", self._root),
                web.get("/subjects", self._subjects),
                web.post("/subjects/{subject}", self._lookup),
                web.get("/subjects/{subject}/versions", self._versions),
                web.post("/subjects/{subject}/versions", self._register),
                web.get("/subjects/{subject}/versions/{version}", self._version),
                web.get("/subjects/{subject}/versions/{version}/schema", self._version_schema),
                web.get("/subjects/{subject}/versions/{version}/referencedby", self._referenced_by),
                web.get("/schemas", self._schemas),
                web.get("/schemas/types", self._types),
                web.get("/schemas/ids/{id}", self._id),
                web.get("/schemas/ids/{id}/schema", self._id_schema),
                web.get("/schemas/ids/{id}/subjects", self._id_subjects),
                web.get("/schemas/ids/{id}/versions", self._id_versions),
                web.get("/schemas/guids/{guid}", self._guid),
                web.get("/contexts", self._contexts),
                web.get("/config", self._config),
                web.get("/config/{subject}", self._config),
                web.get("/mode", self._mode),
                web.get("/mode/{subject}", self._mode),
                web.post("/compatibility/subjects/{subject}/versions", self._compatibility),
                web.post("/compatibility/subjects/{subject}/versions/{version}", self._compatibility),
            ]
        )
        return app

    # --- finding ---------------------------------------------------------------------------------------

    def _names(self, entry: SchemaEntry) -> list[str]:
        return [entry.subject, *(a for a, s in self._aliases.items() if s == entry.subject)]

    def _of_subject(self, request: web.Request) -> tuple[str, tuple[SchemaEntry, ...]]:
        asked = request.match_info["subject"]
        # ``:.:`` names the default context.
        name = asked.removeprefix(":.:")
        entries = self._registry.versions(self._aliases.get(name, name))
        if not entries:
            raise RegistryError(404, SUBJECT_NOT_FOUND, f"Subject '{name}' not found.")
        return name, entries

    def _of_version(self, request: web.Request) -> tuple[str, SchemaEntry]:
        name, entries = self._of_subject(request)
        text = request.match_info["version"]
        if text in ("latest", "-1"):
            return name, entries[-1]
        # Ten digits at most: Python refuses to read thousands.
        if not text.isascii() or not text.isdigit() or len(text) > 10 or not 1 <= int(text) < 2**31:
            raise RegistryError(
                422,
                INVALID_VERSION,
                f"The specified version '{text}' is not a valid version id.",
            )
        for entry in entries:
            if entry.version == int(text):
                return name, entry
        raise RegistryError(404, VERSION_NOT_FOUND, f"Version {text} not found.")

    def _of_id(self, request: web.Request) -> SchemaEntry:
        text = request.match_info["id"]
        for entry in self._registry.entries:
            if str(entry.id) == text:
                return entry
        raise RegistryError(404, SCHEMA_NOT_FOUND, f"Schema {text} not found")

    def _same(self, entries: tuple[SchemaEntry, ...], schema: Schema) -> SchemaEntry | None:
        """The newest of ``entries`` that means the same as ``schema`` (docs do not count)."""
        wanted = canonical_form(schema)
        return next((e for e in reversed(entries) if canonical_form(e.schema) == wanted), None)

    # --- reading ---------------------------------------------------------------------------------------

    async def _root(self, _request: web.Request) -> web.Response:
        return _json({})

    async def _subjects(self, request: web.Request) -> web.Response:
        start = request.query.get("subjectPrefix", "").removeprefix(":.:").removesuffix(":*:")
        names = sorted([*self._registry.subjects, *self._aliases])
        return _json([name for name in names if name.startswith(start)])

    async def _versions(self, request: web.Request) -> web.Response:
        _, entries = self._of_subject(request)
        return _json([entry.version for entry in entries])

    async def _version(self, request: web.Request) -> web.Response:
        name, entry = self._of_version(request)
        return _json(_described(name, entry))

    async def _version_schema(self, request: web.Request) -> web.Response:
        return _text(self._of_version(request)[1].text)

    async def _referenced_by(self, request: web.Request) -> web.Response:
        self._of_version(request)
        return _json([])

    async def _schemas(self, request: web.Request) -> web.Response:
        start = request.query.get("subjectPrefix", "").removeprefix(":.:")
        latest = request.query.get("latestOnly", "false") == "true"
        rows = []
        for subject in self._registry.subjects:
            entries = self._registry.versions(subject)
            for name in self._names(entries[-1]):
                if name.startswith(start):
                    rows += [_described(name, entry) for entry in (entries[-1:] if latest else entries)]
        return _json(rows)

    async def _types(self, _request: web.Request) -> web.Response:
        return _json(["AVRO"])

    async def _contexts(self, _request: web.Request) -> web.Response:
        return _json(["."])

    async def _id(self, request: web.Request) -> web.Response:
        entry = self._of_id(request)
        return _json(
            {
                "subject": entry.subject,
                "version": entry.version,
                "id": entry.id,
                "guid": str(entry.guid),
                "schemaType": "AVRO",
                "schema": entry.text,
                "maxId": self._registry.entries[-1].id,
            }
        )

    async def _id_schema(self, request: web.Request) -> web.Response:
        return _text(self._of_id(request).text)

    async def _id_subjects(self, request: web.Request) -> web.Response:
        return _json(self._names(self._of_id(request)))

    async def _id_versions(self, request: web.Request) -> web.Response:
        entry = self._of_id(request)
        return _json([{"subject": name, "version": entry.version} for name in self._names(entry)])

    async def _guid(self, request: web.Request) -> web.Response:
        text = request.match_info["guid"]
        try:
            entry = self._registry.resolve(uuid.UUID(text))
        except (ValueError, InvalidRecord):
            raise RegistryError(404, SCHEMA_NOT_FOUND, f"Schema {text} not found") from None
        return _json(_described(entry.subject, entry))

    async def _config(self, request: web.Request) -> web.Response:
        if "subject" in request.match_info:
            self._of_subject(request)
        return _json({"compatibilityLevel": self._registry.compatibility})

    async def _mode(self, request: web.Request) -> web.Response:
        if "subject" in request.match_info:
            self._of_subject(request)
        return _json({"mode": "READONLY"})

    # --- posts that change nothing ---------------------------------------------------------------------

    async def _lookup(self, request: web.Request) -> web.Response:
        name, entries = self._of_subject(request)
        entry = self._same(entries, await _posted_schema(request))
        if entry is None:
            raise RegistryError(404, SCHEMA_NOT_FOUND, "Schema not found")
        return _json(_described(name, entry))

    async def _register(self, request: web.Request) -> web.Response:
        schema = await _posted_schema(request)
        name = request.match_info["subject"].removeprefix(":.:")
        entry = self._same(self._registry.versions(self._aliases.get(name, name)), schema)
        if entry is None:
            raise _read_only(f"Subject {name} is in read-only mode")
        return _json(_described(name, entry))

    async def _compatibility(self, request: web.Request) -> web.Response:
        schema = await _posted_schema(request)
        if "version" in request.match_info:
            against = [self._of_version(request)[1]]
        else:
            against = list(self._of_subject(request)[1])
        messages = []
        for entry in against:
            messages += [
                f"{rule.upper()} against version {entry.version}: {path}: {text}"
                for path, rule, text in incompatibilities(entry.schema, schema)
            ]
        answer: dict[str, Any] = {"is_compatible": not messages}
        if request.query.get("verbose", "false") == "true":
            answer["messages"] = messages
        return _json(answer)


def _described(name: str, entry: SchemaEntry) -> dict[str, Any]:
    return {
        "subject": name,
        "version": entry.version,
        "id": entry.id,
        "guid": str(entry.guid),
        "schemaType": "AVRO",
        "schema": entry.text,
    }


async def _posted_schema(request: web.Request) -> Schema:
    try:
        body = json.loads(await request.read())
        if body.get("schemaType", "AVRO") != "AVRO" or body.get("references"):
            raise RegistryError(422, INVALID_SCHEMA, "Only self-contained AVRO schemas are known here")
        schema = json.loads(body["schema"])
        fastavro.parse_schema(schema)
        if isinstance(schema, dict):
            # It lets pass names that are no texts, records without fields: walked once as it will be.
            canonical_form(schema).encode()
            list(incompatibilities(schema, schema))
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        SchemaParseException,
        UnknownType,
    ) as error:
        raise RegistryError(422, INVALID_SCHEMA, f"Invalid schema: {error!r}") from None
    if not isinstance(schema, dict) or "name" not in schema:
        raise RegistryError(422, INVALID_SCHEMA, "Invalid schema: not a named type")
    return schema


def _read_only(message: str) -> RegistryError:
    return RegistryError(
        405, NOT_PERMITTED, f"{message}: schemas are files in schemas/, pinned by `refold registry lock`"
    )


@web.middleware
async def _errors(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except RegistryError as error:
        return _json({"error_code": error.code, "message": str(error)}, status=error.status)
    except web.HTTPException as error:
        if request.method not in ("GET", "HEAD", "POST") or error.status == 405:
            refusal = _read_only("This registry is read-only")
            return _json({"error_code": refusal.code, "message": str(refusal)}, status=refusal.status)
        return _json({"error_code": error.status, "message": error.reason}, status=error.status)


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(
        text=json.dumps(value, ensure_ascii=False, separators=(",", ":")),
        status=status,
        content_type=CONTENT_TYPE,
    )


def _text(value: str) -> web.Response:
    return web.Response(text=value, content_type=CONTENT_TYPE)
