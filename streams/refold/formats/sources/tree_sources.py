"""OASST message trees, LibreChat exports (nested or flat) and ChatGPT exports (``mapping``).

Sibling replies are branches (``parent_id``). The last imported leaf would be the active one; where the
export names its current message (ChatGPT), a ``BranchSwitched`` makes that the head.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from refold.errors import InvalidRecord, NotFound
from refold.formats.body import Body, message_body
from refold.formats.calls import CallNames
from refold.formats.extra import Hints, pack, take, unpack
from refold.formats.jsonio import loads
from refold.formats.parts import Part, generic, text, tool_call, tool_result
from refold.formats.sources import trees
from refold.formats.sources.base import Sheet, SourceSession, bodies, kept, place_id, time_of
from refold.formats.sources.files import Document, Reading, documents
from refold.formats.sources.framed import FRAME, record_bytes

_OASST_ROLES: Final = {"prompter": "user", "assistant": "assistant"}
_LIBRECHAT_ROOT: Final = "00000000-0000-0000-0000-000000000000"


class TreeSource:
    """A document with a tree of messages and a frame around it."""

    name: str
    expects: str

    def detect(self, head: Sequence[Any]) -> float:
        return min(
            (1.0 if isinstance(value, dict) and self._looks(value) else 0.0 for value in head), default=0.0
        )

    def read(self, path: Path, reading: Reading) -> Iterator[SourceSession]:
        for document in documents(path, reading):
            where = f"{path.name} document {document.index}"
            if not isinstance(document.value, dict) or not self._looks(document.value):
                raise InvalidRecord(
                    "bad_message", f"{where} is no {self.name} document: expected {self.expects}"
                )
            try:
                yield self._session(path, document)
            except InvalidRecord as error:
                raise InvalidRecord(error.code, f"{where}: {error.reason}") from None

    def _session(self, path: Path, document: Document) -> SourceSession:
        value = document.value
        sheet = Sheet(self.name, self._id(value) or place_id(path, document.index, value))
        time_ms = self._time(value)
        sheet.open(self._title(value), time_ms=time_ms)
        sheet.keep(self._frame(value), file=path.name, index=document.index, note=FRAME, time_ms=time_ms)
        before: str | None = None
        for body, parent, source, at in self._messages(value):
            sheet.message(trees.attach(body, parent, before), source=source, time_ms=at or time_ms)
            before = body["message_id"]
        current = self._current(value)
        if current is not None and current != before:
            sheet.add(
                "BranchSwitched", {"head_message_id": current}, key="current", content=current, actor="system"
            )
        return sheet.session

    def export(self, events: Sequence[Mapping[str, Any]]) -> list[Any]:
        frames = [record for record in kept(events, self.name) if record["note"] == FRAME]
        if not frames:
            raise NotFound(f"the session has no kept {self.name} frame: it was not imported from such a file")
        return [self._fill(loads(record_bytes(frames[-1]), where="the kept frame"), bodies(events))]

    # What a format says about its documents.
    def _looks(self, value: dict[str, Any]) -> bool:
        raise NotImplementedError

    def _id(self, value: dict[str, Any]) -> str | None:
        raise NotImplementedError

    def _frame(self, value: dict[str, Any]) -> Any:
        raise NotImplementedError

    def _messages(self, value: dict[str, Any]) -> Iterator[tuple[Body, str | None, Any, int]]:
        """(body, parent's id, what it was made from, time) with every parent before its children."""
        raise NotImplementedError

    def _fill(self, frame: Any, found: Sequence[Mapping[str, Any]]) -> Any:
        raise NotImplementedError

    def _title(self, value: dict[str, Any]) -> str | None:
        return value["title"] if isinstance(value.get("title"), str) else None

    def _time(self, value: dict[str, Any]) -> int:
        return 0

    def _current(self, value: dict[str, Any]) -> str | None:
        return None


def _node_in(
    node: dict[str, Any], id_key: str, children: str, text_key: str, role: str, **fields: Any
) -> Body:
    """A body of a node whose text is one string; everything else it says stays in ``extra``."""
    rest = dict(node)
    message_id, said = take(rest, id_key, str), take(rest, text_key, str)
    if not message_id:
        raise InvalidRecord("bad_message", f"a message has no string {id_key!r}")
    hints: Hints = {}
    if isinstance(rest.get(children), list):
        hints["children"] = True
        del rest[children]
    content = [] if said is None else [text(said)]
    return message_body(message_id, role, content, extra_format="tree", extra=pack(rest, hints), **fields)


def _node_out(body: Mapping[str, Any], id_key: str, children: str, text_key: str) -> dict[str, Any]:
    rest, hints = unpack(body["extra"])
    made: dict[str, Any] = {id_key: body["message_id"]}
    if body["content"]:
        made[text_key] = body["content"][0].text
    made.update(rest)
    if hints.get("children"):
        made[children] = []
    return made


class Oasst(TreeSource):
    name = "oasst"
    expects = 'one {"message_tree_id", "prompt": {"message_id", "text", "role", "replies": […]}} per line'

    def _looks(self, value: dict[str, Any]) -> bool:
        return isinstance(value.get("message_tree_id"), str) and isinstance(value.get("prompt"), dict)

    def _id(self, value: dict[str, Any]) -> str:
        return f"oasst-{value['message_tree_id']}"

    def _frame(self, value: dict[str, Any]) -> Any:
        return {**value, "prompt": None}

    def _messages(self, value: dict[str, Any]) -> Iterator[tuple[Body, str | None, Any, int]]:
        for node, above in trees.walk([value["prompt"]], "replies"):
            role = _OASST_ROLES.get(str(node.get("role")), "user")
            body = _node_in(node, "message_id", "replies", "text", role, model=_text(node.get("model_name")))
            source = {key: item for key, item in node.items() if key != "replies"}
            yield body, above["message_id"] if above else None, source, time_of(node.get("created_date"))

    def _fill(self, frame: Any, found: Sequence[Mapping[str, Any]]) -> Any:
        (prompt,) = trees.nest(
            found, lambda body: _node_out(body, "message_id", "replies", "text"), "replies"
        )
        return {**frame, "prompt": prompt}


class LibreChat(TreeSource):
    name = "librechat"
    expects = 'one {"conversationId", "messages": [{"messageId", "parentMessageId", "text"}]} per line'

    def _looks(self, value: dict[str, Any]) -> bool:
        messages = value.get("messages")
        return (
            "conversationId" in value
            and isinstance(messages, list)
            and all(isinstance(one, dict) and isinstance(one.get("messageId"), str) for one in messages[:4])
        )

    def _id(self, value: dict[str, Any]) -> str | None:
        return _text(value["conversationId"])

    def _frame(self, value: dict[str, Any]) -> Any:
        return {**value, "messages": []}

    def _messages(self, value: dict[str, Any]) -> Iterator[tuple[Body, str | None, Any, int]]:
        known: set[str] = set()
        for node, nested in trees.walk(value["messages"], "children"):
            role = "user" if node.get("isCreatedByUser") is True else "assistant"
            body = _node_in(
                node,
                "messageId",
                "children",
                "text",
                role,
                model=_text(node.get("model")),
                finish_reason=_text(node.get("finish_reason")),
            )
            named = _text(node.get("parentMessageId"))
            above = nested["messageId"] if nested else named if named in known else None
            known.add(body["message_id"])
            source = {key: item for key, item in node.items() if key != "children"}
            yield body, above, source, time_of(node.get("createdAt"))

    def _fill(self, frame: Any, found: Sequence[Mapping[str, Any]]) -> Any:
        def write(body: Mapping[str, Any]) -> dict[str, Any]:
            return _node_out(body, "messageId", "children", "text")

        nested = any(unpack(body["extra"])[1].get("children") for body in found)
        messages = trees.nest(found, write, "children") if nested else [write(body) for body in found]
        return {**frame, "messages": messages}


class ChatGpt(TreeSource):
    name = "chatgpt"
    expects = 'one {"mapping": {id: {"message", "parent", "children"}}, "current_node"} per line'

    def _looks(self, value: dict[str, Any]) -> bool:
        mapping = value.get("mapping")
        return isinstance(mapping, dict) and all(
            isinstance(node, dict) and "message" in node for node in mapping.values()
        )

    def _id(self, value: dict[str, Any]) -> str | None:
        return _text(value.get("conversation_id")) or _text(value.get("id"))

    def _time(self, value: dict[str, Any]) -> int:
        return time_of(value.get("create_time"))

    def _current(self, value: dict[str, Any]) -> str | None:
        current = _text(value.get("current_node"))
        mapping: dict[str, Any] = value["mapping"]
        return current if current in mapping and isinstance(mapping[current]["message"], dict) else None

    def _frame(self, value: dict[str, Any]) -> Any:
        return {
            **value,
            "mapping": {key: {**node, "message": None} for key, node in value["mapping"].items()},
        }

    def _messages(self, value: dict[str, Any]) -> Iterator[tuple[Body, str | None, Any, int]]:
        mapping: dict[str, Any] = value["mapping"]
        names = CallNames()
        done: set[str] = set()
        roots = [key for key, node in mapping.items() if node.get("parent") not in mapping]
        pending: list[tuple[str, str | None]] = [(key, None) for key in reversed([*roots, *mapping])]
        while pending:
            key, above = pending.pop()
            if key in done or key not in mapping:
                continue
            done.add(key)
            message = mapping[key]["message"]
            if isinstance(message, dict):
                yield _chatgpt_in(message, key, names), above, message, time_of(message.get("create_time"))
                above = key
            replies = mapping[key].get("children")
            pending.extend((reply, above) for reply in reversed(replies if isinstance(replies, list) else []))

    def _fill(self, frame: Any, found: Sequence[Mapping[str, Any]]) -> Any:
        for body in found:
            frame["mapping"][body["message_id"]]["message"] = _chatgpt_out(body)
        return frame


def _chatgpt_in(message: dict[str, Any], key: str, names: CallNames) -> Body:
    """``content.parts`` become parts; a message to a tool is a call, a tool's message its result."""
    author = message.get("author")
    role = author.get("role") if isinstance(author, dict) else None
    tool = author.get("name") if isinstance(author, dict) else None
    rest = dict(message)
    content: list[Part] = []
    said = message.get("content")
    if isinstance(said, dict) and isinstance(said.get("parts"), list):
        content = [text(one) if isinstance(one, str) else generic(None, one) for one in said["parts"]]
        rest["content"] = {name: value for name, value in said.items() if name != "parts"}
    recipient = message.get("recipient")
    hints: Hints = {}
    if role == "tool":
        content = [tool_result(names.answer(_text(tool)), content, name=_text(tool))]
    elif (
        role == "assistant"
        and isinstance(recipient, str)
        and recipient != "all"
        and len(content) == 1
        and content[0].type == "text"
    ):
        content = [tool_call(names.ask(recipient), recipient, content[0].text or "")]
    elif not content:
        hints["parts"] = "absent" if not isinstance(said, dict) or "parts" not in said else "empty"
    metadata = message.get("metadata")
    model = _text(metadata.get("model_slug")) if isinstance(metadata, dict) else None
    shown = role if role in ("system", "user", "assistant", "tool") else "user"
    return message_body(key, shown, content, extra_format="chatgpt", extra=pack(rest, hints), model=model)


def _chatgpt_out(body: Mapping[str, Any]) -> dict[str, Any]:
    rest, hints = unpack(body["extra"])
    content: list[Part] = body["content"]
    if len(content) == 1 and content[0].type == "tool_result":
        content = content[0].fields["content"]
    if hints.get("parts") != "absent" and isinstance(rest.get("content"), dict):
        rest["content"]["parts"] = [_chatgpt_part(one) for one in content]
    return rest


def _chatgpt_part(item: Part) -> Any:
    if item.type == "generic":
        return loads(item.fields["json"])
    return item.fields["arguments"] if item.type == "tool_call" else item.text


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
