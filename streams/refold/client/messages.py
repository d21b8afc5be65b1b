"""What callers may hand to ``append``: text, parts, a provider's message, or a message body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from refold.client.ids import new_id
from refold.core.envelope import Actor
from refold.errors import UsageError
from refold.formats import anthropic, openai, otel
from refold.wire.parts import Part
from refold.wire.parts import text as text_part

MessageFormat = Literal["openai", "anthropic", "otel"]
MessageInput = str | Part | Sequence[Part] | Mapping[str, Any]

ROLES: Final = ("system", "developer", "user", "assistant", "tool")

#: Keys of a message body, all of them (``schemas/event/message_appended``).
BODY_KEYS: Final = frozenset(
    {
        "message_id",
        "parent_id",
        "role",
        "content",
        "name",
        "replaces",
        "group_id",
        "model",
        "provider",
        "finish_reason",
        "usage",
        "extra_format",
        "extra",
    }
)

_ACTOR_KINDS: Final[Mapping[str, str]] = {
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "system": "system",
    "developer": "system",
}


#: One of them is in every message that says something.
OPENAI_CONTENT: Final = frozenset({"audio", "content", "function_call", "refusal", "tool_calls"})


def message_body(
    message: MessageInput,
    *,
    role: str | None = None,
    message_id: str | None = None,
    parent: str | None = None,
    source: MessageFormat = "openai",
    **fields: Any,
) -> dict[str, Any]:
    """The payload of a ``MessageAppended`` event.

    ``parent``: ``None`` continues the active path, ``""`` begins a new root. ``fields`` are further keys of
    the body (``name``, ``replaces``, ``model``, …). Raises UsageError for what is no message.
    """
    unknown = set(fields) - BODY_KEYS
    if unknown:
        raise UsageError(f"a message has no field {min(unknown)!r}; it has {', '.join(sorted(BODY_KEYS))}")
    given = {name: value for name, value in fields.items() if value is not None}
    made_id = new_id() if message_id is None else message_id
    body: dict[str, Any]
    if isinstance(message, str):
        body = {"message_id": made_id, "role": role or "user", "content": [text_part(message)]}
    elif isinstance(message, Part):
        body = {"message_id": made_id, "role": role or "user", "content": [message]}
    elif isinstance(message, Mapping):
        body = _from_mapping(message, role, message_id, source)
    else:
        # Whatever the annotation says: a caller may hand in anything.
        content = list(message) if isinstance(message, Sequence) else [message]
        if not all(isinstance(part, Part) for part in content):
            raise UsageError(
                "a message is text, a part, a list of parts (refold.wire.parts); a provider's message goes "
                "in whole, as a dict, with format='openai' or 'anthropic'"
            )
        body = {"message_id": made_id, "role": role or "user", "content": content}
    if body["role"] not in ROLES:
        raise UsageError(f"role {body['role']!r}: it must be one of {', '.join(ROLES)}")
    if parent is not None:
        given["parent_id"] = parent
    return {**body, **given}


def _from_mapping(
    message: Mapping[str, Any], role: str | None, message_id: str | None, source: MessageFormat
) -> dict[str, Any]:
    content = message.get("content")
    made_id = new_id() if message_id is None else message_id
    if _is_body(message, content):
        body = dict(message)
        if message_id is not None or not body.get("message_id"):
            body["message_id"] = made_id
        body["role"] = role or body.get("role") or "user"
        return body
    readers = {"openai": openai.message_in, "anthropic": anthropic.message_in, "otel": otel.message_in}
    if source not in readers:
        raise UsageError(f"format {source!r}: append takes openai, anthropic or otel messages")
    given = message if role is None or "role" in message else {"role": role, **message}
    if source == "openai":
        _check_openai(given)
    return readers[source](given, message_id=made_id)


def _check_openai(message: Mapping[str, Any]) -> None:
    """What an importer has to take as it was recorded, and nobody can mean who writes it now."""
    if message.get("role") == "tool" and not message.get("tool_call_id"):
        raise UsageError("a message of role 'tool' answers a call: it needs the call's id as tool_call_id")
    if OPENAI_CONTENT.isdisjoint(message):
        wanted, has = (", ".join(sorted(map(str, names))) for names in (OPENAI_CONTENT, message))
        raise UsageError(f"the message has none of {wanted}: it has {has}")


def _is_body(message: Mapping[str, Any], content: object) -> bool:
    """True for a message body: only its keys, and refold parts as content."""
    if not isinstance(content, list | tuple) or not set(message) <= BODY_KEYS:
        return False
    return all(isinstance(part, Part) for part in content) and (bool(content) or "message_id" in message)


def default_actor(role: str) -> Actor:
    """Who speaks when the caller does not say."""
    return Actor(_ACTOR_KINDS[role])
