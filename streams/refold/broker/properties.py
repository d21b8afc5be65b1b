"""server.properties as data: what we fix, what we prefer, what the caller may change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from refold.broker.ports import LOOPBACK, Ports
from refold.errors import ConfigError

NODE_ID: Final = 1

#: Derived from --dir, --port and --jaas. Overriding one would put the broker where we do not look.
OWNED: Final = frozenset({
    "process.roles",
    "node.id",
    "listeners",
    "advertised.listeners",
    "listener.security.protocol.map",
    "inter.broker.listener.name",
    "controller.listener.names",
    "controller.quorum.voters",
    "controller.quorum.bootstrap.servers",
    "log.dir",
    "log.dirs",
})  # fmt: skip

#: Preferences for one small node; each can be changed with --set or ``properties``. Everything not named
#: here is Kafka's own default (message.max.bytes 1 MiB, transaction.max.timeout.ms 15 min, ...).
DEFAULTS: Final[Mapping[str, str]] = {
    # Topics are declared in topology/; a typo must fail, not create one.
    "auto.create.topics.enable": "false",
    # One node cannot hold three copies. Four partitions instead of fifty: creating these topics is most
    # of the first transaction's latency.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "4",
    # The first member of a group need not wait 3 s for others.
    "group.initial.rebalance.delay.ms": "0",
    # Lower bounds only: a test may ask for short sessions, the session time-outs themselves stay Kafka's.
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    # 128 MiB by default, a quarter of our heap. 32 MiB cleans 1.2 million keys per pass (24 bytes per
    # key at a load of 0.9); more keys take another pass.
    "log.cleaner.dedupe.buffer.size": str(32 * 1024 * 1024),
    # One node has nobody to fail over to: fencing it because the machine was busy, or a test suspended it,
    # only breaks transactions (see unclean.py, which makes a restart independent of this time-out).
    "broker.session.timeout.ms": "60000",
    # Longer than that session: where the pass came too late, the new broker waits for its predecessor's end
    # instead of giving up at the same moment (60 s is Kafka's default). Below readiness.START_S_MAX.
    "initial.broker.registration.timeout.ms": "100000",
    # Sized for a laptop with the clients on it, not for a 24-core server.
    "num.network.threads": "2",
    "num.io.threads": "4",
}

#: With credentials: ACLs are enforced on the client listener, while the internal one (loopback, used by
#: the broker itself and by whoever sets up users and ACLs) is the super user.
SECURED: Final[Mapping[str, str]] = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
    "allow.everyone.if.no.acl.found": "false",
}


#: What several nodes have instead: copies on each, and a broker that is gone is replaced soon.
CLUSTERED: Final[Mapping[str, str]] = {
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.replication.factor": "3",
    "transaction.state.log.replication.factor": "3",
    "transaction.state.log.min.isr": "2",
    "share.coordinator.state.topic.replication.factor": "3",
    "share.coordinator.state.topic.min.isr": "2",
    # Kafka's own default again: a dead broker's partitions move after this.
    "broker.session.timeout.ms": "9000",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One of several nodes. ``voters``: controller port by node id, this one's included."""

    id: int
    ports: Ports
    voters: Mapping[int, int]
    cluster_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """A further listener, known to others by another port: that of a proxy which passes on to ``port``.

    Clients that come by it are told to keep to it. ``between``: the nodes use it among each other.
    """

    port: int
    advertised: int
    between: bool = False


def server_properties(
    *,
    data: Path,
    ports: Ports,
    changes: Mapping[str, str],
    jaas: str | None,
    node: Node | None = None,
    door: Door | None = None,
) -> dict[str, str]:
    """All settings of one combined broker and controller, alone or one of several.

    Raises:
        ConfigError: ``changes`` names a property that --dir, --port or --jaas decides.
    """
    if clash := sorted(OWNED & changes.keys()):
        raise ConfigError(
            f"{', '.join(clash)} cannot be set: the embedded broker derives it from --dir, --port and "
            "--jaas. Use those, or run your own Kafka and pass --bootstrap."
        )
    node_id, voters = (NODE_ID, {NODE_ID: ports.controller}) if node is None else (node.id, node.voters)
    listeners = {"CLIENT": ports.client}
    if jaas is not None:
        listeners["INTERNAL"] = ports.internal
    advertised, among = dict(listeners), "CLIENT" if jaas is None else "INTERNAL"
    protocols = [f"CLIENT:{'PLAINTEXT' if jaas is None else 'SASL_PLAINTEXT'}", "INTERNAL:PLAINTEXT"]
    if door is not None:
        listeners["DOOR"], advertised["DOOR"] = door.port, door.advertised
        protocols.append("DOOR:PLAINTEXT")
        among = "DOOR" if door.between else among
    return {
        **DEFAULTS,
        **(CLUSTERED if node is not None else {}),
        **(_secured(jaas, changes) if jaas is not None else {}),
        **changes,
        "process.roles": "broker,controller",
        "node.id": str(node_id),
        "log.dirs": str(data.absolute()),
        "listeners": _urls({**listeners, "CONTROLLER": ports.controller}),
        "advertised.listeners": _urls(advertised),
        "listener.security.protocol.map": ",".join([*protocols, "CONTROLLER:PLAINTEXT"]),
        "inter.broker.listener.name": among,
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": ",".join(
            f"{voter}@{LOOPBACK}:{port}" for voter, port in sorted(voters.items())
        ),
    }


def controller_only(properties: Mapping[str, str], *, session_ms: int) -> dict[str, str]:
    """The same node as a controller without a broker, which takes brokers for dead after ``session_ms``."""
    listeners = dict(url.split("://") for url in properties["listeners"].split(","))
    kept = {
        n: v for n, v in properties.items() if n not in ("advertised.listeners", "inter.broker.listener.name")
    }
    return {
        **kept,
        "process.roles": "controller",
        "listeners": f"CONTROLLER://{listeners['CONTROLLER']}",
        "broker.session.timeout.ms": str(session_ms),
        "broker.heartbeat.interval.ms": str(session_ms // 2),
    }


def _secured(jaas: str, changes: Mapping[str, str]) -> dict[str, str]:
    default = "SCRAM-SHA-256" if "ScramLoginModule" in jaas else "PLAIN"
    mechanisms = changes.get("sasl.enabled.mechanisms", default)
    per_mechanism = {
        f"listener.name.client.{mechanism.strip().lower()}.sasl.jaas.config": " ".join(jaas.split())
        for mechanism in mechanisms.split(",")
    }
    return {**SECURED, "sasl.enabled.mechanisms": mechanisms, **per_mechanism}


def _urls(listeners: Mapping[str, int]) -> str:
    return ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in listeners.items())


def render(properties: Mapping[str, str]) -> str:
    """The text of a ``.properties`` file, sorted, escaped as java.util.Properties reads it."""
    return "".join(f"{_escape(name)}={_escape(properties[name])}\n" for name in sorted(properties))


def _escape(text: str) -> str:
    # JSON escapes what Properties escapes (backslash, newline, non-ASCII) except the leading blank and the
    # separators of a name; neither occurs in a name Kafka knows.
    escaped = "".join(
        {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(char, char) for char in text.strip()
    )
    return "".join(char if ord(char) < 128 else f"\\u{ord(char):04x}" for char in escaped)
