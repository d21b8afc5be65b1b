"""Topics, groups and environments as data: load, validate, plan, apply, render.

::

    spec (YAML shapes) -> load -> model.Topology -> validate   rules, pure
                                                 -> plan       diff with a cluster, pure
                                                 -> apply      cluster (admin client), failures (texts)
                                                 -> render     documentation, ACLs, lock file
"""

from __future__ import annotations

from refold.topology.model import Topology
from refold.topology.names import TopicNames

__all__ = ["TopicNames", "Topology"]
