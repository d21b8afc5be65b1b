"""A transcript as OpenTelemetry GenAI messages:

``gen_ai.system_instructions`` and ``gen_ai.input.messages``.
"""

from __future__ import annotations

from typing import Any, Final

from refold.formats import markers
from refold.formats.jsonio import parse_object
from refold.formats.otel import part_out
from refold.formats.parts import Part, text
from refold.formats.transcript import Step, Transcript, said_of

_NATIVE: Final = frozenset({"image", "audio", "file", "uri", "reasoning", "compaction"})


def request(source: Transcript) -> dict[str, Any]:
    """``{"system_instructions": [parts], "messages": [{"role", "parts"}]}``."""
    system = [_part(part) for step in source.system for part in step.parts]
    if source.summary is not None:
        system.append({"type": "text", "content": markers.summary(source.summary)})
    return {
        "system_instructions": system,
        "messages": [message for step in source.steps for message in _step(step)],
    }


def _step(step: Step) -> list[dict[str, Any]]:
    parts = [_part(part) for part in step.parts if part.type != "citation"]
    answers = []
    for call in step.calls:
        asked = parse_object(call.arguments)
        parts.append(
            {
                "type": "tool_call",
                "id": call.call_id,
                "name": call.name,
                "arguments": call.arguments if asked is None else asked,
            }
        )
        said = "\n".join(said_of(part) for part in call.content)
        answers.append(
            {"role": "tool", "parts": [{"type": "tool_call_response", "id": call.call_id, "response": said}]}
        )
    role = "system" if step.role == "developer" else step.role
    made = {"role": role, "parts": parts, **({"name": step.name} if step.name else {})}
    return [made, *answers]


def _part(part: Part) -> Any:
    """The part in OpenTelemetry's form; ``extra`` of another format's shape is not carried over."""
    if part.ref is None and part.type in _NATIVE:
        fields = {key: value for key, value in part.fields.items() if key != "extra"}
        return part_out(Part(part.type, part.text, fields))
    return part_out(text(said_of(part)))
