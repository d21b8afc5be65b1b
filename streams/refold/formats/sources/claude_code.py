"""Claude Code transcripts: a file of records linked by ``uuid`` and ``parentUuid``.

- ``user`` and ``assistant`` records are messages; one model message split over several records (one
  ``message.id``) keeps that id as ``group_id``. Every other record (``progress``, ``queue-operation``,
  ``system``, ``summary``, …) is kept.
- A parent that is no message stands for its nearest message ancestor. Null there is a new root, which is what
  Claude Code means by it after a compaction.
- Parallel calls and their results may hang beside each other. Taken literally they would be branches, and
  all but one would be off the active path; within one model message and its results, each record follows
  the head.
- Side chains (``isSidechain``) are child sessions linked to the parent's call, and the parent says so in its
  own journal: a sub-agent's file (``agentId``) or a chain inside the main file.
- Every message remembers the number of its record, so that the sessions of one file can be put together
  again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from refold.core.envelope import SessionLink
from refold.errors import InvalidRecord
from refold.formats import anthropic
from refold.formats.body import Body, results_of
from refold.formats.extra import pack, unpack
from refold.formats.jsonio import dumps, loads
from refold.formats.sources.base import Sheet, SourceSession, session_id, stem_of, time_of
from refold.formats.sources.claude_links import blocks_of, call_of_agent, prompted_calls
from refold.formats.sources.files import Reading, documents
from refold.formats.sources.framed import record_bytes

NAME: Final = "claude-code"
MESSAGE_TYPES: Final = ("user", "assistant")
#: Hints of a message: its record's number in the file, and the record without its ``message``.
NUMBER: Final = "n"
RECORD: Final = "record"

#: A record's own fields above this (tool outputs are repeated there, whole files among them) are kept
#: beside the message instead of in it, where they would take the place of messages in the context window.
AROUND_BYTES_MAX: Final = 2_048
#: ``note`` of such a kept record.
AROUND: Final = "around"

Record = dict[str, Any]


class ClaudeCode:
    """The :class:`refold.formats.sources.base.Source` of Claude Code's transcripts."""

    name: str = NAME
    expects: str = 'one record {"type", "uuid", "parentUuid", "sessionId", "message"?} per line'

    def detect(self, head: Sequence[Any]) -> float:
        if not head or not all(
            isinstance(value, dict) and isinstance(value.get("type"), str) for value in head
        ):
            return 0.0
        return (
            1.0
            if any("sessionId" in value or {"leafUuid", "summary"} <= value.keys() for value in head)
            else 0.0
        )

    def read(self, path: Path, reading: Reading) -> Iterator[SourceSession]:
        records = [document.value for document in documents(path, reading)]
        for index, record in enumerate(records):
            if not isinstance(record, dict) or not isinstance(record.get("type"), str):
                raise InvalidRecord("bad_message", f"{path.name} record {index} has no string 'type'")
        yield from _File(path, records).sessions()

    def export(self, events: Sequence[Mapping[str, Any]]) -> list[Any]:
        """The records in the order of their file.

        The events of all sessions of a file give the whole file.
        """
        around: dict[int, Record] = {}
        found: dict[int, Record] = {}
        for event in events:
            payload = event["payload"]
            if event["type"] == "SourceRecordKept" and payload["source"] == NAME:
                record = loads(record_bytes(payload), where="a kept record")
                (around if payload["note"] == AROUND else found)[payload["index"]] = record
            elif event["type"] == "MessageAppended" and payload["extra_format"] == NAME:
                number, record = _message_out(payload)
                found[number] = record
        return [{**around.get(number, {}), **found[number]} for number in sorted(found)]


def _message_out(body: Mapping[str, Any]) -> tuple[int, Record]:
    """(number in the file, record) of a message."""
    rest, hints = unpack(body["extra"])
    number, record = hints.pop(NUMBER), hints.pop(RECORD, {})
    return number, {**record, "message": anthropic.message_out({**body, "extra": pack(rest, hints)})}


@dataclass(slots=True)
class _Chain:
    """One session being read. ``groups``: its messages in order, each with its model message's id."""

    sheet: Sheet
    head: str | None = None
    groups: dict[str, str | None] = field(default_factory=dict)
    calls: set[str] = field(default_factory=set)


class _File:
    """One transcript file on its way to sessions."""

    def __init__(self, path: Path, records: list[Record]) -> None:
        self._path = path
        self._records = records
        self._by_uuid = {record["uuid"]: record for record in records if isinstance(record.get("uuid"), str)}
        named = (record["sessionId"] for record in records if isinstance(record.get("sessionId"), str))
        self._session = next(named, stem_of(path))

    def sessions(self) -> Iterator[SourceSession]:
        owners = [self._owner(record) for record in self._records]
        # Records that name no session (summaries) belong to the file's first one.
        default = next((owner for owner in owners if owner is not None), session_id(self._session))
        chains: dict[str, _Chain] = {}
        for index, (record, owner) in enumerate(zip(self._records, owners, strict=True)):
            name = owner or default
            if name not in chains:
                chains[name] = self._open(name, record)
            self._add(chains[name], index, record)
        for chain in chains.values():
            yield chain.sheet.session

    def _owner(self, record: Record) -> str | None:
        session = record.get("sessionId")
        if record.get("isSidechain") is True:
            agent = record.get("agentId")
            part = agent if isinstance(agent, str) else f"side-{self._root(record).get('uuid')}"
            return session_id(f"{session if isinstance(session, str) else self._session}.{part}")
        return session_id(session) if isinstance(session, str) else None

    def _root(self, record: Record) -> Record:
        """The first record of the side chain ``record`` is on."""
        seen = set()
        while isinstance(record.get("parentUuid"), str) and record["parentUuid"] not in seen:
            seen.add(record["parentUuid"])
            above = self._by_uuid.get(record["parentUuid"])
            if above is None or above.get("isSidechain") is not True:
                break
            record = above
        return record

    def _open(self, name: str, record: Record) -> _Chain:
        link = None
        if record.get("isSidechain") is True:
            parent = record["sessionId"] if isinstance(record.get("sessionId"), str) else self._session
            link = SessionLink("child", session_id(parent), None, self._starter(record))
        chain = _Chain(Sheet(NAME, name))
        time_ms = time_of(record.get("timestamp"))
        chain.sheet.open(time_ms=time_ms, link=link)
        if link is not None:
            chain.sheet.child_of(link, time_ms=time_ms)
        return chain

    def _starter(self, record: Record) -> str | None:
        agent = record.get("agentId")
        if isinstance(agent, str):
            return call_of_agent(agent, record.get("sessionId"), self._path, self._records)
        message = self._root(record).get("message")
        prompt = message.get("content") if isinstance(message, dict) else None
        return prompted_calls(self._records).get(prompt) if isinstance(prompt, str) else None

    def _add(self, chain: _Chain, index: int, record: Record) -> None:
        time_ms = time_of(record.get("timestamp"))
        message = record.get("message")
        if (
            record["type"] not in MESSAGE_TYPES
            or not isinstance(message, dict)
            or not isinstance(message.get("role"), str)
        ):
            chain.sheet.keep(record, file=self._path.name, index=index, note=record["type"], time_ms=time_ms)
            return
        body = self._body(chain, index, record)
        chain.head = body["message_id"]
        chain.groups[body["message_id"]] = body["group_id"]
        chain.calls.update(item.fields["call_id"] for item in body["content"] if item.type == "tool_call")
        chain.sheet.message(body, source=record, time_ms=time_ms)

    def _body(self, chain: _Chain, index: int, record: Record) -> Body:
        uuid = record["uuid"] if isinstance(record.get("uuid"), str) else f"record-{index}"
        body = anthropic.message_in(record["message"], message_id=uuid)
        body["parent_id"] = self._parent(chain, body, self._ancestor(record, chain))
        rest, hints = unpack(body["extra"])
        around = {key: value for key, value in record.items() if key != "message"}
        body["extra_format"] = NAME
        body["extra"] = pack(rest, {**hints, NUMBER: index, RECORD: around})
        if len(dumps(around)) > AROUND_BYTES_MAX:
            body["extra"] = pack(rest, {**hints, NUMBER: index})
            time_ms = time_of(record.get("timestamp"))
            chain.sheet.keep(around, file=self._path.name, index=index, note=AROUND, time_ms=time_ms)
        return body

    def _ancestor(self, record: Record, chain: _Chain) -> str:
        """The nearest message above ``record`` in its session; empty for none."""
        seen = set()
        at = record.get("parentUuid")
        while isinstance(at, str) and at not in seen:
            if at in chain.groups:
                return at
            seen.add(at)
            at = self._by_uuid.get(at, {}).get("parentUuid")
        return ""

    def _parent(self, chain: _Chain, body: Body, above: str) -> str | None:
        """``parent_id`` of a body whose nearest message is ``above``; ``None`` goes on from the head."""
        if chain.head is None or above == chain.head:
            return None
        answered = {item.fields["call_id"] for item in results_of(body)}
        belongs = (
            answered <= chain.calls
            if answered
            else body["group_id"] is not None and body["group_id"] == chain.groups.get(above)
        )
        return None if above and belongs and self._one_step(chain, above) else above

    def _one_step(self, chain: _Chain, above: str) -> bool:
        """Whether everything after ``above`` is of its model message or answers it."""
        group = chain.groups[above]
        for one in reversed(chain.groups):
            if one == above:
                return True
            answers = any(
                block.get("type") == "tool_result" for block in blocks_of(self._by_uuid.get(one, {}))
            )
            if not answers and (group is None or chain.groups[one] != group):
                return False
        return False
