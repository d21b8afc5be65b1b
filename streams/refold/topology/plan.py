"""The difference between the specification and a cluster, as data a person can approve. Pure.

What would lose state is *refused*, never planned: a partition count (it re-keys every session), a cleanup
policy, a shorter journal, a state topic that vanished beside a journal that was written to.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from refold.topology.model import Topology
    from refold.topology.spec import TopicSpec

#: Configs whose change cannot take anything away that is stored or promised.
SAFE_CONFIGS: Final = frozenset(
    {
        "compression.type",
        "delete.retention.ms",
        "max.compaction.lag.ms",
        "max.message.bytes",
        "message.timestamp.type",
        "min.cleanable.dirty.ratio",
        "min.insync.replicas",
        "retention.bytes",
        "retention.ms",
        "segment.ms",
        "unclean.leader.election.enable",
    }
)
#: Shortening these deletes what is stored.
_RETENTION: Final = frozenset({"retention.ms", "retention.bytes"})


@dataclass(frozen=True, slots=True)
class LiveTopic:
    """A topic as the cluster has it. ``records`` is whether anything was ever written to it."""

    partitions: int
    replication_factor: int
    config: Mapping[str, str]
    records: bool = False


@dataclass(frozen=True, slots=True)
class Change:
    """``create``: the topic with all of ``after``; ``alter``: one config key from ``before`` to ``after``."""

    action: Literal["create", "alter"]
    topic: str
    key: str
    before: str | None
    after: str

    def __str__(self) -> str:
        if self.action == "create":
            return f"+ {self.topic}: create ({self.after})"
        return f"~ {self.topic}: {self.key} {self.before} -> {self.after}"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A difference that is not applied, and the way out."""

    topic: str
    what: str
    way_out: str


@dataclass(frozen=True, slots=True)
class Plan:
    """``changes`` are safe; with any ``refused`` nothing is applied; ``warnings`` stop nothing."""

    prefix: str
    environment: str
    partitions: int
    changes: tuple[Change, ...] = ()
    refused: tuple[Refusal, ...] = ()
    warnings: tuple[str, ...] = ()
    topics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def refusals(self) -> list[str]:
        """What is refused, one text per cause with all its topics."""
        grouped: dict[tuple[str, str], list[str]] = {}
        for refusal in self.refused:
            grouped.setdefault((refusal.what, refusal.way_out), []).append(refusal.topic)
        return [f"! {', '.join(topics)}: {what}. {way_out}" for (what, way_out), topics in grouped.items()]

    @property
    def differs(self) -> bool:
        return bool(self.changes or self.refused)

    def as_json(self) -> dict[str, Any]:
        return {
            "prefix": self.prefix,
            "environment": self.environment,
            "partitions": self.partitions,
            "differs": self.differs,
            "changes": [asdict(change) for change in self.changes],
            "refused": [asdict(refusal) for refusal in self.refused],
            "warnings": list(self.warnings),
        }


def compare(topology: Topology, live: Mapping[str, LiveTopic], brokers: int) -> Plan:
    """``live`` maps full names to what is there; absent topics are absent from it."""
    changes: list[Change] = []
    refused: list[Refusal] = [*_vanished(topology, live)]
    warnings: list[str] = []
    replicas = topology.environment.replication_factor
    for spec in topology.topics:
        name = topology.full_name(spec.name)
        found = live.get(name)
        if found is None:
            changes.append(_creation(topology, spec, name))
            if brokers < replicas:
                text = f"replication factor {replicas} needs as many brokers, the cluster has {brokers}"
                refused.append(
                    Refusal(name, text, "Add brokers, or use --environment dev where loss is acceptable")
                )
            continue
        refused += _shape(topology, name, found)
        for key, after in sorted(topology.config(spec).items()):
            before = found.config.get(key)
            if before == after or _stricter(key, before, after, found):
                continue
            why_not = _unsafe(spec, key, before, after)
            if why_not is None:
                changes.append(Change("alter", name, key, before, after))
            else:
                refused.append(
                    Refusal(name, f"{key} is {before}, the topology says {after}: {why_not[0]}", why_not[1])
                )
        if found.replication_factor < replicas:
            text = (
                f"replication factor is {found.replication_factor}, {topology.environment.name} needs"
                f" {replicas}"
            )
            if topology.environment.enforce_durability:
                way_out = "Reassign its partitions to more brokers (kafka-reassign-partitions.sh)"
                refused.append(Refusal(name, f"{text}: a lost disk loses acknowledged events", way_out))
            else:
                warnings.append(f"{name}: {text}")
    if topology.environment.replication_factor == 1 and any(t.replication_factor == 1 for t in live.values()):
        warnings.append(
            "replication factor 1: what is committed survives any process, not the loss of the broker's disk"
        )
    return Plan(
        prefix=topology.names.prefix,
        environment=topology.environment.name,
        partitions=topology.partitions,
        changes=tuple(changes),
        refused=tuple(refused),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _creation(topology: Topology, spec: TopicSpec, name: str) -> Change:
    text = (
        f"{topology.partitions} partitions, replication factor {topology.environment.replication_factor},"
        f" {spec.config['cleanup.policy']}"
    )
    return Change("create", name, "", None, text)


def _shape(topology: Topology, name: str, found: LiveTopic) -> Iterator[Refusal]:
    if found.partitions == topology.partitions:
        return
    yield Refusal(
        name,
        f"it has {found.partitions} partitions, the topology says {topology.partitions}: changing the count"
        " would send sessions to partitions that do not hold their state",
        f"Keep {found.partitions} (--partitions {found.partitions} or REFOLD_PARTITIONS={found.partitions});"
        f" for more, create topics under another --prefix with --partitions {topology.partitions} and"
        " begin new sessions there",
    )


def _unsafe(spec: TopicSpec, key: str, before: str | None, after: str) -> tuple[str, str] | None:
    """Why this config must not be changed here, and the way out; ``None`` when it is safe."""
    if key == "cleanup.policy":
        lost = (
            "sessions that are not rewritten would be deleted"
            if before == "compact"
            else "events would be removed"
        )
        return (
            f"changing it on a topic with data may lose state ({lost})",
            (
                "If the topic is really meant for refold and empty, delete it and apply again; else use"
                " another --prefix"
            ),
        )
    if key in _RETENTION and not spec.compacted and _shrinks(before, after):
        lost = "events of the log of record" if spec.name == "journal" else "records that are kept now"
        return (
            f"it would delete {lost}",
            (
                f"Keep the live value in topology/topics/{spec.name}.yaml; to shorten it on purpose, archive"
                " what is needed and alter the topic by hand (kafka-configs.sh)"
            ),
        )
    if key not in SAFE_CONFIGS:
        return "refold does not know whether the change is safe", "Alter the topic by hand (kafka-configs.sh)"
    return None


def _stricter(key: str, before: str | None, after: str, found: LiveTopic) -> bool:
    """More in-sync replicas than asked for stay: ``apply`` must not weaken a topic of another environment."""
    if key != "min.insync.replicas" or before is None:
        return False
    return int(after) < int(before) < max(found.replication_factor, 2)


def _shrinks(before: str | None, after: str) -> bool:
    """``-1`` is unlimited; an unreadable live value counts as unlimited."""
    if after == "-1":
        return False
    return before is None or before == "-1" or int(after) < int(before)


def _vanished(topology: Topology, live: Mapping[str, LiveTopic]) -> Iterator[Refusal]:
    """Creating an empty twin of a lost topic would make the loss look like a fresh start."""
    names = topology.names
    for lost, witness in ((names.state, names.journal), (names.journal, names.state)):
        if lost not in live and witness in live and live[witness].records:
            yield Refusal(
                lost,
                f"it does not exist, but {witness} was written to: it was deleted",
                "Restore it from a backup, or start over under another --prefix",
            )
