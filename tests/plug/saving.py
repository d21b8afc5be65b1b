"""The simulated cluster in a file: it outlives the process that is killed, as a real one would.

Saved at the very moment of the death: logs with their open transactions, the group with its members and
pending offsets, the transaction coordinator with decisions whose markers are not written yet, and the
observers' books. Loaded, the markers that were on their way arrive, and the dead member's session runs
out.
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, Final

from simulation.transactions import State, Transaction

from .world import PlugWorld

#: Attributes that say what has happened, by their owner's name in the world.
_KEPT: Final = {
    "group": ("members", "_instances", "generation", "preparing", "offsets", "_pending", "_appended", "_ids"),
    "transactions": ("_by_id", "_pids", "_numbers"),
    "fold": ("sessions", "partition_of", "places", "events"),
    "once": ("decided", "rejected", "forwarded", "batches_rejected", "batches_forwarded"),
    "generations": ("folds", "refused", "_misrouted", "_markers", "_expected", "_running"),
    "runs": ("work", "timers"),
}


def _owners(world: PlugWorld) -> dict[str, Any]:
    return {
        "group": world.broker.group,
        "transactions": world.broker.transactions,
        "fold": world.fold,
        "once": world.once,
        "generations": world.generations,
        "runs": world.runs,
    }


def save(world: PlugWorld, path: Path) -> None:
    """Whole or not at all: the reader is another process."""
    kept = {
        name: {attribute: getattr(owner, attribute) for attribute in _KEPT[name]}
        for name, owner in _owners(world).items()
    }
    kept["world"] = {"now_us": world.kernel.now_us, "logs": world.broker.logs}
    temporary = path.with_suffix(".new")
    temporary.write_bytes(pickle.dumps(kept))
    temporary.replace(path)


def load(world: PlugWorld, path: Path) -> None:
    """Into a world that has not begun. The dead worker's member stays in the group until its time is over."""
    kept = pickle.loads(path.read_bytes())
    here = kept.pop("world")
    world.kernel.now_us = here["now_us"]
    world.broker.logs.update(here["logs"])
    for name, owner in _owners(world).items():
        for attribute, value in kept[name].items():
            setattr(owner, attribute, value)
    for transaction in world.broker.transactions._by_id.values():
        _go_on(world, transaction)


def _go_on(world: PlugWorld, found: Transaction) -> None:
    """The markers of a decision that had not been written."""
    if found.state not in (State.COMMITTING, State.ABORTING):
        return
    kernel, broker, group = world.kernel, world.broker, world.broker.group
    control, pid = found.decided, found.pid
    left = [place for place in found.places if pid in broker.log(*place).open]
    pending = pid in group._pending
    found.waiting = len(left) + pending

    def done() -> None:
        found.waiting -= 1
        if found.waiting <= 0:
            found.state = State.EMPTY
            found.places = {}
            found.with_offsets = False

    def mark(place: tuple[str, int]) -> None:
        broker.log(*place).mark(kernel.now_ms, pid, control)
        done()

    def settle() -> None:
        group.settle(pid, control == "commit")
        done()

    for place in left:
        kernel.after(kernel.chance.randrange(2_000), lambda place=place: mark(place))  # type: ignore[misc]
    if pending:
        kernel.after(kernel.chance.randrange(2_000), settle)
    if not found.waiting:
        found.waiting = 1
        done()
