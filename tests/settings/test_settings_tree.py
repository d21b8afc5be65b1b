"""Settings: precedence, sources, secrets, and a message that names variable, value and way out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from refold.errors import ConfigError
from refold.settings import RECONNECT_MS_MAX, Settings, is_loopback, load_settings
from refold.settings_layers import MASK, PATTERNS, env_name, leaves
from refold.settings_report import reference, rows

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "a-token-of-enough-length"


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No REFOLD_ variable and no refold.toml of the machine reaches a test."""
    for name in list(os.environ):
        if name.startswith("REFOLD_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_precedence_is_flag_env_file_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each layer wins over the next; method: one value set in every layer, removed from the top down."""
    assert load_settings().worker.http_port == 0
    (tmp_path / "refold.toml").write_text("[worker]\nhttp_port = 1001\n")
    assert load_settings().worker.http_port == 1001
    monkeypatch.setenv("REFOLD_WORKER__HTTP_PORT", "1002")
    assert load_settings().worker.http_port == 1002
    settings = load_settings(flags={"worker.http_port": 1003})
    assert settings.worker.http_port == 1003
    assert settings.source("worker.http_port") == "flag"
    assert settings.source("topic_prefix") == "default"


def test_a_flag_that_was_not_given_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFOLD_TOPIC_PREFIX", "team")
    assert load_settings(flags={"topic_prefix": None}).topic_prefix == "team"


def test_layers_merge_within_a_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A flag for one key of [worker] keeps the file's other keys."""
    (tmp_path / "refold.toml").write_text('[worker]\nhttp_port = 1001\ninstance = "w-7"\n')
    settings = load_settings(flags={"worker.http_port": 5})
    assert (settings.worker.http_port, settings.worker.instance) == (5, "w-7")
    assert settings.source("worker.instance") == "file refold.toml"


def test_an_empty_variable_is_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFOLD_TOPIC_PREFIX", "")
    assert Settings().topic_prefix == "refold"


def test_bootstrap_has_a_short_form(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFOLD_BOOTSTRAP", "a:1,b:2")
    settings = Settings()
    assert settings.kafka.bootstrap == "a:1,b:2"
    assert settings.source("kafka.bootstrap") == "env REFOLD_BOOTSTRAP"
    monkeypatch.setenv("REFOLD_KAFKA__BOOTSTRAP", "c:3")
    with pytest.raises(ConfigError, match=r"REFOLD_BOOTSTRAP=a:1,b:2 and REFOLD_KAFKA__BOOTSTRAP=c:3 differ"):
        Settings()


def test_a_secret_comes_from_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Mounted secrets: the file's text without its line end, never shown, source named."""
    (tmp_path / "token").write_text(TOKEN + "\n")
    monkeypatch.setenv("REFOLD_WORKER__BEARER_TOKEN_FILE", str(tmp_path / "token"))
    settings = Settings()
    assert settings.worker.bearer_token is not None
    assert settings.worker.bearer_token.get_secret_value() == TOKEN
    assert settings.source("worker.bearer_token") == "env REFOLD_WORKER__BEARER_TOKEN_FILE"
    assert TOKEN not in repr(settings)
    shown = {row["name"]: row["value"] for row in rows(settings)}
    assert shown["worker.bearer_token"] == MASK


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "cannot be read: No such file"), (b"", "is empty"), (b"\xff", "not UTF-8")],
)
def test_a_bad_secret_file_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: bytes | None, problem: str
) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("REFOLD_KAFKA__SASL_PASSWORD_FILE", str(path))
    with pytest.raises(ConfigError, match=problem) as caught:
        Settings()
    assert f"REFOLD_KAFKA__SASL_PASSWORD_FILE={path}" in str(caught.value)


def test_secret_and_secret_file_together_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "s").write_text(TOKEN)
    monkeypatch.setenv("REFOLD_WORKER__BEARER_TOKEN", TOKEN)
    monkeypatch.setenv("REFOLD_WORKER__BEARER_TOKEN_FILE", str(tmp_path / "s"))
    with pytest.raises(ConfigError, match="both set"):
        Settings()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("REFOLD_WORKER__HTTP_PRT", "did you mean REFOLD_WORKER__HTTP_PORT"),
        ("REFOLD_TOPIC_PREFX", "did you mean REFOLD_TOPIC_PREFIX"),
        ("REFOLD_HTTP_PORT", "unknown setting REFOLD_HTTP_PORT"),
    ],
)
def test_an_unknown_variable_fails_the_start(monkeypatch: pytest.MonkeyPatch, name: str, hint: str) -> None:
    monkeypatch.setenv(name, "8080")
    with pytest.raises(ConfigError, match=hint):
        Settings()


def test_variables_kubernetes_injects_are_no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Service named refold-worker must not stop the pods beside it."""
    for name, value in {
        "REFOLD_WORKER_SERVICE_HOST": "10.0.0.1",
        "REFOLD_WORKER_SERVICE_PORT": "8080",
        "REFOLD_WORKER_SERVICE_PORT_HTTP": "8080",
        "REFOLD_WORKER_PORT": "tcp://10.0.0.1:8080",
        "REFOLD_WORKER_PORT_8080_TCP_ADDR": "10.0.0.1",
    }.items():
        monkeypatch.setenv(name, value)
    assert Settings().worker.http_port == 0


def test_an_unknown_key_in_the_file_fails_the_start(tmp_path: Path) -> None:
    (tmp_path / "refold.toml").write_text("[worker]\nhttp_prt = 1\n")
    with pytest.raises(
        ConfigError, match=r"file refold\.toml: unknown setting 'worker\.http_prt'.*worker\.http_port"
    ):
        Settings()


def test_a_file_that_is_named_must_exist_and_parse(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("REFOLD_CONFIG", str(tmp_path / "no.toml"))
    with pytest.raises(ConfigError, match=r"no\.toml cannot be read"):
        Settings()
    broken = tmp_path / "broken.toml"
    broken.write_text("[worker\n")
    with pytest.raises(ConfigError, match=r"broken\.toml is not valid TOML"):
        Settings(broken)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("REFOLD_WORKER__HTTP_PORT", "abc"),
        ("REFOLD_WORKER__HTTP_PORT", "70000"),
        ("REFOLD_ENVIRONMENT", "production"),
        ("REFOLD_TOPIC_PREFIX", "no spaces"),
        ("REFOLD_TENANT", "a/b"),
        ("REFOLD_REGISTRY_URL", "registry:8081"),
        ("REFOLD_LOGGING__LEVEL", "loud"),
    ],
)
def test_a_wrong_value_names_variable_and_value(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught:
        Settings()
    assert f"{name}={value} (from env {name})" in str(caught.value)
    assert "docs/reference/settings.md" in str(caught.value)


def test_a_wrong_secret_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFOLD_WORKER__BEARER_TOKEN", "hunter2")
    with pytest.raises(ConfigError) as caught:
        Settings()
    assert "hunter2" not in str(caught.value)
    assert f"REFOLD_WORKER__BEARER_TOKEN={MASK}" in str(caught.value)


def test_a_table_that_is_no_json_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REFOLD_KAFKA__LIBRDKAFKA", "{linger")
    with pytest.raises(ConfigError, match="given as a JSON object"):
        Settings()


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "worker-0.internal"])
def test_no_open_port_without_a_token(host: str) -> None:
    """Beyond loopback only with authentication."""
    with pytest.raises(ConfigError, match="REFOLD_WORKER__BEARER_TOKEN"):
        load_settings(flags={"worker.http_host": host})
    settings = load_settings(flags={"worker.http_host": host, "worker.bearer_token": TOKEN})
    assert settings.worker.http_host == host


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("LOCALHOST", True),
        ("0.0.0.0", False),
    ],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_prod_refuses_sabotage() -> None:
    assert load_settings(flags={"worker.sabotage": "skip-dedup"}).worker.sabotage == "skip-dedup"
    with pytest.raises(ConfigError, match="refused with environment=prod"):
        load_settings(flags={"worker.sabotage": "skip-dedup", "environment": "prod"})


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ({"kafka.security_protocol": "SASL_SSL"}, "needs sasl_mechanism"),
        ({"kafka.sasl_mechanism": "PLAIN"}, "has no effect with security_protocol=PLAINTEXT"),
        (
            {"kafka.security_protocol": "SASL_SSL", "kafka.sasl_mechanism": "SCRAM-SHA-512"},
            "needs sasl_username and sasl_password",
        ),
        ({"kafka.librdkafka": {"acks": "1"}}, "'acks' cannot be passed through"),
        (
            {"kafka.librdkafka": {"enable.auto.commit": "true"}},
            "'enable.auto.commit' cannot be passed through",
        ),
    ],
)
def test_kafka_settings_that_cannot_work_are_refused(flags: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        load_settings(flags=flags)


def test_kafka_config_carries_security_and_pass_through(tmp_path: Path) -> None:
    settings = load_settings(
        flags={
            "kafka.bootstrap": "b:9093",
            "kafka.security_protocol": "sasl_ssl",
            "kafka.sasl_mechanism": "scram-sha-256",
            "kafka.sasl_username": "u",
            "kafka.sasl_password": "p",
            "kafka.ssl_ca": tmp_path / "ca.pem",
            "kafka.librdkafka": {"linger.ms": "7"},
        }
    )
    assert settings.kafka_config("admin") == {
        "bootstrap.servers": "b:9093",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "u",
        "sasl.password": "p",
        "ssl.ca.location": str(tmp_path / "ca.pem"),
        "linger.ms": "7",
        "client.id": "refold-admin",
        "reconnect.backoff.max.ms": RECONNECT_MS_MAX,
    }


def test_every_setting_can_be_read_back_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The names `refold settings` prints are the names that work: each default is set by its variable."""
    for row in rows(Settings()):
        value = row["value"]
        if value is None or isinstance(value, dict):
            continue
        monkeypatch.setenv(row["env"], str(value))
    again = {row["name"]: row["source"] for row in rows(Settings()) if row["value"] not in (None, {})}
    assert set(again.values()) == {f"env {env_name(name)}" for name in again}


def test_every_setting_is_described() -> None:
    for path, field in leaves(Settings):
        assert field.description, path
        assert field.description.endswith("."), path


def test_the_reference_page_is_current() -> None:
    page = (ROOT / "docs/reference/settings.md").read_text("utf-8")
    assert page == reference(), "run: refold settings --reference > docs/reference/settings.md"


def test_every_pattern_of_a_setting_is_said_in_words() -> None:
    """Goal: nobody has to read a regular expression to learn what a name may hold."""
    found = {
        rule.pattern
        for _, field in leaves(Settings)
        for rule in field.metadata
        if getattr(rule, "pattern", None) is not None
    }
    assert found == set(PATTERNS)
    with pytest.raises(ConfigError, match=r"letters, digits and \. _ - only, a letter or digit first"):
        load_settings(None, {"topic_prefix": "bad/prefix"})
