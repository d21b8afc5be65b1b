"""Everything that can be set, once: one tree, read by the worker, the SDK and every command.

Precedence: flag > environment > file > default; ``refold settings`` prints each value with its source.
Environment names are ``REFOLD_`` + the path joined by ``__`` (``REFOLD_WORKER__HTTP_PORT``); an empty
variable counts as unset; a secret may come from a file named by ``<NAME>_FILE``. The file is ``refold.toml``
in the working directory, ``REFOLD_CONFIG`` or ``--config``. An unknown key fails the start: a misspelt
setting that is silently ignored is found in production.

Reading settings touches the environment and at most one file plus the secret files, never a broker.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import Field, PrivateAttr, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from refold import settings_layers as layers
from refold.errors import ConfigError
from refold.settings_sections import (
    BlobSettings,
    ClientSettings,
    KafkaSettings,
    LoggingSettings,
    SummarizerSettings,
    WorkerSettings,
    http_url,
    is_loopback,
)

__all__ = [
    "BlobSettings",
    "ClientSettings",
    "KafkaRole",
    "KafkaSettings",
    "LoggingSettings",
    "Settings",
    "SummarizerSettings",
    "WorkerSettings",
    "is_loopback",
    "load_settings",
]

#: Kafka allows 249 characters for a topic name. The prefix is also the group id and the start of every
#: transactional id, which ends up in commit metadata, so it is kept well below.
TOPIC_PREFIX_LENGTH_MAX: Final = 100

#: librdkafka waits twice as long after each refused connection, by default up to 10 s: that much later than
#: the broker its clients are back. At 2 s, 500 workers of five connections ask a broker that is down 1 250
#: times a second, each a refused TCP connection. Where all brokers are away at once, though, it makes its
#: brokers anew (KIP-1102) and begins with ``clients.RECONNECT_MS`` each time: 180 times a second and worker.
RECONNECT_MS_MAX: Final = 2_000

KafkaRole = Literal["admin", "worker", "producer", "reader"]


class Settings(BaseSettings):
    """The whole tree. ``Settings()`` reads file and environment; keyword arguments rank as flags.

    Raises :class:`refold.errors.ConfigError` naming the variable, the value (secrets masked) and the way out.
    """

    model_config = SettingsConfigDict(
        env_prefix=layers.ENV_PREFIX,
        env_nested_delimiter=layers.ENV_DELIMITER,
        env_ignore_empty=True,
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        validate_default=False,
    )

    environment: Literal["dev", "test", "prod"] = Field(
        "dev", description="prod refuses what is only safe on a developer's machine (one replica, sabotage)."
    )
    topic_prefix: str = Field(
        "refold",
        min_length=1,
        max_length=TOPIC_PREFIX_LENGTH_MAX,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        description="Start of every topic name; also the group id and the start of transactional ids.",
    )
    tenant: str = Field(
        "default",
        min_length=1,
        pattern=r"^[^/]+$",
        description="Tenant of clients and commands that name none.",
    )
    partitions: int | None = Field(
        None,
        ge=1,
        le=16_384,
        description=(
            "Partition count at creation of the topics. Default: what topology/topics says. Fixed afterwards."
        ),
    )
    registry_url: str | None = Field(
        None,
        description="Confluent-compatible schema registry. Default: the file registry inside the package.",
    )
    kafka: KafkaSettings = Field(default_factory=KafkaSettings)
    worker: WorkerSettings = Field(default_factory=WorkerSettings)
    blobs: BlobSettings = Field(default_factory=BlobSettings)
    client: ClientSettings = Field(default_factory=ClientSettings)
    summarizer: SummarizerSettings = Field(default_factory=SummarizerSettings)
    logging: LoggingSettings = Field(default_factory=LoggingSettings)

    _sources: dict[str, str] = PrivateAttr(default_factory=dict)

    def __init__(self, config: Path | str | None = None, /, **flags: Any) -> None:
        stack = layers.collect(type(self), Path(config) if config is not None else None, flags)
        try:
            super().__init__(**layers.merge([layer.values for layer in stack]))
        except ValidationError as err:
            raise ConfigError(layers.explain(type(self), err, stack)) from None
        self._sources = layers.sources(stack)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # ``__init__`` has merged every layer by then and remembers where each value came from.
        return (init_settings,)

    @field_validator("registry_url")
    @classmethod
    def _absolute_url(cls, value: str | None) -> str | None:
        return None if value is None else http_url(value)

    @model_validator(mode="after")
    def _prod_is_safe(self) -> Self:
        if self.environment == "prod" and self.worker.sabotage is not None:
            raise ValueError(
                "worker.sabotage breaks a guarantee on purpose and is refused with environment=prod; unset it"
            )
        return self

    def source(self, path: str) -> str:
        """Where the value at ``path`` (dotted) came from: flag, env NAME, file PATH or default."""
        return self._sources.get(path, "default")

    def kafka_config(self, role: KafkaRole) -> dict[str, Any]:
        """The part of a librdkafka configuration that every client of this process shares.

        Bootstrap, security, ``client.id`` (``refold-<role>``; a group member replaces it by its address) and
        the pass-through table, which may change :data:`RECONNECT_MS_MAX`. Holds secrets: never log it.
        """
        kafka = self.kafka
        config: dict[str, Any] = {
            "reconnect.backoff.max.ms": RECONNECT_MS_MAX,
            **kafka.librdkafka,
            "bootstrap.servers": kafka.bootstrap,
            "security.protocol": kafka.security_protocol,
            "client.id": f"refold-{role}",
        }
        optional = {
            "sasl.mechanism": kafka.sasl_mechanism,
            "sasl.username": kafka.sasl_username,
            "sasl.password": kafka.sasl_password,
            "ssl.ca.location": kafka.ssl_ca,
            "ssl.certificate.location": kafka.ssl_certificate,
            "ssl.key.location": kafka.ssl_key,
            "ssl.key.password": kafka.ssl_key_password,
        }
        for key, value in optional.items():
            if isinstance(value, SecretStr):
                config[key] = value.get_secret_value()
            elif value is not None:
                config[key] = str(value)
        return config


def load_settings(config: Path | str | None = None, flags: dict[str, Any] | None = None) -> Settings:
    """Settings for a command. ``flags`` maps dotted paths to values; ``None`` = the flag was not given."""
    return Settings(
        config, **layers.nest({path: value for path, value in (flags or {}).items() if value is not None})
    )
