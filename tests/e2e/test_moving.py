"""The requests that a move would leave behind are counted on a real broker."""

import pytest

from embedded.broker import EmbeddedBroker
from kafka_why.connections import kafka_clients
from kafka_why.contract.codec import clock_record, encode, pack
from kafka_why.contract.kafka.requests import TopicMetadata
from streaming.service.stored_state.moving import count_unread
from tests.e2e.harness import create_topic, new_layout
from tests.spark.log import heartbeat

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]


def test_only_client_requests_behind_the_offsets_are_counted(broker: EmbeddedBroker) -> None:
    topic = new_layout().requests_topic
    create_topic(broker.client_config, topic, 3, {})
    request = encode(heartbeat("g", "m"))
    producer = kafka_clients.producer(broker.client_config)
    for partition in (0, 1):
        for key, value in (
            (b"g", request),
            (b"g", request),
            (None, clock_record(1)),
            (b"g", encode(TopicMetadata(group_id="g", topics={}))),
            (b"1", pack([request, request, request])),
            (b"g", b"no request, and answered or dead-lettered like one"),
        ):
            producer.send(topic, key=key, value=value, partition=partition)
    producer.close()
    assert count_unread(broker.client_config, topic, {0: 1, 1: 6, 2: 0}) == {0: 5, 1: 0, 2: 0}
