"""The brokers of a cluster as something that can be restarted: our own, or a user's by a command of theirs.

One node is away at a time: with three copies and two that must acknowledge, everything stays writable.
"""

from __future__ import annotations

import shlex
import subprocess
import time
from typing import Any, Final, Protocol

from confluent_kafka import ElectionType, KafkaException
from confluent_kafka.admin import AdminClient

from refold.broker import EmbeddedCluster
from refold.errors import UnavailableError, UsageError
from refold.ops.verify.plan import NodeEnd

#: A stopped node is away for this long, so that work happens without it.
STOPPED_S: Final = 3.0
#: A killed one is missed after its session (9 s) and the controller's look at it.
KILLED_S: Final = 12.0
#: From the start of a node until all of its copies are in sync again, on a machine that is busy.
IN_SYNC_S_MAX: Final = 90.0
#: A user's command restarts a node and waits for it.
COMMAND_S_MAX: Final = 600.0
METADATA_S_MAX: Final = 10.0
POLL_S: Final = 0.25
#: The last lines of what a user's command said.
SAID_CHARS_MAX: Final = 500


class Nodes(Protocol):
    """Blocking; :meth:`restart` returns when the node has been started again."""

    @property
    def numbers(self) -> list[int]: ...

    def restart(self, number: int, how: NodeEnd) -> None: ...


class EmbeddedNodes:
    """Those of a cluster on this machine."""

    def __init__(self, cluster: EmbeddedCluster) -> None:
        self._cluster = cluster

    @property
    def numbers(self) -> list[int]:
        return self._cluster.numbers

    def restart(self, number: int, how: NodeEnd) -> None:
        if how is NodeEnd.STOP:
            self._cluster.stop_node(number)
            time.sleep(STOPPED_S)
        else:
            self._cluster.kill_node(number)
            if how is NodeEnd.KILL:
                time.sleep(KILLED_S)
        self._cluster.start_node(number)


class CommandNodes:
    """A user's, by a command that restarts the node ``{node}`` (its broker id); how is the command's affair.

    Raises UsageError for a command that does not say ``{node}``, and for fewer than three nodes.
    """

    def __init__(self, command: str, admin: AdminClient) -> None:
        self._words = shlex.split(command)
        if not any("{node}" in word for word in self._words):
            raise UsageError(
                "--broker-restart-command must name the node as {node}, for example"
                " 'kubectl delete pod kafka-{node} --wait'."
            )
        self._numbers = sorted(_metadata(admin).brokers)
        if len(self._numbers) < 3:
            raise UsageError(
                f"--broker-restarts needs three brokers, this cluster has {len(self._numbers)}: with fewer,"
                " two copies cannot acknowledge while one is away. Leave --bootstrap out to use three of our"
                " own."
            )

    @property
    def numbers(self) -> list[int]:
        return self._numbers

    def restart(self, number: int, how: NodeEnd) -> None:
        words = [word.replace("{node}", str(number)) for word in self._words]
        try:
            subprocess.run(
                words, check=True, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                timeout=COMMAND_S_MAX,
            )  # fmt: skip
        except (OSError, subprocess.SubprocessError) as error:
            said = str(getattr(error, "stderr", None) or "").strip()[-SAID_CHARS_MAX:]
            raise UnavailableError(
                f"the command for node {number} failed: {shlex.join(words)}: {said or error}. Try it by hand;"
                " it must return 0 when the node has been told to start again."
            ) from None


def wait_in_sync(admin: AdminClient, numbers: list[int]) -> None:
    """Until every node is there and every partition has all its copies in sync. Raises UnavailableError."""
    deadline = time.monotonic() + IN_SYNC_S_MAX
    behind = "no metadata"
    while time.monotonic() < deadline:
        try:
            seen = _metadata(admin)
        except KafkaException as error:
            behind = str(error)
        else:
            gone = sorted(set(numbers) - set(seen.brokers))
            lagging = [
                f"{name}/{number}"
                for name, topic in seen.topics.items()
                for number, partition in topic.partitions.items()
                if len(partition.isrs) < len(partition.replicas) or partition.leader < 0
            ]
            if not gone and not lagging:
                return
            behind = f"nodes away: {gone}, partitions: {', '.join(lagging[:5])} ({len(lagging)} in all)"
        time.sleep(POLL_S)
    raise UnavailableError(
        f"the cluster did not get its copies in sync within {IN_SYNC_S_MAX:.0f} s ({behind}). Look at the"
        " brokers' logs."
    )


def leaders(admin: AdminClient) -> dict[tuple[str, int], int]:
    """(topic, partition) -> node, of all topics that this client may see, Kafka's own included. Raises
    KafkaException."""
    return {
        (name, number): partition.leader
        for name, topic in _metadata(admin).topics.items()
        for number, partition in topic.partitions.items()
    }


def elect_preferred(admin: AdminClient) -> int:
    """Give every partition to the first of its copies, under whatever load there is; how many moved. Raises
    KafkaException."""
    # Without a timeout of ours: confluent-kafka 2.16 raises a SystemError for each (measured).
    answer: Any = admin.elect_leaders(ElectionType.PREFERRED).result()
    return sum(error is None for error in answer.values())


def _metadata(admin: AdminClient) -> Any:
    return admin.list_topics(timeout=METADATA_S_MAX)
