"""Reducers: an application's own state, folded from the events it names, as a part of the session.

X1  After an accepted event, every reducer of its type gets the part's state and the event, and returns the
    new state. State is canonical JSON between two events, so no value is shared and the bytes are a function
    of the journal and of the code. The registry is fixed when the process starts.
X2  A reducer that raises, or returns what is no state (not JSON, None, too large), quarantines its part of
    that session: the part keeps its last state and says why and at which seq. Everything else goes on.
X3  A *guard* (the worker's) runs the step: it may run it twice, measure it, and refuse it.
X4  A part of an older version is upcast when an event of its reducer comes. A newer one is not touched by
    older code: quarantined. A part that is not there although the session is older was not folded from the
    beginning: quarantined as *late*.
X5  What the worker's process, and not the journal, has decided is in the journal: it writes
    ReducerQuarantined behind the event, with the whole part (:mod:`refold.core.reduced`). So a fold of the
    journal gives the same part, whatever code it has.

A part begins with its session (at seq 1) for every reducer there is. ``seq`` of a part is that of the last
event of its types, folded or not.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

from refold.core.envelope import Envelope
from refold.core.jsontext import is_valid_json
from refold.core.limits import (
    JSON_DEPTH_MAX,
    KIB,
    REDUCED_BYTES_MAX,
    REDUCED_ERROR_BYTES_MAX,
    REDUCED_NAME_BYTES_MAX,
    REDUCED_PARTS_MAX,
    REDUCED_ROW_BYTES,
)
from refold.core.policystate import Reduced
from refold.core.session import Session
from refold.core.types import IMPLEMENTED_TYPES

#: State of a part that has none.
NOTHING: Final = b"null"
#: A row with nothing for a state. It fits always: a part can be quarantined whatever the others hold.
ROW_BYTES: Final = REDUCED_ROW_BYTES + REDUCED_NAME_BYTES_MAX + REDUCED_ERROR_BYTES_MAX + len(NOTHING)
#: What the states of all parts may have together: 41 of the 48 KiB.
STATES_BYTES_MAX: Final = REDUCED_BYTES_MAX - REDUCED_PARTS_MAX * ROW_BYTES
#: One part's state. It is decoded and encoded for each of its events: 16 KiB take about 0.3 ms.
STATE_BYTES_MAX: Final = 16 * KIB

NAME_BYTES_MAX: Final = REDUCED_NAME_BYTES_MAX
#: Characters of an exception's class in a part's error.
CLASS_CHARS_MAX: Final = 80

#: Why a part is quarantined: the first word of its error, and of the metric's label.
REASONS: Final = (
    "raised",
    "schema",
    "no_state",
    "not_json",
    "too_large",
    "slow",
    "non_deterministic",
    "no_upcast",
    "newer",
    "late",
)


class Unfit(Exception):
    """Why a part cannot go on: one of REASONS, and the class of the exception behind it."""

    def __init__(self, reason: str, cause: BaseException | None = None) -> None:
        super().__init__(reason)
        self.error = reason if cause is None else f"{reason}: {type(cause).__name__[:CLASS_CHARS_MAX]}"


class Reducer:
    """``apply(state, event)`` and ``upcast`` take and return JSON-like values and change nothing else.
    ``initial`` is canonical JSON; ``upcast`` maps a version to what makes the next one's state of it."""

    __slots__ = ("apply", "initial", "name", "types", "upcast", "version")

    def __init__(
        self,
        name: str,
        version: int,
        types: frozenset[str],
        initial: bytes,
        apply: Callable[[Any, Any], Any],
        upcast: Mapping[int, Callable[[Any], Any]],
    ) -> None:
        self.name = name
        self.version = version
        self.types = types
        self.initial = initial
        self.apply = apply
        self.upcast = upcast


class Guard(Protocol):
    """What a worker puts around a step (X3), and how it learns of parts to write down (X5)."""

    def run(self, key: str, seq: int, name: str, step: Callable[[], bytes]) -> bytes:
        """The step's result. Raises what it raises, or Unfit."""

    def quarantined(self, part: Reduced) -> None:
        """The part was quarantined by the event that is being folded."""


class Registry:
    """The reducers of a process. ``view(env, seq, time_ms)`` makes what a reducer gets of an event; each call
    makes a new value, which the reducer may change."""

    def __init__(self, reducers: Iterable[Reducer], view: Callable[[Envelope, int, int], Any]) -> None:
        self.by_name = {one.name: one for one in sorted(reducers, key=lambda one: one.name)}
        self.by_type: dict[str, list[Reducer]] = {}
        for one in self.by_name.values():
            for kind in sorted(one.types):
                self.by_type.setdefault(kind, []).append(one)
        self.view = view
        self.guard: Guard | None = None

    @property
    def versions(self) -> dict[str, int]:
        return {name: one.version for name, one in self.by_name.items()}


#: None while there are no reducers: the fold then asks for nothing more than this.
active: Registry | None = None
#: Whether a reducer wants MessageAppended: then no message is plain.
takes_messages: bool = False


def install(registry: Registry | None) -> None:
    """Once, before anything is folded (tests set it and take it back)."""
    global active, takes_messages
    active = registry if registry is not None and registry.by_name else None
    takes_messages = active is not None and "MessageAppended" in active.by_type


def reduce(registry: Registry, session: Session, seq: int, time_ms: int, env: Envelope) -> None:
    """Fold the event that was just applied into the parts whose reducers want it. Raises nothing that a
    reducer raises."""
    if session.seq == 0:
        return  # deleted by this event
    if seq == 1:
        _begin(registry, session, env)
    if env.type_version != 1 and env.type in IMPLEMENTED_TYPES:
        return  # of a later version of refold: opaque to the fold, and to reducers
    for reducer in registry.by_type.get(env.type, ()):
        _touch(registry, session, reducer, seq, time_ms, env)


def _begin(registry: Registry, session: Session, env: Envelope) -> None:
    if env.type == "SessionForked":
        # Its parts are the source's as of then, and what the source does not have is late here too.
        for part in session.reduced.values():
            part.seq = min(part.seq, 1)
        return
    for reducer in registry.by_name.values():
        session.reduced[reducer.name] = Reduced(reducer.name, reducer.version, 0, reducer.initial)
    session.enc_tail = None


def _touch(
    registry: Registry, session: Session, reducer: Reducer, seq: int, time_ms: int, env: Envelope
) -> None:
    session.enc_tail = None
    part = session.reduced.get(reducer.name)
    guard = registry.guard
    if part is None:
        part = add_part(session, reducer.name, reducer.version)
        _quarantine(part, seq, Unfit("late"), guard)
        return
    part.seq = seq
    if part.status != "ok":
        return

    def step() -> bytes:
        state = current(reducer, part)
        try:
            # Its value may have code of its own, so encoding it belongs to what may raise.
            return encode_state(reducer.apply(state, registry.view(env, seq, time_ms)))
        except (Unfit, KeyboardInterrupt):
            raise
        except BaseException as error:  # SystemExit, and the panics of extensions, would end the worker
            raise Unfit("raised", error) from error

    try:
        state = step() if guard is None else guard.run(session.key, seq, reducer.name, step)
        if states_bytes(session) - len(part.state) + len(state) > STATES_BYTES_MAX:
            raise Unfit("too_large")
    except Unfit as unfit:
        _quarantine(part, seq, unfit, guard)
        return
    part.state = state
    part.version = reducer.version


def add_part(session: Session, name: str, version: int) -> Reduced:
    """A new part without a state; where there is no room, one goes whose reducer this process has not."""
    parts = session.reduced
    known = active.by_name if active is not None else {}
    while len(parts) >= REDUCED_PARTS_MAX:
        del parts[min(parts, key=lambda other: (other in known, other))]
    part = parts[name] = Reduced(name, version, 0, NOTHING)
    return part


def _quarantine(part: Reduced, seq: int, unfit: Unfit, guard: Guard | None) -> None:
    part.status = "quarantined"
    part.seq = seq
    part.error = unfit.error
    if guard is not None:
        guard.quarantined(part)


def current(reducer: Reducer, part: Reduced) -> Any:
    """The part's state in the shape of the reducer's version (X4). Raises Unfit."""
    state = json.loads(part.state)
    if part.version == reducer.version:
        return state
    if part.version > reducer.version:
        raise Unfit("newer")
    for version in range(part.version, reducer.version):
        upcast = reducer.upcast.get(version)
        if upcast is None:
            raise Unfit("no_upcast")
        try:
            state = upcast(state)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            raise Unfit("no_upcast", error) from error
    return state


def states_bytes(session: Session) -> int:
    return sum([len(part.state) for part in session.reduced.values()])


def encode_state(value: Any) -> bytes:
    """Canonical JSON: keys sorted, no spaces, UTF-8. Raises Unfit for what is no state."""
    if value is None:
        raise Unfit("no_state")
    encoded = canonical(value)
    if len(encoded) > STATE_BYTES_MAX:
        raise Unfit("too_large")
    return encoded


def is_state(state: bytes) -> bool:
    """Whether these bytes, which anybody may have sent, are what :func:`encode_state` makes of something."""
    try:
        text = state.decode()
        return is_valid_json(text) and encode_state(json.loads(text)) == state
    except (ValueError, Unfit):
        # Not UTF-8, or a number longer than Python reads: no reducer could be given it.
        return False


def canonical(value: Any) -> bytes:
    """Raises Unfit for what is not JSON."""
    try:
        _check(value, 0)
        text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        return text.encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise Unfit("not_json", error) from error


def _check(value: Any, depth: int) -> None:
    """Python's encoder makes text of keys that are none: 1 and "1" would be one key after the next event."""
    if depth > JSON_DEPTH_MAX:
        raise ValueError("too deep")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError("a key is no text")
            _check(item, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            _check(item, depth + 1)
