"""From a snapshot to a transcript any provider can be given: steps in order, every call with its result.

Invariants of the steps (docs/guides/context-formats.md):

T1  Every call has exactly one result, directly in its step: the recorded one, or a marked stand-in that
    says what is known of it (not run, denied, failed, unresolved).
T2  A result goes to the newest call of its id that has none; within one message, to the first. So an id
    used again in a later turn pairs with its own turn's result, and parallel calls keep the order they were
    asked in.
T3  A result without any call is left out, whatever it says.
T4  Records of one model message (same ``group_id``) are one step, also when results came in between.
T5  Nothing is invented but the markers of :mod:`refold.formats.markers`.

A decoded snapshot's messages are dicts with the fields of ``schemas/shared/snapshot_message``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from refold.formats import markers
from refold.formats.jsonio import dumps_text
from refold.formats.parts import Part, as_part, text, tool_call

Snapshot: TypeAlias = Mapping[str, Any]
Message: TypeAlias = Mapping[str, Any]
Row: TypeAlias = Mapping[str, Any]
LoadMessage: TypeAlias = Callable[[Message], Sequence[Part] | None]
LoadPart: TypeAlias = Callable[[Part], Part]


@dataclass(slots=True)
class Call:
    """A call and its result.

    ``content`` is empty for a result without content; ``stand_in``: refold's words.
    """

    part: Part
    message_id: str
    content: list[Part] = field(default_factory=list)
    is_error: bool = False
    answered: bool = False
    stand_in: bool = False

    @property
    def call_id(self) -> str:
        return str(self.part.fields["call_id"])

    @property
    def name(self) -> str:
        return str(self.part.fields["name"])

    @property
    def arguments(self) -> str:
        return str(self.part.fields["arguments"])


@dataclass(slots=True)
class Step:
    """What one side said. ``calls`` only for the assistant; their parts are not in ``parts``."""

    role: str
    parts: list[Part]
    calls: list[Call] = field(default_factory=list)
    name: str | None = None
    group: str | None = None
    #: Who said it: the actor's id, else the name.
    author: str | None = None
    formats: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Transcript:
    """``system`` are the pinned messages, ``summary`` the active summary's text."""

    system: list[Step]
    summary: str | None
    steps: list[Step]


def transcript(
    snapshot: Snapshot, *, load_message: LoadMessage | None = None, load_part: LoadPart | None = None
) -> Transcript:
    """The transcript of a decoded snapshot.

    ``load_message`` gives the content of a message that is elided in the state, ``load_part`` a part whose
    bytes are outside; without them (or where they give nothing) a short marker stands for the content. May
    block as they do.
    """
    context = snapshot["context"]
    opener = _Opener(snapshot.get("tools", ()), load_message, load_part)
    recent = [opener.open(message) for message in context["recent_messages"]]
    pairs = _Pairs(snapshot.get("tools", ()))
    pairs.pair(recent)
    short = context.get("summary")
    return Transcript(
        [_said(opener.open(message)) for message in context.get("system", ())],
        short["text"] if short and context.get("summary_active") else None,
        _steps(recent, pairs),
    )


@dataclass(slots=True)
class _Entry:
    message: Message
    parts: list[Part]

    @property
    def id(self) -> str:
        return str(self.message["message_id"])


class _Opener:
    """Reads a message's parts, with what stands for content that is not there."""

    def __init__(
        self, rows: Iterable[Row], load_message: LoadMessage | None, load_part: LoadPart | None
    ) -> None:
        self._rows: list[Row] = list(rows)
        self._load_message = load_message
        self._load_part = load_part

    def open(self, message: Message) -> _Entry:
        elided = message.get("elided")
        if not elided:
            return _Entry(message, [self._part(item) for item in message["content"]])
        loaded = self._load_message(message) if self._load_message else None
        if loaded is not None:
            return _Entry(message, [self._part(item) for item in loaded])
        mark = text(markers.elided_message(elided["length"], message["seq"]))
        if message["role"] == "tool":
            return _Entry(message, [])  # The row's short form of the result stands for it.
        return _Entry(message, [mark, *self._calls(message)])

    def _part(self, item: Any) -> Part:
        part = as_part(item)
        if part.ref is not None and self._load_part is not None:
            return self._load_part(part)
        return part

    def _calls(self, message: Message) -> list[Part]:
        """The calls of an elided message, from its rows: their results must not become orphans."""
        asked = [row for row in self._rows if row["message_id"] == message["message_id"] and row["call_id"]]
        return [
            tool_call(
                row["call_id"],
                row["tool"],
                row["arguments"] if row["arguments"] is not None else _elided_arguments(row),
            )
            for row in sorted(asked, key=lambda row: row["order"])
        ]


def _elided_arguments(row: Mapping[str, Any]) -> str:
    return dumps_text({"_elided": f"{row.get('arguments_length', 0)} bytes of arguments are not shown"})


class _Pairs:
    """Gives every call its result (T1 to T3)."""

    def __init__(self, rows: Iterable[Row]) -> None:
        self.by_message: dict[int, list[Call]] = {}
        self._rows: list[Row] = list(rows)
        self._calls: list[Call] = []
        self._operations = {row["operation_id"]: (row["message_id"], row["call_id"]) for row in self._rows}

    def pair(self, entries: Sequence[_Entry]) -> None:
        waiting: list[Part] = []
        for entry in entries:
            for part in entry.parts:
                if part.type == "tool_call":
                    call = Call(part, entry.id)
                    self._calls.append(call)
                    self.by_message.setdefault(id(entry), []).append(call)
                elif part.type == "tool_result" and not self._answer(part):
                    waiting.append(part)
        for part in waiting:  # A result may have come before its call.
            self._answer(part)
        for call in self._calls:
            if not call.answered:
                self._stand_in(call)

    def _answer(self, result: Part) -> bool:
        call_id = result.fields["call_id"]
        newest: Call | None = None
        for call in reversed(self._calls):
            if newest is not None and call.message_id != newest.message_id:
                break
            if not call.answered and self._is(call, call_id):
                newest = call
        if newest is None:
            return False
        newest.content = list(result.content)
        newest.is_error = bool(result.fields["is_error"])
        newest.answered = True
        return True

    def _is(self, call: Call, named: str) -> bool:
        """Whether a result names this call: by its id, or, as tool events may, by its operation id."""
        if call.call_id == named or call.part.fields.get("operation_id") == named:
            return True
        return self._operations.get(named) == (call.message_id, call.call_id)

    def _stand_in(self, call: Call) -> None:
        said, call.is_error = markers.missing_result(self._row(call))
        call.content = [text(said)]
        call.stand_in = True

    def _row(self, call: Call) -> Row | None:
        operation = call.part.fields.get("operation_id")
        for row in reversed(self._rows):
            if operation is not None and row["operation_id"] == operation:
                return row
            if row["call_id"] == call.call_id and row["message_id"] in (None, call.message_id):
                return row
        return None


def _steps(entries: Sequence[_Entry], pairs: _Pairs) -> list[Step]:
    steps: list[Step] = []
    for entry in entries:
        role = entry.message["role"]
        step = _said(entry)
        step.calls = pairs.by_message.get(id(entry), [])
        if role == "tool":
            # A provider's user turn may say something beside its results.
            answered = any(part.type == "tool_result" for part in entry.parts)
            if not answered or not step.parts:
                continue
            step.role = "user"
        elif role == "assistant" and steps and _same_message(steps[-1], step):
            steps[-1].parts += step.parts
            steps[-1].calls = [*steps[-1].calls, *step.calls]
            steps[-1].formats |= step.formats
            continue
        steps.append(step)
    return steps


def _same_message(before: Step, step: Step) -> bool:
    return before.role == "assistant" and step.group is not None and before.group == step.group


def _said(entry: _Entry) -> Step:
    message = entry.message
    parts = [part for part in entry.parts if part.type not in ("tool_call", "tool_result")]
    made_by = message.get("extra_format")
    return Step(
        message["role"],
        parts,
        [],
        message.get("name"),
        message.get("group_id"),
        message.get("actor") or message.get("name"),
        {made_by} if made_by else set(),
    )


def shown_text(part: Part) -> str | None:
    """A part's text, or the marker for one that is kept outside; ``None`` for a part without text."""
    if part.ref is not None:
        return markers.outside(part)
    return part.text


def said_of(part: Part) -> str:
    """A part as text, whatever it is: what it says, or the marker for what cannot be shown."""
    said = shown_text(part)
    return said if said is not None else markers.not_shown(part)
