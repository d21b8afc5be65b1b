"""Named points: where a test or ``verify`` makes the process die, stop or wait.

The order of a commit is data (:data:`COMMIT`), and every gap between two steps is a point. One point can be
armed at a time: at the start by ``REFOLD_POINT=<name>:<action>[:<nth>]`` (nth time it is reached, default 1),
or later by writing the same text to the file named by ``REFOLD_POINT_FILE``, which is read (and removed) when
the next commit begins. Just before the action one JSON line ``{"point":…,"events":…}`` is written to
``<REFOLD_POINT_FILE>.hit``, so that a test can wait for it and knows how many folded, uncommitted events the
commit held.

Actions: ``kill`` (SIGKILL to itself), ``stop`` (SIGSTOP to the whole process), ``exit`` (exit 70 at once),
``raise`` (an exception at the point), ``hold`` (this thread waits until ``<REFOLD_POINT_FILE>.release``
exists). Not armed, it costs one look for a file per commit, and only where REFOLD_POINT_FILE is set.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from refold.errors import ConfigError, InvariantViolation

#: The steps of a commit, in order. ``in_commit``: the commit request is sent, its answer not yet seen.
COMMIT: Final = (
    "after_begin",
    "after_send_offsets",
    "after_produce",
    "in_commit",
    "after_commit",
    "after_write_batch",
)
#: The steps of a takeover (rule T), in order.
RESTORE: Final = ("after_stable_offset", "after_mark", "after_restore")
#: A restore's run as a sorted file: it is whole and beside the DB, it is in the DB with its frontier.
BULK: Final = ("run_built", "run_ingested")
#: A range of a restore that is hot first was written (rule H2).
WARMING: Final = ("after_range",)
#: Inside the rebalance callbacks, before anything is given up.
REBALANCE: Final = ("on_revoke", "on_lost")
#: The steps of publishing a checkpoint, in order; ``checkpoint_file`` after each file that is sent.
CHECKPOINT: Final = (
    "checkpoint_taken",
    "checkpoint_file",
    "checkpoint_before_manifest",
    "checkpoint_after_manifest",
    "checkpoint_manifests_pruned",
)
NAMES: Final = COMMIT + RESTORE + BULK + WARMING + REBALANCE + CHECKPOINT

ACTIONS: Final = ("kill", "stop", "exit", "raise", "hold")

#: From the call of commit_transaction until the action of ``in_commit``: a commit takes 2-3 ms on a local
#: broker, so the request is on its way and the answer usually is not back. Both outcomes must be right.
IN_COMMIT_DELAY_MS: Final = 1

#: A forgotten ``hold`` ends the process instead of hanging a test run for ever.
HOLD_SECONDS_MAX: Final = 120.0
HOLD_POLL_MS: Final = 5


class Points:
    """The armed point of this process, if any. Thread-safe: points are reached on several threads."""

    def __init__(self, spec: str | None = None, file: Path | None = None) -> None:
        self._name: str | None = None
        self._action = ""
        self._left = 0
        self._events = 0
        self._file = file
        self._lock = threading.Lock()
        if spec:
            self._arm(spec)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Points:
        file = environment.get("REFOLD_POINT_FILE")
        return cls(environment.get("REFOLD_POINT"), Path(file) if file else None)

    def _arm(self, spec: str) -> None:
        parts = spec.strip().split(":")
        if (
            len(parts) not in (2, 3)
            or parts[0] not in NAMES
            or parts[1] not in ACTIONS
            or (len(parts) == 3 and not (parts[2].isdigit() and int(parts[2]) > 0))
        ):
            raise ConfigError(
                f"REFOLD_POINT={spec!r} is not <name>:<action>[:<nth>] with a name of {', '.join(NAMES)}"
                " and an"
                f" action of {', '.join(ACTIONS)}"
            )
        if parts[0] == "in_commit" and parts[1] in ("raise", "hold"):
            raise ConfigError(
                "in_commit is reached while its thread is inside the call: use kill, stop or exit"
            )
        if parts[1] == "hold" and self._file is None:
            raise ConfigError("the action hold needs REFOLD_POINT_FILE: it waits for <file>.release")
        with self._lock:
            self._name, self._action = parts[0], parts[1]
            self._left = int(parts[2]) if len(parts) == 3 else 1

    @property
    def armed(self) -> str | None:
        return self._name

    def begin(self, events: int) -> None:
        """A commit of ``events`` folded events begins: look whether a point was armed since the last one."""
        self._events = events
        # A commit without events (a claim, a forward) is not what whoever armed the point waits for.
        if events and self._file is not None and self._file.exists():
            spec = self._file.read_text()
            self._file.unlink(missing_ok=True)
            self._arm(spec)

    def reach(self, name: str) -> None:
        if self._name is not None and self._counted_down(name):
            self._act(name)

    @contextlib.contextmanager
    def during(self, name: str) -> Iterator[None]:
        """Act from another thread while the caller is inside a blocking call."""
        if self._name is not None and self._counted_down(name):
            threading.Timer(IN_COMMIT_DELAY_MS / 1000, self._act, [name]).start()
        yield

    def _counted_down(self, name: str) -> bool:
        with self._lock:
            if name != self._name:
                return False
            self._left -= 1
            if self._left > 0:
                return False
            self._name = None
            return True

    def _act(self, name: str) -> None:
        if self._file is not None:
            hit = self._file.with_name(self._file.name + ".hit")
            with hit.open("a") as file:
                file.write(json.dumps({"point": name, "events": self._events}) + "\n")
        match self._action:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                # To this thread: sent to the process, another one may take it, and this one runs on past the
                # point until the stop reaches it.
                signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
            case "exit":
                os._exit(InvariantViolation.exit_code)
            case "raise":
                raise InvariantViolation(f"the armed point {name} was reached")
            case _:
                self._hold()

    def _hold(self) -> None:
        file = self._file
        if file is None:
            raise InvariantViolation("a hold without a file was armed")
        release = file.with_name(file.name + ".release")
        end = time.monotonic() + HOLD_SECONDS_MAX
        while not release.exists():
            if time.monotonic() > end:
                os._exit(InvariantViolation.exit_code)
            time.sleep(HOLD_POLL_MS / 1000)
