"""The recorded streams, shortened: sixteen of them, their recording process killed, two clients following."""

from __future__ import annotations

from pathlib import Path

import pytest

from client.recorded_streams import run
from formats.stream_readings import recordings
from refold.testing.kafka import Kafka

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_recorded_streams_survive_the_recording_processs_death(kafka: Kafka, tmp_path: Path) -> None:
    """Goal: the same text, byte for byte, for a client that stays and one that reconnects; nothing twice,
    nothing missing, acks right. The whole set: ``python -m tests.client.recorded_streams``."""
    if not recordings():
        pytest.skip("the recorded streams are not there; set REFOLD_SHARED_DATA")
    made = run(kafka.bootstrap, tmp_path, seed=11, streams=16)
    assert made.wrong == []
    assert made.counts["streams"] == 16
    assert made.counts["kills"] >= 2
    assert made.counts["taken_over"] >= 1
    assert made.counts["reconnects"] > 0
