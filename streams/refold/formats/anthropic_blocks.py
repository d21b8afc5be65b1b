"""Anthropic content blocks <-> refold parts.

One block is one part, except that a text block's citations become citation parts right after it. Blocks of
tools the provider runs itself (``server_tool_use``, ``mcp_tool_use`` and their ``*_tool_result``) become
provider calls and results. Signatures and encrypted or redacted content are kept as the strings they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

from refold.formats.anthropic_citations import citation_in, citation_out
from refold.formats.anthropic_media import media_in, media_out
from refold.formats.extra import Hints, checked, pack, plain, put, raw_of, take, unpack
from refold.formats.jsonio import dumps, dumps_text, loads, same
from refold.formats.parts import (
    Part,
    generic,
    part,
    text,
    tool_call,
    tool_result,
)

_PROVIDER_CALLS: Final = ("server_tool_use", "mcp_tool_use")
_PROVIDER_RESULT: Final = "_tool_result"


def blocks_in(blocks: Sequence[Any]) -> list[Part]:
    return [made for block in blocks for made in block_in(block)]


def blocks_out(parts: Iterable[Part]) -> list[Any]:
    """The blocks of ``parts``; citations go back into the text block before them."""
    made: list[Any] = []
    for item in parts:
        if item.type == "citation" and made and isinstance(made[-1], dict) and made[-1].get("type") == "text":
            made[-1].setdefault("citations", []).append(citation_out(item))
        else:
            made.append(_block_out(item))
    return made


def block_in(block: Any) -> list[Part]:
    """The parts of one block: one, or a text and its citations."""
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        return [generic(None, block)]
    kind = block["type"]
    if kind == "text":
        return _text_in(block)
    read = _READERS.get(kind)
    if kind in _PROVIDER_CALLS:
        read = _provider_call_in
    elif read is None and kind.endswith(_PROVIDER_RESULT):
        read = _provider_result_in
    made = read(block) if read else None
    return [checked(block, made, _block_out) if made else generic(kind, block)]


def _block_out(item: Part) -> Any:
    raw = raw_of(item)
    if raw is not None:
        return raw
    write = _WRITERS.get(item.type)
    return write(item) if write else {"type": item.type}


def _rest(block: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in block.items() if key != "type"}


# ---- text and citations --------------------------------------------------------------------------------


def _text_in(block: dict[str, Any]) -> list[Part]:
    rest = _rest(block)
    body = take(rest, "text", str)
    if body is None:
        return [generic("text", block)]
    cited = rest.get("citations")
    citations = []
    if isinstance(cited, list) and cited:
        citations = [citation_in(item) for item in rest.pop("citations")]
    made = [text(body, pack(rest)), *citations]
    if same(blocks_out(made), [block]):
        return made
    return [checked(block, text(body), _block_out)]


def _text_out(item: Part) -> dict[str, Any]:
    rest, _ = unpack(item.fields.get("extra"))
    return {"type": "text", "text": item.text or "", **rest}


# ---- reasoning -----------------------------------------------------------------------------------------


def _thinking_in(block: dict[str, Any]) -> Part | None:
    rest = _rest(block)
    said = take(rest, "thinking", str)
    if said is None:
        return None
    return part("reasoning", said, {"signature": take(rest, "signature", str), "extra": pack(rest)})


def _redacted_in(block: dict[str, Any]) -> Part | None:
    rest = _rest(block)
    data = take(rest, "data", str)
    return (
        None
        if data is None
        else part("reasoning", None, {"encrypted": data, "redacted": True, "extra": pack(rest)})
    )


def _reasoning_out(item: Part) -> dict[str, Any]:
    rest, _ = unpack(item.fields.get("extra"))
    if item.fields.get("redacted"):
        return {"type": "redacted_thinking", "data": item.fields.get("encrypted") or "", **rest}
    made = {"type": "thinking", "thinking": item.text or ""}
    put(made, "signature", item.fields.get("signature"))
    return {**made, **rest}


# ---- calls and results ---------------------------------------------------------------------------------


def _tool_use_in(block: dict[str, Any]) -> Part | None:
    rest = _rest(block)
    call_id, name = take(rest, "id", str), take(rest, "name", str)
    if call_id is None or name is None or "input" not in rest:
        return None
    hints: Hints = {}
    return tool_call(call_id, name, _input_in(rest, hints), pack(rest, hints))


def _input_in(rest: dict[str, Any], hints: Hints) -> str:
    """The raw argument text.

    Anthropic sends a value; a string (partial JSON cut short) is raw text already.
    """
    value = rest.pop("input")
    if isinstance(value, str):
        hints["input"] = "text"
        return value
    return dumps_text(value)


def _input_out(item: Part) -> Any:
    raw = item.fields["arguments"]
    _, hints = unpack(item.fields.get("extra"))
    return raw if hints.get("input") == "text" or not item.fields.get("arguments_valid", True) else loads(raw)


def _tool_use_out(item: Part) -> dict[str, Any]:
    rest, _ = unpack(item.fields.get("extra"))
    return {
        "type": "tool_use",
        "id": item.fields["call_id"],
        "name": item.fields["name"],
        "input": _input_out(item),
        **rest,
    }


def _tool_result_in(block: dict[str, Any]) -> Part | None:
    rest = _rest(block)
    call_id = take(rest, "tool_use_id", str)
    if call_id is None:
        return None
    hints: Hints = {}
    failed = take(rest, "is_error", bool)
    if failed is False:
        hints["is_error"] = False  # Said, though it is what silence means.
    content = content_in(rest, hints)
    return tool_result(call_id, content, is_error=bool(failed), extra=pack(rest, hints))


def _tool_result_out(item: Part) -> dict[str, Any]:
    rest, hints = unpack(item.fields.get("extra"))
    made: dict[str, Any] = {"type": "tool_result", "tool_use_id": item.fields["call_id"]}
    if item.fields.get("is_error") or "is_error" in hints:
        made["is_error"] = bool(item.fields.get("is_error"))
    content_out(made, item.fields.get("content", []), hints)
    return {**made, **rest}


def content_in(rest: dict[str, Any], hints: Hints) -> list[Part]:
    """The parts of a ``content`` that may be a string, a list of blocks, or absent.

    Other values stay in ``rest``.
    """
    value = rest.get("content")
    if "content" not in rest:
        form, parts = "absent", []
    elif isinstance(value, str):
        form, parts = "string", [text(value)]
    elif isinstance(value, list):
        form, parts = "list", blocks_in(value)
    else:
        return []
    rest.pop("content", None)
    if form != default_form(parts):
        hints["content"] = form
    return parts


def content_out(made: dict[str, Any], parts: Sequence[Part], hints: Hints) -> None:
    form = hints.get("content") or default_form(parts)
    if form == "string":
        made["content"] = parts[0].text if parts else ""
    elif form == "list":
        made["content"] = blocks_out(parts)


def default_form(parts: Sequence[Part]) -> str:
    """How content is written unless a hint says otherwise: nothing is left out, one bare text is a string."""
    if not parts:
        return "absent"
    return "string" if len(parts) == 1 and plain(parts[0]) else "list"


def _provider_call_in(block: dict[str, Any]) -> Part | None:
    rest = _rest(block)
    name = take(rest, "name", str)
    if name is None or "input" not in rest:
        return None
    hints: Hints = {"type": block["type"]}
    call_id = take(rest, "id", str)
    raw = _input_in(rest, hints)
    fields = {
        "call_id": call_id,
        "name": name,
        "arguments": raw,
        "arguments_valid": hints.get("input") is None,
    }
    return part("provider_tool_call", None, {**fields, "extra": pack(rest, hints)})


def _provider_call_out(item: Part) -> dict[str, Any]:
    rest, hints = unpack(item.fields.get("extra"))
    made: dict[str, Any] = {"type": hints.get("type", "server_tool_use")}
    put(made, "id", item.fields.get("call_id"))
    return {**made, "name": item.fields["name"], "input": _input_out(item), **rest}


def _provider_result_in(block: dict[str, Any]) -> Part | None:
    rest = _rest(block)
    call_id = take(rest, "tool_use_id", str)
    hints: Hints = {}
    failed = take(rest, "is_error", bool)
    if failed is False:
        hints["is_error"] = False
    fields: dict[str, Any] = {"call_id": call_id, "name": block["type"], "is_error": bool(failed)}
    content = rest.get("content")
    if block["type"] == "mcp_tool_result":
        fields["content"] = content_in(rest, hints)
    elif isinstance(content, list | dict):
        fields["json"] = dumps(rest.pop("content"))
        if isinstance(content, dict) and str(content.get("type", "")).endswith("_error"):
            hints["is_error"] = None
            fields["is_error"] = True
    return part("provider_tool_result", None, {**fields, "extra": pack(rest, hints)})


def _provider_result_out(item: Part) -> dict[str, Any]:
    rest, hints = unpack(item.fields.get("extra"))
    made: dict[str, Any] = {"type": item.fields.get("name")}
    put(made, "tool_use_id", item.fields.get("call_id"))
    # A null hint: the error is said by the content's own type, not by a key of the block.
    if hints.get("is_error", True) is not None and (item.fields.get("is_error") or "is_error" in hints):
        made["is_error"] = bool(item.fields.get("is_error"))
    body = item.fields.get("json")
    if body is not None:
        made["content"] = loads(body, where="a provider result")
    else:
        content_out(made, item.fields.get("content", []), hints)
    return {**made, **rest}


def _compaction_in(block: dict[str, Any]) -> Part | None:
    rest = _rest(block)
    said = take(rest, "content", str)
    return part("compaction", said, {"encrypted": take(rest, "encrypted_content", str), "extra": pack(rest)})


def _compaction_out(item: Part) -> dict[str, Any]:
    rest, _ = unpack(item.fields.get("extra"))
    made: dict[str, Any] = {"type": "compaction"}
    put(made, "content", item.text)
    put(made, "encrypted_content", item.fields.get("encrypted"))
    return {**made, **rest}


def _generic_out(item: Part) -> Any:
    return loads(item.fields["json"], where="a generic part")


_READERS: Final = {
    "thinking": _thinking_in,
    "redacted_thinking": _redacted_in,
    "tool_use": _tool_use_in,
    "tool_result": _tool_result_in,
    "image": media_in,
    "document": media_in,
    "compaction": _compaction_in,
}
_WRITERS: Final = {
    "text": _text_out,
    "citation": citation_out,
    "reasoning": _reasoning_out,
    "tool_call": _tool_use_out,
    "tool_result": _tool_result_out,
    "provider_tool_call": _provider_call_out,
    "provider_tool_result": _provider_result_out,
    "image": media_out,
    "file": media_out,
    "compaction": _compaction_out,
    "generic": _generic_out,
}
