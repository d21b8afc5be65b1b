"""``refold verify eval``: a batch evaluated by runners that die, then counted by other means."""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from refold.errors import UsageError
from refold.ops.evals.proof.countstate import observe_topic
from refold.ops.evals.proof.counttables import observe_tables, remove
from refold.ops.evals.proof.judging import Findings, Observed, judge
from refold.ops.evals.proof.lives import Batch, Lives
from refold.ops.evals.proof.plan import ProofPlan, sample_id
from refold.ops.evals.proof.task import read_book
from refold.settings import Settings
from refold.topology import Topology
from refold.topology.names import TopicNames

RUNNER = "refold.ops.evals.proof.task:grade"
PARTITIONS = 4


@dataclass(slots=True)
class ProofOutcome:
    plan: ProofPlan
    findings: Findings
    lives: Lives
    seconds: float

    @property
    def told(self) -> list[str]:
        lacking = []
        if self.lives.kills < self.plan.kills:
            lacking.append(f"only {self.lives.kills} of {self.plan.kills} runners were killed")
        if self.plan.kills > 1 and not self.lives.fenced:
            lacking.append("no runner was fenced")
        return [*self.lives.told, *lacking, *self.findings.told]

    @property
    def clean(self) -> bool:
        return not self.told and not self.findings.mismatches

    def as_json(self) -> dict[str, Any]:
        return {
            "clean": self.clean,
            "sink": self.plan.sink,
            "samples": self.plan.samples,
            "results": self.findings.results,
            "kills": self.lives.kills,
            "kills_in_commits": self.lives.killed_in_commits,
            "fenced": self.lives.fenced,
            "runs": self.lives.runs,
            "calls": self.findings.calls,
            "calls_repeated": self.findings.repeated,
            "calls_repeated_max": self.plan.repeated_max,
            "mismatches": self.findings.mismatches,
            "told": self.told,
            "seconds": round(self.seconds, 1),
            "seed": self.plan.seed,
        }


def run_proof(
    plan: ProofPlan,
    settings: Settings | None,
    dsn: str | None,
    say: Callable[[str], None],
    *,
    keep: bool = False,
) -> ProofOutcome:
    """``settings`` for sink state, ``dsn`` for sink postgres. Blocks; ten kills take a minute.

    Topics have a prefix of their own and are deleted afterwards, rows of the batch too, unless ``keep``.
    """
    plan.check()
    started = time.monotonic()
    name = f"verify-eval-{plan.seed}-{uuid.uuid4().hex[:8]}"
    directory = Path(tempfile.mkdtemp(prefix="refold-verify-eval-"))
    topology: Topology | None = None
    try:
        samples = directory / "samples.jsonl"
        write_samples(samples, plan.samples)
        command = [
            *("eval", "run", "--samples", str(samples), "--runner", RUNNER, "--batch", name),
            *("--concurrency", str(plan.concurrency), "--params", json.dumps({"seed": plan.seed})),
            *("--sink", plan.sink),
        ]
        environment: dict[str, str] = {}
        if plan.sink == "state" and settings is not None:
            topology = Topology.load(name, PARTITIONS, settings.environment)
            topology.apply(settings)
            environment = {"REFOLD_BOOTSTRAP": settings.kafka.bootstrap, "REFOLD_TOPIC_PREFIX": name}
        elif plan.sink == "postgres" and dsn is not None:
            command += ["--dsn", dsn]
        else:
            raise UsageError("sink state needs a Kafka, sink postgres a database")
        batch = Batch(plan, command, environment, directory)
        lives = batch.play(say)
        observed = observe(settings, dsn, name)
        findings = judge(plan, observed, read_book(batch.book))
        return ProofOutcome(plan, findings, lives, time.monotonic() - started)
    finally:
        if keep:
            say(f"kept: {directory}, batch {name}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
            if topology is not None and settings is not None:
                topology.delete(settings)
            elif dsn is not None:
                asyncio.run(remove(dsn, name))


def observe(settings: Settings | None, dsn: str | None, name: str) -> Observed:
    if dsn is not None:
        return asyncio.run(observe_tables(dsn, name))
    if settings is None:
        raise UsageError("sink state needs a Kafka")
    return observe_topic(settings.kafka_config("reader"), TopicNames(name).evals, name)


def write_samples(path: Path, count: int) -> None:
    with path.open("w", encoding="utf-8") as file:
        for position in range(count):
            file.write(json.dumps({"id": sample_id(position), "n": position}, ensure_ascii=False) + "\n")
