"""The crash matrix: at every named point of a commit × what may befall the worker there.

State, journal (gapless, no duplicate), history index, rejected (each once), generation records and markers
(each once) equal the oracle in every cell.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.check import differences, fold_batches
from engine.cluster import Cluster
from engine.scenarios import SCENARIOS
from refold.engine.points import COMMIT
from refold.testing.kafka import Kafka

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.fixture
def cluster(kafka: Kafka, topic_prefix: str) -> Cluster:
    made = Cluster(kafka.bootstrap, topic_prefix.rstrip("-"))
    made.create()
    return made


@pytest.mark.parametrize("scenario", list(SCENARIOS))
@pytest.mark.parametrize("point", COMMIT)
def test_nothing_is_lost_or_doubled(cluster: Cluster, tmp_path: Path, point: str, scenario: str) -> None:
    """Goal: rules T, F, R, A, D hold at this point. Method: hold the commit there, let it happen, compare."""
    sent = SCENARIOS[scenario](cluster, tmp_path, point)
    assert differences(cluster, sent) == []
    batches = fold_batches(cluster)
    assert batches.applied > 50
    assert {kind for _, _, kind, _, _ in batches.markers} >= {"begin", "end"}
