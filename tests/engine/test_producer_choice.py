"""Which producer a worker's transactions go through, and what its log says of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from refold.engine.config import EngineConfig
from refold.engine.producer import choose
from refold.engine.producer.producer import WireProducer
from refold.settings_sections import WorkerSettings
from refold.testing.kafka import Kafka

pytestmark = pytest.mark.broker


class Log:
    def __init__(self) -> None:
        self.warnings: list[tuple[str, str]] = []

    def warning(self, event: str, *, reason: str) -> None:
        self.warnings.append((event, reason))


def made(kafka: Kafka, directory: Path, table: dict[str, Any], **options: Any) -> tuple[object, str, Log]:
    config = EngineConfig(
        kafka={"bootstrap.servers": kafka.bootstrap, **table},
        prefix="t",
        instance="a",
        data_dir=directory,
        **options,
    )
    log = Log()
    producer = choose.made(config, 1_000_000, log)
    return producer, choose.name_of(producer), log


def test_it_is_our_own_where_nothing_else_is_said(kafka: Kafka, tmp_path: Path) -> None:
    producer, name, log = made(kafka, tmp_path, {"socket.timeout.ms": 5_000})
    assert (type(producer), name, log.warnings) == (WireProducer, "refold", [])
    assert WorkerSettings.model_fields["producer"].default == "auto"


def test_a_setting_that_only_librdkafka_knows_is_kept_and_told(kafka: Kafka, tmp_path: Path) -> None:
    """Goal: nobody is connected in another way than was asked for; the log says which setting it was."""
    producer, name, log = made(kafka, tmp_path, {"ssl.cipher.suites": "ECDHE-RSA-AES256-GCM-SHA384"})
    assert (type(producer), name) == (Producer, "librdkafka")
    [(event, reason)] = log.warnings
    assert event == "commits_by_librdkafka"
    assert "ssl.cipher.suites" in reason


def test_librdkafkas_can_be_asked_for(kafka: Kafka, tmp_path: Path) -> None:
    producer, name, log = made(kafka, tmp_path, {}, producer="librdkafka")
    assert (type(producer), name, log.warnings) == (Producer, "librdkafka", [])
