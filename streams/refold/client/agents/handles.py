"""What a step gives back, and how passing it on is observed.

A handle among a step's inputs, at any depth of lists and dicts, is replaced by its value there, and recorded
as *read*: step and digest. That is what invalidation goes along. ``handle.value`` in the body is for deciding
what comes next; what a step is given should be the handle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from refold.client.agents.values import digest, encode
from refold.core.limits import STEP_INPUTS_MAX, STEP_READS_MAX
from refold.errors import UsageError


@dataclass(frozen=True, slots=True)
class StepResult:
    """``value``: the output; ``digest``: of its canonical JSON; ``replayed``: it was not run in this
    process."""

    step_id: str
    value: Any = field(repr=False)
    digest: str
    attempt: int = 1
    summary: str | None = field(default=None, repr=False)
    replayed: bool = False

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True, slots=True)
class Given:
    """One step's inputs. ``values``: without handles; ``inputs``: name and digest of each; ``reads``: step
    and digest of each handle in them, in order, once."""

    values: tuple[Any, ...]
    inputs: tuple[tuple[str, str], ...]
    reads: tuple[tuple[str, str], ...]

    def named(self) -> dict[str, Any]:
        return {name: value for (name, _), value in zip(self.inputs, self.values, strict=True)}


def given(names: Sequence[str], inputs: Sequence[Any]) -> Given:
    """Raises UsageError for an input that is no JSON value, and for what the fold would refuse."""
    if len(inputs) > STEP_INPUTS_MAX:
        raise UsageError(f"a step has at most {STEP_INPUTS_MAX} inputs, not {len(inputs)}: pass a list")
    reads: dict[str, str] = {}
    values = tuple(_resolved(value, reads) for value in inputs)
    if len(reads) > STEP_READS_MAX:
        raise UsageError(
            f"a step reads at most {STEP_READS_MAX} other steps, not {len(reads)}: bring some together "
            "in a step of their own"
        )
    digests = tuple(
        (name, digest(encode(value, f"input {name!r}"))) for name, value in zip(names, values, strict=True)
    )
    return Given(values, digests, tuple(reads.items()))


def plain(value: Any) -> Any:
    """Without handles: a body may return one."""
    return _resolved(value, {})


def _resolved(value: Any, reads: dict[str, str]) -> Any:
    if isinstance(value, StepResult):
        if reads.setdefault(value.step_id, value.digest) != value.digest:
            raise UsageError(f"two outputs of step {value.step_id!r} are among the inputs: pass the newest")
        return value.value
    if isinstance(value, dict):
        return {key: _resolved(item, reads) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolved(item, reads) for item in value]
    if isinstance(value, tuple):
        return tuple(_resolved(item, reads) for item in value)
    return value
