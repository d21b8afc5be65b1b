"""The topology of one prefix in one environment: the specification with every choice made.

::

    topology = Topology.load(prefix="refold", partitions=8)
    topology.apply("127.0.0.1:9092")        # creates what is missing; idempotent
    topology.names.journal                  # "refold.journal"
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from refold.errors import ConfigError
from refold.topology import load
from refold.topology.names import DEFAULT_PREFIX, TopicNames
from refold.topology.spec import EnvironmentSpec, ParticipantsSpec, TopicKind, TopicSpec

if TYPE_CHECKING:
    from refold.settings import Settings
    from refold.topology.plan import Plan


@dataclass(frozen=True, slots=True)
class Topology:
    """``partitions`` is the count for every topic; ``locked`` the content of ``topology.lock.json``."""

    names: TopicNames
    partitions: int
    topics: tuple[TopicSpec, ...]
    participants: ParticipantsSpec
    environment: EnvironmentSpec
    locked: Mapping[str, Any]

    @classmethod
    def load(
        cls,
        prefix: str = DEFAULT_PREFIX,
        partitions: int | None = None,
        environment: str = "dev",
        root: Path | None = None,
    ) -> Topology:
        """Read the specification. ``partitions=None``: the environment's. Raises :class:`ConfigError`."""
        base = root or load.data_root()
        env = load.read_environment(base, environment)
        return cls(
            names=TopicNames(prefix),
            partitions=env.partitions if partitions is None else partitions,
            topics=load.read_topics(base),
            participants=load.read_participants(base),
            environment=env,
            locked=load.read_lock(base),
        )

    @classmethod
    def of(cls, settings: Settings) -> Topology:
        """The topology that ``settings`` ask for."""
        return cls.load(settings.topic_prefix, settings.partitions, settings.environment)

    def topic(self, kind: str) -> TopicSpec:
        for topic in self.topics:
            if topic.name == kind:
                return topic
        raise ConfigError(f"the topology does not describe {kind!r}: restore topology/topics/{kind}.yaml.")

    def full_name(self, kind: TopicKind) -> str:
        return f"{self.names.prefix}.{kind}"

    def config(self, topic: TopicSpec) -> dict[str, str]:
        """The topic's Kafka configuration with the environment's durability conditions."""
        return {
            **topic.config,
            "min.insync.replicas": str(self.environment.min_insync_replicas),
            "unclean.leader.election.enable": str(self.environment.unclean_leader_election).lower(),
        }

    def check(self) -> None:
        """Raise :class:`ConfigError` naming every violated rule of :mod:`refold.topology.validate`."""
        from refold.topology.validate import problems

        if found := problems(self):
            raise ConfigError(
                "the topology is not valid:\n  " + "\n  ".join(str(problem) for problem in found)
            )

    def plan(self, target: Settings | str | Mapping[str, Any]) -> Plan:
        """Compare with the cluster, changing nothing. Blocks up to about ten seconds.

        Raises :class:`ConfigError`, :class:`UnavailableError`, :class:`PermissionDenied`.
        """
        from refold.topology.apply import plan_on
        from refold.topology.cluster import Cluster

        self.check()
        return plan_on(self, Cluster(target))

    def apply(self, target: Settings | str | Mapping[str, Any]) -> Plan:
        """Make the cluster agree and return what was done; nothing to do is fine. Blocks until usable.

        Raises as :meth:`plan`; a difference that would lose state is a :class:`ConfigError` and nothing is
        changed then.
        """
        from refold.topology.apply import apply_on
        from refold.topology.cluster import Cluster

        self.check()
        return apply_on(self, Cluster(target))

    def delete(self, target: Settings | str | Mapping[str, Any]) -> None:
        """Delete the topics of this prefix with all state in them; for tests and demos. Absent is fine."""
        from refold.topology.cluster import Cluster

        Cluster(target).delete([self.full_name(topic.name) for topic in self.topics])
