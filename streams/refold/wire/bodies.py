"""Reading a MessageAppended payload: by hand for one plain text, by the compiled reader for the rest.

The plain case is most of the traffic, at a budget of microseconds: the fields the fold needs are read and
the rest is only checked. Both ways accept and refuse exactly the same bytes (a test compares them).
"""

from __future__ import annotations

from typing import Any, Final

from refold.core.events import CallPart, MessageAppended, ResultPart
from refold.core.limits import RESULT_SUMMARY_BYTES_MAX
from refold.wire.parts import Part, check_parts, from_wire
from refold.wire.pieces import blob, text
from refold.wire.varint import read_length

#: One block of one part: type "text", version 1, text present.
_ONE_TEXT: Final = b"\x02\x08text\x02\x02"
_ONE_TEXT_LENGTH: Final = len(_ONE_TEXT)
#: No data, no reference, end of content; then the nine optional fields, all null.
_END_PART: Final = b"\x00\x00\x00"
_PLAIN_END: Final = b"\x00" * 12
#: No parent, role "tool"; one block of one part: type "tool_result", version 1, no text, data present.
_RESULT: Final = b"\x00\x08tool\x02\x16tool_result\x02\x00\x02"


def plain_fields(body: bytes) -> tuple[str, str | None, str, str | None] | None:
    """(message id, parent id, role, replaces) if the content of ``body`` is one plain text, else None: then
    the compiled reader decides.

    Never raises for bytes that are wrong; it answers None, and the compiled reader says what is wrong.
    """
    try:
        length = body[0]
        at = 1
        if length & 129:
            length, at = read_length(body, at, length)
        else:
            length >>= 1
        end = at + length
        message_id = body[at:end].decode()
        parent_id: str | None = None
        if body[end]:
            if body[end] != 2:
                return None
            parent_id, at = _text(body, end + 1)
        else:
            at = end + 1
        length = body[at]
        at += 1
        if length & 129:
            length, at = read_length(body, at, length)
        else:
            length >>= 1
        end = at + length
        role = body[at:end].decode()
        at = end + _ONE_TEXT_LENGTH
        if body[end:at] != _ONE_TEXT:
            return None
        length = body[at]
        at += 1
        if length & 129:
            length, at = read_length(body, at, length)
        else:
            length >>= 1
        end = at + length
        body[at:end].decode()
        if body[end:] == _PLAIN_END:
            return message_id, parent_id, role, None
        if body[end : end + 3] != _END_PART:
            return None
        return message_id, parent_id, role, _read_rest(body, end + 3)
    except (ValueError, IndexError):
        return None


def read_plain(body: bytes) -> MessageAppended | None:
    """The event in ``body`` if :func:`plain_fields` can read it."""
    fields = plain_fields(body)
    if fields is None:
        return None
    return MessageAppended(fields[0], fields[1], fields[2], body, replaces=fields[3])


def result_body(message_id: str, data: bytes) -> bytes:
    """The body of a tool message whose content is one ``tool_result``; ``data`` is its framed record."""
    return b"".join((text(message_id), _RESULT, blob(data), _PLAIN_END[1:]))


def _text(body: bytes, at: int) -> tuple[str, int]:
    length = body[at]
    at += 1
    if length & 129:
        length, at = read_length(body, at, length)
    else:
        length >>= 1
    end = at + length
    return body[at:end].decode(), end


def _read_rest(body: bytes, at: int) -> str | None:
    """The fields after ``content``: checked, and ``replaces`` returned. Raises ValueError or IndexError."""
    replaces: str | None = None
    # name, replaces, group_id, model, provider, finish_reason
    for field in range(6):
        branch = body[at]
        at += 1
        if branch == 2:
            value, at = _text(body, at)
            if field == 1:
                replaces = value
        elif branch:
            raise ValueError("no such branch")
    branch = body[at]
    at += 1
    if branch:
        if branch != 2:
            raise ValueError("no such branch")
        at = _skip_numbers(body, at, 4)
    branch = body[at]
    at += 1
    if branch == 2:
        _, at = _text(body, at)  # extra_format
    elif branch:
        raise ValueError("no such branch")
    branch = body[at]
    at += 1
    if branch == 2:
        length = body[at]
        at += 1
        if length & 129:
            length, at = read_length(body, at, length)
        else:
            length >>= 1
        at += length
    elif branch:
        raise ValueError("no such branch")
    if at != len(body):
        raise ValueError("not the record's length")
    return replaces


def _skip_numbers(body: bytes, at: int, count: int) -> int:
    """Past ``count`` numbers of at most four bytes; longer ones are left to the compiled reader."""
    for _ in range(count):
        if body[at] > 127:
            at += 1
            if body[at] > 127:
                at += 1
                if body[at] > 127:
                    at += 1
                    if body[at] > 127:
                        raise ValueError("a large number")
            if body[at] == 0:
                raise ValueError("a number with needless bytes")
        at += 1
    return at


def from_record(record: dict[str, Any], body: bytes) -> MessageAppended:
    """The event of a decoded payload. Raises InvalidRecord for parts whose data is broken."""
    parts = [from_wire(item) for item in record["content"]]
    check_parts(parts)
    calls = tuple(_call(part) for part in parts if part.type == "tool_call" and part.fields)
    results = tuple(_result(part) for part in parts if part.type == "tool_result" and part.fields)
    return MessageAppended(
        record["message_id"],
        record["parent_id"],
        record["role"],
        body,
        # A call is the model's: elsewhere such a part is content.
        calls if record["role"] == "assistant" else (),
        results if record["role"] != "assistant" else (),
        bool(results) and len(results) == len(parts),
        record["replaces"],
    )


def _call(part: Part) -> CallPart:
    fields = part.fields
    return CallPart(fields["call_id"], fields["name"], fields["arguments"], fields["operation_id"])


def _result(part: Part) -> ResultPart:
    fields = part.fields
    return ResultPart(fields["call_id"], fields["is_error"], summary_of(part.content))


def summary_of(content: tuple[Part, ...]) -> str:
    """The beginning of the texts, enough for a row."""
    pieces: list[str] = []
    room = RESULT_SUMMARY_BYTES_MAX
    for part in content:
        if part.type == "text" and part.text and room > 0:
            pieces.append(part.text[:room])
            room -= len(pieces[-1])
    return "\n".join(pieces)
