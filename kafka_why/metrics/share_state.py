"""Metrics of the tasks of share groups (row SM4)."""

from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, SummaryMetricFamily

from kafka_why.contract.service.share_state import ShareStateSummary
from kafka_why.metrics.collector import OWN, CheapCollector


class ShareStateCollector(CheapCollector):
    """The tasks of share groups at the share coordinators, as the thread that carries them out saw them."""

    def __init__(self, summary: Callable[[], ShareStateSummary]) -> None:
        self._summary = summary

    def collect(self) -> Iterator[Metric]:
        summary = self._summary()
        yield GaugeMetricFamily(
            f"{OWN}_share_state_tasks",
            "Tasks for the share coordinators that are open.",
            summary.tasks,
        )
        yield GaugeMetricFamily(
            f"{OWN}_share_state_oldest_age_seconds",
            "Age of the oldest open task, 0 if there is none.",
            summary.oldest_age_ms / 1000,
        )
        done = CounterMetricFamily(
            f"{OWN}_share_state_partitions",
            "Partitions whose outcome was appended, by what was done: their state was initialized, deleted, "
            "or found with a later state epoch.",
            labels=("done",),
        )
        done.add_metric(("initialized",), summary.initialized)
        done.add_metric(("adopted",), summary.adopted)
        done.add_metric(("deleted",), summary.deleted)
        yield done
        failures = CounterMetricFamily(
            f"{OWN}_share_state_failures",
            "Tries for a partition that failed, by error code; lost: without an answer.",
            labels=("code",),
        )
        for code, count in summary.failures:
            failures.add_metric((code,), count)
        yield failures
        yield SummaryMetricFamily(
            f"{OWN}_share_state_task_duration_seconds",
            "From the asking to the outcomes on the requests topic.",
            count_value=summary.told_tasks,
            sum_value=summary.told_ms / 1000,
        )
