"""Sources with one document per conversation: a frame around a list of messages.

The frame (the document with the messages taken out) is kept as the session's first record, so that the
export is the frame with the messages put back. ``MESSAGES`` in the frame marks their place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from refold.errors import InvalidRecord, NotFound
from refold.formats.body import Body
from refold.formats.calls import CallNames
from refold.formats.jsonio import loads
from refold.formats.sources.base import Sheet, SourceSession, bodies, kept, place_id, time_of
from refold.formats.sources.files import Document, Reading, documents

#: ``note`` of the kept frame.
FRAME: Final = "frame"

MessageIn = Callable[[Any, str, CallNames], list[Body]]
MessageOut = Callable[[Sequence[Mapping[str, Any]]], list[Any]]


@dataclass(frozen=True, slots=True)
class Framed:
    """A framed source. ``place`` is the key of the message list, ``None`` for a bare list of messages.

    ``message_in`` gives the bodies of one source message (usually one), ``messages_out`` undoes it for all
    bodies of a session; ``natural_id`` finds a document's own unique id; ``times`` are the keys of a
    document's time.
    """

    name: str
    expects: str
    place: str | None
    looks: Callable[[Any], float]
    message_in: MessageIn
    messages_out: MessageOut
    natural_id: Callable[[Any], str | None] = lambda _: None
    title: Callable[[Any], str | None] = lambda _: None
    times: tuple[str, ...] = ()
    lead: Callable[[Any], list[tuple[Any, Body]]] = lambda _: []

    def detect(self, head: Sequence[Any]) -> float:
        return min((self.looks(value) for value in head), default=0.0)

    def read(self, path: Path, reading: Reading) -> Iterator[SourceSession]:
        for document in documents(path, reading):
            yield self._session(path, document)

    def _session(self, path: Path, document: Document) -> SourceSession:
        value = document.value
        frame, messages = self._split(value, path, document.index)
        sheet = Sheet(self.name, self.natural_id(value) or place_id(path, document.index, value))
        time_ms = next(
            (time_of(value[key]) for key in self.times if isinstance(value, dict) and key in value), 0
        )
        sheet.open(self.title(value), time_ms=time_ms)
        sheet.keep(frame, file=path.name, index=document.index, note=FRAME, time_ms=time_ms)
        for source, body in self.lead(value):
            sheet.message(body, source=source, time_ms=time_ms)
        names = CallNames()
        for at, message in enumerate(messages):
            where = f"{path.name} document {document.index}, message {at}"
            try:
                made = self.message_in(message, f"m{at}", names)
            except InvalidRecord as error:
                raise InvalidRecord(error.code, f"{where}: {error.reason}") from None
            for body in made:
                sheet.message(body, source=message, time_ms=_message_time(message) or time_ms)
        return sheet.session

    def _split(self, value: Any, path: Path, index: int) -> tuple[Any, list[Any]]:
        messages = value if self.place is None else value.get(self.place) if isinstance(value, dict) else None
        if not isinstance(messages, list):
            expected = f"a list under {self.place!r}" if self.place else "a list of messages"
            raise InvalidRecord(
                "bad_message", f"{path.name} document {index} has no {expected}, as {self.name} files do"
            )
        return ([] if self.place is None else {**value, self.place: []}), messages

    def export(self, events: Sequence[Mapping[str, Any]]) -> list[Any]:
        frames = [record for record in kept(events, self.name) if record["note"] == FRAME]
        if not frames:
            raise NotFound(f"the session has no kept {self.name} frame: it was not imported from such a file")
        frame = loads(record_bytes(frames[-1]), where="the kept frame")
        messages = self.messages_out(
            [body for body in bodies(events) if not body["message_id"].startswith(LEAD)]
        )
        return [messages if self.place is None else {**frame, self.place: messages}]


#: Ids of messages made from a document's frame (a system prompt beside the messages) begin with this.
LEAD: Final = "frame-"


def record_bytes(record: Mapping[str, Any]) -> bytes:
    """The bytes of a kept record. Raises :class:`NotFound` when they are outside and were not loaded."""
    data = record["record"]
    if data is None:
        raise NotFound(
            f"the kept record {record['index']} is in the blob store; export with the store's settings"
        )
    return bytes(data)


def _message_time(message: Any) -> int:
    return time_of(message.get("timestamp")) if isinstance(message, dict) else 0


def one_by_one(write: Callable[[Mapping[str, Any]], Any]) -> MessageOut:
    """``messages_out`` for sources in which one body is one message."""
    return lambda found: [write(body) for body in found]
