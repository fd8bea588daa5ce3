"""The metrics of a real coordinator, scraped over HTTP: a group, its commits, its lag, its log lines."""

import re
import urllib.request
from collections.abc import Iterator, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from clients.coordinator_client import CoordinatorClient
from connections import kafka_clients
from embedded.broker import EmbeddedBroker
from insight.metrics.service import Metrics, metrics_of
from state.errors import ErrorCode
from state.kafka.requests import CommittedPartition, CommittedTopic, OffsetCommit
from streaming.service.coordinator import Coordinator
from streaming.service.options import Options
from streaming.service.status import Phase
from tests.e2e.harness import (
    QUICK_SPARK,
    START_TIMEOUT_S,
    Member,
    create_topic,
    history_of,
    new_layout,
    stable_member,
    wait_until,
)

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

SETTINGS = {"group.initial.rebalance.delay.ms": "100"}
SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$", re.MULTILINE)
MANAGER = "kafka_coordinator_group_groupmetadatamanager"


@pytest.fixture(scope="module")
def running(
    broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Coordinator, Metrics]]:
    """A coordinator, and its metrics from its first batch on."""
    folder: Path = tmp_path_factory.mktemp("coordinator")
    options = Options(
        broker.client_config, folder, new_layout(), SETTINGS, tick_interval_ms=50, spark=QUICK_SPARK
    )
    coordinator = Coordinator(options)
    metrics = metrics_of(coordinator)
    with metrics, coordinator:
        metrics.follow()
        ready = coordinator.status.wait_for(Phase.READY, timeout_s=START_TIMEOUT_S)
        assert ready, coordinator.status.current
        yield coordinator, metrics


def scrape(metrics: Metrics) -> dict[str, float]:
    """The samples, each by its name and labels as the text has them."""
    with urllib.request.urlopen(metrics.url, timeout=10) as response:
        text = response.read().decode()
    return {
        f"{name}{{{labels}}}" if labels else name: float(value)
        for name, labels, value in SAMPLE.findall(text)
    }


def commit(client: CoordinatorClient, member: Member, topic: str, offsets: dict[int, int]) -> ErrorCode:
    """The error code of the answer as a whole."""
    partitions = [CommittedPartition(p, offset) for p, offset in offsets.items()]
    request = OffsetCommit(
        **client.header(member.group_id, 8),
        generation_id=1,
        member_id=member.member_id,
        topics=[CommittedTopic(topic, partitions)],
    )
    return client.send(request).result().error_code


def test_a_group_is_seen_from_its_beginning_to_its_lag(
    broker: EmbeddedBroker, running: tuple[Coordinator, Metrics]
) -> None:
    coordinator, metrics = running
    servers, layout = broker.client_config, coordinator.options.layout
    topic = f"{layout.requests_topic}-purchases"
    create_topic(servers, topic, 2, {})
    producer = kafka_clients.producer(servers)
    for _ in range(10):
        producer.send(topic, b"purchase", partition=0)
    producer.flush()
    producer.close()
    wait_until(lambda: scrape(metrics).get(f"{MANAGER}_numgroups") == 0, "the topics are read to the end")
    with CoordinatorClient(servers, layout, client_id="member") as client, capture_logs() as logs:
        member = stable_member(client, "orders")
        assert commit(client, member, topic, {0: 4, 1: 0}) is ErrorCode.NONE
        assert commit(client, member, topic, {0: 7}) is ErrorCode.NONE
        # The topics are read side by side, so one may have what another has not yet.
        expected = samples_of_group(topic)
        wait_until(lambda: expected.items() <= scrape(metrics).items(), "the samples of the last commit")
        wait_until(lambda: len(sentences_of(logs)) >= 3, "the sentences of the rebalance")
    check_service(metrics)
    started = next(e for e in history_of(servers, layout, "orders") if e.type == "PreparingRebalance")
    sentences = sentences_of(logs)
    assert [line["event"] for line in sentences] == [
        "Preparing to rebalance group orders in state PreparingRebalance with old generation 0 "
        f"(reason: new member {member.member_id} joined)",
        "Stabilized group orders generation 1 with 1 members",
        f"Assignment received from leader {member.member_id} for group orders for generation 1. "
        "The group has 1 members.",
    ]
    assert sentences[0]["member"] == member.member_id
    assert (sentences[0]["at_ms"], sentences[0]["cause"]) == (started.at_ms, started.cause)


def sentences_of(logs: Sequence[MutableMapping[str, Any]]) -> list[MutableMapping[str, Any]]:
    return [line for line in logs if "group orders" in line["event"]]


def samples_of_group(topic: str) -> dict[str, float]:
    of_topic = f'consumergroup="orders",topic="{topic}"'
    return {
        f'kafka_consumergroup_lag{{consumergroup="orders",partition="0",topic="{topic}"}}': 3,
        f"{MANAGER}_numgroups": 1,
        f"{MANAGER}_numgroupsstable": 1,
        f"{MANAGER}_numoffsets": 2,
        'kafka_consumergroup_members{consumergroup="orders"}': 1,
        f"kafka_consumergroup_current_offset_sum{{{of_topic}}}": 7,
        f"kafka_consumergroup_lag_sum{{{of_topic}}}": 3,
        "kafka_server_group_coordinator_metrics_offset_commit_count": 3,
        "kafka_server_group_coordinator_metrics_group_completed_rebalance_count": 1,
        'group_coordinator_responses_total{error_code="MEMBER_ID_REQUIRED",type="JoinGroup"}': 1,
        'group_coordinator_responses_total{error_code="NONE",type="OffsetCommit"}': 2,
        "group_coordinator_rebalance_duration_seconds_count": 1,
    }


def check_service(metrics: Metrics) -> None:
    samples = scrape(metrics)
    assert samples['group_coordinator_phase{phase="ready"}'] == 1
    assert samples["group_coordinator_alarm"] == 0
    assert samples["group_coordinator_rows_dropped_by_watermark_total"] == 0
    # Every batch was counted. The id is read before the histogram, so more may have come in between.
    batches = samples["group_coordinator_batch_duration_seconds_count"]
    assert batches > samples["group_coordinator_last_batch_id"]
    wait_until(lambda: scrape(metrics)["group_coordinator_last_batch_id"] >= batches - 1, "the last batch")
    assert 0 < samples["group_coordinator_event_time_lag_seconds"] < 60
    assert 0 <= samples["group_coordinator_backlog_records"] < 10_000
    assert samples["group_coordinator_ticker_age_seconds"] < 60
    assert (
        sum(count for name, count in samples.items() if name.startswith("group_coordinator_dead_letters"))
        == 0
    )
