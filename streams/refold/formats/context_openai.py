"""A transcript as OpenAI chat completions messages.

Only what a request may hold: unknown keys, reasoning and annotations are left out. Tool messages follow their
assistant message, one per call, in the order asked. Text alone is a string.
"""

from __future__ import annotations

from typing import Any, Final

from refold.formats import markers
from refold.formats.ids import OPENAI_ID, TOOL_NAME, CallIds, tool_name
from refold.formats.openai_parts import data_url_out
from refold.formats.parts import Part, encode_base64
from refold.formats.transcript import Step, Transcript, said_of

#: Left out of a request: the API does not take them back.
_SILENT: Final = frozenset({"reasoning", "citation", "compaction"})
_AUDIO_FORMATS: Final = frozenset({"wav", "mp3"})


def messages(source: Transcript) -> list[dict[str, Any]]:
    """The ``messages`` of a request. Empty only for a session without any message."""
    ids = CallIds(OPENAI_ID)
    lead = [_system(step) for step in source.system]
    body = [message for step in source.steps for message in _step(step, ids)]
    roles = {message["role"] for message in [*lead, *body]}
    if source.summary is not None:
        role = "developer" if "developer" in roles and "system" not in roles else "system"
        lead.append({"role": role, "content": markers.summary(source.summary)})
        roles.add(role)
    made = [message for message in [*lead, *body] if message]
    if {"system", "developer"} <= roles:  # A request may use one of the two names only.
        for message in made:
            if message["role"] == "developer":
                message["role"] = "system"
    return made


def _system(step: Step) -> dict[str, Any]:
    return {"role": step.role, "content": "\n".join(_texts(step.parts))}


def _texts(parts: list[Part]) -> list[str]:
    return [said for part in parts if part.type not in _SILENT for said in [said_of(part)] if said]


def _step(step: Step, ids: CallIds) -> list[dict[str, Any]]:
    if step.role == "assistant":
        return _assistant(step, ids)
    if step.role in ("system", "developer"):
        return [_system(step)]
    content = [_user_part(part) for part in step.parts if part.type not in _SILENT]
    return [_named({"role": "user", "content": _content(content)}, step.name)]


def _assistant(step: Step, ids: CallIds) -> list[dict[str, Any]]:
    said = [part for part in step.parts if part.type not in _SILENT]
    content = [_assistant_part(part, alone=len(said) == 1) for part in said]
    if not content and not step.calls:
        return []  # Reasoning alone: there is no message left that the API takes.
    made: dict[str, Any] = {"role": "assistant", "content": _content(content) if content else None}
    results: list[dict[str, Any]] = []
    for call in step.calls:
        call_id = ids.claim(call.call_id, call.message_id)
        shown = {"name": tool_name(call.name), "arguments": call.arguments}
        made.setdefault("tool_calls", []).append({"id": call_id, "type": "function", "function": shown})
        answer = "\n".join(_texts(call.content))
        results.append({"role": "tool", "tool_call_id": call_id, "content": answer})
    return [_named(made, step.name), *results]


def _named(message: dict[str, Any], name: str | None) -> dict[str, Any]:
    return {**message, "name": name} if name and TOOL_NAME.fullmatch(name) else message


def _content(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    if not parts:
        return ""
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def _assistant_part(part: Part, *, alone: bool) -> dict[str, Any]:
    """Content is texts or exactly one refusal, so a refusal beside something else is shown as text."""
    if part.type == "refusal" and part.text and alone:
        return {"type": "refusal", "refusal": part.text}
    return {"type": "text", "text": said_of(part)}


def _user_part(part: Part) -> dict[str, Any]:
    if part.ref is None:
        if part.type == "image" and (url := data_url_out(part)):
            detail = part.fields.get("detail")
            return {"type": "image_url", "image_url": {"url": url, **({"detail": detail} if detail else {})}}
        data = part.fields.get("data")
        if part.type == "audio" and data and part.fields.get("format") in _AUDIO_FORMATS:
            return {
                "type": "input_audio",
                "input_audio": {"data": encode_base64(data), "format": part.fields["format"]},
            }
        if part.type == "file" and data and part.fields.get("filename"):
            return {
                "type": "file",
                "file": {"filename": part.fields["filename"], "file_data": data_url_out(part)},
            }
    return {"type": "text", "text": said_of(part)}
