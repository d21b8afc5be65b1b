"""Topics, groups and environments as data: load, validate, plan, apply, render.

::

    spec (YAML shapes) -> load -> model.Topology -> validate   rules, pure
                                                 -> plan       diff with a cluster, pure
                                                 -> apply      cluster (admin client), failures (texts)
                                                 -> render     documentation, ACLs, lock file
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from refold.topology.names import TopicNames

if TYPE_CHECKING:
    from refold.topology.model import Topology

__all__ = ["TopicNames", "Topology"]


def __getattr__(name: str) -> Any:
    """The model is loaded when it is used: workers and clients need the names alone."""
    if name != "Topology":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from refold.topology.model import Topology

    return Topology
