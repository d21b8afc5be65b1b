"""A real Confluent-compatible registry beside the file registry (optional: ``registry_url``).

Two uses, both keyed by what a schema *is* and not by its number:

- :meth:`ConfluentRegistry.resolve` reads records that third-party producers wrote with the registry's own
  ids: the schema is fetched by id or GUID, must be a record named like one of our subjects, and must be
  readable as that subject's newest version. Everything else is unknown_schema.
- :meth:`ConfluentRegistry.register` puts our pinned schemas there, with their pinned ids where the registry
  has an import mode. refold always writes pinned ids; where a registry gave others, plain readers use
  ``refold registry serve``.

Calls block, at most ``timeout_s`` without a byte; answers are cached, so an id costs one call. Schemas never
change, so a hit is kept; a miss is asked again after ``MISS_TTL_S`` because the writer may be about to
register it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from http.client import HTTPException
from ssl import SSLContext
from typing import Any, Final, Literal

from refold.errors import ConfigError, PermissionDenied, UnavailableError
from refold.wire.canonical import guid_of, sha256_of
from refold.wire.readers import compile_reader
from refold.wire.schemafiles import Schema, full_name
from refold.wire.schemalock import Pin
from refold.wire.schemas import SchemaEntry, SchemaRegistry, registry

#: Foreign schemas kept. A registry of a company holds hundreds; 1 024 of 20 KB are 20 MB at most.
CACHE_ENTRIES_MAX: Final = 1024

#: Seconds until an id that was not found is asked for again.
MISS_TTL_S: Final = 30.0

#: Largest answer read: a schema of 20 KB with room for any other.
ANSWER_BYTES_MAX: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Registration:
    """``outcome``: pinned (the registry has our id), other_id (``id`` is the registry's own)."""

    subject: str
    version: int
    outcome: Literal["pinned", "other_id"]
    id: int


class ConfluentRegistry:
    """A client of one registry. Not thread-safe beyond what dict operations are; calls block."""

    def __init__(
        self,
        url: str,
        registry: SchemaRegistry,
        *,
        auth: tuple[str, str] | None = None,
        tls: SSLContext | None = None,
        timeout_s: float = 5.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``url`` may hold user:password@ and a path (Apicurio: /apis/ccompat/v7). Raises ConfigError."""
        try:
            parts = urllib.parse.urlsplit(url)
            valid = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            valid = False
        if not valid:
            raise ConfigError(
                "registry_url must be http://HOST[:PORT] or https://HOST[:PORT], with an optional path"
            )
        if parts.username is not None and auth is None:
            auth = (urllib.parse.unquote(parts.username), urllib.parse.unquote(parts.password or ""))
        # Without user and password: the address is part of error texts.
        place = parts.netloc.rpartition("@")[2]
        self._url = f"{parts.scheme}://{place}{parts.path}".rstrip("/")
        self._registry = registry
        self._auth = auth
        self._tls = tls
        self._timeout_s = timeout_s
        self._clock = clock
        self._found: OrderedDict[int | uuid.UUID, SchemaEntry] = OrderedDict()
        self._missed: OrderedDict[int | uuid.UUID, float] = OrderedDict()

    def attach(self) -> None:
        """Makes the file registry ask here for ids and GUIDs it does not know."""
        self._registry.foreign = self.resolve

    def resolve(self, ref: int | uuid.UUID) -> SchemaEntry | None:
        """The foreign schema, or None when the registry does not know it or it is not one of our subjects.

        Raises UnavailableError when the registry does not answer (the record may be fine: do not reject it).
        """
        if ref in self._found:
            self._found.move_to_end(ref)
            return self._found[ref]
        if self._clock() < self._missed.get(ref, float("-inf")):
            return None
        entry = self._fetch(ref)
        if entry is None:
            self._missed[ref] = self._clock() + MISS_TTL_S
            while len(self._missed) > CACHE_ENTRIES_MAX:
                self._missed.popitem(last=False)
        else:
            self._missed.pop(ref, None)
            self._found[ref] = entry
            while len(self._found) > CACHE_ENTRIES_MAX:
                self._found.popitem(last=False)
        return entry

    def register(self, entries: Iterable[SchemaEntry]) -> list[Registration]:
        """Registers every entry, oldest version first. Raises ConfigError when the registry refuses one."""
        done: list[Registration] = []
        for entry in entries:
            subject = urllib.parse.quote(entry.subject, safe="")
            body: dict[str, Any] = {"schema": entry.text, "schemaType": "AVRO"}
            existing = self._call("POST", f"/subjects/{subject}", body, missing_ok=True)
            if existing is None:
                existing = self._register(subject, entry, body)
            given = int(existing["id"])
            outcome: Literal["pinned", "other_id"] = "pinned" if given == entry.id else "other_id"
            done.append(Registration(entry.subject, entry.version, outcome, given))
        return done

    def _register(self, subject: str, entry: SchemaEntry, body: dict[str, Any]) -> Any:
        try:
            self._call("PUT", f"/mode/{subject}", {"mode": "IMPORT"})
        except (ConfigError, PermissionDenied):
            # No import mode (Karapace) or not allowed: the registry chooses the id.
            return self._call("POST", f"/subjects/{subject}/versions", body)
        try:
            pinned = {**body, "id": entry.id, "version": entry.version}
            return self._call("POST", f"/subjects/{subject}/versions", pinned)
        finally:
            self._call("PUT", f"/mode/{subject}", {"mode": "READWRITE"})

    def _fetch(self, ref: int | uuid.UUID) -> SchemaEntry | None:
        path = f"/schemas/ids/{ref}" if isinstance(ref, int) else f"/schemas/guids/{ref}"
        try:
            answer = self._call("GET", path, missing_ok=True)
        except ConfigError:
            # The number comes from a record: some refuse one beyond 31 bits, or know no GUIDs.
            return None
        if answer is None or answer.get("schemaType", "AVRO") != "AVRO" or answer.get("references"):
            return None
        try:
            schema: Schema = json.loads(answer["schema"])
            subject = full_name(schema, "")
            if not self._registry.has(subject):
                return None
            newest = self._registry.get(subject)
            digest = sha256_of(schema)
            known = [e for e in self._registry.versions(subject) if e.sha256 == digest]
            if not known:
                compile_reader(schema, newest.schema)
            version = known[-1].version if known else newest.version + 1
            guid = guid_of(subject, version, schema)
            number = ref if isinstance(ref, int) else int(answer.get("id", 0))
            target = schema if newest in known else newest.schema
            return SchemaEntry(Pin(subject, version, number, guid, digest), schema, target)
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            return None

    def _call(self, method: str, path: str, body: Any = None, *, missing_ok: bool = False) -> Any:
        """The JSON answer; None for 404 when ``missing_ok``. Waits at most ``timeout_s`` for each piece."""
        headers = {"Accept": "application/vnd.schemaregistry.v1+json, application/json"}
        data = None
        if body is not None:
            data = json.dumps(body).encode()
            headers["Content-Type"] = "application/vnd.schemaregistry.v1+json"
        if self._auth is not None:
            token = base64.b64encode(":".join(self._auth).encode()).decode("ascii")
            headers["Authorization"] = f"Basic {token}"
        request = urllib.request.Request(self._url + path, data=data, method=method, headers=headers)  # noqa: S310
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_s, context=self._tls) as answer:  # noqa: S310
                found = json.loads(answer.read(ANSWER_BYTES_MAX))
            if not isinstance(found, dict):
                raise ValueError("its answer is no JSON object")
            return found
        except urllib.error.HTTPError as error:
            text = ""
            with error, contextlib.suppress(OSError, ValueError, HTTPException):
                text = error.read(1000).decode("utf-8", "replace")
            if error.code == 404 and missing_ok:
                return None
            if error.code in (401, 403):
                raise PermissionDenied(
                    f"the schema registry at {self._url} refused the credentials ({error.code}): check "
                    "registry_url and its user and password"
                ) from None
            if error.code >= 500 or error.code == 429:
                raise UnavailableError(
                    f"the schema registry at {self._url} answered {error.code} to {method} {path}",
                    retry_after_s=1.0,
                ) from None
            raise ConfigError(
                f"the schema registry at {self._url} refused {method} {path} ({error.code}): {text}"
            ) from None
        except (OSError, ValueError, HTTPException, RecursionError) as error:
            raise UnavailableError(
                f"the schema registry at {self._url} does not answer ({error}): check registry_url",
                retry_after_s=1.0,
            ) from None


def use_registry(url: str | None) -> None:
    """Called once at start with the setting ``registry_url``: None = the file registry alone.

    Does not ask the registry anything yet. Raises ConfigError for a URL that is none.
    """
    if url is None:
        registry().foreign = None
    else:
        ConfluentRegistry(url, registry()).attach()
