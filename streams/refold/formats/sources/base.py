"""What every source format provides, and the events an import publishes.

Invariants:

- Event ids are a digest of (format, session, place, content): importing a file twice publishes the same
  ids, and an event whose content changed is another event, never a silent conflict with the old one.
- ``export(read(file))`` equals the file's values; nothing of a source is dropped, a record refold has no
  event for is kept as ``SourceRecordKept``.
- Sources know nothing of tenants, brokers or clocks. Without a time in the source ``event_time_ms`` is 0:
  unknown.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

from refold.core.envelope import SessionLink
from refold.formats.body import Body
from refold.formats.jsonio import dumps
from refold.formats.sources.files import Reading

#: Characters of a session id made from a file name that would not read well in keys and URLs.
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9._-]+")
#: Longest session id taken from a source. A record key is at most 512 bytes (docs/internals/architecture.md
#: 2); half of it is left to tenant and prefix.
SESSION_ID_BYTES_MAX: Final = 256
#: Actor kind by message role.
ACTORS: Final[Mapping[str, str]] = {
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "system": "system",
    "developer": "system",
}


@dataclass(frozen=True, slots=True)
class NewEvent:
    """One event to publish. ``payload`` is the dict of the type's record; ``actor`` a kind of actor."""

    type: str
    payload: dict[str, Any]
    event_id: str
    event_time_ms: int = 0
    actor: str = "unknown"
    link: SessionLink | None = None


@dataclass(slots=True)
class SourceSession:
    """One conversation of a source, its events in the order they have to be published.

    ``belongs``: what its parent's journal is to say of it, for a child session; ``parent``: whose.
    """

    session: str
    events: list[NewEvent] = field(default_factory=list)
    parent: str | None = None
    belongs: NewEvent | None = None


class Source(Protocol):
    """A file format. Stateless: one instance serves any number of files."""

    @property
    def name(self) -> str: ...

    @property
    def expects(self) -> str:
        """The shape of one value, for people."""
        ...

    def detect(self, head: Sequence[Any]) -> float:
        """How sure it is (0 to 1) that a file starting with these values is of this format."""
        ...

    def read(self, path: Path, reading: Reading) -> Iterator[SourceSession]:
        """The file's sessions. Raises :class:`InvalidRecord` naming the line for what cannot be taken."""
        ...

    def export(self, events: Sequence[Mapping[str, Any]]) -> list[Any]:
        """The source's documents from one session's events in seq order: ``{"type", "payload"}`` dicts."""
        ...


class Sheet:
    """Collects one session's events and gives them their ids."""

    def __init__(self, source: str, session: str) -> None:
        self.session = SourceSession(session_id(session))
        self._source = source

    def add(
        self,
        type_: str,
        payload: dict[str, Any],
        *,
        key: str,
        content: Any,
        time_ms: int = 0,
        actor: str = "unknown",
        link: SessionLink | None = None,
    ) -> None:
        """``key`` is the event's place in the source (an id or a position), ``content`` what it was made
        from.
        """
        digest = hashlib.sha256()
        for piece in (self._source, self.session.session, type_, key):
            digest.update(piece.encode("utf-8", "surrogatepass") + b"\0")
        digest.update(dumps(content))
        event_id = f"import-{digest.hexdigest()[:32]}"
        self.session.events.append(NewEvent(type_, payload, event_id, time_ms, actor, link))

    def open(self, title: str | None = None, *, time_ms: int = 0, link: SessionLink | None = None) -> None:
        payload = {"agent": None, "title": title, "config_digest": None, "config_json": None, "extra": None}
        said = [title, list(link) if link else None]
        self.add(
            "SessionOpened", payload, key="open", content=said, time_ms=time_ms, actor="system", link=link
        )

    def child_of(self, link: SessionLink, *, time_ms: int = 0) -> None:
        """Its parent is to say so. The event's id follows from the two names and the call."""
        payload = {"session": self.session.session, "kind": "child", "call": link.call}
        names = [self._source, link.session, self.session.session, link.call or ""]
        digest = hashlib.sha256("\0".join(names).encode("utf-8", "surrogatepass")).hexdigest()
        self.session.parent = link.session
        self.session.belongs = NewEvent(
            "ChildLinked", payload, f"import-child-{digest[:32]}", time_ms, "system"
        )

    def message(self, body: Body, *, source: Any, time_ms: int = 0) -> None:
        actor = ACTORS.get(body["role"], "unknown")
        self.add(
            "MessageAppended", body, key=body["message_id"], content=source, time_ms=time_ms, actor=actor
        )

    def keep(self, record: Any, *, file: str, index: int, note: str | None = None, time_ms: int = 0) -> None:
        payload = {
            "source": self._source,
            "file": file,
            "index": index,
            "media_type": "application/json",
            "record": dumps(record),
            "ref": None,
            "note": note,
        }
        self.add(
            "SourceRecordKept",
            payload,
            key=f"record {index}",
            content=record,
            time_ms=time_ms,
            actor="system",
        )


def session_id(text: str) -> str:
    """``text`` as a session id.

    No slash, bounded; a longer one ends in a digest instead of being cut silently.
    """
    safe = text.replace("/", "_")
    raw = safe.encode("utf-8", "replace")
    if 0 < len(raw) <= SESSION_ID_BYTES_MAX:
        return safe
    mark = hashlib.sha256(raw).hexdigest()[:32]
    return f"{raw[: SESSION_ID_BYTES_MAX - 40].decode('utf-8', 'ignore')}-{mark}"


def place_id(path: Path, index: int, value: Any) -> str:
    """A session id for a document without one: file stem, position and a digest of the content.

    The digest keeps two files of one name apart, and a changed line from being folded into the old session.
    """
    stem = _UNSAFE.sub("_", stem_of(path)) or "file"
    return f"{stem}.{index}.{hashlib.sha256(dumps(value)).hexdigest()[:8]}"


def stem_of(path: Path) -> str:
    name = path.name
    for suffix in (".gz", ".jsonl", ".json", ".ndjson"):
        name = name.removesuffix(suffix)
    return name


def time_of(value: Any) -> int:
    """Milliseconds since 1970 UTC of an ISO text or a number of seconds; 0 when there is none.

    A text without a zone is taken as UTC on every machine: the local zone of whoever imports means nothing.
    """
    if isinstance(value, str):
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            return 0
        return round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e11:
        return round(value * 1000)
    return 0


def bodies(events: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The message bodies among decoded events."""
    return [event["payload"] for event in events if event["type"] == "MessageAppended"]


def kept(events: Iterable[Mapping[str, Any]], source: str) -> list[Mapping[str, Any]]:
    """The kept source records of ``source`` among decoded events."""
    return [
        e["payload"] for e in events if e["type"] == "SourceRecordKept" and e["payload"]["source"] == source
    ]
