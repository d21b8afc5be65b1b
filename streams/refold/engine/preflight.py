"""Before joining the group: is the cluster what this worker needs? Every "no" names the cause and the way
out.

Blocks; runs on a thread. An unreachable broker is reported within 15 s, missing topics or partitions that do
not match as :class:`ConfigError`, a missing permission as :class:`PermissionDenied` naming resource and
operation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import orjson
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from refold.core.slots import SlotMap
from refold.engine import group
from refold.engine.config import START_CALL_TIMEOUT_MS, EngineConfig
from refold.engine.kafkaerrors import error_of
from refold.engine.probe import ask
from refold.engine.restore import TopicFacts
from refold.engine.step import Limits
from refold.errors import ConfigError, PermissionDenied, RefoldError
from refold.topology.failures import explain

#: Broker defaults, used where a cluster does not say.
MESSAGE_BYTES_DEFAULT: Final = 1_048_588
DELETE_RETENTION_MS_DEFAULT: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class Facts:
    """What start-up learnt of the cluster."""

    slots: SlotMap
    limits: Limits
    topics: TopicFacts
    message_bytes_max: int


def examine(config: EngineConfig, admin: AdminClient) -> Facts:
    """Topics exist, have one partition count, and changelogs are compacted."""
    ids, counts = _describe(config, admin)
    if len(set(counts.values())) != 1:
        listed = ", ".join(f"{name} {count}" for name, count in counts.items())
        raise ConfigError(
            f"the topics of {config.prefix!r} must have one partition count, but there are: {listed}. A"
            " session's"
            " records must be on the same partition of each. `refold topology plan` shows what differs,"
            " `refold topology apply` repairs topics that hold nothing yet"
        )
    configs = _configs(config, admin, list(counts))
    topics = config.topics
    for name in (topics.state, topics.history, topics.generations, topics.review, topics.work):
        if "compact" not in configs[name].get("cleanup.policy", ""):
            raise ConfigError(
                f"{name} has cleanup.policy={configs[name].get('cleanup.policy')}: it must be compact, or"
                " what it says of a session is forgotten after its retention. Run `refold topology apply`"
            )

    def limit(name: str) -> int:
        return int(configs[name].get("max.message.bytes", MESSAGE_BYTES_DEFAULT))

    return Facts(
        slots=SlotMap(next(iter(counts.values()))),
        limits=Limits(
            journal_bytes_max=limit(topics.journal),
            rejected_bytes_max=limit(topics.rejected),
            inbox_bytes_max=limit(topics.inbox),
            state_bytes_max=limit(topics.state),
            batches_bytes_max=limit(topics.batches),
            review_bytes_max=limit(topics.review),
        ),
        topics=TopicFacts(
            state_id=ids[topics.state],
            history_id=ids[topics.history],
            generations_id=ids[topics.generations],
            # One copy has rows of all three: it is as old as the tombstone that goes first (rule Z).
            delete_retention_ms=min(
                int(configs[name].get("delete.retention.ms", DELETE_RETENTION_MS_DEFAULT))
                for name in (topics.state, topics.history, topics.generations)
            ),
        ),
        message_bytes_max=max(map(limit, counts)),
    )


def _describe(config: EngineConfig, admin: AdminClient) -> tuple[dict[str, str], dict[str, int]]:
    topics = config.topics
    added = [topics.batches, topics.generations, topics.review, topics.work]
    names = [topics.inbox, topics.journal, topics.state, topics.history, topics.rejected, *added]
    timeout = START_CALL_TIMEOUT_MS / 1000
    try:
        futures = admin.describe_topics(TopicCollection(names), request_timeout=timeout)
    except KafkaException as raised:
        raise explain(raised, doing="looking at the topics", bootstrap=config.bootstrap) from None
    ids: dict[str, str] = {}
    counts: dict[str, int] = {}
    missing: list[str] = []
    for name, future in futures.items():
        try:
            description = future.result()
        except KafkaException as raised:
            error = error_of(raised)
            if error is not None and error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                missing.append(name)
                continue
            raise _denied_or(
                raised, config, f"Describe on topic {name}", doing=f"looking at the topic {name}"
            ) from None
        ids[name] = str(description.topic_id)
        counts[name] = len(description.partitions)
    if missing and set(missing) <= set(added):
        raise ConfigError(
            f"topics of this version do not exist on {config.bootstrap}: {', '.join(sorted(missing))}. The"
            " others do, so an earlier version of refold created them: `refold topology apply` adds what is"
            " missing and changes nothing that is stored"
        )
    if missing:
        raise ConfigError(
            f"topics that do not exist on {config.bootstrap}: {', '.join(sorted(missing))}. Create them with"
            " `refold topology apply`, or name the prefix of topics that exist with --prefix"
        )
    return ids, counts


def _configs(config: EngineConfig, admin: AdminClient, names: list[str]) -> dict[str, dict[str, str]]:
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    found: dict[str, dict[str, str]] = {}
    timeout = START_CALL_TIMEOUT_MS / 1000
    for resource, future in admin.describe_configs(resources, request_timeout=timeout).items():
        try:
            entries = future.result()
        except KafkaException as raised:
            raise _denied_or(
                raised,
                config,
                f"DescribeConfigs on topic {resource.name}",
                doing=f"reading the configuration of the topic {resource.name}",
            ) from None
        found[resource.name] = {
            name: entry.value for name, entry in entries.items() if entry.value is not None
        }
    return found


def refuse_second(config: EngineConfig, admin: AdminClient) -> str | None:
    """Another *live* member with our instance name would be thrown out by us joining: refuse instead.

    A member of that name whose process is dead (its session has not timed out yet) is the normal restart and
    is taken over. Alive is who answers at the URL in its ``client.id``. Returns the URL of the dead one,
    ``None`` if there is no member of our name.
    """
    group_id = config.topics.group
    try:
        description = group.describe(admin, group_id, START_CALL_TIMEOUT_MS / 1000)
    except KafkaException as raised:
        raise _denied_or(
            raised, config, f"Describe on group {group_id}", doing=f"describing the group {group_id}"
        ) from None
    former = None
    for member in () if description is None else description.members:
        if member.group_instance_id != config.instance:
            continue
        former = (member.client_id or "").split("|")[-1]
        if answers(former, config.instance):
            raise ConfigError(
                f"another worker named {config.instance!r} is alive at {former} (host {member.host})."
                " Joining with its"
                " name would throw it out of the group. Give this one its own name (--instance or"
                " REFOLD_WORKER__INSTANCE), or stop the other one"
            )
    return former


def former_port(config: EngineConfig, former: str | None) -> int:
    """The port to ask for: if any free one would do, the one at which our dead namesake's URL becomes ours.

    The broker keeps the ``client.id`` of a static member that comes back within its session timeout
    (measured), and with it the URL where readers look for it.
    """
    port = config.http_port or 0
    if port or not former or config.advertised_url is not None:
        return port
    try:
        parts = urlsplit(former)
        return (parts.port or 0) if parts.hostname == config.http_host.lower() else 0
    except ValueError:
        return 0


def answers(url: str, instance: str) -> bool:
    """Whether a worker of that instance name answers its health check at ``url``."""
    answer = ask(url, "/healthz/live")
    if answer is None:
        return False
    try:
        body: Any = orjson.loads(answer[1])
    except ValueError:
        return False
    found = (
        body.get("instance", (body.get("detail") or {}).get("instance")) if isinstance(body, dict) else None
    )
    # A port taken over by another program, or by a worker of another name, is not our namesake.
    return bool(found == instance)


def _denied_or(raised: KafkaException, config: EngineConfig, needed: str, *, doing: str) -> RefoldError:
    error = error_of(raised)
    if error is not None and error.name().endswith("AUTHORIZATION_FAILED"):
        return denied(config, needed)
    return explain(raised, doing=doing, bootstrap=config.bootstrap)


def denied(config: EngineConfig, needed: str) -> PermissionDenied:
    return PermissionDenied(
        f"the cluster at {config.bootstrap} refused it: this worker needs {needed}. Grant it:"
        " `refold topology render acls` prints the rules a worker needs"
    )
