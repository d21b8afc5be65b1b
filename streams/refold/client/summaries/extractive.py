"""The summarizer that needs nothing: the beginnings of what was said, the same for the same messages.

What does not fit leaves from the oldest, tools' results first, then the assistant's words, then the users'.
"""

from __future__ import annotations

import re
from typing import Final

from refold.client.summaries.protocol import SummaryRequest

#: Of one message: its first sentences up to this.
LINE_CHARS_MAX: Final = 240
_SPACE: Final = re.compile(r"\s+")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?。！？])(?:\s|(?<=[。！？]))")

#: What leaves first where there is no room: the lowest.
_WEIGHT: Final = {"tool": 0, "assistant": 1, "user": 2}


class Extractive:
    """A :class:`refold.client.summaries.Summarizer` without a model: deterministic, and never at a loss."""

    name = "refold/extractive"

    async def summarize(self, request: SummaryRequest) -> str:
        return extract(request)


def extract(request: SummaryRequest) -> str:
    """One line per message, ``role: beginning``, behind the lines of the summary before."""
    lines = [(_weight_of(line), line) for line in (request.previous or "").splitlines() if line.strip()]
    for role, author, text in request.messages:
        said = beginning(text)
        if said:
            lines.append((_WEIGHT.get(role, 2), f"{author or role}: {said}" if role != "tool" else said))
    size = sum([len(line.encode()) + 1 for _, line in lines]) - 1
    while size > request.bytes_max and len(lines) > 1:
        lowest = min([weight for weight, _ in lines])
        at = next(at for at, (weight, _) in enumerate(lines) if weight == lowest)
        size -= len(lines.pop(at)[1].encode()) + 1
    return "\n".join([line for _, line in lines])


def beginning(text: str) -> str:
    """The first sentences of a text, on one line, as many whole ones as LINE_CHARS_MAX takes."""
    flat = _SPACE.sub(" ", text).strip()
    if len(flat) <= LINE_CHARS_MAX:
        return flat
    taken = 0
    for end in _SENTENCE_END.finditer(flat):
        if end.start() > LINE_CHARS_MAX:
            break
        taken = end.start()
    return flat[:taken] if taken else f"{flat[: LINE_CHARS_MAX - 1].rstrip()}…"


def _weight_of(line: str) -> int:
    """A line of a former summary: as long as it was made here, by how it begins."""
    if line.startswith(("[result: ", "[error: ")):
        return _WEIGHT["tool"]
    return _WEIGHT["assistant"] if line.startswith("assistant: ") else _WEIGHT["user"]
