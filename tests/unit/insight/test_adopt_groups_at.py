"""How the groups of a coordinator are read."""

from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException, TopicPartition

from connections import kafka_clients
from connections.client_config import ClientConfig
from insight.adopt.groups_at import GroupsAt
from insight.adopt.plan import Committed

AT_ONCE = 100


class Admin:
    """An admin client whose answers about offsets only come when AT_ONCE groups wait for theirs, or all that
    are left.
    """

    def __init__(self, groups: int) -> None:
        self._left = groups
        self._waiting: list[tuple[str, Future[Any]]] = []

    def describe_consumer_groups(self, ids: Sequence[str], **_: Any) -> dict[str, Future[Any]]:
        return {group_id: completed(empty_group()) for group_id in ids}

    def list_consumer_group_offsets(
        self, asked: Sequence[ConsumerGroupTopicPartitions], **_: Any
    ) -> dict[str, Future[Any]]:
        (one,) = asked
        future: Future[Any] = AtOnce()
        self._waiting.append((one.group_id, future))
        if len(self._waiting) == min(AT_ONCE, self._left):
            for group_id, waiting in self._waiting:
                offset = TopicPartition("orders", 0, int(group_id))
                waiting.set_result(SimpleNamespace(topic_partitions=[offset]))
            self._left -= len(self._waiting)
            self._waiting.clear()
        return {one.group_id: future}


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


class AtOnce(Future[Any]):
    """Waiting for it would be waiting for ever."""

    def result(self, timeout: float | None = None) -> Any:
        assert self.done(), "its answer is waited for before the other groups are asked about"
        return super().result(timeout)


def empty_group() -> SimpleNamespace:
    """A described group without members."""
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


def test_the_offsets_of_a_hundred_groups_are_requested_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Admin(150)
    monkeypatch.setattr(kafka_clients, "librdkafka_admin", lambda _: admin)
    ids = [str(number) for number in range(150)]
    found = GroupsAt(ClientConfig("127.0.0.1:1"), 1.0).read(ids)
    offsets = [list(group.offsets.values()) for group in found.values()]
    assert list(found) == ids
    assert offsets == [[Committed(number, None, "")] for number in range(150)]


def test_a_group_that_cannot_be_read_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kafka_clients, "librdkafka_admin", lambda _: Refusing())
    found = GroupsAt(ClientConfig("127.0.0.1:1"), 1.0).read(["dead", "denied", "pending", "shop"])
    assert sorted(found) == ["denied", "pending", "shop"]
    assert found["denied"].error.startswith("127.0.0.1:1: ")
    assert (found["pending"].state, found["pending"].offsets) == ("Empty", {})
    assert found["pending"].error.startswith("127.0.0.1:1: ")
    assert (len(found["shop"].offsets), found["shop"].error) == (1, "")
