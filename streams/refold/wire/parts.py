"""Content parts as values: a kind, its text, and the kind's own fields as a framed record.

Invariants: what was read is written back byte for byte (``data`` is kept, ``fields`` only look into it), so a
kind, or a version of a kind, that this reader does not know passes through untouched; ``data`` is absent when
a kind has nothing beside its text. ``extra`` of every kind is opaque JSON and never parsed here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Final

from refold.errors import InvalidRecord, UsageError
from refold.wire.codec import decode, encode

#: Part.type → subject of its fields.
KINDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "text": "refold.part.Text",
        "tool_call": "refold.part.ToolCall",
        "tool_result": "refold.part.ToolResult",
        "provider_tool_call": "refold.part.ProviderToolCall",
        "provider_tool_result": "refold.part.ProviderToolResult",
        "reasoning": "refold.part.Reasoning",
        "image": "refold.part.Image",
        "audio": "refold.part.Audio",
        "file": "refold.part.File",
        "uri": "refold.part.Uri",
        "refusal": "refold.part.Refusal",
        "citation": "refold.part.Citation",
        "compaction": "refold.part.Compaction",
        "generic": "refold.part.Generic",
        "sealed": "refold.part.Sealed",
    }
)

#: Kinds whose record has parts of its own, in ``content``.
NESTING_KINDS: Final = frozenset({"tool_result", "provider_tool_result"})

#: Parts within parts, the outermost counted. Readers recurse, and each level is a copy of what is in it: of a
#: record of 1 MB all together at most 32 MB. A result of a result is two deep.
PART_DEPTH_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class BlobRef:
    """Bytes kept outside the record. ``length`` in bytes; ``field`` is what they stand for: text or data."""

    uri: str
    sha256: str
    length: int
    media_type: str
    field: str


class Part:
    """One content part; immutable.

    ``data`` is the framed record of the kind, or None; ``fields`` is the same as a mapping in the shape of
    the newest schema, with nested parts as :class:`Part`. A part this reader cannot look into is
    ``opaque``: its fields are empty, its data is kept.
    """

    __slots__ = ("_fields", "data", "ref", "text", "type", "type_version")

    def __init__(
        self,
        type: str,  # noqa: A002 - the schema's field name
        text: str | None = None,
        fields: Mapping[str, Any] | None = None,
        ref: BlobRef | None = None,
        type_version: int = 1,
        *,
        data: bytes | None = None,
    ) -> None:
        """From ``fields`` (None values are left to their defaults) or from ``data``, not both.

        Raises UsageError naming the field, InvalidRecord("lone_surrogate").
        """
        self.type = type
        self.text = text
        self.ref = ref
        self.type_version = type_version
        self.data = data
        self._fields: Mapping[str, Any] | None = None
        given = {k: v for k, v in (fields or {}).items() if v is not None}
        if given:
            if data is not None:
                raise UsageError("a part is made from fields or from data, not from both")
            self.data = _encode_fields(type, given)

    @property
    def fields(self) -> Mapping[str, Any]:
        """Read only. Empty for an opaque part. Raises InvalidRecord for data of another form."""
        if self._fields is None:
            self._fields = MappingProxyType(_decode_fields(self.type, self.data))
        return self._fields

    @property
    def opaque(self) -> bool:
        """True for a kind, or a version of a kind's record, that this reader does not know."""
        return self.type not in KINDS or (self.data is not None and not self.fields)

    @property
    def content(self) -> tuple[Part, ...]:
        """The parts inside a tool result; empty for other kinds."""
        return tuple(self.fields.get("content", ()))

    def _key(self) -> tuple[Any, ...]:
        return (self.type, self.type_version, self.text, self.data, self.ref)

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Part) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        # No text: reprs end up in logs.
        size = (len(self.text) if self.text else 0) + (len(self.data) if self.data else 0)
        return f"Part({self.type}, {size} long{', outside' if self.ref else ''})"


def to_wire(part: Part) -> dict[str, Any]:
    """The part as :func:`refold.wire.codec.encode` takes it inside a record."""
    return {
        "type": part.type,
        "type_version": part.type_version,
        "text": part.text,
        "data": part.data,
        "ref": None if part.ref is None else asdict(part.ref),
    }


def from_wire(record: Mapping[str, Any]) -> Part:
    """The part in a decoded record. Its data is not looked at until ``fields`` is."""
    ref = record["ref"]
    return Part(
        record["type"],
        record["text"],
        ref=None if ref is None else BlobRef(**ref),
        type_version=record["type_version"],
        data=record["data"],
    )


def check_parts(parts: Iterable[Part], depth: int = 1) -> None:
    """Looks into every part of a known kind, nested ones too, so that later readers need not fear to.

    Raises InvalidRecord: undecodable (also below PART_DEPTH_MAX), bad_frame, …, or unknown_subject for data
    of another kind.
    """
    for part in parts:
        if depth > PART_DEPTH_MAX:
            raise InvalidRecord("undecodable", f"content parts are nested more than {PART_DEPTH_MAX} deep")
        if part.data is not None and part.type in KINDS:
            check_parts(part.content, depth + 1)


def _encode_fields(kind: str, fields: Mapping[str, Any]) -> bytes:
    subject = KINDS.get(kind)
    if subject is None:
        raise UsageError(
            f"no part kind {kind!r}: use generic(), or data with the framed record of your own kind"
        )
    if kind in NESTING_KINDS and "content" in fields:
        fields = {**fields, "content": [to_wire(part) for part in fields["content"]]}
    return encode(subject, fields)


def _decode_fields(kind: str, data: bytes | None) -> dict[str, Any]:
    subject = KINDS.get(kind)
    if subject is None or data is None:
        return {}
    try:
        record = decode(data, expect=subject).record
    except InvalidRecord as error:
        if error.code == "unknown_schema":
            return {}  # A newer writer's version of the kind: kept, passed on, not understood.
        raise
    if kind in NESTING_KINDS:
        record["content"] = tuple(from_wire(part) for part in record["content"])
    return record


def text(body: str, *, extra: bytes | None = None) -> Part:
    return Part("text", body, {"extra": extra})


def tool_call(
    call_id: str,
    name: str,
    arguments: str,
    *,
    arguments_valid: bool = True,
    operation_id: str | None = None,
    extra: bytes | None = None,
) -> Part:
    """``arguments`` is the raw text; ``arguments_valid`` says whether it is JSON."""
    return Part("tool_call", None, _named(locals()))


def tool_result(
    call_id: str,
    content: Sequence[Part],
    *,
    name: str | None = None,
    is_error: bool = False,
    extra: bytes | None = None,
) -> Part:
    return Part("tool_result", None, _named(locals()))


def provider_tool_call(
    name: str,
    arguments: str = "",
    *,
    call_id: str | None = None,
    arguments_valid: bool = True,
    status: str | None = None,
    extra: bytes | None = None,
) -> Part:
    return Part("provider_tool_call", None, _named(locals()))


def provider_tool_result(
    content: Sequence[Part] = (),
    *,
    call_id: str | None = None,
    name: str | None = None,
    is_error: bool = False,
    json: bytes | None = None,
    extra: bytes | None = None,
) -> Part:
    return Part("provider_tool_result", None, _named(locals()))


def reasoning(
    body: str | None = None,
    *,
    id: str | None = None,  # noqa: A002 - the schema's field name
    summary: Sequence[str] | None = None,
    signature: str | None = None,
    encrypted: str | None = None,
    redacted: bool | None = None,
    extra: bytes | None = None,
) -> Part:
    return Part("reasoning", body, _named(locals()))


def image(**fields: Any) -> Part:
    """Fields: media_type, url, file_id, data, detail, extra."""
    return Part("image", None, fields)


def audio(transcript: str | None = None, **fields: Any) -> Part:
    """Fields: media_type, url, file_id, data, format, id, expires_at, extra."""
    return Part("audio", transcript, fields)


def file(**fields: Any) -> Part:
    """Fields: media_type, url, file_id, data, filename, title, extra."""
    return Part("file", None, fields)


def uri(
    address: str, *, media_type: str | None = None, modality: str | None = None, extra: bytes | None = None
) -> Part:
    return Part("uri", None, {"uri": address, "media_type": media_type, "modality": modality, "extra": extra})


def refusal(body: str, *, extra: bytes | None = None) -> Part:
    return Part("refusal", body, {"extra": extra})


def citation(cited: str | None = None, **fields: Any) -> Part:
    """Fields: kind, source, uri, document_index, start, end, extra."""
    return Part("citation", cited, fields)


def compaction(body: str | None = None, **fields: Any) -> Part:
    """Fields: id, encrypted, extra."""
    return Part("compaction", body, fields)


def generic(kind: str | None, json: bytes, *, extra: bytes | None = None) -> Part:
    """A part refold has no name for: ``json`` is kept byte for byte."""
    return Part("generic", None, {"kind": kind, "json": json, "extra": extra})


def sealed(
    key_id: str,
    algorithm: str,
    nonce: bytes,
    ciphertext: bytes,
    plain_length: int,
    part_type: str,
    *,
    extra: bytes | None = None,
) -> Part:
    """``ciphertext`` seals the framed part; ``plain_length`` in bytes."""
    return Part("sealed", None, _named(locals()))


def _named(arguments: dict[str, Any]) -> dict[str, Any]:
    """A constructor's arguments as fields: they have the schema's names; ``body`` is the text."""
    return {k: v for k, v in arguments.items() if k != "body"}
