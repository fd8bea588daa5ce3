"""Lags in records and in time, and harmful lags, of real consumers that stop."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager

import pytest
from confluent_kafka import Consumer, TopicPartition

from embedded.broker import EmbeddedBroker
from kafka_why.connections import kafka_clients
from kafka_why.contract.layout import TopicLayout
from kafka_why.lag import definitions
from kafka_why.lag.brokers import PRECISION_MS
from kafka_why.metrics.metrics_state import MetricsState
from kafka_why.metrics.series import GroupLags
from kafka_why.metrics.service import MetricsFollower
from tests.e2e.gateway_clients import new_group
from tests.e2e.harness import create_topic, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

RECORDS, OFFSET = 60, 20
STUCK_MS = 6_000
"""Instead of two minutes."""
MINUTE_MS = 60_000


@contextmanager
def consumer_of(gateway: str, group_id: str) -> Iterator[None]:
    """Let a consumer have the partition of the topic with the group's name, and commit OFFSET."""
    settings = {"bootstrap.servers": gateway, "group.id": group_id, "enable.auto.commit": False}
    with closing(Consumer({**settings, "auto.offset.reset": "earliest"})) as consumer:
        consumer.subscribe([group_id])

        def is_assigned() -> bool:
            consumer.poll(0.1)
            return bool(consumer.assignment())

        wait_until(is_assigned, "the consumer has its partition")
        consumer.commit(offsets=[TopicPartition(group_id, 0, OFFSET)], asynchronous=False)
        yield


def test_paused_consumer_counts_as_stuck_only_if_new_records_arrive(
    broker: EmbeddedBroker, layout: TopicLayout, gateway: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each topic has a record a minute over the last hour. Only one of them gets more records."""
    monkeypatch.setattr(definitions, "STUCK_MS", STUCK_MS)
    stuck, paused = groups = [new_group(), new_group()]
    first_ms = time.time_ns() // 1_000_000 - RECORDS * MINUTE_MS
    state = MetricsState(layout)
    with ExitStack() as stack:
        producer = stack.enter_context(closing(kafka_clients.producer(broker.client_config)))
        for topic in groups:
            create_topic(broker.client_config, topic, 1, {})
            for minute in range(RECORDS):
                producer.send(topic, b"record", partition=0, timestamp_ms=first_ms + minute * MINUTE_MS)
        producer.flush()
        for group_id in groups:
            stack.enter_context(consumer_of(gateway, group_id))
        follower = MetricsFollower(broker.client_config, layout, state, lambda _: None)
        follower.start()
        stack.callback(follower.stop)

        def lags_of(group_id: str) -> GroupLags | None:
            return (state.numbers().lags or {}).get(group_id)

        for group_id in groups:

            def has_time(group_id: str = group_id) -> bool:
                found = lags_of(group_id)
                return found is not None and found.lags[group_id, 0].ms is not None

            wait_until(has_time, "the record's time is known")
            found = lags_of(group_id)
            assert found is not None
            lag = found.lags[group_id, 0]
            assert lag.records == RECORDS - OFFSET
            assert lag.ms is not None
            assert 0 <= lag.ms - (RECORDS - OFFSET - 1) * MINUTE_MS <= PRECISION_MS

        def is_stuck(group_id: str) -> bool:
            found = lags_of(group_id)
            return found is not None and (group_id, 0) in found.harmful_lags.stuck

        def is_found() -> bool:
            producer.send(stuck, b"record", partition=0).get(30)
            return is_stuck(stuck)

        wait_until(is_found, "the stuck partition")
        assert not is_stuck(paused)
