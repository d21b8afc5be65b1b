"""What runs in a directory, seen from outside."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from refold.broker import state
from refold.broker.layout import Layout
from refold.broker.properties import NODE_ID
from refold.broker.readiness import answers_metadata


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerStatus:
    running: bool
    answering: bool
    bootstrap: str | None
    pid: int | None
    started_at: float | None  # seconds since the epoch
    directory: str
    log: str


def inspect(directory: Path | str, node_id: int = NODE_ID) -> BrokerStatus:
    """Look at the directory's state file, its process and its port. Blocks up to a second; never raises
    for a broker that is not there."""
    layout = Layout(Path(directory).absolute())
    known = state.read(layout)
    running = known is not None and known.alive
    live = known if running else None
    return BrokerStatus(
        running=running,
        answering=live is not None and answers_metadata(live.internal_port, live.cluster_id, node_id=node_id),
        bootstrap=live.bootstrap if live else None,
        pid=live.pid if live else None,
        started_at=live.created if live else None,
        directory=str(layout.directory),
        log=str(layout.log),
    )
