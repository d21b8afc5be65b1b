"""The specification: what ships is valid, every rule notices its violation, plans refuse what loses state."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import OffsetSpec

from refold.errors import ConfigError, UnavailableError
from refold.topology import TopicNames, Topology
from refold.topology.cluster import Cluster
from refold.topology.load import data_root
from refold.topology.plan import LiveTopic, compare
from refold.topology.render import acls, lock_text, markdown
from refold.topology.validate import problems

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = ("dev", "test", "prod")
KINDS = (
    *("inbox", "journal", "state", "history", "rejected", "batches", "generations", "review", "work"),
    "evals",
)


def live_of(topology: Topology, **changes: Any) -> dict[str, LiveTopic]:
    """A cluster that agrees, with ``changes`` for every topic."""
    return {
        topology.full_name(topic.name): replace(
            LiveTopic(topology.partitions, topology.environment.replication_factor, topology.config(topic)),
            **changes,
        )
        for topic in topology.topics
    }


def with_config(live: dict[str, LiveTopic], name: str, **config: str) -> dict[str, LiveTopic]:
    changed = {key.replace("_", "."): value for key, value in config.items()}
    return {**live, name: replace(live[name], config={**live[name].config, **changed})}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A writable copy of topology/."""
    root = tmp_path / "topology"
    shutil.copytree(data_root(), root)
    return root


def edit(root: Path, file: str, change: Callable[[dict[str, Any]], None]) -> Topology:
    path = root / file
    data = yaml.safe_load(path.read_text())
    change(data)
    path.write_text(yaml.safe_dump(data))
    return Topology.load(root=root)


@pytest.mark.parametrize("environment", ENVIRONMENTS)
def test_what_ships_is_valid(environment: str) -> None:
    assert problems(Topology.load(environment=environment)) == []


def test_names() -> None:
    names = TopicNames("team")
    assert [getattr(names, kind) for kind in KINDS] == [f"team.{kind}" for kind in KINDS]
    assert (names.group, names.transactional_id("w-0")) == ("team", "team-w-0")
    assert [Topology.load("team").full_name(t.name) for t in Topology.load("team").topics][:3] == [
        names.inbox,
        names.journal,
        names.state,
    ]


def set_config(key: str, value: str) -> Callable[[dict[str, Any]], None]:
    return lambda data: data["config"].__setitem__(key, value)


@pytest.mark.parametrize(
    ("rule", "file", "change"),
    [
        ("V2-copartitioned", "groups.yaml", lambda d: d["partitioning"]["copartitioned"].remove("state")),
        ("V3-cleanup", "topics/state.yaml", set_config("cleanup.policy", "compact,delete")),
        ("V3-cleanup", "topics/journal.yaml", set_config("cleanup.policy", "compact")),
        ("V3-delete-retention", "topics/state.yaml", set_config("delete.retention.ms", "3600000")),
        ("V4-outage", "topics/inbox.yaml", set_config("retention.ms", "3600000")),
        ("V4-rejected", "topics/rejected.yaml", set_config("retention.ms", "3600000")),
        ("V4-bytes", "topics/journal.yaml", set_config("retention.bytes", "1000000")),
        # All workers are down, the inbox fills: what was promised to last is deleted by its size.
        ("V4-bytes", "topics/inbox.yaml", set_config("retention.bytes", "1000000")),
        # Unsaid, the broker's default decides: a journal of seven days.
        ("V4-unsaid", "topics/journal.yaml", lambda d: d["config"].pop("retention.ms")),
        ("V4-unsaid", "topics/inbox.yaml", lambda d: d["config"].pop("retention.ms")),
        ("V4-unsaid", "topics/journal.yaml", lambda d: d["config"].pop("retention.bytes")),
        ("V5-size", "topics/journal.yaml", set_config("max.message.bytes", "1114112")),
        ("V5-size", "topics/state.yaml", set_config("max.message.bytes", "900000")),
        ("V5-size", "topics/batches.yaml", set_config("max.message.bytes", "1179648")),
        ("V6-time", "topics/inbox.yaml", set_config("message.timestamp.type", "CreateTime")),
        ("V7-insync", "environments/dev.yaml", lambda d: d.update(min_insync_replicas=2)),
        (
            "V7-insync",
            "environments/dev.yaml",
            lambda d: d.update(replication_factor=3, min_insync_replicas=3),
        ),
        (
            "V7-insync",
            "environments/dev.yaml",
            lambda d: d.update(replication_factor=3, min_insync_replicas=1),
        ),
        ("V7-unclean", "environments/dev.yaml", lambda d: d.update(unclean_leader_election=True)),
        ("V7-replicas", "environments/dev.yaml", lambda d: d.update(enforce_durability=True)),
        ("V8-roles", "topics/inbox.yaml", lambda d: d["producers"].append("ghost")),
        ("V8-writers", "topics/journal.yaml", lambda d: d["producers"].append("producer")),
        ("V8-writers", "topics/generations.yaml", lambda d: d["producers"].append("producer")),
        ("V9-lock", "topics/state.yaml", lambda d: d.update(key="session")),
        ("V9-lock", "groups.yaml", lambda d: d["group"].update(transactional_id="{instance}")),
    ],
)
def test_each_rule_notices_its_violation(
    copy: Path, rule: str, file: str, change: Callable[[dict[str, Any]], None]
) -> None:
    """Method: one violation in a copy of the data; the rule's label must be among the problems found."""
    topology = edit(copy, file, change)
    assert rule in {problem.rule for problem in problems(topology)}
    with pytest.raises(ConfigError, match=rule):
        topology.check()


def test_a_missing_topic_is_a_problem(copy: Path) -> None:
    (copy / "topics/state.yaml").unlink()
    assert [problem.rule for problem in problems(Topology.load(root=copy))] == ["V1-complete"]


def test_a_misspelt_key_in_the_data_is_an_error(copy: Path) -> None:
    with pytest.raises(ConfigError, match=r"state\.yaml: konfig"):
        edit(copy, "topics/state.yaml", lambda d: d.update(konfig={}))


def test_partition_counts_that_cannot_be_slots_are_refused() -> None:
    with pytest.raises(ConfigError):
        Topology.load(partitions=1_000_000).check()


def test_an_agreeing_cluster_has_no_diff() -> None:
    topology = Topology.load()
    assert not compare(topology, live_of(topology), brokers=1).differs


def test_an_empty_cluster_gets_all_topics() -> None:
    topology = Topology.load("p", partitions=6)
    plan = compare(topology, {}, brokers=1)
    assert [(c.action, c.topic) for c in plan.changes] == [("create", f"p.{kind}") for kind in KINDS]
    assert not plan.refused


def test_another_partition_count_is_refused_with_the_way_out() -> None:
    topology = Topology.load(partitions=8)
    plan = compare(topology, live_of(topology, partitions=4), brokers=1)
    assert not plan.changes
    assert {refusal.topic for refusal in plan.refused} == {
        topology.full_name(t.name) for t in topology.topics
    }
    assert "--partitions 4" in plan.refused[0].way_out
    assert len(plan.refusals()) == 1, "one text for one cause"


def test_a_state_topic_that_is_not_compacted_is_refused() -> None:
    topology = Topology.load()
    plan = compare(
        topology, with_config(live_of(topology), "refold.state", cleanup_policy="delete"), brokers=1
    )
    assert [refusal.topic for refusal in plan.refused] == ["refold.state"]


@pytest.mark.parametrize("kind", ["inbox", "rejected"])
def test_retention_is_lengthened_but_never_shortened(kind: str) -> None:
    topology = Topology.load()
    name = f"refold.{kind}"
    longer = compare(topology, with_config(live_of(topology), name, retention_ms="1000"), brokers=1)
    assert [(c.key, c.before) for c in longer.changes] == [("retention.ms", "1000")]
    shorter = compare(topology, with_config(live_of(topology), name, retention_ms="-1"), brokers=1)
    assert not shorter.changes
    assert "would delete" in shorter.refused[0].what


def test_a_shorter_journal_is_refused(copy: Path) -> None:
    topology = edit(copy, "topics/journal.yaml", set_config("retention.ms", "86400000"))
    live = with_config(live_of(topology), "refold.journal", retention_ms="-1")
    plan = compare(topology, live, brokers=1)
    assert not plan.changes
    assert "log of record" in plan.refused[0].what


def test_a_safe_config_is_altered() -> None:
    topology = Topology.load()
    live = {
        name: replace(topic, config={**topic.config, "segment.ms": "1"}) if name == "refold.state" else topic
        for name, topic in live_of(topology).items()
    }
    plan = compare(topology, live, brokers=1)
    assert [(c.action, c.topic, c.key, c.after) for c in plan.changes] == [
        ("alter", "refold.state", "segment.ms", "600000")
    ]


def test_the_wrong_environment_does_not_weaken_a_topic() -> None:
    """`topology apply` without --environment on a production cluster: min.insync.replicas 2 stays."""
    dev = Topology.load(partitions=24)
    prod = Topology.load(environment="prod")
    plan = compare(dev, live_of(prod), brokers=3)
    assert not plan.differs


def test_too_few_replicas_are_refused_in_prod_and_reported_in_dev(copy: Path) -> None:
    prod = Topology.load(environment="prod")
    refused = compare(prod, live_of(prod, replication_factor=1), brokers=3)
    assert {refusal.topic for refusal in refused.refused} == {prod.full_name(t.name) for t in prod.topics}
    dev = Topology.load()
    reported = compare(dev, live_of(dev), brokers=1)
    assert not reported.refused
    assert any("replication factor 1" in warning for warning in reported.warnings)


def test_prod_on_too_few_brokers_is_refused() -> None:
    plan = compare(Topology.load(environment="prod"), {}, brokers=1)
    assert "the cluster has 1" in plan.refused[0].what


def test_unclean_leader_election_is_a_diff() -> None:
    topology = Topology.load()
    live = with_config(live_of(topology), "refold.journal", unclean_leader_election_enable="true")
    assert [c.key for c in compare(topology, live, brokers=1).changes] == ["unclean.leader.election.enable"]


@pytest.mark.parametrize(("lost", "witness"), [("state", "journal"), ("journal", "state")])
def test_a_vanished_topic_is_not_created_empty(lost: str, witness: str) -> None:
    """An empty twin would make the loss look like a fresh start."""
    topology = Topology.load()
    live = live_of(topology)
    del live[f"refold.{lost}"]
    assert not compare(topology, live, brokers=1).refused, "nothing was ever written: a half-finished apply"
    live[f"refold.{witness}"] = replace(live[f"refold.{witness}"], records=True)
    assert [refusal.topic for refusal in compare(topology, live, brokers=1).refused] == [f"refold.{lost}"]


def test_a_journal_whose_records_have_expired_is_a_witness_still() -> None:
    """A deployment that was quiet for longer than its journal is kept: the state holds everything, and where
    it vanished the empty journal must not say that nothing was ever written."""
    cluster = object.__new__(Cluster)
    logs = {"refold.journal": (7, 7), "refold.inbox": (0, 0)}
    cluster._offsets = lambda wanted, spec: {  # type: ignore[method-assign]
        (tp.topic, tp.partition): logs[tp.topic][isinstance(spec, type(OffsetSpec.latest()))] for tp in wanted
    }
    assert cluster._written(dict.fromkeys(logs, 2)) == {"refold.journal": True, "refold.inbox": False}


@pytest.mark.parametrize("call", [lambda c: c.create("t", 1, 1, {}), lambda c: c.delete(["t"])])
def test_a_controller_that_does_not_answer_in_time_is_named(call: Callable[[Cluster], None]) -> None:
    def late(*_: Any, **__: Any) -> dict[str, Any]:
        answer: Any = SimpleNamespace(result=lambda timeout: (_ for _ in ()).throw(TimeoutError()))
        return {"t": answer}

    cluster = object.__new__(Cluster)
    cluster.bootstrap = "b:9092"
    cluster._metadata = lambda: SimpleNamespace(topics={"t": None})  # type: ignore[method-assign]
    cluster._admin = SimpleNamespace(create_topics=late, delete_topics=late)  # type: ignore[assignment]
    with pytest.raises(UnavailableError, match="b:9092"):
        call(cluster)


def test_acls_are_least_privilege() -> None:
    """Only workers may write what workers decide; producers read nothing."""
    lines = acls(Topology.load("p"))
    writes = {line.split()[2] for line in lines if "Write" in line and "--topic p.journal" in line}
    assert writes == {"User:refold-worker"}
    producer = [line for line in lines if "User:refold-producer" in line]
    assert producer == [
        "--add --allow-principal User:refold-producer --operation Write --topic p.inbox",
        "--add --allow-principal User:refold-producer --operation Write --topic p.batches",
        "--add --allow-principal User:refold-producer --operation Describe --group p",
    ]
    assert not any("--operation All" in line or "--topic *" in line for line in lines)


def test_the_lock_and_the_page_are_current() -> None:
    assert (ROOT / "topology/topology.lock.json").read_text("utf-8") == lock_text(Topology.load())
    page = (ROOT / "docs/reference/topology.md").read_text("utf-8")
    want = markdown([Topology.load(environment=name) for name in ENVIRONMENTS])
    assert page == want, "run: refold topology render docs > docs/reference/topology.md"


def test_subjects_exist_in_the_schema_registry() -> None:
    """A topic names its record's subject; that subject must be in schemas/."""
    subjects = yaml.safe_load((ROOT / "schemas/subjects.yaml").read_text("utf-8"))["subjects"]
    for topic in Topology.load().topics:
        if topic.schema_.subject is not None:
            assert topic.schema_.subject in subjects, topic.name


def test_plans_are_json() -> None:
    plan = compare(Topology.load(), {}, brokers=1)
    assert json.loads(json.dumps(plan.as_json()))["differs"] is True
