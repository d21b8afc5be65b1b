"""Arguments as they were streamed, in a part read from the parsed value."""

from __future__ import annotations

from refold.formats.extra import raw_of
from refold.formats.parts import Part, part, valid_json

_CALLS = ("tool_call", "provider_tool_call")


def with_raw_arguments(made: Part, raw: str) -> Part:
    """``made`` with the text ``raw`` for arguments, where the part is a call and there is a text.

    A part that keeps its source whole stays as it is: the source has the arguments.
    """
    if made.type not in _CALLS or not raw or raw_of(made) is not None or made.fields["arguments"] == raw:
        return made
    return part(made.type, made.text, {**made.fields, "arguments": raw, "arguments_valid": valid_json(raw)})
