"""A body that is run again from its start: which step is which, and what is to be done about each. Pure.

**Names.** A step is known by its name and how often the name came before: ``draft``, ``draft@2``. So a body
must ask for the same steps in every execution, as long as their inputs and outputs are the same.

**What a row says** (rule N4)::

    no row, pending              begin, attempt 1
    completed, same inputs       give the recorded output
    completed, other inputs      invalidate, then as invalid or stale
    running, of an older epoch   begin again, the same attempt: what came of it is not known
    failed, invalid              begin, the next attempt
    stale                        begin where rerunnable, the next attempt; else a person decides

**A changed body** is noticed before it does harm: no step begins that is not recorded while a recorded one
has not been asked for. A step that was renamed would else run a second time under its new name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from refold.client.agents.rows import StepRow
from refold.errors import UsageError

#: Between a name and its occurrence.
OCCURRENCE: Final = "@"
#: Of a name: the id is the name, three more characters at most, inside the fold's limit for names.
NAME_BYTES_MAX: Final = 100


class StepIds:
    """Hands out ids in the order the body asks."""

    def __init__(self) -> None:
        self._asked: Counter[str] = Counter()

    def next(self, name: str) -> str:
        """Raises UsageError for a name that cannot be one."""
        size = len(name.encode("utf-8", "replace"))
        if not 1 <= size <= NAME_BYTES_MAX or OCCURRENCE in name or any(letter < " " for letter in name):
            raise UsageError(
                f"step name {name[:40]!r}: 1 to {NAME_BYTES_MAX} bytes without control characters and "
                f"{OCCURRENCE!r} are needed"
            )
        self._asked[name] += 1
        occurrence = self._asked[name]
        return name if occurrence == 1 else f"{name}{OCCURRENCE}{occurrence}"


@dataclass(frozen=True, slots=True)
class Replay:
    """Give the recorded output."""


@dataclass(frozen=True, slots=True)
class Begin:
    """``again``: a step that has a row of its own already. ``rerun``: it had an outcome before."""

    attempt: int
    again: bool = False
    rerun: bool = False


@dataclass(frozen=True, slots=True)
class Invalidate:
    """It was completed with other inputs: say so first."""

    changed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Refuse:
    why: Literal["stale", "inputs"]


Decision: TypeAlias = Replay | Begin | Invalidate | Refuse


def decide_step(row: StepRow | None, inputs: tuple[tuple[str, str], ...], *, rerunnable: bool) -> Decision:
    """What to do about a step that the body asks for with these inputs."""
    if row is None or row.state == "pending":
        return Begin(1)
    changed = changed_inputs(row.inputs, inputs)
    if row.state == "completed":
        return Invalidate(changed) if changed else Replay()
    if row.state == "running":
        # With an effect, what may have happened happened with the recorded inputs.
        if changed and row.effect != "none":
            return Refuse("inputs")
        return Begin(row.attempt, again=True, rerun=row.attempt > 1)
    if row.state == "stale" and not (rerunnable or row.rerunnable):
        return Refuse("stale")
    return Begin(row.attempt + 1, again=True, rerun=True)


def changed_inputs(
    recorded: tuple[tuple[str, str], ...], now: tuple[tuple[str, str], ...]
) -> tuple[str, ...]:
    """Names of the inputs that differ, in order."""
    before, after = dict(recorded), dict(now)
    return tuple(name for name in {**before, **after} if before.get(name) != after.get(name))


class Expected:
    """Recorded steps that the body has to ask for again, before anything new begins.

    Steps behind one that runs again are not expected: its new output may lead elsewhere.
    """

    def __init__(self, rows: Iterable[StepRow]) -> None:
        self._missing: dict[str, None] = {}
        for row in rows:
            if row.state in ("pending", "failed") or row.name.startswith(OCCURRENCE):
                continue
            if row.state in ("invalid", "stale") or (row.state == "completed" and row.attempt > 1):
                break
            self._missing[row.step_id] = None

    def asked(self, step_id: str) -> None:
        self._missing.pop(step_id, None)

    def let_go(self) -> None:
        """A step runs again: what was recorded behind it need not come."""
        self._missing.clear()

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(self._missing)
