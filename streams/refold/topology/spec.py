"""The shape of the YAML files in ``topology/``: a misspelt key is an error, not a default."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

TopicKind = Literal[
    "inbox", "journal", "state", "history", "rejected", "batches", "generations", "review", "work", "evals"
]
TopicOperation = Literal["Alter", "AlterConfigs", "Create", "Delete", "DescribeConfigs"]


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class SchemaRef(_Spec):
    """``subject`` is ``None`` for bytes passed through untouched."""

    subject: str | None
    framing: Literal["confluent", "original"]


class Promises(_Spec):
    """What a topic's retention has to carry."""

    outage_hours_max: Annotated[int, Field(gt=0)]


class TopicSpec(_Spec):
    """One file of ``topology/topics``. ``config`` holds Kafka's own names and textual values."""

    name: TopicKind
    description: str
    key: str
    schema_: Annotated[SchemaRef, Field(alias="schema")]
    headers: tuple[str, ...] = ()
    producers: Annotated[tuple[str, ...], Field(min_length=1)]
    consumers: Annotated[tuple[str, ...], Field(min_length=1)]
    observers: tuple[str, ...] = ()
    promises: Promises | None = None
    config: dict[str, str]
    examples: tuple[str, ...] = ()

    @property
    def compacted(self) -> bool:
        return "compact" in self.config.get("cleanup.policy", "delete").split(",")

    def number(self, key: str) -> int | None:
        """A numeric config value, ``None`` when it is not set."""
        value = self.config.get(key)
        return None if value is None else int(value)


class GroupSpec(_Spec):
    id: str
    protocol: Literal["classic"]
    session_timeout_ms: Annotated[int, Field(gt=0)]
    instance_id: str
    transactional_id: str


class PartitioningSpec(_Spec):
    hash: Literal["murmur2"]
    copartitioned: tuple[TopicKind, ...]


class RoleSpec(_Spec):
    """What one kind of principal may do beyond reading and writing the topics that name it."""

    description: str
    group: tuple[Literal["Describe", "Read"], ...] = ()
    transactional_ids: tuple[Literal["Describe", "Write"], ...] = ()
    #: Whose: the pattern of the role's transactional ids.
    transactional_id_prefix: str = "{prefix}-"
    topic_admin: tuple[TopicOperation, ...] = ()
    cluster: tuple[Literal["Describe"], ...] = ()


class ParticipantsSpec(_Spec):
    """``topology/groups.yaml``."""

    group: GroupSpec
    partitioning: PartitioningSpec
    roles: dict[str, RoleSpec]


class EnvironmentSpec(_Spec):
    """One file of ``topology/environments``: what differs between a laptop and production."""

    name: Literal["dev", "test", "prod"]
    description: str
    partitions: Annotated[int, Field(ge=1, le=16_384)]
    replication_factor: Annotated[int, Field(ge=1)]
    min_insync_replicas: Annotated[int, Field(ge=1)]
    unclean_leader_election: bool
    enforce_durability: bool
