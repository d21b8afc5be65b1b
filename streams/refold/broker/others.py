"""Brokers of this user that run in other directories: what a demo or another terminal left behind.

Found by their command line, which ends with the file they were started with; what is written beside that file
says where they listen.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from refold.broker import state
from refold.broker.java import BROKER_MAIN
from refold.broker.layout import Layout

#: Directories of the nodes of a cluster, in its own (``cluster.py``).
_NODE: Final = "node-"


@dataclass(frozen=True, slots=True)
class Other:
    """``bootstrap``: of all its nodes."""

    directory: Path
    bootstrap: str
    pids: tuple[int, ...]


def others(directory: Path | str) -> list[Other]:
    """All that run, but those in ``directory``; by directory. Blocks for some ms; never raises for a process
    that ends meanwhile or is another user's."""
    ours = Path(directory).absolute()
    found: dict[Path, list[tuple[str, int]]] = {}
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or []
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
        Other(place, ",".join(address for address, _ in nodes), tuple(pid for _, pid in nodes))
        for place, nodes in sorted((place, sorted(nodes)) for place, nodes in found.items())
    ]


def _state(layout: Layout) -> state.State | None:
    try:
        return state.read(layout)
    except OSError:
        return None
