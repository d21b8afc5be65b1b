"""The cluster through librdkafka's admin client: reads, creates, alters. Every error comes out as ours."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    OffsetSpec,
)

from refold.errors import NotFound, TransientError, UnavailableError
from refold.topology.failures import explain
from refold.topology.logends import offset_of
from refold.topology.plan import LiveTopic
from refold.topology.reach import Reach

if TYPE_CHECKING:
    from refold.settings import Settings

#: A broker that does not answer a metadata request for this long is reported as unreachable; a person waits.
ANSWER_SECONDS_MAX: Final = 6.0
#: Creation and deletion pass through the controller; a loaded single-node cluster has taken 6 s here.
CHANGE_SECONDS_MAX: Final = 30.0
POLL_SECONDS: Final = 0.05

_T = TypeVar("_T")


class Cluster:
    """One admin connection. All methods block; none of them outlives its deadline by much."""

    def __init__(self, target: Settings | str | Mapping[str, Any]) -> None:
        if isinstance(target, str):
            config: dict[str, Any] = {"bootstrap.servers": target}
        elif isinstance(target, Mapping):
            config = dict(target)
        else:
            config = target.kafka_config("admin")
        self.bootstrap = str(config.get("bootstrap.servers", "?"))
        self._reach = Reach(self.bootstrap)
        # librdkafka would print connection failures to stderr; ours say what to do about them.
        try:
            self._admin = AdminClient({"log_level": 2, **config, "error_cb": self._reach.told})
        except KafkaException as err:
            raise explain(err, doing="connecting", bootstrap=self.bootstrap) from err

    def brokers(self) -> int:
        return len(self._metadata().brokers)

    def topics(self, names: Iterable[str]) -> dict[str, LiveTopic]:
        """Those of ``names`` that exist, with their effective configuration.

        A topic that was just created may have no leader yet, and not every broker may know it: such answers
        are asked for again.
        """
        wanted = list(names)
        deadline = time.monotonic() + ANSWER_SECONDS_MAX
        while True:
            try:
                return self._topics(wanted)
            except (TransientError, NotFound):
                if time.monotonic() > deadline:
                    raise
            time.sleep(POLL_SECONDS)

    def _topics(self, names: list[str]) -> dict[str, LiveTopic]:
        metadata = self._metadata().topics
        found = {name: metadata[name] for name in names if name in metadata and metadata[name].error is None}
        configs = self._configs(found)
        written = self._written({name: len(topic.partitions) for name, topic in found.items()})
        return {
            name: LiveTopic(
                partitions=len(topic.partitions),
                replication_factor=min((len(p.replicas) for p in topic.partitions.values()), default=0),
                config=configs[name],
                records=written[name],
            )
            for name, topic in found.items()
        }

    def create(self, name: str, partitions: int, replication_factor: int, config: Mapping[str, str]) -> None:
        """Created by somebody else meanwhile is fine: the caller compares again."""
        topic = NewTopic(
            name, num_partitions=partitions, replication_factor=replication_factor, config=dict(config)
        )
        try:
            futures = self._admin.create_topics([topic], operation_timeout=CHANGE_SECONDS_MAX)
            futures[name].result(CHANGE_SECONDS_MAX)
        except KafkaException as err:
            if err.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise self._explain(f"creating {name}", err) from err
        except TimeoutError as err:
            raise self._late(f"creating {name}") from err

    def alter(self, name: str, changes: Mapping[str, str]) -> None:
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
            for key, value in changes.items()
        ]
        resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=entries)
        futures = self._guard(f"altering {name}", lambda: self._admin.incremental_alter_configs([resource]))
        self._guard(f"altering {name}", lambda: futures[resource].result(CHANGE_SECONDS_MAX))

    def delete(self, names: list[str]) -> None:
        existing = [name for name in names if name in self._metadata().topics]
        if not existing:
            return
        futures = self._guard(
            "deleting topics",
            lambda: self._admin.delete_topics(existing, operation_timeout=CHANGE_SECONDS_MAX),
        )
        for name, future in futures.items():
            try:
                future.result(CHANGE_SECONDS_MAX)
            except KafkaException as err:
                if err.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise self._explain(f"deleting {name}", err) from err
            except TimeoutError as err:
                raise self._late(f"deleting {name}") from err

    def wait_until_led(self, names: Iterable[str]) -> None:
        """Until every partition has a leader, so that the first produce does not fail."""
        wanted = list(names)
        deadline = time.monotonic() + CHANGE_SECONDS_MAX
        while True:
            topics = self._metadata().topics
            waiting = [
                name
                for name in wanted
                if name not in topics
                or not topics[name].partitions
                or any(partition.leader < 0 for partition in topics[name].partitions.values())
            ]
            if not waiting:
                return
            if time.monotonic() > deadline:
                raise UnavailableError(
                    f"{', '.join(waiting)} has no leader after {CHANGE_SECONDS_MAX:.0f} s. Check the brokers"
                    f" at {self.bootstrap}."
                )
            time.sleep(POLL_SECONDS)

    def _metadata(self) -> Any:
        doing = "reading the cluster's metadata"
        return self._reach.ask(
            doing, lambda timeout: self._admin.list_topics(timeout=timeout), self._admin.poll
        )

    def _configs(self, names: Iterable[str]) -> dict[str, dict[str, str]]:
        resources = [ConfigResource(ConfigResource.Type.TOPIC, name) for name in names]
        if not resources:
            return {}
        futures = self._guard("reading topic configurations", lambda: self._admin.describe_configs(resources))
        out = {}
        for resource, future in futures.items():
            name = str(resource.name)
            entries = self._guard(
                f"reading the configuration of {name}", partial(future.result, ANSWER_SECONDS_MAX)
            )
            out[name] = {key: entry.value for key, entry in entries.items() if entry.value is not None}
        return out

    def _written(self, partitions: Mapping[str, int]) -> dict[str, bool]:
        """Whether anything was ever written: some partition whose end is not 0. What has expired counts: an
        empty journal beside a vanished state must not pass for a fresh start."""
        wanted = [TopicPartition(name, p) for name, count in partitions.items() for p in range(count)]
        if not wanted:
            return {}
        out = dict.fromkeys(partitions, False)
        for (name, _), end in self._offsets(wanted, OffsetSpec.latest()).items():
            out[name] = out[name] or end > 0
        return out

    def _offsets(self, wanted: list[TopicPartition], spec: OffsetSpec) -> dict[tuple[str, int], int]:
        futures = self._guard(
            "reading offsets", lambda: self._admin.list_offsets(dict.fromkeys(wanted, spec))
        )
        return {
            (tp.topic, tp.partition): self._guard(
                f"reading offsets of {tp.topic}", partial(_offset_of, future)
            )
            for tp, future in futures.items()
        }

    def _guard(self, doing: str, call: Callable[[], _T]) -> _T:
        try:
            return call()
        except KafkaException as err:
            raise self._explain(doing, err) from err
        except TimeoutError as err:
            raise self._late(doing) from err

    def _late(self, doing: str) -> UnavailableError:
        return UnavailableError(f"{doing}: no answer from {self.bootstrap} in time. Try again.")

    def _explain(self, doing: str, err: KafkaException) -> Exception:
        return self._reach.explain(doing, err, self._admin.poll)


def _offset_of(future: Any) -> int:
    return offset_of(future, ANSWER_SECONDS_MAX)
