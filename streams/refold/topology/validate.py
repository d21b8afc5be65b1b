"""What must hold of a topology before anything is created; each rule has a label and says why.

Pure: specification in, problems out. ``refold topology validate`` prints them, plan and apply refuse on them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from refold.topology.model import Topology

HOUR_MS: Final = 3_600_000
#: A record is passed on with more headers than it came with: origin, hops, reason, append time.
HEADER_ROOM_BYTES: Final = 64 * 1024
#: The largest state record the worker writes (design: <= 900 KB always); the topic must take it with headers.
STATE_RECORD_BYTES_MAX: Final = 900 * 1024
#: Rule Z rebuilds a local copy older than ``delete.retention.ms`` - 1 h; below this none could be caught up.
DELETE_RETENTION_MS_MIN: Final = 2 * HOUR_MS
COMPACTED: Final = frozenset({"state", "history", "generations", "review", "work", "evals"})
#: Topics with a session's records: they share its partition number.
SESSION_TOPICS: Final = frozenset(
    {"inbox", "journal", "state", "history", "rejected", "batches", "generations", "review", "work"}
)
#: Topics beside the fold, and the one role that writes each.
ASIDE: Final = {"evals": ("evaluator",)}
ALL_TOPICS: Final = SESSION_TOPICS | ASIDE.keys()
#: Topics that others than the worker write to: it judges what they hold.
SOURCES: Final = frozenset({"inbox", "batches"})


@dataclass(frozen=True, slots=True)
class Problem:
    """``rule`` is stable and documented; ``where`` names the topic, file or setting."""

    rule: str
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text} [{self.rule}]"


def problems(topology: Topology) -> list[Problem]:
    """Every violated rule, in a stable order; empty when the topology may be applied."""
    if missing := list(_complete(topology)):
        return missing  # the other rules look at all of them
    return [
        *_partitions(topology),
        *_cleanup(topology),
        *_retention(topology),
        *_sizes(topology),
        *_time(topology),
        *_durability(topology),
        *_roles(topology),
        *_lock(topology),
    ]


def _complete(topology: Topology) -> Iterator[Problem]:
    """V1: all topics are described, and nothing else."""
    for name in sorted(ALL_TOPICS - {topic.name for topic in topology.topics}):
        yield Problem("V1-complete", name, "the topic has no file in topology/topics")


def _partitions(topology: Topology) -> Iterator[Problem]:
    """V2: co-partitioned (a session's records share a partition number), and slots divide evenly (rule P)."""
    from refold.core.slots import SLOTS_MIN, slots_for

    missing = SESSION_TOPICS - set(topology.participants.partitioning.copartitioned)
    for name in sorted(missing):
        text = "not co-partitioned: the worker writes it to the inbox partition's number"
        yield Problem("V2-copartitioned", name, text)
    count = topology.partitions
    slots = slots_for(count)
    if slots % count or slots < SLOTS_MIN:
        yield Problem("V2-slots", "partitions", f"{slots} slots do not spread evenly over {count} partitions")


def _cleanup(topology: Topology) -> Iterator[Problem]:
    """V3: changelogs and lists (review, work) are compacted only; log of record and sources never are."""
    for topic in topology.topics:
        policy = topic.config.get("cleanup.policy")
        wanted = "compact" if topic.name in COMPACTED else "delete"
        if policy != wanted:
            why = (
                "a deleted segment would lose sessions"
                if wanted == "compact"
                else "compaction would lose events"
            )
            yield Problem("V3-cleanup", topic.name, f"cleanup.policy is {policy}, must be {wanted}: {why}")
        if topic.compacted and (topic.number("delete.retention.ms") or 0) < DELETE_RETENTION_MS_MIN:
            text = f"delete.retention.ms must be at least {DELETE_RETENTION_MS_MIN} (rule Z)"
            yield Problem("V3-delete-retention", topic.name, text)


def _retention(topology: Topology) -> Iterator[Problem]:
    """V4: the inbox outlives the promised outage; rejected records outlive the inbox's; nothing is left to
    the broker's defaults.

    No bound ties the sources to the group's ``offsets.retention``: offsets of inbox and batches are committed
    together and expire together. Without the inbox's a worker refuses to start (rule T); where only those of
    batches are gone it reads them from their beginning, and what was folded already is a repeat (G2, G3).
    """
    inbox, rejected = topology.topic("inbox"), topology.topic("rejected")
    kept = inbox.number("retention.ms")
    if inbox.promises is not None and kept is not None and kept != -1:
        needed = inbox.promises.outage_hours_max * HOUR_MS
        if kept < needed:
            text = (
                f"retention.ms {kept} is shorter than the promised outage of {needed} ms: input would be lost"
            )
            yield Problem("V4-outage", "inbox", text)
    rejected_kept = rejected.number("retention.ms")
    if (
        rejected_kept is not None
        and rejected_kept != -1
        and (kept in (None, -1) or rejected_kept < (kept or 0))
    ):
        yield Problem(
            "V4-rejected",
            "rejected",
            "retention.ms is shorter than the inbox's: a replay has no other source",
        )
    for topic in topology.topics:
        if not topic.compacted:
            for key in sorted({"retention.ms", "retention.bytes"} - topic.config.keys()):
                text = f"{key} is not given: the broker's default would decide what is kept"
                yield Problem("V4-unsaid", topic.name, text)
        if topic.name != "rejected" and topic.config.get("retention.bytes", "-1") != "-1":
            text = "retention.bytes deletes by size, whatever the promises say; limit it by time"
            yield Problem("V4-bytes", topic.name, text)


def _sizes(topology: Topology) -> Iterator[Problem]:
    """V5: what one topic accepts, the next in line accepts with its additional headers."""
    for source, name in (("inbox", "journal"), ("inbox", "rejected"), ("batches", "rejected")):
        before = topology.topic(source).number("max.message.bytes") or 0
        limit = topology.topic(name).number("max.message.bytes") or 0
        if limit < before + HEADER_ROOM_BYTES:
            text = (
                f"max.message.bytes {limit} must be at least that of {source} + {HEADER_ROOM_BYTES} ="
                f" {before + HEADER_ROOM_BYTES}"
            )
            yield Problem("V5-size", name, text)
    state = topology.topic("state").number("max.message.bytes") or 0
    if state < STATE_RECORD_BYTES_MAX + HEADER_ROOM_BYTES:
        text = (
            f"max.message.bytes {state} does not take the largest state record ({STATE_RECORD_BYTES_MAX})"
            " with headers"
        )
        yield Problem("V5-size", "state", text)


def _time(topology: Topology) -> Iterator[Problem]:
    """V6: brokers stamp every topic: session time (rule C), retention, rule Z trust no other clock."""
    for topic in topology.topics:
        if topic.config.get("message.timestamp.type") != "LogAppendTime":
            yield Problem("V6-time", topic.name, "message.timestamp.type must be LogAppendTime")


def _durability(topology: Topology) -> Iterator[Problem]:
    """V7: an acknowledged write survives the loss of a broker where there is more than one."""
    env = topology.environment
    where = f"environment {env.name}"
    if env.replication_factor > 1 and not 1 < env.min_insync_replicas < env.replication_factor:
        text = (
            f"min_insync_replicas {env.min_insync_replicas} must be above 1 (or one disk holds the only copy)"
            f" and below replication_factor {env.replication_factor} (or one lost broker stops all writes)"
        )
        yield Problem("V7-insync", where, text)
    if env.replication_factor == 1 and env.min_insync_replicas != 1:
        yield Problem(
            "V7-insync", where, "min_insync_replicas above replication_factor: every write would fail"
        )
    if env.unclean_leader_election:
        yield Problem("V7-unclean", where, "unclean leader election loses acknowledged events")
    if env.enforce_durability and env.replication_factor < 3:
        yield Problem("V7-replicas", where, "enforced durability needs replication_factor 3 or more")


def _roles(topology: Topology) -> Iterator[Problem]:
    """V8: producers and consumers are roles that exist; the worker alone writes what it decides."""
    roles = topology.participants.roles
    for topic in topology.topics:
        for role in (*topic.producers, *topic.consumers, *topic.observers):
            if role not in roles:
                yield Problem("V8-roles", topic.name, f"{role!r} is no role of topology/groups.yaml")
        if topic.name in SOURCES:
            continue
        writers = ASIDE.get(topic.name, ("worker",))
        if topic.producers != writers:
            text = f"only the {writers[0]} may write it: others would break exactly-once"
            yield Problem("V8-writers", topic.name, text)


def _lock(topology: Topology) -> Iterator[Problem]:
    """V9: names and keys are what the lock file says: changing one orphans state and needs a migration."""
    from refold.topology.render import lock

    now, locked = lock(topology), topology.locked
    for path, was, is_ in _differences(locked, now):
        text = (
            f"{path} was {was!r} and is now {is_!r}: stored state would be orphaned; restore it or write a"
            " migration"
        )
        yield Problem("V9-lock", "topology.lock.json", text)


def _differences(old: Any, new: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, dict) and isinstance(new, dict):
        for key in sorted(old.keys() | new.keys()):
            yield from _differences(old.get(key), new.get(key), f"{path}.{key}" if path else key)
    elif old != new:
        yield path, old, new
