"""OpenTelemetry GenAI messages (``gen_ai.input.messages``, ``gen_ai.output.messages``) <-> message bodies.

Parts follow the published JSON schema (text, tool_call, tool_call_response, server_tool_call and its
response, reasoning, blob, file, uri, compaction; any other ``type`` is generic, every part may have more
keys). The schema requires ``response`` on a tool's answer while the attribute pages show ``result``: both
are read, ``response`` is written, and a source's ``result`` comes back as ``result``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from refold.errors import InvalidRecord
from refold.formats.body import Body, mark_format, message_body
from refold.formats.extra import RAW, Hints, checked, pack, plain, put, raw_of, take, unpack
from refold.formats.jsonio import dumps, dumps_text, loads, same
from refold.formats.parts import (
    Part,
    decode_base64,
    encode_base64,
    generic,
    part,
    text,
    tool_call,
    tool_result,
)

FORMAT: Final = "otel"
_BLOB_KINDS: Final = {"image": "image", "audio": "audio"}


def message_in(message: Mapping[str, Any], *, message_id: str, **fields: Any) -> Body:
    """A body for one message.

    Raises :class:`InvalidRecord` (``bad_message``) when role or parts are missing.
    """
    rest = dict(message)
    role = take(rest, "role", str)
    parts = rest.pop("parts", None)
    if role is None or not isinstance(parts, list):
        raise InvalidRecord(
            "bad_message", "an OpenTelemetry message needs a string 'role' and a list 'parts'"
        )
    fields.setdefault("name", take(rest, "name", str))
    fields.setdefault("finish_reason", take(rest, "finish_reason", str))
    content = [part_in(item, f"refold_call_{message_id}_{at}") for at, item in enumerate(parts)]
    hints: Hints = {}
    if any(item.type == "tool_result" for item in content) and role != "tool":
        hints["role"], role = role, "tool"
    body = message_body(message_id, role, content, extra=pack(rest, hints), **fields)
    if not same(message_out(body), dict(message)):
        body["extra"] = pack({}, {RAW: dict(message)})
    return mark_format(body, FORMAT)


def message_out(body: Mapping[str, Any]) -> dict[str, Any]:
    """The message of a body made by :func:`message_in`, value by value."""
    rest, hints = unpack(body["extra"])
    raw = hints.get(RAW)
    if isinstance(raw, dict):
        return raw
    made: dict[str, Any] = {"role": hints.get("role", body["role"]), "parts": parts_out(body["content"])}
    put(made, "name", body["name"])
    put(made, "finish_reason", body["finish_reason"])
    return {**made, **rest}


def parts_out(parts: Iterable[Part]) -> list[Any]:
    return [part_out(item) for item in parts]


def part_in(item: Any, anonymous: str) -> Part:
    """One part. ``anonymous`` is the call id of a call or answer that has none."""
    if not isinstance(item, dict) or not isinstance(item.get("type"), str):
        return generic(None, item)
    rest = {key: value for key, value in item.items() if key != "type"}
    read = _READERS.get(item["type"])
    made = read(rest, anonymous) if read else None
    return checked(item, made, part_out) if made else generic(item["type"], item)


def part_out(item: Part) -> Any:
    raw = raw_of(item)
    if raw is not None:
        return raw
    write = _WRITERS.get(item.type)
    if write is None:
        return {"type": item.type, **({"content": item.text} if item.text is not None else {})}
    return write(item)


def _said(kind: str) -> Any:
    def read(rest: dict[str, Any], _: str) -> Part | None:
        body = take(rest, "content", str)
        return None if body is None else part(kind, body, {"extra": pack(rest)})

    return read


def _saying(kind: str) -> Any:
    def write(item: Part) -> dict[str, Any]:
        rest, _ = unpack(item.fields.get("extra"))
        return {"type": kind, "content": item.text or "", **rest}

    return write


def _call_in(rest: dict[str, Any], anonymous: str) -> Part | None:
    name = take(rest, "name", str)
    if name is None:
        return None
    hints: Hints = {}
    call_id = take(rest, "id", str)
    if call_id is None:
        hints["id"] = "absent"
    if "arguments" not in rest:
        hints["arguments"], raw = "absent", ""
    else:
        value = rest.pop("arguments")
        raw = value if isinstance(value, str) else dumps_text(value)
        if isinstance(value, str):
            hints["arguments"] = "text"
    return tool_call(call_id or anonymous, name, raw, pack(rest, hints))


def _call_out(item: Part) -> dict[str, Any]:
    rest, hints = unpack(item.fields.get("extra"))
    made: dict[str, Any] = {"type": "tool_call", "name": item.fields["name"]}
    if hints.get("id") != "absent":
        made["id"] = item.fields["call_id"]
    if hints.get("arguments") != "absent":
        raw = item.fields["arguments"]
        valid = item.fields.get("arguments_valid", True) and hints.get("arguments") != "text"
        made["arguments"] = loads(raw) if valid else raw
    return {**made, **rest}


def _answer_in(rest: dict[str, Any], anonymous: str) -> Part | None:
    hints: Hints = {}
    key = "response" if "response" in rest else "result"
    if key not in rest:
        return None
    if key == "result":
        hints["key"] = key
    value = rest.pop(key)
    content = [text(value)] if isinstance(value, str) else [generic(None, value)]
    call_id = take(rest, "id", str)
    if call_id is None:
        hints["id"] = "absent"
    return tool_result(call_id or anonymous, content, extra=pack(rest, hints))


def _answer_out(item: Part) -> dict[str, Any]:
    rest, hints = unpack(item.fields.get("extra"))
    made: dict[str, Any] = {"type": "tool_call_response"}
    if hints.get("id") != "absent":
        made["id"] = item.fields["call_id"]
    made[hints.get("key", "response")] = answer_value(item)
    return {**made, **rest}


def answer_value(item: Part) -> Any:
    """The value of a result: its text, its JSON, or the list of its parts."""
    content = item.fields.get("content", [])
    if not content:
        return ""
    if len(content) == 1 and plain(content[0]):
        return content[0].text
    if len(content) == 1 and content[0].type == "generic":
        return loads(content[0].fields["json"])
    return parts_out(content)


def _server_call_in(rest: dict[str, Any], _: str) -> Part | None:
    name = take(rest, "name", str)
    if name is None or "server_tool_call" not in rest:
        return None
    raw = dumps_text(rest.pop("server_tool_call"))
    fields = {"call_id": take(rest, "id", str), "name": name, "arguments": raw, "extra": pack(rest)}
    return part("provider_tool_call", None, fields)


def _server_call_out(item: Part) -> dict[str, Any]:
    rest, _ = unpack(item.fields.get("extra"))
    made: dict[str, Any] = {"type": "server_tool_call", "name": item.fields["name"]}
    put(made, "id", item.fields.get("call_id"))
    raw = item.fields.get("arguments") or "null"
    made["server_tool_call"] = loads(raw) if item.fields.get("arguments_valid", True) else raw
    return {**made, **rest}


def _server_answer_in(rest: dict[str, Any], _: str) -> Part | None:
    if "server_tool_call_response" not in rest:
        return None
    value = rest.pop("server_tool_call_response")
    kind = value.get("type") if isinstance(value, dict) else None
    fields = {
        "call_id": take(rest, "id", str),
        "name": kind if isinstance(kind, str) else None,
        "json": dumps(value),
    }
    return part("provider_tool_result", None, {**fields, "extra": pack(rest)})


def _server_answer_out(item: Part) -> dict[str, Any]:
    rest, _ = unpack(item.fields.get("extra"))
    made: dict[str, Any] = {"type": "server_tool_call_response"}
    put(made, "id", item.fields.get("call_id"))
    body = item.fields.get("json")
    made["server_tool_call_response"] = (
        loads(body)
        if body is not None
        else {"type": item.fields.get("name"), "content": parts_out(item.fields.get("content", []))}
    )
    return {**made, **rest}


def _blob_in(rest: dict[str, Any], _: str) -> Part | None:
    hints: Hints = {}
    data = decode_base64(rest["content"]) if isinstance(rest.get("content"), str) else None
    if data is None:
        return None
    del rest["content"]
    kind = _BLOB_KINDS.get(rest["modality"], "file") if isinstance(rest.get("modality"), str) else "file"
    if rest.get("modality") == kind:
        del rest["modality"]
    return part(
        kind, None, {"media_type": take(rest, "mime_type", str), "data": data, "extra": pack(rest, hints)}
    )


def _media_out(item: Part) -> dict[str, Any]:
    """A blob, or a file id or address with the modality the kind says."""
    rest, hints = unpack(item.fields.get("extra"))
    made: dict[str, Any] = {}
    data, url = item.fields.get("data"), item.fields.get("url")
    if data is not None:
        made.update(type="blob", content=encode_base64(data))
    elif url is not None:
        made.update(type="uri", uri=url)
    else:
        made["type"] = "file"
        put(made, "file_id", item.fields.get("file_id"))
    if "modality" not in rest and hints.get("modality") != "absent":
        made["modality"] = item.type if item.type in _BLOB_KINDS else "document"
    put(made, "mime_type", item.fields.get("media_type"))
    return {**made, **rest}


def _file_in(rest: dict[str, Any], _: str) -> Part | None:
    file_id = take(rest, "file_id", str)
    if file_id is None:
        return None
    hints: Hints = {} if "modality" in rest else {"modality": "absent"}
    if rest.get("modality") == "document":
        del rest["modality"]
    return part(
        "file",
        None,
        {"file_id": file_id, "media_type": take(rest, "mime_type", str), "extra": pack(rest, hints)},
    )


def _uri_in(rest: dict[str, Any], _: str) -> Part | None:
    uri = take(rest, "uri", str)
    if uri is None:
        return None
    fields = {"uri": uri, "media_type": take(rest, "mime_type", str), "modality": take(rest, "modality", str)}
    return part("uri", None, {**fields, "extra": pack(rest)})


def _uri_out(item: Part) -> dict[str, Any]:
    rest, _ = unpack(item.fields.get("extra"))
    made: dict[str, Any] = {"type": "uri", "uri": item.fields["uri"]}
    put(made, "mime_type", item.fields.get("media_type"))
    put(made, "modality", item.fields.get("modality"))
    return {**made, **rest}


def _compaction_in(rest: dict[str, Any], _: str) -> Part | None:
    said = take(rest, "content", str)
    return part("compaction", said, {"id": take(rest, "id", str), "extra": pack(rest)})


def _compaction_out(item: Part) -> dict[str, Any]:
    rest, _ = unpack(item.fields.get("extra"))
    made: dict[str, Any] = {"type": "compaction"}
    put(made, "id", item.fields.get("id"))
    put(made, "content", item.text)
    return {**made, **rest}


def _generic_out(item: Part) -> Any:
    return loads(item.fields["json"], where="a generic part")


_READERS: Final = {
    "text": _said("text"),
    "reasoning": _said("reasoning"),
    "tool_call": _call_in,
    "tool_call_response": _answer_in,
    "server_tool_call": _server_call_in,
    "server_tool_call_response": _server_answer_in,
    "blob": _blob_in,
    "file": _file_in,
    "uri": _uri_in,
    "compaction": _compaction_in,
}
_WRITERS: Final = {
    "text": _saying("text"),
    "reasoning": _saying("reasoning"),
    "refusal": _saying("refusal"),
    "tool_call": _call_out,
    "tool_result": _answer_out,
    "provider_tool_call": _server_call_out,
    "provider_tool_result": _server_answer_out,
    "image": _media_out,
    "audio": _media_out,
    "file": _media_out,
    "uri": _uri_out,
    "compaction": _compaction_out,
    "generic": _generic_out,
}

__all__ = ["FORMAT", "answer_value", "message_in", "message_out", "part_in", "part_out", "parts_out"]
