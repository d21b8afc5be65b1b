"""Metrics: the list is closed and described, series are bounded, the fallback keeps nothing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from refold.errors import InvariantViolation
from refold.telemetry import metrics as module
from refold.telemetry.metrics import NoMetrics, PrometheusMetrics, create
from refold.telemetry.names import METRIC_NAMES, METRICS, reference

ROOT = Path(__file__).resolve().parents[2]
KIND_OF_CALL = {"count": "counter", "gauge": "gauge", "observe": "histogram"}


def samples(metrics: PrometheusMetrics, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    return {
        tuple(sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
        if sample.name == name
    }


def test_list_and_definitions_are_the_same() -> None:
    assert set(METRIC_NAMES) == set(METRICS)
    assert len(set(METRIC_NAMES)) == len(METRIC_NAMES)


def test_every_name_is_reported_somewhere() -> None:
    """Goal: no panel and no alert stands on a metric nobody counts. Method: calls are found in the syntax."""
    reported: dict[str, set[str]] = {}
    for path in sorted((ROOT / "streams/refold").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in KIND_OF_CALL
                and node.args
                and isinstance(node.args[0], ast.Constant)
                and str(node.args[0].value).startswith("refold_")
            ):
                reported.setdefault(node.args[0].value, set()).add(KIND_OF_CALL[node.func.attr])
    assert reported == {name: {metric.kind} for name, metric in METRICS.items()}


@pytest.mark.parametrize("name", METRIC_NAMES)
def test_names_follow_the_rules(name: str) -> None:
    """Prefix, unit, _total for counters only, and no label that could name a session or person."""
    metric = METRICS[name]  # type: ignore[index]
    assert re.fullmatch(r"refold_[a-z_]+", name)
    assert name.endswith("_total") == (metric.kind == "counter")
    assert bool(metric.buckets) == (metric.kind == "histogram")
    assert metric.advice.endswith(".")
    assert set(metric.labels) <= {
        "code",
        "kind",
        "reason",
        "reducer",
        "state",
        "before",
        "partition",
        "outcome",
        "route",
        "status",
        "version",
        "instance",
    }


def test_the_page_is_current() -> None:
    page = (ROOT / "docs/reference/metrics.md").read_text("utf-8")
    assert page == reference(), "run: python -m refold.telemetry.names > docs/reference/metrics.md"


def test_values_arrive_in_the_text() -> None:
    metrics = PrometheusMetrics()
    metrics.count("refold_records_folded_total", 3)
    metrics.count("refold_records_folded_total")
    metrics.count("refold_rejected_total", code="bad_key")
    metrics.gauge("refold_lag_records", 7, partition="2")
    metrics.observe("refold_commit_seconds", 0.004)
    assert samples(metrics, "refold_records_folded_total") == {(): 4}
    assert samples(metrics, "refold_rejected_total") == {(("code", "bad_key"),): 1}
    assert samples(metrics, "refold_lag_records") == {(("partition", "2"),): 7}
    assert samples(metrics, "refold_commit_seconds_bucket")[(("le", "0.005"),)] == 1
    assert samples(metrics, "refold_commit_seconds_bucket")[(("le", "0.003"),)] == 0


def test_instances_do_not_share_series() -> None:
    one, other = PrometheusMetrics(), PrometheusMetrics()
    one.count("refold_commits_total")
    assert samples(other, "refold_commits_total") == {(): 0}


def test_a_partition_that_left_leaves_no_series() -> None:
    metrics = PrometheusMetrics()
    metrics.gauge("refold_lag_records", 7, partition="2")
    metrics.forget("refold_lag_records", partition="2")
    metrics.forget("refold_lag_records", partition="2")
    assert samples(metrics, "refold_lag_records") == {}


def test_series_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A label that should not be one ends in a single series instead of growing for ever."""
    monkeypatch.setattr(module, "SERIES_MAX", 3)
    metrics = PrometheusMetrics()
    for number in range(10):
        metrics.count("refold_rejected_total", code=f"c{number}")
    found = samples(metrics, "refold_rejected_total")
    assert len(found) == 4
    assert found[(("code", "other"),)] == 7


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda m: m.count("refold_made_up_total"), "closed list"),
        (lambda m: m.gauge("refold_commits_total", 1), "is a counter"),
        (lambda m: m.count("refold_rejected_total"), "has the labels"),
        (lambda m: m.count("refold_commits_total", session="s"), "has the labels"),
    ],
)
def test_wrong_use_is_found_at_the_first_call(call: object, problem: str) -> None:
    with pytest.raises(InvariantViolation, match=problem):
        call(PrometheusMetrics())  # type: ignore[operator]


def test_without_the_extra_nothing_is_kept() -> None:
    """Method: a process in which prometheus_client cannot be imported."""
    code = (
        "import sys; sys.modules['prometheus_client'] = None\nfrom refold.telemetry.metrics import NoMetrics,"
        " create\nm = create(); assert isinstance(m, NoMetrics); m.count('refold_commits_total');"
        " print(m.render().decode())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=True
    )
    assert "refold[worker]" in done.stdout
    assert not isinstance(create(), NoMetrics)
