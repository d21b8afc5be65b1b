"""Which tool call of the parent started a Claude Code sub-agent.

The parent's transcript says it twice: the result of a Task call names the ``agentId``, and the call's
``prompt`` is the side chain's first message. A sub-agent's own file says neither, so the parent's file is
looked for where Claude Code puts it and among the file's neighbours.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from refold.errors import InvalidRecord
from refold.formats.sources.files import Reading, documents

#: Neighbouring files looked into for the parent of a sub-agent's file.
NEIGHBOURS_MAX: Final = 200
#: Bytes of a neighbour read to see whether it speaks of the session: its first records name it.
MENTION_BYTES: Final = 65_536

Record = Mapping[str, Any]


def blocks_of(record: Record) -> list[Mapping[str, Any]]:
    """The content blocks of a record's message."""
    message = record.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []


def started_calls(records: Iterable[Record]) -> dict[str, str]:
    """Agent id -> call id, as the results of Task calls say."""
    found: dict[str, str] = {}
    for record in records:
        said = record.get("toolUseResult")
        if isinstance(said, dict) and isinstance(said.get("agentId"), str):
            for block in blocks_of(record):
                if isinstance(block.get("tool_use_id"), str):
                    found[said["agentId"]] = block["tool_use_id"]
    return found


def prompted_calls(records: Iterable[Record]) -> dict[str, str]:
    """Prompt -> call id of the Task calls; a prompt given twice names no call."""
    found: dict[str, str] = {}
    twice = set()
    for block in (block for record in records for block in blocks_of(record)):
        asked = block.get("input")
        prompt = asked.get("prompt") if block.get("type") == "tool_use" and isinstance(asked, dict) else None
        if isinstance(prompt, str) and isinstance(block.get("id"), str):
            if prompt in found:
                twice.add(prompt)
            found[prompt] = block["id"]
    return {prompt: call for prompt, call in found.items() if prompt not in twice}


def call_of_agent(agent: str, session: Any, path: Path, records: Iterable[Record]) -> str | None:
    """The call that started sub-agent ``agent``, or ``None`` when no record at hand says."""
    found = started_calls(records)
    if agent not in found and isinstance(session, str):
        for others in _parents(path, session):
            found.update(started_calls(others))
            if agent in found:
                break
    return found.get(agent)


def _parents(path: Path, session: str) -> Iterator[list[Record]]:
    """The records of files that may hold the parent session."""
    written_by_claude = path.parent.parent.parent / f"{session}.jsonl"
    neighbours = sorted(one for one in path.parent.glob("*.jsonl*") if one != path)[:NEIGHBOURS_MAX]
    for candidate in [written_by_claude, *neighbours]:
        if not candidate.is_file() or not _mentions(candidate, session):
            continue
        try:
            values = [document.value for document in documents(candidate, Reading(replace_surrogates=True))]
        except InvalidRecord:
            continue  # A damaged neighbour is its own import's trouble.
        yield [value for value in values if isinstance(value, dict)]


def _mentions(path: Path, session: str) -> bool:
    with path.open("rb") as stream:
        return path.suffix == ".gz" or session.encode() in stream.read(MENTION_BYTES)
