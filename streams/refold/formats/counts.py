"""Counting what was imported, from the events alone.

Conventions: a conversation is a session; a message is a ``MessageAppended``, except that messages sharing a
source message (ToolTalk's three for one turn) count once; calls are ``tool_call`` parts. Results are
``tool_result`` parts, except in LLaMA-Factory's chats, where one tool message lists several results and the
message is what the source counts (``result_parts`` has the parts of both).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

_GROUPED: Final = "tooltalk"
_RESULT_PER_MESSAGE: Final = "reason-tool-use"


@dataclass(slots=True)
class Counts:
    conversations: int = 0
    events: int = 0
    messages: int = 0
    tool_calls: int = 0
    tool_results: int = 0
    result_parts: int = 0
    kept_records: int = 0

    def add_session(self, events: Iterable[tuple[str, Mapping[str, Any]]]) -> None:
        """Count one session's (type, payload) pairs."""
        self.conversations += 1
        groups: set[str] = set()
        for type_, payload in events:
            self.events += 1
            if type_ == "SourceRecordKept":
                self.kept_records += 1
            elif type_ == "MessageAppended":
                self._add_message(payload, groups)

    def _add_message(self, body: Mapping[str, Any], groups: set[str]) -> None:
        group = body["group_id"] if body["extra_format"] == _GROUPED else None
        if group is None or group not in groups:
            self.messages += 1
        if group is not None:
            groups.add(group)
        self.tool_calls += sum(item.type == "tool_call" for item in body["content"])
        results = sum(item.type == "tool_result" for item in body["content"])
        self.result_parts += results
        self.tool_results += min(results, 1) if body["extra_format"] == _RESULT_PER_MESSAGE else results
