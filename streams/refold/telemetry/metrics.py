"""Counters, gauges and histograms by name, backed by prometheus-client, or by nothing without it.

Used by the engine (through its port :class:`refold.engine.metrics.Metrics`) per commit and per chunk, by
the HTTP server per request. Never blocks, never raises on the hot path for a legal name; an unknown name or
label raises at the first call, so that a test finds it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, cast

from refold.errors import ConfigError, InvariantViolation
from refold.telemetry.names import METRICS, Metric, MetricName

#: Series per metric. A worker owns at most a few hundred partitions times six states; anything above is a
#: label that should not be one, and is dropped into one series called "other" instead of growing for ever.
SERIES_MAX: Final = 4_096
_OVERFLOW: Final = "other"


class Metrics(Protocol):
    """What parts of refold report to. ``name`` is a :data:`refold.telemetry.names.MetricName`."""

    def count(self, name: str, amount: float = 1, **labels: str) -> None: ...

    def observe(self, name: str, value: float, **labels: str) -> None: ...

    def gauge(self, name: str, value: float, **labels: str) -> None: ...

    def forget(self, name: str, **labels: str) -> None:
        """Drop one series: a partition that left must not keep its last lag for ever."""

    def render(self) -> bytes:
        """The Prometheus text of everything above; does not block."""


class NoMetrics:
    """Without the ``worker`` extra (the SDK, the CLI): nothing is kept."""

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        return None

    def observe(self, name: str, value: float, **labels: str) -> None:
        return None

    def gauge(self, name: str, value: float, **labels: str) -> None:
        return None

    def forget(self, name: str, **labels: str) -> None:
        return None

    def render(self) -> bytes:
        return b"# metrics need the extra: pip install 'refold[worker]'\n"


class PrometheusMetrics:
    """One registry per instance, so that tests and several workers in one process do not share series."""

    def __init__(self) -> None:
        try:
            import prometheus_client
        except ModuleNotFoundError:
            raise ConfigError('metrics need the extra "worker": pip install "refold[worker]"') from None
        self._registry = prometheus_client.CollectorRegistry()
        self._generate = cast(Callable[[Any], bytes], prometheus_client.generate_latest)
        makers: Mapping[str, Any] = {
            "counter": prometheus_client.Counter,
            "gauge": prometheus_client.Gauge,
            "histogram": prometheus_client.Histogram,
        }
        self._families: dict[str, Any] = {}
        for name, metric in METRICS.items():
            extra = {"buckets": metric.buckets} if metric.buckets else {}
            self._families[name] = makers[metric.kind](
                name, metric.advice, metric.labels, registry=self._registry, **extra
            )
        # labels() validates and locks; series are few and hot, so each is looked up once.
        self._series: dict[tuple[str, tuple[tuple[str, str], ...]], Any] = {}
        self._count: dict[str, int] = {}
        prometheus_client.ProcessCollector(registry=self._registry)
        prometheus_client.PlatformCollector(registry=self._registry)

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        self._child(name, "counter", labels).inc(amount)

    def observe(self, name: str, value: float, **labels: str) -> None:
        self._child(name, "histogram", labels).observe(value)

    def gauge(self, name: str, value: float, **labels: str) -> None:
        self._child(name, "gauge", labels).set(value)

    def forget(self, name: str, **labels: str) -> None:
        series = self._series.pop((name, tuple(labels.items())), None)
        if series is None:
            return
        self._count[name] -= 1
        self._families[name].remove(*(labels[label] for label in METRICS[cast(MetricName, name)].labels))

    def render(self) -> bytes:
        return self._generate(self._registry)

    def _child(self, name: str, kind: str, labels: dict[str, str]) -> Any:
        key = (name, tuple(labels.items()))
        series = self._series.get(key)
        if series is not None:
            return series
        metric = _legal(name, kind, labels)
        family = self._families[name]
        if metric.labels:
            if self._count.get(name, 0) >= SERIES_MAX:
                return family.labels(**dict.fromkeys(metric.labels, _OVERFLOW))
            self._count[name] = self._count.get(name, 0) + 1
            family = family.labels(**labels)
        self._series[key] = family
        return family


def create() -> Metrics:
    """Prometheus where it is installed, nothing otherwise."""
    try:
        return PrometheusMetrics()
    except ConfigError:
        return NoMetrics()


def _legal(name: str, kind: str, labels: Mapping[str, str]) -> Metric:
    metric = METRICS.get(cast(MetricName, name))
    if metric is None:
        raise InvariantViolation(f"{name!r} is not in the closed list of metrics (refold.telemetry.names)")
    if metric.kind != kind:
        raise InvariantViolation(f"{name} is a {metric.kind}, not a {kind}")
    if set(labels) != set(metric.labels):
        raise InvariantViolation(f"{name} has the labels {metric.labels}, not {tuple(labels)}")
    return metric
