"""ShareGPT conversations, with glaive's ``function_call`` and ``observation`` turns.

A ``function_call`` is an assistant message with one call, whose text is ``{"name", "arguments"}``; its
exact text is kept, because writing the parsed value again would change spaces. Calls have no ids: results
answer in order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from refold.errors import InvalidRecord
from refold.formats.body import Body, message_body
from refold.formats.calls import CallNames
from refold.formats.extra import RAW, pack, take, unpack
from refold.formats.jsonio import dumps_text, parse_object, same
from refold.formats.parts import Part, text, tool_call, tool_result
from refold.formats.sources.framed import Framed, one_by_one

FORMAT: Final = "sharegpt"
#: ``from`` -> role. The first name of a role is its default; the others are remembered.
ROLES: Final[Mapping[str, str]] = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "function_call": "assistant",
    "observation": "tool",
    "tool": "tool",
    "function_response": "tool",
    "system": "system",
}
_SPEAKERS: Final = {"user": "human", "assistant": "gpt", "tool": "observation", "system": "system"}


def _message_in(message: Any, message_id: str, names: CallNames) -> list[Body]:
    rest = dict(message) if isinstance(message, dict) else {}
    speaker, value = take(rest, "from", str), take(rest, "value", str)
    if speaker is None or value is None:
        raise InvalidRecord("bad_message", "a ShareGPT turn needs string 'from' and 'value'")
    role = ROLES.get(speaker, "user")
    hints: dict[str, Any] = {}
    content: list[Part]
    if speaker == "function_call":
        content = [_call_in(value, names)]
        hints["from"] = speaker
    elif role == "tool":
        content = [tool_result(names.answer(), [text(value)])]
    else:
        content = [text(value)]
    if role == "user":
        names.turn_ended()
    if speaker != _SPEAKERS[role]:
        hints["from"] = speaker
    body = message_body(message_id, role, content, extra_format=FORMAT, extra=pack(rest, hints))
    if not same(_message_out(body), message):
        body["extra"] = pack({}, {RAW: message})
    return [body]


def _call_in(value: str, names: CallNames) -> Part:
    """The call in ``value``.

    A text that is no call is a call without name whose raw arguments are the text.
    """
    said = parse_object(value)
    name = said.get("name") if said else None
    if not said or not isinstance(name, str) or said.keys() != {"name", "arguments"}:
        return tool_call(names.ask(""), "", value, pack({}, {"text": value}))
    asked = said["arguments"]
    raw = asked if isinstance(asked, str) else dumps_text(asked)
    return tool_call(names.ask(name), name, raw, pack({}, {"text": value}))


def _message_out(body: Mapping[str, Any]) -> Any:
    rest, hints = unpack(body["extra"])
    if RAW in hints:
        return hints[RAW]
    (item,) = body["content"]
    if item.type == "tool_call":
        value = unpack(item.fields.get("extra"))[1]["text"]
    elif item.type == "tool_result":
        value = item.fields["content"][0].text
    else:
        value = item.text
    return {"from": hints.get("from", _SPEAKERS[body["role"]]), "value": value, **rest}


def _looks(value: Any) -> float:
    turns = value.get("conversations") if isinstance(value, dict) else None
    if not isinstance(turns, list) or not turns:
        return 0.0
    return (
        1.0 if all(isinstance(turn, dict) and {"from", "value"} <= turn.keys() for turn in turns[:8]) else 0.0
    )


SHAREGPT: Final = Framed(
    name="sharegpt",
    expects='one {"conversations": [{"from", "value"}]} per line (ShareGPT, glaive)',
    place="conversations",
    looks=_looks,
    message_in=_message_in,
    messages_out=one_by_one(_message_out),
    natural_id=lambda _: None,
)
