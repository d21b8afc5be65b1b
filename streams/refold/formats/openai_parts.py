"""OpenAI content parts (the items of a message's ``content`` list) <-> refold parts.

text, image_url, input_audio, file and refusal have fields of their own; any other item is kept as a generic
part. Data URLs and base64 are stored as bytes where encoding them again gives the same text.
"""

from __future__ import annotations

from typing import Any, Final

from refold.formats.extra import checked, pack, put, raw_of, take, take_int, unpack
from refold.formats.jsonio import loads
from refold.formats.parts import Part, decode_base64, encode_base64, generic, part, text

#: Hint: where the part stands when its kind has several places in a message.
AT: Final = "at"
CONTENT: Final = "content"


def part_in(item: Any) -> Part:
    """One item of a content list."""
    if not isinstance(item, dict) or not isinstance(item.get("type"), str):
        return generic(None, item)
    read = _READERS.get(item["type"])
    made = read(item) if read else None
    return checked(item, made, part_out) if made else generic(item["type"], item)


def part_out(item: Part) -> Any:
    """The content list item of a part that has one."""
    raw = raw_of(item)
    if raw is not None:
        return raw
    write = _WRITERS.get(item.type)
    if write is None:
        return {"type": item.type, **({"text": item.text} if item.text is not None else {})}
    return write(item)


def _text_in(item: dict[str, Any]) -> Part | None:
    rest = dict(item)
    del rest["type"]
    body = take(rest, "text", str)
    return None if body is None else text(body, pack(rest))


def _text_out(item: Part) -> dict[str, Any]:
    rest, _ = unpack(item.fields.get("extra"))
    return {"type": "text", "text": item.text or "", **rest}


def _refusal_in(item: dict[str, Any]) -> Part | None:
    rest = dict(item)
    del rest["type"]
    body = take(rest, "refusal", str)
    return None if body is None else part("refusal", body, {"extra": pack(rest, {AT: CONTENT})})


def _refusal_out(item: Part) -> dict[str, Any]:
    rest, _ = unpack(item.fields.get("extra"))
    return {"type": "refusal", "refusal": item.text or "", **rest}


def _image_in(item: dict[str, Any]) -> Part | None:
    rest, inner = _inner(item, "image_url")
    if inner is None:
        return None
    url = take(inner, "url", str)
    detail = take(inner, "detail", str)
    fields = {"detail": detail, **(_data_url_in(url) if url is not None else {})}
    return part("image", None, {**fields, "extra": _pack_inner(rest, "image_url", inner)})


def _image_out(item: Part) -> dict[str, Any]:
    rest, inner = _unpack_inner(item, "image_url")
    put(inner, "url", data_url_out(item))
    put(inner, "detail", item.fields.get("detail"))
    return {"type": "image_url", "image_url": inner, **rest}


def _audio_in(item: dict[str, Any]) -> Part | None:
    rest, inner = _inner(item, "input_audio")
    if inner is None:
        return None
    encoding = take(inner, "format", str)
    raw = decode_base64(inner["data"]) if isinstance(inner.get("data"), str) else None
    if raw is not None:
        del inner["data"]
    return part(
        "audio", None, {"format": encoding, "data": raw, "extra": _pack_inner(rest, "input_audio", inner)}
    )


def _audio_out(item: Part) -> dict[str, Any]:
    rest, inner = _unpack_inner(item, "input_audio")
    data = item.fields.get("data")
    put(inner, "data", None if data is None else encode_base64(data))
    put(inner, "format", item.fields.get("format"))
    return {"type": "input_audio", "input_audio": inner, **rest}


def _file_in(item: dict[str, Any]) -> Part | None:
    rest, inner = _inner(item, "file")
    if inner is None:
        return None
    fields: dict[str, Any] = {
        "file_id": take(inner, "file_id", str),
        "filename": take(inner, "filename", str),
    }
    if isinstance(inner.get("file_data"), str):
        decoded = _data_url_in(inner["file_data"])
        if "data" in decoded:
            del inner["file_data"]
            fields.update(decoded)
    return part("file", None, {**fields, "extra": _pack_inner(rest, "file", inner)})


def _file_out(item: Part) -> dict[str, Any]:
    rest, inner = _unpack_inner(item, "file")
    if item.fields.get("data") is not None:
        inner["file_data"] = data_url_out(item)
    put(inner, "file_id", item.fields.get("file_id"))
    put(inner, "filename", item.fields.get("filename"))
    return {"type": "file", "file": inner, **rest}


def _generic_out(item: Part) -> Any:
    return loads(item.fields["json"], where="a generic part")


def _data_url_in(url: str) -> dict[str, Any]:
    """``data:<type>;base64,<text>`` as media type and bytes; anything else as the address it is."""
    if url.startswith("data:"):
        head, comma, body = url[5:].partition(",")
        media_type, semicolon, encoding = head.rpartition(";")
        if comma and semicolon and encoding == "base64":
            raw = decode_base64(body)
            if raw is not None:
                return {"media_type": media_type, "data": raw}
    return {"url": url}


def data_url_out(item: Part) -> str | None:
    """The address of a part's content, as a data URL where refold holds the bytes."""
    data = item.fields.get("data")
    if data is not None:
        return (
            f"data:{item.fields.get('media_type') or 'application/octet-stream'};base64,{encode_base64(data)}"
        )
    url = item.fields.get("url")
    return url if isinstance(url, str) else None


def _inner(item: dict[str, Any], key: str) -> tuple[dict[str, Any], dict[str, Any] | None]:
    rest = {name: value for name, value in item.items() if name not in ("type", key)}
    inner = item.get(key)
    return rest, dict(inner) if isinstance(inner, dict) else None


def _pack_inner(rest: dict[str, Any], key: str, inner: dict[str, Any]) -> bytes | None:
    return pack({**rest, key: inner} if inner else rest)


def _unpack_inner(item: Part, key: str) -> tuple[dict[str, Any], dict[str, Any]]:
    rest, _ = unpack(item.fields.get("extra"))
    inner = rest.pop(key, None)
    return rest, dict(inner) if isinstance(inner, dict) else {}


def annotation_in(item: Any) -> Part:
    """One entry of a message's ``annotations`` (a URL citation)."""
    inner = item.get("url_citation") if isinstance(item, dict) else None
    if not isinstance(inner, dict) or item.get("type") != "url_citation":
        return part("citation", None, {"extra": pack({}, {"raw": item})})
    rest, inside = _inner(item, "url_citation")
    made = part(
        "citation",
        None,
        {
            "kind": "url_citation",
            "uri": take(inside or {}, "url", str),
            "source": take(inside or {}, "title", str),
            "start": take_int(inside or {}, "start_index"),
            "end": take_int(inside or {}, "end_index"),
            "extra": _pack_inner(rest, "url_citation", inside or {}),
        },
    )
    return checked(item, made, annotation_out)


def annotation_out(item: Part) -> Any:
    raw = raw_of(item)
    if raw is not None:
        return raw
    rest, inner = _unpack_inner(item, "url_citation")
    put(inner, "url", item.fields.get("uri"))
    put(inner, "title", item.fields.get("source"))
    put(inner, "start_index", item.fields.get("start"))
    put(inner, "end_index", item.fields.get("end"))
    return {"type": "url_citation", "url_citation": inner, **rest}


_READERS: Final = {
    "text": _text_in,
    "refusal": _refusal_in,
    "image_url": _image_in,
    "input_audio": _audio_in,
    "file": _file_in,
}
_WRITERS: Final = {
    "text": _text_out,
    "refusal": _refusal_out,
    "image": _image_out,
    "audio": _audio_out,
    "file": _file_out,
    "generic": _generic_out,
}
