"""docker-compose.yml, Dockerfile and .env.example: what can be checked without Docker."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from refold.cli.main import NOUNS
from refold.settings import Settings, is_loopback

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
JOBS = {"topology"}
TOKEN = "a-token-of-enough-length"


def substituted(value: str, env: dict[str, str]) -> str:
    """Compose's ``${NAME:-default}`` and ``${NAME:?message}``."""

    def replace(match: re.Match[str]) -> str:
        name, kind, rest = match.groups()
        if env.get(name):
            return env[name]
        assert kind == ":-", f"{name} must be set: {rest}"
        return rest or ""

    return re.sub(r"\$\{(\w+)(?:(:-|:\?)([^}]*))?\}", replace, value)


def environment_of(service: str, **env: str) -> dict[str, str]:
    return {name: substituted(str(value), env) for name, value in SERVICES[service]["environment"].items()}


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    for name in [name for name in os.environ if name.startswith("REFOLD_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return monkeypatch


def test_the_services() -> None:
    assert set(SERVICES) == {"kafka", "topology", "registry", "worker-1", "worker-2", "prometheus"}


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_is_contained(name: str) -> None:
    """Pinned image, loopback ports, no new privileges, no capabilities; ours read-only."""
    service = SERVICES[name]
    tag = service["image"].rpartition(":")[2]
    assert re.fullmatch(r"v?\d+\.\d+\.\d+", tag), service["image"]
    for port in service.get("ports", []):
        address, published, target = port.split(":")
        assert is_loopback(address), port
        assert published.isdecimal()
        assert target.isdecimal()
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["cap_drop"] == ["ALL"]
    if service["image"].startswith("refold:"):
        assert service["read_only"] is True


def test_no_port_is_published_twice() -> None:
    ports = [port.split(":")[1] for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(ports) == len(set(ports))


@pytest.mark.parametrize("name", sorted(SERVICES.keys() - JOBS))
def test_every_service_that_stays_has_a_healthcheck(name: str) -> None:
    check = SERVICES[name]["healthcheck"]
    assert check["test"][0] == "CMD"
    assert {"interval", "timeout", "retries"} <= check.keys()


@pytest.mark.parametrize("name", SERVICES)
def test_dependencies_exist_and_wait_for_the_right_thing(name: str) -> None:
    for other, how in SERVICES[name].get("depends_on", {}).items():
        assert other in SERVICES
        if how["condition"] == "service_healthy":
            assert "healthcheck" in SERVICES[other]
        elif how["condition"] == "service_completed_successfully":
            assert SERVICES[other]["restart"] == "no"
        else:
            assert how["condition"] == "service_started"


def test_workers_start_after_the_topology() -> None:
    for name in ("worker-1", "worker-2"):
        assert SERVICES[name]["depends_on"]["topology"]["condition"] == "service_completed_successfully"
        assert SERVICES[name]["depends_on"]["kafka"]["condition"] == "service_healthy"


def test_volumes_are_named_and_workers_share_no_data_directory() -> None:
    used: dict[str, list[str]] = {}
    for name, service in SERVICES.items():
        for volume in service.get("volumes", []):
            source, target = volume.split(":")[:2]
            if source.startswith("./"):
                assert (ROOT / source).exists(), source
            else:
                assert source in COMPOSE["volumes"], source
            if target == "/var/lib/refold/data":
                used.setdefault(source, []).append(name)
    assert sorted(used.values()) == [["worker-1"], ["worker-2"]]


@pytest.mark.parametrize("name", ["topology", "registry", "worker-1", "worker-2"])
def test_the_environment_is_legal_settings(bare: pytest.MonkeyPatch, name: str) -> None:
    """Method: exactly these variables, read as the container would read them."""
    for variable, value in environment_of(name, REFOLD_WORKER__BEARER_TOKEN=TOKEN).items():
        bare.setenv(variable, value)
    settings = Settings()
    assert settings.kafka.bootstrap == "kafka:19092"
    if name.startswith("worker"):
        worker = settings.worker
        assert worker.instance == name
        assert worker.bearer_token is not None
        target = int(SERVICES[name]["ports"][0].split(":")[2])
        published = SERVICES[name]["ports"][0].rpartition(":")[0]
        assert worker.http_port == target
        assert worker.advertised_url == f"http://{published}"
        assert f":{target}/healthz/ready" in SERVICES[name]["healthcheck"]["test"][-1]
        assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) > worker.drain_seconds_max * 1.5


def test_the_token_has_no_default() -> None:
    with pytest.raises(AssertionError, match=r"copy \.env\.example"):
        environment_of("worker-1")


def test_commands_are_commands() -> None:
    for service in SERVICES.values():
        if service["image"].startswith("refold:"):
            assert service["command"][0] in NOUNS


def test_kafka_is_the_version_we_test_with() -> None:
    lock = json.loads((ROOT / "streams/refold/broker/jars.lock.json").read_text("utf-8"))
    version = next(root for root in lock["roots"] if root.startswith("org.apache.kafka:kafka_")).rpartition(
        ":"
    )[2]
    assert SERVICES["kafka"]["image"] == f"apache/kafka:{version}"
    assert SERVICES["kafka"]["environment"]["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false"


def test_the_example_environment_loads_and_serves_compose(bare: pytest.MonkeyPatch) -> None:
    lines = [
        line for line in (ROOT / ".env.example").read_text("utf-8").splitlines() if line and line[0] != "#"
    ]
    env = dict(line.split("=", 1) for line in lines)
    for name, value in env.items():
        bare.setenv(name, value)
    settings = Settings()
    assert settings.kafka.bootstrap == SERVICES["kafka"]["ports"][0].rpartition(":")[0]
    assert settings.worker.bearer_token == settings.client.bearer_token
    for service in ("topology", "registry", "worker-1", "worker-2"):
        environment_of(service, **env)
    assert COMPOSE["secrets"]["bearer_token"]["environment"] in env


def test_the_image_runs_as_nobody_in_particular() -> None:
    text = (ROOT / "deploy/docker/Dockerfile").read_text("utf-8")
    assert re.search(r"^USER 10001:10001$", text, re.MULTILINE)
    assert len(re.findall(r"^FROM ", text, re.MULTILINE)) == 2
    base = re.search(r"^ARG PYTHON=(\S+)$", text, re.MULTILINE)
    assert base is not None
    assert re.fullmatch(r"python:3\.\d+-slim-\w+", base[1])


def test_everything_the_image_copies_exists_and_passes_the_ignore_file() -> None:
    text = (ROOT / "deploy/docker/Dockerfile").read_text("utf-8")
    kept = {
        line[1:] for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line.startswith("!")
    }
    for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE):
        *sources, _ = [word for word in line.split() if not word.startswith("--")]
        for source in sources:
            assert (ROOT / source).exists(), source
            assert source in kept, source
