"""How the groups of a coordinator are read."""

from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from operations.adopt.groups_at import GroupAdmin


class Refusing:
    """An admin client that describes no group named `dead` or `denied`, and has no offsets of `pending`."""

    def describe_consumer_groups(self, ids: Sequence[str], **_: Any) -> dict[str, Future[Any]]:
        errors = {"dead": KafkaError.GROUP_ID_NOT_FOUND, "denied": KafkaError.GROUP_AUTHORIZATION_FAILED}
        return {it: failed(errors[it]) if it in errors else completed(empty_group()) for it in ids}

    def list_consumer_group_offsets(
        self, asked: Sequence[ConsumerGroupTopicPartitions], **_: Any
    ) -> dict[str, Future[Any]]:
        (group_id,) = (one.group_id for one in asked)
        if group_id == "pending":
            return {group_id: failed(KafkaError.UNSTABLE_OFFSET_COMMIT)}
        return {group_id: completed(SimpleNamespace(topic_partitions=[TopicPartition("orders", 0, 5)]))}


def empty_group() -> SimpleNamespace:
    """Return a described group without members."""
    return SimpleNamespace(
        type=SimpleNamespace(name="CLASSIC"), state=SimpleNamespace(name="EMPTY"), members=[]
    )


def failed(code: int) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(KafkaException(KafkaError(code)))
    return future


def completed(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


def test_unreadable_group_has_the_error_as_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_clients, "librdkafka_admin", lambda _: Refusing())
    found = GroupAdmin(ClientConfig("127.0.0.1:1"), 1.0).read(["dead", "denied", "pending", "shop"])
    assert sorted(found) == ["denied", "pending", "shop"]
    assert found["denied"].error.startswith("127.0.0.1:1: ")
    assert (found["pending"].state, found["pending"].offsets) == ("Empty", {})
    assert found["pending"].error.startswith("127.0.0.1:1: ")
    assert (len(found["shop"].offsets), found["shop"].error) == (1, "")
