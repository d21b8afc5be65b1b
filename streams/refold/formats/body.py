"""A message as refold keeps it: the ``MessageBody`` dict of a ``MessageAppended`` event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from refold.formats.extra import plain
from refold.formats.parts import Part

Body: TypeAlias = dict[str, Any]
"""Keys as in ``schemas/event/message_appended``; ``content`` is a list of :class:`Part`."""


def message_body(
    message_id: str,
    role: str,
    content: Sequence[Part],
    *,
    extra: bytes | None,
    extra_format: str | None = None,
    **fields: Any,
) -> Body:
    """A body; ``fields`` are the other keys of the schema (``parent_id``, ``name``, ``model``, …)."""
    return {
        "message_id": message_id,
        "parent_id": fields.pop("parent_id", None),
        "role": role,
        "content": list(content),
        "name": fields.pop("name", None),
        "replaces": fields.pop("replaces", None),
        "group_id": fields.pop("group_id", None),
        "model": fields.pop("model", None),
        "provider": fields.pop("provider", None),
        "finish_reason": fields.pop("finish_reason", None),
        "usage": fields.pop("usage", None),
        "extra_format": extra_format,
        "extra": extra,
        **fields,
    }


def mark_format(body: Body, name: str) -> Body:
    """Say which provider's shape the body was read from, unless there is nothing of that provider in it.

    Bare text needs no mark, and a body without any optional field is the one the fold reads fastest.
    """
    bare = body["extra"] is None and all(plain(item) for item in body["content"])
    body["extra_format"] = None if bare else name
    return body


def calls_of(body: Mapping[str, Any]) -> list[Part]:
    return [item for item in body["content"] if item.type == "tool_call"]


def results_of(body: Mapping[str, Any]) -> list[Part]:
    return [item for item in body["content"] if item.type == "tool_result"]
