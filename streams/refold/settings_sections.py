"""The tables of the settings tree: ``[kafka]``, ``[worker]``, ``[blobs]``, ``[client]``, ``[summarizer]``,
``[logging]``.

Each field carries its bounds and the sentence of the reference page; checks over several fields of a table
live with the table.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from pathlib import Path
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

from refold.servers import addresses

#: An instance name is a group.instance.id and part of the transactional id; Kafka allows 249.
INSTANCE_LENGTH_MAX: Final = 120

#: The tail a restore reads after the copy: 3 minutes at 10 000 events/s are 1.8 M events, but only one state
#: record per touched session and commit; changelogs are read at 130 k records/s (measured), so 14 s at the
#: worst.
CHECKPOINT_INTERVAL_MS: Final = 180_000

#: The same tail at full speed: 1 M events are at most 1 M state records, 8 s; 15 s of one worker at 66 k
#: events/s.
CHECKPOINT_EVENTS_MAX: Final = 1_000_000

#: One may be damaged and one may be of an owner that was slow to notice it was none: then there is a third.
CHECKPOINT_KEEP: Final = 3

#: More copies than this are a full copy on every worker of any fleet that has standbys for failover.
STANDBY_REPLICAS_MAX: Final = 16

#: Set by refold because a guarantee hangs on it; overriding one through ``kafka.librdkafka`` is refused.
RESERVED_LIBRDKAFKA: Final[dict[str, str]] = {
    "bootstrap.servers": "set kafka.bootstrap",
    "metadata.broker.list": "set kafka.bootstrap",
    "security.protocol": "set kafka.security_protocol",
    "sasl.mechanism": "set kafka.sasl_mechanism",
    "sasl.mechanisms": "set kafka.sasl_mechanism",
    "sasl.username": "set kafka.sasl_username",
    "sasl.password": "set kafka.sasl_password: it is masked everywhere, this table is not",
    "ssl.key.password": "set kafka.ssl_key_password: it is masked everywhere, this table is not",
    "client.id": "it carries the owner's address (routing)",
    "group.id": "it is the topic prefix",
    "group.instance.id": "set worker.instance",
    "transactional.id": "it is derived from topic_prefix and worker.instance",
    "transaction.timeout.ms": "set worker.transaction_timeout_ms",
    "session.timeout.ms": "set worker.session_timeout_ms",
    "enable.auto.commit": "offsets are committed in the worker's transaction only",
    "enable.auto.offset.store": "offsets are committed in the worker's transaction only",
    "auto.offset.reset": "a worker never falls to a reset (rule T)",
    "isolation.level": "it differs by reader on purpose (rule T)",
    "enable.idempotence": "acknowledged events may otherwise be lost or doubled",
    "acks": "acknowledged events may otherwise be lost",
    "partitioner": "partition = slot map of the key (rule P)",
    "partition.assignment.strategy": "the revoke protocol needs cooperative-sticky (rule R)",
    "group.protocol": "static membership and the classic protocol are assumed (engine, group protocol)",
}

Port = Annotated[int, Field(ge=0, le=65_535)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class KafkaSettings(_Section):
    """How to reach the cluster: any Kafka >= 3.6 with transactions."""

    bootstrap: str = Field(
        "127.0.0.1:9092",
        min_length=1,
        description="Brokers as host:port, comma separated. Short form: REFOLD_BOOTSTRAP.",
    )
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="How connections are secured and authenticated."
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "GSSAPI"] | None = (
        Field(
            None,
            description=(
                "Needed with SASL_*. OAUTHBEARER and GSSAPI take their details from kafka.librdkafka."
            ),
        )
    )
    sasl_username: str | None = Field(None, description="User name for PLAIN and SCRAM.")
    sasl_password: SecretStr | None = Field(None, description="Password for PLAIN and SCRAM.")
    ssl_ca: Path | None = Field(None, description="CA certificates (PEM file). Default: the system's.")
    ssl_certificate: Path | None = Field(None, description="Client certificate (PEM file) for mutual TLS.")
    ssl_key: Path | None = Field(None, description="Client key (PEM file) for mutual TLS.")
    ssl_key_password: SecretStr | None = Field(None, description="Password of the client key.")
    librdkafka: dict[str, str] = Field(
        default_factory=dict,
        description=(
            "Further librdkafka properties as a JSON object, passed through. Properties a guarantee hangs on"
            " are refused."
        ),
    )

    @field_validator("bootstrap")
    @classmethod
    def _addresses(cls, value: str) -> str:
        addresses(value)
        return value

    @field_validator("security_protocol", "sasl_mechanism", mode="before")
    @classmethod
    def _upper(cls, value: object) -> object:
        return value.upper() if isinstance(value, str) else value

    @field_validator("librdkafka")
    @classmethod
    def _no_reserved(cls, value: dict[str, str]) -> dict[str, str]:
        for key in sorted(value):
            if key in RESERVED_LIBRDKAFKA:
                raise ValueError(f"{key!r} cannot be passed through: {RESERVED_LIBRDKAFKA[key]}")
        return value

    @model_validator(mode="after")
    def _complete(self) -> Self:
        sasl = self.security_protocol.startswith("SASL_")
        if sasl and self.sasl_mechanism is None:
            raise ValueError(f"security_protocol={self.security_protocol} needs sasl_mechanism")
        if not sasl and self.sasl_mechanism is not None:
            raise ValueError(
                f"sasl_mechanism={self.sasl_mechanism} has no effect with"
                f" security_protocol={self.security_protocol}; set security_protocol to SASL_SSL (or"
                " SASL_PLAINTEXT), or unset the mechanism"
            )
        with_password = self.sasl_mechanism is not None and self.sasl_mechanism.startswith(("PLAIN", "SCRAM"))
        if sasl and with_password and (self.sasl_username is None or self.sasl_password is None):
            raise ValueError(f"sasl_mechanism={self.sasl_mechanism} needs sasl_username and sasl_password")
        return self


class WorkerSettings(_Section):
    """One worker process."""

    instance: str = Field(
        default_factory=lambda: (
            re.sub(r"[^A-Za-z0-9._-]", "-", socket.gethostname())[:INSTANCE_LENGTH_MAX] or "worker"
        ),
        min_length=1,
        max_length=INSTANCE_LENGTH_MAX,
        pattern=r"^[A-Za-z0-9._-]+$",
        description=(
            "Name of this worker, unique among the live ones: group.instance.id and end of the"
            " transactional id."
        ),
    )
    data_dir: Path = Field(
        Path(".refold/data"), description="RocksDB directories; one worker per directory (it is locked)."
    )
    http_host: str = Field(
        "127.0.0.1",
        min_length=1,
        description=(
            "Address of the query, metrics and health port. Beyond loopback only with a bearer token."
        ),
    )
    http_port: Port = Field(
        0, description="Port of the same; 0 = a free one, found by clients through the group description."
    )
    advertised_url: str | None = Field(
        None, description="URL under which clients reach that port. Default: http://<http_host>:<http_port>."
    )
    bearer_token: SecretStr | None = Field(
        None,
        min_length=16,
        description="Token every request to the HTTP port must carry, health checks excepted.",
    )
    session_timeout_ms: int = Field(
        30_000,
        ge=1_000,
        le=1_800_000,
        description=(
            "Kafka group session timeout: how long until a dead worker's partitions move. A restart must fit."
        ),
    )
    transaction_timeout_ms: int = Field(
        10_000,
        ge=1_000,
        le=900_000,
        description="A transaction open for longer is aborted by the broker (rule D).",
    )
    producer: Literal["auto", "librdkafka"] = Field(
        default="auto",
        description=(
            "What commits go through: refold's own producer, which writes all partitions of a broker in one "
            "request, where it knows the connection's settings and the brokers take its versions, else "
            "librdkafka's (`auto`); or always librdkafka's."
        ),
    )
    commit_interval_min_ms: int = Field(
        10,
        ge=0,
        le=10_000,
        description=(
            "Shortest time between the starts of two commits under load; an idle worker commits at once."
        ),
    )
    cache_bytes_max: int = Field(
        48 * 1024 * 1024,
        ge=1024 * 1024,
        description="Decoded sessions kept in memory, by their measured size, least recently used first out.",
    )
    overlay_bytes_max: int = Field(
        24 * 1024 * 1024,
        ge=1024 * 1024,
        description=(
            "Bytes folded but not yet committed, over both overlays: what their commits send, and what"
            " their sessions keep in memory until then. Above it partitions pause."
        ),
    )
    start_jitter_ms_max: int = Field(
        500,
        ge=0,
        le=600_000,
        description="Random wait before subscribing, so that a fleet does not start at once.",
    )
    restore_jitter_ms_max: int = Field(
        2_000,
        ge=0,
        le=600_000,
        description=(
            "Random wait before restoring a partition, scaled by the fraction of it that is missing locally."
        ),
    )
    restores_max: int = Field(
        2,
        ge=1,
        le=64,
        description="Partitions restored at once. One takes a core; two overlap network and disk.",
    )
    restore_bytes_per_s_max: int = Field(
        0,
        ge=0,
        description=(
            "Bytes per second that all restores of a worker read together, keys and values uncompressed; 0 ="
            " no limit. Workers x this is what a fleet's restart asks of the brokers."
        ),
    )
    hot_first: bool = Field(
        False,
        description=(
            "Serve a partition while it is restored: the newest part of its state first, a session as soon as"
            " it is found or proved absent. All workers of a prefix must be of a version that knows this"
            " setting."
        ),
    )
    restore_first: str | None = Field(
        None,
        min_length=1,
        description=(
            "Core partitions, restored before others and without jitter: partitions, ranges and sessions"
            " (`0,4-7,acme/front-desk`). The others follow by unread inbox records."
        ),
    )
    standby_replicas: int = Field(
        0,
        ge=0,
        le=STANDBY_REPLICAS_MAX,
        description=(
            "Copies of each partition that workers keep fresh beside its owner's, for stale reads and quick"
            " failover. Each costs the changelogs' traffic and the state's disk once more."
        ),
    )
    seed: int | None = Field(
        None, description="Seed of the jitter, to repeat a run. Default: from the operating system."
    )
    drain_seconds_max: float = Field(
        20.0,
        ge=0,
        le=3_600,
        description=(
            "How long a graceful stop may take; then the worker ends as if killed (exit 75), which loses"
            " nothing."
        ),
    )
    checkpoint_url: str | None = Field(
        None,
        min_length=1,
        description=(
            "fsspec URL of the checkpoint store (`file://…`, `s3://…` with the extra s3), the same for all"
            " workers of a prefix. Unset: no checkpoints."
        ),
    )
    checkpoint_interval_ms: int = Field(
        CHECKPOINT_INTERVAL_MS,
        ge=1_000,
        le=86_400_000,
        description="A live partition is checkpointed this often, if anything was committed since.",
    )
    checkpoint_events_max: int = Field(
        CHECKPOINT_EVENTS_MAX,
        ge=1_000,
        description="It is checkpointed earlier when this many records were read since: it bounds the tail.",
    )
    checkpoint_keep: int = Field(
        CHECKPOINT_KEEP,
        ge=1,
        le=100,
        description="Checkpoints kept per partition; an older one is used when a newer one is damaged.",
    )
    checkpoint_at_drain: bool = Field(
        True,
        description=(
            "A graceful stop uploads what was committed since the last checkpoint before it leaves, within"
            " three quarters of the time it may take. Off: it leaves at once."
        ),
    )
    validate_store: bool = Field(
        True,
        description=(
            "A copy that was on this disk at the start is compared with its changelogs once, in the"
            " background while it is served; what differs is set aside and restored."
        ),
    )
    validate_after_ms: int = Field(
        60_000,
        ge=0,
        le=86_400_000,
        description="So long after the last restore of this worker it begins; a new restore makes it wait.",
    )
    validate_bytes_per_s_max: int = Field(
        8_000_000,
        ge=100_000,
        description=(
            "Bytes per second that it reads, of the changelogs and then of the disk; a record counts as 1 KiB"
            " more. What it reads of the changelogs counts to worker.restore_bytes_per_s_max as well."
        ),
    )
    reducers: str | None = Field(
        None,
        min_length=1,
        description=(
            "Python modules that declare reducers (`@refold.reducer`), comma separated. Workers fold what"
            " they declare; commands read parts with the same setting. The same for all workers of a prefix."
        ),
    )
    reducers_removed: str | None = Field(
        None,
        min_length=1,
        description=(
            "Names of reducers that are no more, comma separated: a worker without one that a partition was"
            " folded with refuses to start. Their parts stay as they are."
        ),
    )
    sabotage: str | None = Field(
        None,
        description=(
            "Break one rule on purpose to show that verification notices (`refold verify chaos --sabotage`)."
            " Refused in prod."
        ),
    )

    @field_validator("advertised_url")
    @classmethod
    def _absolute_url(cls, value: str | None) -> str | None:
        return None if value is None else http_url(value)

    @model_validator(mode="after")
    def _protected(self) -> Self:
        if not is_loopback(self.http_host) and self.bearer_token is None:
            raise ValueError(
                f"http_host={self.http_host} is reachable from other machines and no bearer_token is set; set"
                " REFOLD_WORKER__BEARER_TOKEN (or REFOLD_WORKER__BEARER_TOKEN_FILE), or keep http_host on"
                " 127.0.0.1"
            )
        return self


class BlobSettings(_Section):
    """Payloads too large for a record."""

    url: str = Field(
        "file://.refold/blobs",
        min_length=1,
        description="fsspec URL of the store. Producers, workers and readers must all reach it.",
    )
    inline_bytes_max: int = Field(
        64 * 1024,
        ge=256,
        le=512 * 1024,
        description="A content part larger than this goes to the store and leaves a reference.",
    )


class ClientSettings(_Section):
    """The SDK."""

    producer_id: str | None = Field(
        None,
        min_length=1,
        max_length=200,
        description=(
            "Stable name of this producer for exact de-duplication. Default: a random one per process."
        ),
    )
    bearer_token: SecretStr | None = Field(None, description="Token sent to the workers' HTTP port.")
    producer: Literal["auto", "librdkafka"] = Field(
        "auto",
        description=(
            "How appends are sent. auto: through refold's own producer, which sends one request per broker"
            " instead of one per partition, unless `kafka.librdkafka` has a setting that it does not know."
            " librdkafka: always through librdkafka's. The guarantees are the same."
        ),
    )
    delivery_timeout_ms: int = Field(
        30_000,
        ge=1_000,
        le=3_600_000,
        description="An append that is not durable by then fails; the same ids may be sent again.",
    )
    request_timeout_ms: int = Field(
        10_000, ge=100, le=600_000, description="One HTTP request to an owning worker."
    )


class SummarizerSettings(_Section):
    """Who writes summaries of long sessions, in a process of `refold summarizer`."""

    provider: Literal["extractive", "openai"] = Field(
        "extractive",
        description=(
            "extractive: the beginnings of what was said, without a model. openai: any endpoint with OpenAI's"
            " chat completions."
        ),
    )
    base_url: str = Field(
        "https://api.openai.com/v1", description="Of that endpoint, up to before /chat/completions."
    )
    model: str | None = Field(None, min_length=1, description="Model of that endpoint; needed with openai.")
    api_key: SecretStr | None = Field(None, description="Sent to that endpoint as a bearer token.")
    timeout_ms: int = Field(
        60_000, ge=1_000, le=600_000, description="One request to the endpoint; three are made at most."
    )
    max_tokens: int | None = Field(
        None, ge=16, le=131_072, description="max_tokens of the request. Default: the endpoint's."
    )
    text_bytes: int = Field(
        4_096, ge=256, le=32_768, description="How long a summary is asked to be; longer than 32 KiB is cut."
    )

    @field_validator("base_url")
    @classmethod
    def _absolute_url(cls, value: str) -> str:
        return http_url(value)

    @model_validator(mode="after")
    def _model_named(self) -> Self:
        if self.provider == "openai" and self.model is None:
            raise ValueError("summarizer.provider=openai needs summarizer.model")
        return self


class LoggingSettings(_Section):
    """Logs go to stderr and never hold payload text."""

    format: Literal["auto", "json", "console"] = Field(
        "auto", description="auto = console on a terminal outside prod, else JSON (one object per line)."
    )
    level: Literal["debug", "info", "warning", "error"] = Field("info", description="Lowest level written.")

    @field_validator("format", "level", mode="before")
    @classmethod
    def _lower(cls, value: object) -> object:
        return value.lower() if isinstance(value, str) else value


def is_loopback(host: str) -> bool:
    """True for ``localhost`` and loopback addresses; a name that must be resolved counts as reachable."""
    name = host.strip("[]")
    if name.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def http_url(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an absolute http:// or https:// URL")
    return value.rstrip("/")
