"""Reducers under chaos: what of their events is sent, and what every session's part must be.

Two witnesses. One is a plain loop: the module's own functions over the events that the oracle counts, in the
oracle's order, with none of the fold's code between two of them. The other is the fold itself, over the
journal, byte for byte.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, TypeAlias

from refold.core.reduced import comparable
from refold.core.reducers import Registry, Unfit, current
from refold.errors import UsageError
from refold.ops.refolding import Refolder
from refold.ops.verify.judge import Verdict
from refold.ops.verify.oracle import Expected, World
from refold.ops.verify.readback import Record
from refold.reducers import load
from refold.wire.journal import decode_journal
from refold.wire.snapshot import decode_session, encode_snapshot

#: Of all records, how many are events of the reducers.
SHARE: Final = 0.2

#: The function of a module that makes its events: ``sample(random) -> (type, JSON object)``.
SAMPLE: Final = "sample"

Topic = Mapping[int, Sequence[Record]]
Sampler: TypeAlias = Callable[[Random], tuple[str, Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Parts:
    """``compared``: parts of all sessions; ``upcast``: those with events from before and after the moment the
    workers' version was raised."""

    compared: int = 0
    upcast: int = 0


def load_module(name: str) -> Registry:
    """The reducers of a module under test. Raises ConfigError where there are none, UsageError where it has
    no way to make events."""
    registry = load([name])
    sampler(name)
    if registry is None:
        raise UsageError(f"--reducers {name}: no @refold.reducer is declared there.")
    return registry


def sampler(name: str) -> Sampler:
    found: Sampler | None = getattr(importlib.import_module(name), SAMPLE, None)
    if not callable(found):
        raise UsageError(
            f"--reducers {name}: the module needs a function {SAMPLE}(random) that returns an event's type"
            " and its payload (a JSON object), for the run to send"
        )
    return found


def encode_sample(made: tuple[str, Mapping[str, Any]]) -> tuple[str, bytes]:
    kind, payload = made
    return kind, json.dumps(payload, sort_keys=True).encode()


def judge_parts(
    verdict: Verdict, registry: Registry, world: World, journal: Topic, state: Topic, bump_ms: int | None
) -> Parts:
    """Compare every part; differences go into ``verdict``. ``bump_ms``: when the version was raised."""
    times: dict[bytes, list[int]] = {}
    refolder = Refolder()
    for records in journal.values():
        for record in records:
            key, value = record.key or b"", record.value or b""
            refolder.feed(key, value)
            times.setdefault(key, []).append(decode_journal(value).time_ms)
    newest = {record.key or b"": record.value for records in state.values() for record in records}
    compared = upcast = 0
    for key, stored in sorted(newest.items()):
        if stored is None:
            continue
        name = key.decode(errors="replace")
        if (different := _unlike_its_fold(stored, refolder.encoded(key))) is not None:
            verdict.differ(f"parts {name}: {different}")
        expected = world.sessions.get(key, Expected())
        for text in _unlike_the_oracle(registry, expected, stored, times[key]):
            verdict.differ(f"parts {name}: {text}")
        compared += len(registry.by_name)
        for one in registry.by_name.values():
            when = [times[key][seq - 1] for seq, env in expected.own if env.type in one.types]
            upcast += bump_ms is not None and bool(when) and when[0] < bump_ms <= when[-1]
    return Parts(compared, upcast)


def _unlike_its_fold(stored: bytes, folded: bytes | None) -> str | None:
    if folded is None:
        return "a state without a journal"
    there, here = decode_session(stored), decode_session(folded)
    if left := comparable(there, here):
        return f"{', '.join(left)} missing, or of another version than the workers have"
    if encode_snapshot(there) != encode_snapshot(here):
        return "the stored state is not the fold of its journal"
    return None


def _unlike_the_oracle(
    registry: Registry, expected: Expected, stored: bytes, times: Sequence[int]
) -> list[str]:
    rows = decode_session(stored).reduced
    wrong = []
    for name, one in registry.by_name.items():
        row = rows.get(name)
        if row is None:
            wrong.append(f"{name} is missing")
            continue
        own = [(seq, env) for seq, env in expected.own if env.type in one.types]
        state = json.loads(one.initial)
        for seq, env in own:
            state = json.loads(json.dumps(one.apply(state, registry.view(env, seq, times[seq - 1]))))
        try:
            found = current(one, row)
        except Unfit as unfit:
            found = unfit.error
        last = own[-1][0] if own else 0
        if (row.status, row.seq, found) != ("ok", last, state):
            wrong.append(f"{name} is {row.status} at seq {row.seq}, expected seq {last} and another state")
    return wrong
