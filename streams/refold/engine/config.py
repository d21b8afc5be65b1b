"""What the engine needs to know, as one frozen value: no environment, no files, no globals.

``EngineConfig.from_settings`` is the only place that reads :class:`refold.settings.Settings`; tests and the
crash matrix build the value directly (they need session timeouts below what a user may set).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from refold.engine.sabotage import Sabotage
from refold.reducers import words
from refold.topology.names import TopicNames

if TYPE_CHECKING:
    from refold.settings import Settings

#: Restores at once per worker. One restore of 1.6 KB records reads 130 k records/s and takes a core
#: (measured); two overlap one's network wait with the other's writes, more only take CPU from the fold.
RESTORES_MAX: Final = 2

#: A takeover that makes no progress for this long stops the process. 10 s transaction timeout + 10 s until
#: the broker looks + 1.6 s for fencing leave more than half of it as margin.
TAKEOVER_STALL_MS_MAX: Final = 60_000

#: Set by the supervisor for its children, and by nobody else.
SUPERVISED_VARIABLE: Final = "REFOLD_SUPERVISED"

#: One call to the cluster at start-up. Unreachable brokers are reported within 15 s: metadata + margin.
START_CALL_TIMEOUT_MS: Final = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """One worker process. ``kafka`` is the librdkafka configuration every client shares; it may hold
    secrets."""

    kafka: Mapping[str, Any]
    prefix: str
    instance: str
    data_dir: Path
    environment: str = "dev"
    registry_url: str | None = None
    http_host: str = "127.0.0.1"
    http_port: int | None = 0
    advertised_url: str | None = None
    bearer_token: str | None = field(default=None, repr=False)
    session_timeout_ms: int = 30_000
    transaction_timeout_ms: int = 10_000
    commit_interval_min_ms: int = 10
    #: ``auto`` or ``librdkafka`` (:mod:`refold.engine.producer.choose`).
    producer: str = "auto"
    cache_bytes_max: int = 48 * 1024 * 1024
    overlay_bytes_max: int = 24 * 1024 * 1024
    start_jitter_ms_max: int = 500
    restore_jitter_ms_max: int = 2_000
    seed: int | None = None
    drain_seconds_max: float = 20.0
    #: One of several processes (``supervisor.py``), which passes signals on.
    supervised: bool = False
    restores_max: int = RESTORES_MAX
    restore_bytes_per_s_max: int = 0
    restore_first: str | None = None
    hot_first: bool = False
    takeover_stall_ms_max: int = TAKEOVER_STALL_MS_MAX
    standby_replicas: int = 0
    checkpoint_url: str | None = field(default=None, repr=False)
    checkpoint_interval_ms: int = 180_000
    checkpoint_events_max: int = 1_000_000
    checkpoint_keep: int = 3
    checkpoint_at_drain: bool = True
    validate_store: bool = True
    validate_after_ms: int = 60_000
    validate_bytes_per_s_max: int = 8_000_000
    reducers: tuple[str, ...] = ()
    reducers_removed: tuple[str, ...] = ()
    sabotage: Sabotage = field(default_factory=Sabotage)

    @property
    def topics(self) -> TopicNames:
        return TopicNames(self.prefix)

    @property
    def transactional_id(self) -> str:
        return self.topics.transactional_id(self.instance)

    @property
    def bootstrap(self) -> str:
        return str(self.kafka.get("bootstrap.servers", "?"))

    @property
    def store_dir(self) -> Path:
        """One directory per worker and prefix: several prefixes may share ``data_dir``."""
        return self.data_dir / self.prefix

    @classmethod
    def from_settings(cls, settings: Settings) -> EngineConfig:
        """Raises :class:`refold.errors.ConfigError` for an unknown or forbidden sabotage."""
        worker = settings.worker
        return cls(
            kafka=settings.kafka_config("worker"),
            prefix=settings.topic_prefix,
            instance=worker.instance,
            data_dir=worker.data_dir,
            environment=settings.environment,
            registry_url=settings.registry_url,
            http_host=worker.http_host,
            http_port=worker.http_port,
            advertised_url=worker.advertised_url,
            bearer_token=None if worker.bearer_token is None else worker.bearer_token.get_secret_value(),
            session_timeout_ms=worker.session_timeout_ms,
            transaction_timeout_ms=worker.transaction_timeout_ms,
            commit_interval_min_ms=worker.commit_interval_min_ms,
            producer=worker.producer,
            cache_bytes_max=worker.cache_bytes_max,
            overlay_bytes_max=worker.overlay_bytes_max,
            start_jitter_ms_max=worker.start_jitter_ms_max,
            restore_jitter_ms_max=worker.restore_jitter_ms_max,
            seed=worker.seed,
            drain_seconds_max=worker.drain_seconds_max,
            standby_replicas=worker.standby_replicas,
            checkpoint_url=worker.checkpoint_url,
            checkpoint_interval_ms=worker.checkpoint_interval_ms,
            checkpoint_events_max=worker.checkpoint_events_max,
            checkpoint_keep=worker.checkpoint_keep,
            checkpoint_at_drain=worker.checkpoint_at_drain,
            validate_store=worker.validate_store,
            validate_after_ms=worker.validate_after_ms,
            validate_bytes_per_s_max=worker.validate_bytes_per_s_max,
            restores_max=worker.restores_max,
            restore_bytes_per_s_max=worker.restore_bytes_per_s_max,
            restore_first=worker.restore_first,
            hot_first=worker.hot_first,
            reducers=words(worker.reducers),
            reducers_removed=words(worker.reducers_removed),
            supervised=SUPERVISED_VARIABLE in os.environ,
            sabotage=Sabotage.parse(worker.sabotage, environment=settings.environment),
        )
