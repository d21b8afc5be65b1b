"""Alerts, dashboard and runbooks use names that exist, and lead to commands that exist."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from refold.cli.main import NOUNS, run
from refold.telemetry.names import METRICS

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "deploy/prometheus/rules/refold.yml"
RULE_TESTS = ROOT / "deploy/prometheus/tests/refold.test.yml"
DASHBOARD: dict[str, Any] = json.loads((ROOT / "deploy/grafana/dashboards/refold.json").read_text("utf-8"))
RUNBOOKS = ROOT / "docs/operating/runbooks"
ALERTS: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(RULES.read_text("utf-8"))["groups"] for rule in group["rules"]
]
#: Not ours: Prometheus' own, and what prometheus-client exports for every process.
FOREIGN = {"up", "process_resident_memory_bytes", "process_start_time_seconds"}
SERIES = FOREIGN | {
    f"{name}{suffix}"
    for name, metric in METRICS.items()
    for suffix in (("_bucket", "_count", "_sum") if metric.kind == "histogram" else ("",))
}
PANELS = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
EXPRESSIONS = [
    *((alert["alert"], alert["expr"]) for alert in ALERTS),
    *((panel["title"], target["expr"]) for panel in PANELS for target in panel["targets"]),
    *((item["name"], item["expr"]) for item in DASHBOARD["annotations"]["list"]),
]
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None,
    reason="promtool is not installed (Debian: apt install prometheus); CI has it",
)


def used(expression: str) -> set[str]:
    """Metric names in an expression: words that are followed by a selector, a range or nothing callable."""
    bare = re.sub(r'"[^"]*"|\{[^}]*\}|\[[^\]]*\]|\b(?:by|without|on|ignoring)\s*\([^)]*\)', " ", expression)
    words = set(re.findall(r"\b[a-z_]+\b(?!\s*\()", bare))
    return words - {"by", "and", "or", "unless", "on", "le", "e"}


def labels(expression: str) -> set[str]:
    inside = re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", expression)
    grouped = [
        word for group in re.findall(r"\bby\s*\(([^)]*)\)", expression) for word in re.findall(r"\w+", group)
    ]
    return {*inside, *grouped}


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS, ids=[where for where, _ in EXPRESSIONS])
def test_expressions_use_names_and_labels_that_exist(where: str, expression: str) -> None:
    names = used(expression)
    assert names, where
    assert names <= SERIES, f"{where}: {names - SERIES}"
    known = {"job", "instance", "le"}
    for name in names:
        base = re.sub(r"_(bucket|count|sum)$", "", name)
        known |= set(METRICS[base].labels if base in METRICS else ())  # type: ignore[index]
    assert labels(expression) <= known, f"{where}: {labels(expression) - known}"


def test_the_check_itself_notices_a_wrong_name() -> None:
    assert used('sum(rate(refold_nope_total{job="x"}[5m]))') - SERIES == {"refold_nope_total"}


@pytest.mark.parametrize("alert", ALERTS, ids=[alert["alert"] for alert in ALERTS])
def test_every_alert_has_a_runbook_and_says_what_happens(alert: dict[str, Any]) -> None:
    notes = alert["annotations"]
    assert alert["labels"]["severity"] in {"page", "ticket"}
    assert notes["summary"]
    assert notes["description"]
    assert notes["runbook_url"].endswith(f"docs/operating/runbooks/{alert['alert']}.md")
    text = (RUNBOOKS / f"{alert['alert']}.md").read_text("utf-8")
    assert text.startswith(f"# {alert['alert']}\n")
    assert re.findall(r"^## (\w+)$", text, re.MULTILINE) == ["Meaning", "Impact", "Diagnosis", "Mitigation"]


def test_every_runbook_has_an_alert_and_every_alert_a_test() -> None:
    names = {alert["alert"] for alert in ALERTS}
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == names
    tests = yaml.safe_load(RULE_TESTS.read_text("utf-8"))["tests"]
    fires = {case["alertname"] for test in tests for case in test["alert_rule_test"] if case["exp_alerts"]}
    assert fires == names


@needs_promtool
def test_promtool_accepts_rules_configuration_and_rule_tests(tmp_path: Path) -> None:
    # In the container the rules and the token are at absolute paths; here they are beside the copy.
    config = (ROOT / "deploy/prometheus/prometheus.yml").read_text("utf-8")
    (tmp_path / "token").write_text("t")
    config = config.replace("/run/secrets/bearer_token", str(tmp_path / "token"))
    (tmp_path / "prometheus.yml").write_text(config.replace("/etc/prometheus/rules", str(RULES.parent)))
    for command in (
        ["check", "rules", str(RULES)],
        ["check", "config", str(tmp_path / "prometheus.yml")],
        ["test", "rules", str(RULE_TESTS)],
    ):
        done = subprocess.run(["promtool", *command], capture_output=True, text=True, timeout=90, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_promtool_likes_our_metric_names() -> None:
    from refold.telemetry.metrics import PrometheusMetrics

    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=PrometheusMetrics().render(),
        capture_output=True,
        timeout=180,
        check=False,
    )
    ours = [line for line in done.stderr.decode().splitlines() if line.startswith("refold_")]
    assert ours == []


def test_the_first_row_answers_the_four_questions() -> None:
    row, *panels = DASHBOARD["panels"][:5]
    assert row["type"] == "row"
    assert [panel["title"] for panel in panels] == [
        "Is it fresh?",
        "Is it restoring?",
        "Is it duplicating or dropping?",
        "Is it about to run out?",
    ]
    assert {panel["gridPos"]["y"] for panel in panels} == {1}


def test_the_dashboard_can_be_provisioned() -> None:
    """Stable uid, unique panel ids, the data source a variable everywhere."""
    assert DASHBOARD["uid"] == "refold-overview"
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    for panel in PANELS:
        for source in (panel["datasource"], *(target["datasource"] for target in panel["targets"])):
            assert source == {"type": "prometheus", "uid": "${datasource}"}
    assert DASHBOARD["templating"]["list"][0]["type"] == "datasource"


def test_the_dashboard_shows_every_metric_but_the_named_few() -> None:
    """A metric nobody looks at is noise; those left out are for detail views."""
    shown = {
        re.sub(r"_(bucket|count|sum)$", "", name)
        for _, expression in EXPRESSIONS
        for name in used(expression)
    }
    # The info metric feeds the variables; one gauge repeats refold_partitions by partition.
    assert set(METRICS) - shown == {"refold_worker_info", "refold_partition_state"}


def commands_in(text: str) -> list[list[str]]:
    blocks = re.findall(r"```\n(.*?)```", text, re.DOTALL)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    return [shlex.split(line) for line in lines if line.startswith("refold ")]


DOCUMENTS = sorted((ROOT / "docs/operating").rglob("*.md"))
COMMANDS = [(path.name, words) for path in DOCUMENTS for words in commands_in(path.read_text("utf-8"))]


@pytest.mark.parametrize(
    ("page", "words"), COMMANDS, ids=[f"{page}: {' '.join(words)}" for page, words in COMMANDS]
)
def test_commands_of_the_operating_pages_exist_with_their_options(
    page: str, words: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Method: `--help` of the noun and verb must succeed and name every option used."""
    monkeypatch.setenv("COLUMNS", "200")
    noun = words[1]
    assert noun in NOUNS
    # `refold worker` runs one by itself, and has verbs besides.
    verbs = NOUNS[noun].verbs or noun == "worker"
    path = [word for word in words[1:3] if not word.startswith("-")] if verbs else words[1:2]
    code = run([*path, "--help"])
    text = capsys.readouterr().out
    assert code == 0
    for option in (word for word in words if word.startswith("--")):
        assert option.partition("=")[0] in text, option


def test_links_of_the_operating_pages_lead_somewhere() -> None:
    for path in DOCUMENTS:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", path.read_text("utf-8")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
