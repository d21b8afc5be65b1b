"""Brokers of this user that run in other directories: what a demo or another terminal left behind.

Found by their command line, which ends with the file they were started with; what is written beside that file
says where they listen. One that dies with the process that started it (of a `refold verify` that runs, of a
benchmark, of tests) has a watchdog, which is that process's child.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from refold.broker import state
from refold.broker.java import BROKER_MAIN
from refold.broker.layout import Layout
from refold.broker.watchdog import guarded_pid

#: Directories of the nodes of a cluster, in its own (``cluster.py``).
_NODE: Final = "node-"

#: Of a command: `refold verify chaos`.
VERBS_MAX: Final = 2


@dataclass(frozen=True, slots=True)
class Owner:
    """Who started a broker that ends with it. ``command``: what it runs, without its arguments."""

    pid: int
    command: str


@dataclass(frozen=True, slots=True)
class Other:
    """``bootstrap``: of all its nodes. ``owner``: ``None`` for one that was started to stay."""

    directory: Path
    bootstrap: str
    pids: tuple[int, ...]
    owner: Owner | None = None


def others(directory: Path | str) -> list[Other]:
    """All that run, but those in ``directory``; by directory. Blocks for some ms; never raises for a process
    that ends meanwhile or is another user's."""
    ours = Path(directory).absolute()
    found: dict[Path, list[tuple[str, int]]] = {}
    watchdogs: dict[int, psutil.Process] = {}
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
        if (guarded := guarded_pid(line)) is not None:
            watchdogs[guarded] = process
        if line[-2:-1] != [BROKER_MAIN]:
            continue
        layout = Layout(Path(line[-1]).parent)
        known = _state(layout)
        if known is None or known.pid != process.pid or not known.alive:
            continue
        place = layout.directory
        if place.name.startswith(_NODE):
            place = place.parent
        if place != ours:
            found.setdefault(place, []).append((known.bootstrap, known.pid))
    return [
        Other(
            place,
            ",".join(address for address, _ in nodes),
            tuple(pid for _, pid in nodes),
            next((_owner(watchdogs[pid]) for _, pid in nodes if pid in watchdogs), None),
        )
        for place, nodes in sorted((place, sorted(nodes)) for place, nodes in found.items())
    ]


def _owner(watchdog: psutil.Process) -> Owner | None:
    """``None`` where it has just ended: the broker is about to."""
    try:
        owner = watchdog.parent()
        return None if owner is None else Owner(owner.pid, command_of(owner.cmdline()))
    except psutil.Error:
        return None


def command_of(line: Sequence[str]) -> str:
    """A command line's program in the words it was called by: ``refold verify chaos``, ``bench.throughput``.
    No options and their values, which may be anything."""
    if len(line) > 1 and Path(line[0]).name.startswith("python"):
        line = line[2:] if line[1] == "-m" else line[1:]
    name, rest = (Path(line[0]).name, line[1:]) if line else ("a process", [])
    if name not in ("refold", "refold.cli.main"):
        return name
    verbs = itertools.takewhile(lambda word: not word.startswith("-"), rest)
    return " ".join(["refold", *itertools.islice(verbs, VERBS_MAX)])


def _state(layout: Layout) -> state.State | None:
    try:
        return state.read(layout)
    except OSError:
        return None
