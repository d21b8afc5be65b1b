"""An external system that several processes share: a ledger in a file, under a lock."""

from __future__ import annotations

import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from refold.client.tools import NOT_DONE, Done, LookupAnswer


class FileGateway:
    """``ledger``: one line per executed operation, in order. ``fenced``: a key that was called *not done* is
    refused from then on, as rule L11 asks of a lookup; without it only the lease stands between a runner that
    was stopped in front of the effect and a second execution."""

    def __init__(self, directory: Path, *, fenced: bool) -> None:
        self._ledger = directory / "ledger"
        self._dead = directory / "dead"
        self._lock = directory / "lock"
        self._fenced = fenced

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock.open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def execute(self, key: str, result: Any, *, once: bool = False) -> Any:
        """``once``: a key counts once, as an idempotent system has it."""
        with self._locked():
            if self._fenced and key in _lines(self._dead):
                raise PermissionError(f"{key} is dead")
            done = dict(json.loads(line) for line in _lines(self._ledger))
            if once and key in done:
                return done[key]
            with self._ledger.open("a") as ledger:
                ledger.write(json.dumps([key, result]) + "\n")
        return result

    def lookup(self, key: str) -> LookupAnswer:
        with self._locked():
            done = dict(json.loads(line) for line in _lines(self._ledger))
            if key in done:
                return Done(done[key])
            with self._dead.open("a") as dead:
                dead.write(key + "\n")
        return NOT_DONE

    @property
    def ledger(self) -> list[str]:
        """Executed keys, in order."""
        return [json.loads(line)[0] for line in _lines(self._ledger)]

    def count(self, operation_id: str) -> int:
        return sum(1 for key in self.ledger if key.rsplit("/", 1)[0] == operation_id)


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
