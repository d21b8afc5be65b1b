"""The boundaries of the tool protocol, by name, and how an agent process is made to die or freeze at one.

A call goes intent -> started -> effect -> result, and every gap between two steps is a boundary. The two on
either side of a gap differ in what is in flight: after the one step has been answered, or with the next one
about to be sent. Whoever looks after a dead runner's call has steps of its own: it takes the lease over or
gives the attempt up (both are ``reconciled``), and asks the outside world (``lookup``); it can die there too.

One boundary can be armed at a time, by writing ``<name>:<action>[:<kind>]`` to the file the process was given
(``kind``: only at a call of that kind of tool; known at the effect, where the tool is at hand). It is read
when a boundary is reached. Just before the action one JSON line is appended to ``<file>.hit``, so the harness
knows what was hit: ``{"point", "action", "session", "operation", "kind"}``. A process that was frozen in
front of an effect and woken appends a second line when that effect is over: ``{"woken": operation, "then":
…}`` with what came of it.
"""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path
from typing import Final

from refold.errors import ConfigError

#: Event that takes a call a step on -> the name of that step. The effect itself writes no event.
STEP_OF_EVENT: Final = {
    "ToolCallIntended": "intent",
    "ToolCallStarted": "started",
    "ToolCallCompleted": "result",
    "ToolCallFailed": "result",
    "ToolCallReconciled": "reconciled",
}

#: Every boundary of a call, in the order a call meets them. The one table: plan, gates and docs read it.
CALL: Final = (
    "before_intent",
    "after_intent",
    "before_started",
    "after_started",
    "before_effect",
    "after_effect",
    "before_result",
    "after_result",
)
#: Of looking after a call that a dead runner has left. Reached only while that goes on.
RECOVERY: Final = ("before_reconciled", "after_reconciled", "before_lookup", "after_lookup")
BOUNDARIES: Final = CALL + RECOVERY
ACTIONS: Final = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class Boundaries:
    """The armed boundary of this process, if any. Without a file it never acts."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._woken = ""

    def reach(self, name: str, session: str, operation: str, kind: str = "") -> None:
        """The process is at ``name``. Returns, unless this is what was armed; after a ``stop`` it returns
        when the process was woken."""
        file = self._file
        if file is None:
            return
        try:
            spec = file.read_text()
        except FileNotFoundError:
            return
        point, action, wanted = parse(spec)
        if point != name or wanted not in ("", kind):
            return
        file.unlink(missing_ok=True)
        row = {"point": name, "action": action, "session": session, "operation": operation, "kind": kind}
        _append(file, row)
        # To this thread: sent to the process, another thread may take a stop, and this one runs on meanwhile.
        signal.pthread_kill(threading.get_ident(), ACTIONS[action])
        self._woken = operation

    def effect_over(self, operation: str, then: str) -> None:
        """The effect of ``operation`` was tried: ``executed``, ``refused``, ``turned_away`` or ``lost``."""
        if self._file is not None and operation and operation == self._woken:
            self._woken = ""
            _append(self._file, {"woken": operation, "then": then})


def _append(file: Path, row: dict[str, str]) -> None:
    with hit_file(file).open("a") as hits:
        hits.write(json.dumps(row) + "\n")


def parse(spec: str) -> tuple[str, str, str]:
    """(boundary, action, kind or ""). Raises :class:`ConfigError` for anything else."""
    point, action, kind, *rest = [*spec.strip().split(":"), "", ""]
    if point not in BOUNDARIES or action not in ACTIONS or any(rest[:-1]):
        raise ConfigError(
            f"{spec!r} is not <boundary>:<action>[:<kind>] with a boundary of {', '.join(BOUNDARIES)} and an"
            f" action of {', '.join(ACTIONS)}"
        )
    return point, action, kind


def hit_file(file: Path) -> Path:
    return file.with_name(f"{file.name}.hit")


def arm(file: Path, spec: str) -> None:
    """Arm a boundary in the process that was given ``file``. All or nothing: it never reads half a spec."""
    parse(spec)
    hit_file(file).unlink(missing_ok=True)
    prepared = file.with_suffix(".tmp")
    prepared.write_text(spec)
    prepared.replace(file)


def disarm(file: Path) -> bool:
    """False when the process has taken the spec already and is about to act."""
    try:
        file.unlink()
    except FileNotFoundError:
        return False
    return True


def hits(file: Path) -> list[dict[str, str]]:
    """The complete lines of the hit file: it exists a moment before its content does."""
    try:
        text = hit_file(file).read_text()
    except OSError:
        return []
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
