"""The recovery benchmark runs and says what it promises to say; its figures are not judged here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from refold.broker.jars import KAFKA_VERSION, Jar
from refold.testing.kafka import Kafka

ROOT = Path(__file__).resolve().parents[2]


def test_the_peers_jars_are_pinned_and_of_the_brokers_version() -> None:
    """Goal: both sides of the comparison are of one release, and no unpinned byte is run."""
    lock = json.loads((ROOT / "bench" / "recovery" / "kafka_streams.lock.json").read_text())
    jars = [Jar(**row) for row in lock["jars"]]
    assert f"org.apache.kafka:kafka-streams:{KAFKA_VERSION}" in [jar.coordinate for jar in jars]
    assert all(len(jar.sha256) == 64 and jar.size > 0 for jar in jars)


@pytest.mark.broker
def test_a_short_run_prints_every_field(kafka: Kafka) -> None:
    """Goal: the benchmark stays runnable. Method: small sizes, without the peer and without deaths."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "bench.recovery",
            "--json",
            "--quick",
            "--parts",
            "cold,hot",
            "--bootstrap",
            kafka.bootstrap,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["benchmark"] == "recovery"
    bytes_, events = found["cold"]["same_bytes"], found["cold"]["same_events"]
    assert bytes_["records"] == bytes_["refold"]["records"] > 0
    assert bytes_["refold"]["records_per_second"] > 0
    assert events["refold"]["seconds"] > bytes_["refold"]["seconds"]
    (hot,) = found["hot"]["hot_session"]
    assert hot["off"]["records"] == 500
    assert hot["off"]["recent_seconds"] > 0
    assert isinstance(hot["on"], str) or hot["on"]["recent_seconds"] > 0
    # The disk is intact: nothing is read again but what the last commit wrote after its flush.
    assert found["hot"]["intact_disk"]["stopped"]["records"] == 0
