"""Generators by name: what a process can run, and what it can go on with when another process died.

The name is all that the journal knows of a generator, so a process that is to take over must have registered
a function under the same name: with ``@rf.generator("reply")``, or by importing a function whose qualified
name it is.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from refold.client.generations.ids import check_name
from refold.errors import UsageError

if TYPE_CHECKING:
    from refold.client.generations.generation import Generation

Answer = Callable[["Generation"], Awaitable[Any]]
Provider = AsyncIterable[Any] | Iterable[Any]
Lookup = Callable[["Generation"], Awaitable[Provider | None]]
"""Given a generation whose ``provider_response_id`` is set: the whole response again, from its beginning, or
``None`` when the provider no longer has it."""

Mode = Literal["continue", "restart"]
A = TypeVar("A", bound=Answer)

#: Functions registered by their qualified name alone; more of them are made up at run time.
GENERATORS_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class Generator:
    """``mode``: how another process goes on, where no lookup can. ``continue``: the answer is called with
    ``g.prefix`` and says what follows it; ``restart``: followers are told to forget the text. ``overlap``:
    when it continues it may say the last words again, which are dropped; turn it off for a provider that
    continues exactly, where a text that repeats itself would be taken for that."""

    name: str
    answer: Answer
    mode: Mode = "continue"
    lookup: Lookup | None = None
    overlap: bool = True
    explicit: bool = False


class Generators:
    """All generators of one client."""

    def __init__(self) -> None:
        self._by_name: dict[str, Generator] = {}

    def register(
        self, name: str, *, lookup: Lookup | None = None, mode: Mode = "continue", overlap: bool = True
    ) -> Callable[[A], A]:
        """Decorator. Raises UsageError when another function has the name."""
        check_name("generator", name)
        _check_mode(mode)

        def add(answer: A) -> A:
            held = self._by_name.get(name)
            if held is not None and held.explicit and held.answer is not answer:
                raise UsageError(f"generator {name!r} is registered twice")
            self._by_name[name] = Generator(name, answer, mode, lookup, overlap, explicit=True)
            return answer

        return add

    def resume(
        self,
        answer: Answer | str,
        *,
        lookup: Lookup | None = None,
        mode: Mode = "continue",
        overlap: bool = True,
    ) -> Generator:
        """Say how a generator is gone on with; registers it under its qualified name if need be."""
        _check_mode(mode)
        held = self.of(answer)
        made = self._by_name[held.name] = replace(held, lookup=lookup, mode=mode, overlap=overlap)
        return made

    def of(self, answer: Answer | str) -> Generator:
        """The generator of a name, or of a function (registered by its qualified name if it has none).

        Raises UsageError for a name nobody registered.
        """
        if isinstance(answer, str):
            if (known := self._by_name.get(answer)) is None:
                raise UsageError(
                    f"no generator is registered as {answer!r}: decorate it with rf.generator(name)"
                )
            return known
        for held in self._by_name.values():
            if held.answer is answer:
                return held
        name = f"{getattr(answer, '__module__', '')}.{getattr(answer, '__qualname__', '')}".strip(".")
        if not callable(answer) or not name:
            raise UsageError("a generator is an async function that takes the generation")
        check_name("generator", name)
        named = self._by_name.get(name)
        if named is not None and named.explicit:
            raise UsageError(f"generator {name!r} is registered with another function")
        if named is None and len(self._by_name) >= GENERATORS_MAX:
            raise UsageError(f"{GENERATORS_MAX} generators are registered: register functions, not closures")
        # A closure made anew per request has the same name: the newest one counts.
        made = self._by_name[name] = (
            Generator(name, answer) if named is None else replace(named, answer=answer)
        )
        return made

    def get(self, name: str) -> Generator | None:
        return self._by_name.get(name)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._by_name)


def _check_mode(mode: str) -> None:
    if mode not in ("continue", "restart"):
        raise UsageError(f"mode={mode!r}: it must be 'continue' or 'restart'")
