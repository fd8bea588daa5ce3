"""The metrics of a coordinator and of an observer, which run in this process."""

from collections.abc import Callable, Mapping, Sequence

from prometheus_client.registry import Collector

from kafka_why.metrics.http import Check
from kafka_why.metrics.process import Readings
from kafka_why.metrics.series import SeriesBounds
from kafka_why.metrics.service import Metrics
from kafka_why.service_state import GatewayState
from streaming.observing.service import Observer
from streaming.service.coordinator import Coordinator


def observer_metrics_of(
    observer: Observer, host: str, port: int, series: SeriesBounds | None = None
) -> Metrics:
    """Return an observer's metrics, which count its batches from now on."""
    metrics = Metrics(
        observer.options.client_config,
        observer.options.layout,
        host,
        port,
        Readings(
            status=lambda: observer.status.current,
            ticker_age_s=lambda: float("nan"),
            spark_restarts=lambda: observer.spark_restarts,
        ),
        log_rebalances=False,
        series=series,
    )
    observer.on_batch = metrics.observe_batch
    return metrics


def metrics_of(
    coordinator: Coordinator,
    host: str = "127.0.0.1",
    port: int = 0,
    *,
    log_rebalances: bool = True,
    with_members: bool = False,
    series: SeriesBounds | None = None,
    collectors: Sequence[Collector] = (),
    checks: Mapping[str, Check] | None = None,
    gateway: Callable[[], GatewayState] | None = None,
) -> Metrics:
    """Return a coordinator's metrics, which count its batches from now on."""
    metrics = Metrics(
        coordinator.options.client_config,
        coordinator.options.layout,
        host,
        port,
        Readings(
            status=lambda: coordinator.status.current,
            ticker_age_s=coordinator.ticker_age_s,
            spark_restarts=lambda: coordinator.spark_restarts,
            transactions=coordinator.transactions,
            share_state=coordinator.share_state,
            replica=coordinator.replica,
            gateway=gateway,
        ),
        log_rebalances=log_rebalances,
        with_members=with_members,
        series=series,
        collectors=collectors,
        checks=checks,
    )
    coordinator.on_batch = metrics.observe_batch
    return metrics
