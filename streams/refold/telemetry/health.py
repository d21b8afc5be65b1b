"""When a worker counts as started, ready and alive: three probes with three meanings, decided here, purely.

- *startup*: it has joined the group once. A restore may take minutes, so probes wait for this one first.
- *ready*: it has partitions, all of them are live, and what it serves is fresh. Not ready: queries go
  elsewhere.
- *live*: the event loop turns. It never fails because Kafka is down: a restart would not bring Kafka back,
  and would throw a warm cache away.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

#: The loop beats every second; ten missed beats are no pause of a garbage collector or a slow disk any more.
LOOP_SILENCE_SECONDS_MAX: Final = 10.0
#: A commit is due within 10 ms of an event; unruled input older than this means that reads lag visibly.
STALENESS_SECONDS_MAX: Final = 10.0


@dataclass(frozen=True, slots=True)
class Vitals:
    """What the worker measures about itself. Ages in seconds; ``partitions`` counts owned ones by state."""

    joined: bool
    stopping: bool
    loop_silence_s: float
    staleness_s: float
    partitions: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """``reasons`` says, for whoever reads the probe's answer, why something is not true."""

    startup: bool
    ready: bool
    live: bool
    reasons: tuple[str, ...] = ()


def judge(vitals: Vitals) -> Verdict:
    reasons: list[str] = []
    live = vitals.loop_silence_s <= LOOP_SILENCE_SECONDS_MAX
    if not live:
        reasons.append(f"the event loop has not turned for {vitals.loop_silence_s:.1f} s")
    if not vitals.joined:
        reasons.append("it has not joined the group yet")
    if vitals.stopping:
        reasons.append("it is stopping")
    waiting = {
        state: count for state, count in sorted(vitals.partitions.items()) if state != "live" and count
    }
    for state, count in waiting.items():
        reasons.append(f"{count} partitions are {state}")
    if vitals.staleness_s > STALENESS_SECONDS_MAX:
        reasons.append(f"the oldest unruled record is {vitals.staleness_s:.1f} s old")
    return Verdict(startup=vitals.joined, ready=not reasons, live=live, reasons=tuple(reasons))
