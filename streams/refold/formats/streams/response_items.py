"""One output item of a Responses stream, while it comes."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from refold.formats.streams.delta import OTHER, REASONING, REFUSAL, TEXT, TOOL_CALL
from refold.formats.streams.pieces import Piece


class Place(NamedTuple):
    """Where in an item a streamed text belongs: list (or key), index in it, type and key of the element."""

    holder: str
    kind: str
    key: str
    delta: str


#: Texts that stand deeper in their item, under an operation and under an action.
_DIFF: Final = Place("apply_patch_call_operation_diff", "", "diff", OTHER)
_COMMAND: Final = Place("shell_call_command", "", "command", OTHER)

#: ``response.<name>.delta`` and ``.done`` -> the place of its text.
PLACES: Final = {
    "output_text": Place("content", "output_text", "text", TEXT),
    "refusal": Place("content", "refusal", "refusal", REFUSAL),
    "reasoning_text": Place("content", "reasoning_text", "text", REASONING),
    "reasoning_summary_text": Place("summary", "summary_text", "text", REASONING),
    "function_call_arguments": Place("arguments", "", "arguments", TOOL_CALL),
    "custom_tool_call_input": Place("input", "", "input", TOOL_CALL),
    "mcp_call_arguments": Place("arguments", "", "arguments", OTHER),
    "code_interpreter_call_code": Place("code", "", "code", OTHER),
    "apply_patch_call_operation_diff": _DIFF,
    "shell_call_command": _COMMAND,
}
#: Types of content elements -> their place.
ELEMENTS: Final = {place.kind: place for place in PLACES.values() if place.kind}
#: Types of items whose text is one key of theirs.
WHOLE: Final = {
    "function_call": PLACES["function_call_arguments"],
    "custom_tool_call": PLACES["custom_tool_call_input"],
    "mcp_call": PLACES["mcp_call_arguments"],
    "code_interpreter_call": PLACES["code_interpreter_call_code"],
}


class Item:
    """``value`` is the newest the provider said of it, ``done`` whether that is all of it."""

    __slots__ = ("annotations", "done", "elements", "pieces", "value")

    def __init__(self, value: dict[str, Any]) -> None:
        self.value = value
        self.done = False
        self.pieces: dict[tuple[str, int], Piece] = {}
        self.elements: dict[tuple[str, int], dict[str, Any]] = {}
        self.annotations: dict[int, list[Any]] = {}

    def texts(self) -> list[tuple[Place, int, str]]:
        """The texts that the value itself has, with their places."""
        found = []
        kind = str(self.value.get("type"))
        if kind in WHOLE and isinstance(self.value.get(WHOLE[kind].key), str):
            found.append((WHOLE[kind], 0, self.value[WHOLE[kind].key]))
        inside = self.value.get("operation") if kind == "apply_patch_call" else self.value.get("action")
        if isinstance(inside, dict) and kind == "apply_patch_call" and isinstance(inside.get("diff"), str):
            found.append((_DIFF, 0, inside["diff"]))
        if isinstance(inside, dict) and kind == "shell_call" and isinstance(inside.get("commands"), list):
            commands = enumerate(inside["commands"])
            found += [(_COMMAND, at, said) for at, said in commands if isinstance(said, str)]
        for holder in ("summary", "content"):
            listed = self.value.get(holder)
            for at, element in enumerate(listed if isinstance(listed, list) else []):
                place = ELEMENTS.get(str(element.get("type"))) if isinstance(element, dict) else None
                if place is not None and isinstance(element.get(place.key), str):
                    found.append((place, at, element[place.key]))
        return found

    def untold(self) -> list[Any]:
        """Annotations of the value that no event of their own told, in order."""
        content = self.value.get("content")
        found: list[Any] = []
        for at, element in enumerate(content if isinstance(content, list) else []):
            listed = element.get("annotations") if isinstance(element, dict) else None
            found += (listed if isinstance(listed, list) else [])[len(self.annotations.get(at, [])) :]
        return found

    def whole(self) -> dict[str, Any]:
        """The item as far as it came."""
        if self.done:
            return self.value
        made = dict(self.value)
        for (holder, at), piece in sorted(self.pieces.items(), key=lambda one: one[0]):
            if not piece.text:
                continue
            place = WHOLE.get(str(made.get("type")))
            if place is not None and place.holder == holder:
                made[holder] = piece.text
            elif holder in ("content", "summary"):
                listed = list(made[holder]) if isinstance(made.get(holder), list) else []
                listed.extend({} for _ in range(at + 1 - len(listed)))
                listed[at] = self._element(holder, at, piece, listed[at])
                made[holder] = listed
        return made

    def _element(self, holder: str, at: int, piece: Piece, before: Any) -> dict[str, Any]:
        known = before if isinstance(before, dict) and before else self.elements.get((holder, at), {})
        place = next(p for p in ELEMENTS.values() if p.holder == holder and p.delta == piece.kind)
        if place.kind == "output_text" and known.get("type") == "text":
            place = place._replace(kind="text")
        made = {**known, "type": place.kind, place.key: piece.text}
        if self.annotations.get(at) and holder == "content":
            made["annotations"] = self.annotations[at]
        return made
