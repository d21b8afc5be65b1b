"""``@refold.reducer``: what is wrong with a declaration is said when its module is imported."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from refold.core.limits import REDUCED_PARTS_MAX
from refold.core.policystate import Reduced
from refold.core.reducers import NAME_BYTES_MAX, Reducer, Unfit, current, encode_state
from refold.core.types import REDUCER_TYPES, WORKER_TYPES
from refold.errors import UsageError
from refold.reducers.event import Event, Schemas, parse_schemas
from refold.reducers.shape import Shape

F = TypeVar("F", bound=Callable[[Any, Event], Any])

_NAME: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{NAME_BYTES_MAX}}}")

#: A part's version is an Avro int.
VERSION_MAX: Final = 2**31 - 1

#: Of a state that its own reducer begins with. All parts of a session begin with theirs: 16 x 2 KiB fit.
INITIAL_BYTES_MAX: Final = 2_048

#: Written by the worker about what it has done; a reducer of them would see another journal than it makes.
FORBIDDEN_TYPES: Final = frozenset({*WORKER_TYPES, *REDUCER_TYPES, "SessionQuarantined"})


@dataclass(frozen=True, slots=True)
class Declared:
    """A reducer as declared. ``pure`` is what the fold uses; ``place`` names the function."""

    pure: Reducer
    shape: Shape
    schemas: Mapping[str, Schemas]
    place: str

    def value(self, version: int, state: bytes) -> Any:
        """A part's state as the function would see it, upcast to this version. Raises Unfit: there is no way
        from the part's version to this one."""
        made = current(self.pure, Reduced(self.pure.name, version, 0, state))
        return self.shape.value(made)


_declared: dict[str, Declared] = {}


def declared() -> Mapping[str, Declared]:
    """Every reducer of this process, by name."""
    return _declared


def reducer(
    name: str,
    *,
    types: Iterable[str] | Mapping[str, Any],
    version: int = 1,
    schema: Any = None,
    initial: Any = None,
    upcast: Mapping[int, Callable[[Any], Any]] | None = None,
) -> Callable[[F], F]:
    """Declare ``function(state, event) -> state`` as the reducer ``name``; the function stays as it is.

    It must be pure: the same state and event give the same state, whatever the clock, the process and what it
    was called with before. It may change the state it is given and return it.

    - ``types``: the event types it gets (:class:`Event`). A mapping gives types of your own an Avro schema,
      or schemas by ``type_version``; ``None`` is JSON.
    - ``schema``: anything pydantic can check (a model, a dataclass, ``dict[str, int]``): what the function
      gets and returns. Without one it is plain JSON values.
    - ``initial``: the state before the first event. Default: ``schema()``, or ``{}``.
    - ``version``: raise it with the shape of the state. ``upcast[1]`` makes the JSON of version 2 of that of
      version 1, and so on.

    Raises UsageError, also where another function has the name.
    """
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"reducer {name!r}: a name is 1 to {NAME_BYTES_MAX} letters, digits, '.', '_' or '-'"
        )
    if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version <= VERSION_MAX:
        raise UsageError(f"reducer {name}: version is a whole number from 1 on, not {version!r}")
    wanted, schemas = _types(name, types)
    upcasts = dict(upcast or {})
    for old, way in upcasts.items():
        if isinstance(old, bool) or not isinstance(old, int) or not 1 <= old < version or not callable(way):
            raise UsageError(
                f"reducer {name}: upcast maps versions below {version} to functions; {old!r} is none"
            )
    shape = Shape(name, schema)
    begins = _initial(name, shape, initial)

    def declare(function: F) -> F:
        if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
            raise UsageError(f"reducer {name} must be a plain function: a fold waits for nothing")
        place = f"{function.__module__}.{function.__qualname__}"
        before = _declared.get(name)
        if before is not None and before.place != place:
            raise UsageError(f"reducer {name} is declared twice: as {before.place} and as {place}")
        if before is None and len(_declared) >= REDUCED_PARTS_MAX:
            raise UsageError(
                f"reducer {name} is one too many: a session has at most {REDUCED_PARTS_MAX} parts"
            )
        pure = Reducer(name, version, wanted, begins, shape.applied(function), upcasts)
        _declared[name] = Declared(pure, shape, schemas, place)
        return function

    return declare


def _types(name: str, types: Iterable[str] | Mapping[str, Any]) -> tuple[frozenset[str], dict[str, Schemas]]:
    if isinstance(types, str):
        raise UsageError(f"reducer {name}: types is a list of event types, not one text")
    wanted = frozenset(types)
    if not wanted or not all(isinstance(kind, str) and kind for kind in wanted):
        raise UsageError(f"reducer {name}: types names the event types it folds, at least one")
    if forbidden := sorted(wanted & FORBIDDEN_TYPES):
        raise UsageError(f"reducer {name}: {forbidden[0]} is the worker's own note and no reducer gets it")
    given = types if isinstance(types, Mapping) else {}
    return wanted, {kind: parse_schemas(kind, one) for kind, one in given.items() if one is not None}


def _initial(name: str, shape: Shape, initial: Any) -> bytes:
    try:
        if initial is None:
            initial = {} if shape.schema is None or not callable(shape.schema) else shape.schema()
        encoded = encode_state(shape.plain(initial))
        shape.value(json.loads(encoded))
    except Unfit as unfit:
        raise UsageError(
            f"reducer {name}: its initial state is not one of its states ({unfit.error})"
        ) from None
    except Exception as error:
        raise UsageError(
            f"reducer {name}: its schema makes no initial state ({type(error).__name__}): give initial="
        ) from None
    if len(encoded) > INITIAL_BYTES_MAX:
        raise UsageError(
            f"reducer {name}: its initial state has {len(encoded)} bytes, above {INITIAL_BYTES_MAX}"
        )
    return encoded
