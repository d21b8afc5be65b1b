"""What a harness tells the processes it starts, as environment variables.

Everything else comes from the user's own environment and file.
"""

from __future__ import annotations

from refold.settings import Settings


def place_of(settings: Settings, bootstrap: str | None = None) -> dict[str, str]:
    """Where to work. ``bootstrap``: where that is another address than the harness uses."""
    return {
        "REFOLD_TOPIC_PREFIX": settings.topic_prefix,
        "REFOLD_PARTITIONS": str(settings.partitions),
        "REFOLD_KAFKA__BOOTSTRAP": bootstrap or settings.kafka.bootstrap,
    }


def pace_of_workers(session_timeout_ms: int, seed: int) -> dict[str, str]:
    """Of workers that die often: back soon, and spread out as the seed says."""
    return {
        "REFOLD_WORKER__SESSION_TIMEOUT_MS": str(session_timeout_ms),
        "REFOLD_WORKER__START_JITTER_MS_MAX": "100",
        "REFOLD_WORKER__RESTORE_JITTER_MS_MAX": "100",
        "REFOLD_WORKER__SEED": str(seed),
    }
