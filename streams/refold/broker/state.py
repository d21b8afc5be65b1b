"""state.json: what was started in a directory, so that the next process finds it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

from refold.broker.layout import Layout
from refold.broker.ports import LOOPBACK, Ports
from refold.broker.process import Identity

VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    pid: int  # 0 after a clean stop: the ports are kept, so that the address survives down and up
    created: float  # the process's creation time
    client_port: int
    controller_port: int
    internal_port: int
    cluster_id: str
    heap_mib: int
    properties: Mapping[str, str] = field(default_factory=dict)
    version: int = VERSION

    @property
    def bootstrap(self) -> str:
        return f"{LOOPBACK}:{self.client_port}"

    @property
    def internal_bootstrap(self) -> str:
        return f"{LOOPBACK}:{self.internal_port}"

    @property
    def ports(self) -> Ports:
        return Ports(client=self.client_port, controller=self.controller_port, internal=self.internal_port)

    @property
    def identity(self) -> Identity:
        return Identity(pid=self.pid, created=self.created)

    @property
    def alive(self) -> bool:
        return self.pid > 0 and self.identity.alive


def read(layout: Layout) -> State | None:
    """The last state, or ``None``. An unreadable file counts as none: Kafka's own lock on the data
    directory still keeps a second broker out."""
    try:
        row = json.loads(layout.state.read_text("utf-8"))
        return State(**row) if row.get("version") == VERSION else None
    except (FileNotFoundError, ValueError, TypeError, AttributeError):
        return None


def write(layout: Layout, state: State) -> None:
    partial = layout.state.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(state), indent=1) + "\n", encoding="utf-8")
    partial.replace(layout.state)
