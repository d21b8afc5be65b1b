"""Which messages a summary is to cover: from the beginning of the window to a place where it may be cut.

Pure. The rules of the place are the fold's (W2, W5); the fold rules again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from refold.client.summaries.limits import KEEP_SHARE, TOOL_TEXT_CHARS_MAX
from refold.client.summaries.protocol import Said
from refold.formats.parts import Part, as_part
from refold.formats.transcript import shown_text
from refold.formats.views import author_of

Message = Mapping[str, Any]

#: Thinking and marks of where something was found are not what was said.
_SILENT: Final = frozenset({"reasoning", "citation"})


def is_wanted(snapshot: Mapping[str, Any]) -> bool:
    """Whether the state asks for a summary, as the fold says it (Y1)."""
    limits, policy, recent = snapshot["limits"], snapshot["policy"], snapshot["context"]["recent_messages"]
    size = sum([message["size"] for message in recent])
    if policy is not None:
        count, room = policy["summary_messages"], policy["summary_bytes"]
        if (count and len(recent) > count) or (room and size > room):
            return True
    held = bool(limits["hold_for_summary"])
    return held and (len(recent) > limits["max_messages"] or size > limits["max_bytes"])


def choose_cut(snapshot: Mapping[str, Any], messages: Sequence[Message], known_before: int = 0) -> int:
    """How many of ``messages`` (the window, behind ``known_before`` older ones) the summary covers; 0: none.

    As few as leave no more than half of what the session's policy allows, up to a turn's end; where turns are
    too long, up to any place that parts no call from its result.
    """
    count_max, bytes_max = _keep(snapshot)
    cuts = [cut for cut in range(known_before + 1, len(messages)) if _is_legal(messages, cut)]
    if not cuts:
        return 0
    turns = [cut for cut in cuts if messages[cut]["turn_start"]]
    for places in (turns, cuts):
        for cut in places:
            kept = messages[cut:]
            if len(kept) <= count_max and sum(message["size"] for message in kept) <= bytes_max:
                return cut
    return (turns or cuts)[-1]


def _keep(snapshot: Mapping[str, Any]) -> tuple[int, int]:
    """Messages and bytes that may stay."""
    limits, policy = snapshot["limits"], snapshot.get("policy")
    count, size = limits["max_messages"], limits["max_bytes"]
    if policy is not None:
        count = policy["summary_messages"] or count
        size = policy["summary_bytes"] or size
    return max(1, int(count * KEEP_SHARE)), int(size * KEEP_SHARE)


def _is_legal(messages: Sequence[Message], cut: int) -> bool:
    before = {message["seq"] for message in messages[:cut]}
    return not any(before.intersection(message["answers"]) for message in messages[cut:])


def words(message: Message) -> Said:
    """A held message as words: what was said, what was called, what came back."""
    said = [text for item in message["content"] for text in [_text(as_part(item))] if text]
    return Said(message["role"], author_of(message), "\n".join(said))


def _text(part: Part) -> str:
    if part.type in _SILENT:
        return ""
    if part.type == "tool_call":
        return f"[calls {part.fields['name']}: {clip(str(part.fields['arguments']))}]"
    if part.type == "tool_result":
        inner = " ".join(text for item in part.content for text in [_text(item)] if text)
        return f"[{'error' if part.fields['is_error'] else 'result'}: {clip(inner)}]"
    said = shown_text(part)
    return f"[{part.type}]" if said is None else said


def clip(text: str, chars: int = TOOL_TEXT_CHARS_MAX) -> str:
    return text if len(text) <= chars else f"{text[: chars - 1]}…"
