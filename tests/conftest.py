from __future__ import annotations

import pytest

pytest_plugins = ["refold.testing.kafka"]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "broker: needs a real Kafka (embedded, or REFOLD_TEST_BOOTSTRAP)")
    config.addinivalue_line("markers", "slow: longer than ten seconds")
