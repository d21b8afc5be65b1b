"""Messages of Bedrock (converse) and Google <-> message bodies, lossless both ways.

Both have a role and a list of blocks whose kind is the name of a key. refold has no importer for them; this
is what an answer's stream is turned into, and what gives it back. A block's part keeps everything else of
the block in ``extra``; a block without a part of its own is a generic one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from refold.formats.body import Body, mark_format, message_body
from refold.formats.extra import Hints, checked, pack, raw_of, take, unpack
from refold.formats.jsonio import dumps_text, loads
from refold.formats.parts import Part, generic, part, text, tool_call

BEDROCK: Final = "bedrock"
GOOGLE: Final = "google"
INTERACTIONS: Final = "google-interactions"
#: Where the list of blocks stands, and who the model is.
_LISTS: Final = {BEDROCK: "content", GOOGLE: "parts", INTERACTIONS: "steps"}
_ROLES: Final = {BEDROCK: "assistant", GOOGLE: "model"}

Block = dict[str, Any]


def message_in(
    message: Mapping[str, Any], parts: Sequence[Part], form: str, *, message_id: str, **fields: Any
) -> Body:
    """The body of a message whose blocks were read into ``parts``."""
    rest = {key: value for key, value in message.items() if key != _LISTS[form]}
    if rest.get("role") == _ROLES.get(form):
        rest.pop("role", None)
    body = message_body(message_id, "assistant", parts, extra=pack(rest), **fields)
    return mark_format(body, form)


def message_out(body: Mapping[str, Any], form: str) -> dict[str, Any]:
    """The message of a body made by :func:`message_in`, value by value."""
    rest, _ = unpack(body["extra"])
    made = {"role": _ROLES[form]} if form in _ROLES else {}
    return {**made, _LISTS[form]: [block_out(item, form) for item in body["content"]], **rest}


def block_in(block: Any, form: str) -> Part:
    """The part of one block."""
    read = _READERS[form]
    made = read(dict(block)) if isinstance(block, dict) else None
    if made is None:
        named: Any = None
        if isinstance(block, dict):
            named = block.get("type") if form == INTERACTIONS else next(iter(block), None)
        return generic(named if isinstance(named, str) else None, block)
    return checked(block, made, lambda item: block_out(item, form))


def block_out(item: Part, form: str) -> Any:
    raw = raw_of(item)
    if raw is not None:
        return raw
    if item.type == "generic":
        return loads(item.fields["json"], where="a generic part")
    return _WRITERS[form](item)


# ---- Bedrock -------------------------------------------------------------------------------------------


def _bedrock_in(block: Block) -> Part | None:
    if isinstance(block.get("text"), str):
        said = block.pop("text")
        return text(said, pack(block))
    use, thought = block.get("toolUse"), block.get("reasoningContent")
    if isinstance(use, dict):
        return _call_in(block, "toolUse", dict(use), "toolUseId", "input")
    if isinstance(thought, dict) and isinstance(thought.get("reasoningText"), dict):
        inner = dict(thought["reasoningText"])
        fields = {"signature": take(inner, "signature", str)}
        said = take(inner, "text", str)
        return part("reasoning", said, {**fields, "extra": pack({}, {"inner": inner} if inner else {})})
    if isinstance(thought, dict) and isinstance(thought.get("redactedContent"), str):
        return part("reasoning", None, {"encrypted": thought["redactedContent"], "redacted": True})
    return None


def _bedrock_out(item: Part) -> Block:
    rest, hints = unpack(item.fields.get("extra"))
    if item.type == "text":
        return {"text": item.text or "", **rest}
    if item.type == "tool_call":
        return _call_out(item, "toolUse", "toolUseId", "input")
    if item.fields.get("redacted"):
        return {"reasoningContent": {"redactedContent": item.fields["encrypted"]}}
    inner: Block = dict(hints.get("inner", {}))
    if item.text is not None:
        inner["text"] = item.text
    if item.fields.get("signature") is not None:
        inner["signature"] = item.fields["signature"]
    return {"reasoningContent": {"reasoningText": inner}}


# ---- Google --------------------------------------------------------------------------------------------


def _google_in(block: Block) -> Part | None:
    if isinstance(block.get("text"), str):
        said = block.pop("text")
        if block.get("thought") is True:
            del block["thought"]
            return part("reasoning", said, {"extra": pack(block)})
        return text(said, pack(block))
    if isinstance(block.get("functionCall"), dict):
        return _call_in(block, "functionCall", dict(block["functionCall"]), "id", "args")
    return None


def _google_out(item: Part) -> Block:
    rest, _ = unpack(item.fields.get("extra"))
    if item.type == "tool_call":
        return _call_out(item, "functionCall", "id", "args")
    made: Block = {"text": item.text or ""}
    return {**made, **({"thought": True} if item.type == "reasoning" else {}), **rest}


# ---- Google's interactions -----------------------------------------------------------------------------


def _step_in(block: Block) -> Part | None:
    kind = block.get("type")
    content = block.get("content")
    if kind == "model_output" and isinstance(content, list) and len(content) == 1:
        inner = content[0]
        if isinstance(inner, dict) and inner.keys() == {"type", "text"} and inner["type"] == "text":
            del block["content"], block["type"]
            return text(inner["text"], pack(block, {"step": kind}))
    if kind == "thought":
        del block["type"]
        signature = take(block, "signature", str)
        return part("reasoning", None, {"signature": signature, "extra": pack(block)})
    if kind == "function_call":
        del block["type"]
        return _call_in({"call": block}, "call", block, "id", "arguments")
    return None


def _step_out(item: Part) -> Block:
    rest, _ = unpack(item.fields.get("extra"))
    if item.type == "text":
        return {"type": "model_output", "content": [{"type": "text", "text": item.text or ""}], **rest}
    if item.type == "tool_call":
        made: Block = {"type": "function_call"}
        return {**made, **_call_out(item, "call", "id", "arguments")["call"]}
    signature = item.fields.get("signature")
    return {"type": "thought", **({} if signature is None else {"signature": signature}), **rest}


# ---- calls ---------------------------------------------------------------------------------------------


def _call_in(block: Block, place: str, inner: Block, id_key: str, input_key: str) -> Part | None:
    """A call. Its arguments are a value here; a string is raw text that is no JSON (cut short)."""
    hints: Hints = {}
    name, call_id = take(inner, "name", str), take(inner, id_key, str)
    if name is None:
        return None
    if call_id is None:
        hints["id"], call_id = "absent", ""
    raw = ""
    if input_key not in inner:
        hints["arguments"] = "absent"
    elif isinstance(inner[input_key], str):
        hints["arguments"], raw = "text", inner.pop(input_key)
    else:
        raw = dumps_text(inner.pop(input_key))
    rest = {key: value for key, value in block.items() if key != place}
    if inner:
        hints["inner"] = inner
    return tool_call(call_id, name, raw, pack(rest, hints))


def _call_out(item: Part, place: str, id_key: str, input_key: str) -> Block:
    rest, hints = unpack(item.fields.get("extra"))
    inner: Block = {"name": item.fields["name"], **hints.get("inner", {})}
    if hints.get("id") != "absent":
        inner[id_key] = item.fields["call_id"]
    raw, form = item.fields["arguments"], hints.get("arguments")
    if form != "absent":
        inner[input_key] = raw if form == "text" or not item.fields["arguments_valid"] else loads(raw)
    return {place: inner, **rest}


_READERS: Final[dict[str, Callable[[Block], Part | None]]] = {
    BEDROCK: _bedrock_in,
    GOOGLE: _google_in,
    INTERACTIONS: _step_in,
}
_WRITERS: Final[dict[str, Callable[[Part], Block]]] = {
    BEDROCK: _bedrock_out,
    GOOGLE: _google_out,
    INTERACTIONS: _step_out,
}
