"""A cluster with users and ACLs: the message names what is refused and how to get it, exit 77."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

import forked
from client.worker_process import worker
from refold.broker import EmbeddedBroker
from refold.client import Refold
from refold.errors import PermissionDenied
from refold.settings import Settings
from refold.topology import Topology
from refold.topology.render import acls

JAAS = """
org.apache.kafka.common.security.plain.PlainLoginModule required
  username="broker" password="broker-pw" user_broker="broker-pw" user_ops="ops-pw" user_nobody="nobody-pw"
  user_worker="worker-pw" user_producer="producer-pw" user_reader="reader-pw" user_evaluator="evaluator-pw";
"""
_TYPES = {
    "--topic": ResourceType.TOPIC,
    "--group": ResourceType.GROUP,
    "--transactional-id": ResourceType.TRANSACTIONAL_ID,
}
_NAMES = {"AlterConfigs": "ALTER_CONFIGS", "DescribeConfigs": "DESCRIBE_CONFIGS"}

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """Its own broker: the shared one has no users. About 300 MB for the length of this module."""
    with EmbeddedBroker(tmp_path_factory.mktemp("secured"), jaas=JAAS) as broker:
        yield broker


def refold(broker: EmbeddedBroker, user: str, password: str, *args: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("REFOLD_")}
    return forked.run(
        [*forked.REFOLD, *args, "--bootstrap", broker.bootstrap],
        timeout=180,
        env={
            **clean,
            "REFOLD_KAFKA__SECURITY_PROTOCOL": "SASL_PLAINTEXT",
            "REFOLD_KAFKA__SASL_MECHANISM": "PLAIN",
            "REFOLD_KAFKA__SASL_USERNAME": user,
            "REFOLD_KAFKA__SASL_PASSWORD": password,
        },
    )


def grant(broker: EmbeddedBroker, lines: list[str]) -> None:
    """Create what `topology render acls` prints, through the admin API instead of kafka-acls.sh."""
    bindings = []
    for line in lines:
        words = line.split()
        flags = dict(itertools.pairwise(words))
        principal = flags["--allow-principal"]
        pattern = ResourcePatternType[flags.get("--resource-pattern-type", "literal").upper()]
        if "--cluster" in words:
            kind, name = ResourceType.BROKER, "kafka-cluster"
        else:
            option = next(option for option in _TYPES if option in words)
            kind, name = _TYPES[option], flags[option]
        for at, word in enumerate(words):
            if word == "--operation":
                operation = AclOperation[_NAMES.get(words[at + 1], words[at + 1].upper())]
                bindings.append(
                    AclBinding(kind, name, pattern, principal, "*", operation, AclPermissionType.ALLOW)
                )
    admin = AdminClient({"bootstrap.servers": broker.internal_bootstrap})
    for future in admin.create_acls(bindings).values():
        future.result(90)


def test_a_wrong_password_exits_77_and_is_not_shown(secured: EmbeddedBroker) -> None:
    process = refold(secured, "ops", "wrong-pw", "topology", "plan")
    assert process.returncode == 77, process.stderr
    assert "refused the credentials" in process.stderr
    assert "wrong-pw" not in process.stderr
    assert "Traceback" not in process.stderr


def test_a_missing_acl_exits_77_and_names_the_way_out(secured: EmbeddedBroker) -> None:
    process = refold(secured, "nobody", "nobody-pw", "topology", "apply", "--prefix", "denied")
    assert process.returncode == 77, process.stderr
    assert "refold topology render acls" in process.stderr
    assert "Traceback" not in process.stderr


def test_a_worker_without_rights_exits_77_and_names_the_way_out(
    secured: EmbeddedBroker, tmp_path: Path
) -> None:
    Topology.load("denied", partitions=1).apply(secured.internal_bootstrap)
    arguments = ("worker", "run", "--prefix", "denied", "--data-dir", str(tmp_path))
    process = refold(secured, "nobody", "nobody-pw", *arguments)
    assert process.returncode == 77, process.stderr
    assert "this worker needs Describe on topic denied.inbox" in process.stderr
    assert "refold topology render acls" in process.stderr
    assert "Traceback" not in process.stderr


def test_the_rendered_rules_are_enough_for_an_operator(secured: EmbeddedBroker, tmp_path: Path) -> None:
    """Method: grant exactly what `render acls` prints for the role, then do the role's work."""
    topology = Topology.load("granted", partitions=2)
    rules = [line for line in acls(topology, {"operator": "User:ops"}) if "User:ops " in line]
    grant(secured, rules)
    applied = refold(
        secured, "ops", "ops-pw", "topology", "apply", "--prefix", "granted", "--partitions", "2"
    )
    assert applied.returncode == 0, applied.stderr
    listed = refold(secured, "ops", "ops-pw", "rejected", "list", "--prefix", "granted", "--json")
    assert listed.returncode == 0, listed.stderr
    other = refold(secured, "ops", "ops-pw", "rejected", "list", "--prefix", "other")
    assert other.returncode in (66, 77), other.stderr


def test_the_rendered_rules_are_enough_for_an_evaluator(secured: EmbeddedBroker, tmp_path: Path) -> None:
    """A batch from its start to a resume; and without the rules the way out."""
    topology = Topology.load("evaluated", partitions=2)
    topology.apply(secured.internal_bootstrap)
    (tmp_path / "s.jsonl").write_text('{"id": "a"}\n{"id": "b"}\n')
    arguments = (
        *("eval", "run", "--samples", str(tmp_path / "s.jsonl"), "--runner", "builtins:max", "--batch", "b"),
        *("--prefix", "evaluated", "--resume", "--json"),
    )
    denied = refold(secured, "evaluator", "evaluator-pw", *arguments)
    assert denied.returncode in (77, 78), denied.stderr
    assert "refold topology" in denied.stderr
    rules = acls(topology, {"evaluator": "User:evaluator"})
    grant(secured, [line for line in rules if "User:evaluator " in line])
    ran = refold(secured, "evaluator", "evaluator-pw", *arguments)
    assert ran.returncode == 1, ran.stderr  # `max` compares what cannot be compared
    assert '"failed":2' in ran.stdout
    again = refold(secured, "evaluator", "evaluator-pw", *arguments)
    assert '"epoch":2' in again.stdout, again.stderr


def as_user(user: str) -> dict[str, str]:
    return {
        "REFOLD_KAFKA__SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "REFOLD_KAFKA__SASL_MECHANISM": "PLAIN",
        "REFOLD_KAFKA__SASL_USERNAME": user,
        "REFOLD_KAFKA__SASL_PASSWORD": f"{user}-pw",
    }


async def test_the_rendered_rules_are_enough_for_worker_producer_and_reader(
    secured: EmbeddedBroker, tmp_path: Path
) -> None:
    """Method: exactly the rendered rules, a real worker, an append with its ruling, a bulk read of states."""
    topology = Topology.load("roles", partitions=2)
    topology.apply(secured.internal_bootstrap)
    users = {"worker": "User:worker", "producer": "User:producer", "reader": "User:reader"}
    grant(
        secured,
        [line for line in acls(topology, users) if any(f"{user} " in line for user in users.values())],
    )

    def settings(user: str) -> Settings:
        kafka = {
            "bootstrap": secured.bootstrap,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": "PLAIN",
            "sasl_username": user,
            "sasl_password": f"{user}-pw",
        }
        return Settings(topic_prefix="roles", kafka=kafka, blobs={"url": f"file://{tmp_path}/blobs"})

    with worker(secured.bootstrap, "roles", tmp_path, "w-0", **as_user("worker")):
        async with Refold(settings("producer")) as producer:
            receipt = await producer.session("s-1").append("Hello")
            assert (await receipt.ruling()).status == "accepted"
        async with Refold(settings("reader")) as reader:
            async with aclosing(reader.states(follow=False)) as states:
                found = [change.session async for change in states]
            assert found == ["s-1"]
            state = await reader.session("s-1").state()
            assert state is not None
            assert state.seq == 1
            with pytest.raises(PermissionDenied):
                await reader.session("s-1").append("not allowed")
