"""Plan and apply against a live cluster.

Apply is idempotent and may run twice at once (an init job that is retried): what another run created
meanwhile is compared, not an error. With anything refused, nothing is changed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from refold.errors import ConfigError, UnavailableError
from refold.topology.plan import Plan, compare

if TYPE_CHECKING:
    from refold.topology.cluster import Cluster
    from refold.topology.model import Topology

#: Brokers learn of a config change within a second; past this it did not take.
SETTLE_SECONDS_MAX: Final = 30.0
SETTLE_POLL_SECONDS: Final = 0.1


def plan_on(topology: Topology, cluster: Cluster) -> Plan:
    names = [topology.full_name(topic.name) for topic in topology.topics]
    return compare(topology, cluster.topics(names), cluster.brokers())


def apply_on(topology: Topology, cluster: Cluster) -> Plan:
    """Returns the plan that was carried out. Raises :class:`ConfigError` when something is refused."""
    plan = plan_on(topology, cluster)
    _refuse(plan)
    if not plan.changes:
        return plan
    by_name = {topology.full_name(topic.name): topic for topic in topology.topics}
    altered: dict[str, dict[str, str]] = {}
    for change in plan.changes:
        if change.action == "create":
            config = topology.config(by_name[change.topic])
            cluster.create(change.topic, topology.partitions, topology.environment.replication_factor, config)
        else:
            altered.setdefault(change.topic, {})[change.key] = change.after
    for name, changes in altered.items():
        cluster.alter(name, changes)
    cluster.wait_until_led(by_name)
    _settle(topology, cluster)
    return plan


def _settle(topology: Topology, cluster: Cluster) -> None:
    deadline = time.monotonic() + SETTLE_SECONDS_MAX
    while True:
        left = plan_on(topology, cluster)
        _refuse(left)
        if not left.changes:
            return
        if time.monotonic() > deadline:
            still = "; ".join(str(change) for change in left.changes)
            raise UnavailableError(
                f"applied, but after {SETTLE_SECONDS_MAX:.0f} s the cluster still differs: {still}"
            )
        time.sleep(SETTLE_POLL_SECONDS)


def _refuse(plan: Plan) -> None:
    if plan.refused:
        raise ConfigError("nothing was changed:\n  " + "\n  ".join(plan.refusals()))
