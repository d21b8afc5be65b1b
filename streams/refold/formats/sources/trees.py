"""Message trees: nested replies to a flat order and back.

The order is each tree's pre-order, so a message always comes after its parent. A message follows the one
before it (``parent_id`` null) unless its parent is another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from refold.formats.body import Body


def walk(roots: Sequence[Any], children: str) -> Iterator[tuple[dict[str, Any], dict[str, Any] | None]]:
    """(node, parent node) in pre-order. Not recursive: a conversation is as deep as it is long."""
    pending: list[tuple[dict[str, Any], dict[str, Any] | None]] = [(node, None) for node in reversed(roots)]
    while pending:
        node, parent = pending.pop()
        yield node, parent
        replies = node.get(children)
        if isinstance(replies, list):
            pending.extend((reply, node) for reply in reversed(replies))


def attach(body: Body, parent: str | None, before: str | None) -> Body:
    """Set ``parent_id``: nothing above is a new root (or the very first message)."""
    if parent != before:
        body["parent_id"] = "" if parent is None else parent
    return body


def parents(found: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], str | None]]:
    """(body, id of its parent) for bodies in order."""
    before: str | None = None
    for body in found:
        above = before if body["parent_id"] is None else body["parent_id"] or None
        yield body, above
        before = body["message_id"]


def nest(
    found: Sequence[Mapping[str, Any]], write: Callable[[Mapping[str, Any]], dict[str, Any]], children: str
) -> list[dict[str, Any]]:
    """The root nodes rebuilt from bodies in order;

    ``write`` gives a node, with an empty reply list if it had one.
    """
    roots: list[dict[str, Any]] = []
    nodes: dict[str, dict[str, Any]] = {}
    for body, above in parents(found):
        node = nodes[body["message_id"]] = write(body)
        if above is None:
            roots.append(node)
        else:
            nodes[above].setdefault(children, []).append(node)
    return roots
