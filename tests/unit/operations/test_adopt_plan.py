"""The plan of a move to another coordinator: groups that move, reasons why others stay, and their reading."""

from collections.abc import Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka import TopicPartition as ConfluentPartition

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.protocols.subscriptions import TopicPartition
from operations.adopt.groups_at import AdoptDecision, CommittedPosition, FoundGroup, GroupAdmin, plan

P0, P1 = TopicPartition("orders", 0), TopicPartition("orders", 1)
AT_5, AT_7 = CommittedPosition(5, 1, "by a"), CommittedPosition(7, None, "")


def group(
    offsets: dict[TopicPartition, CommittedPosition], *, members: int = 0, kind: str = "classic"
) -> FoundGroup:
    return FoundGroup("g", kind, "Stable" if members else "Empty", members, offsets)


@pytest.mark.parametrize(
    ("here", "there", "overwrite", "outcome", "offsets"),
    [
        (group({P0: AT_5, P1: AT_7}), group({P0: AT_5}), False, AdoptDecision.MOVE, {P1: AT_7}),
        (group({P0: AT_5}), None, False, AdoptDecision.MOVE, {P0: AT_5}),
        (group({P0: AT_5, P1: AT_5}), group({P0: AT_7}), True, AdoptDecision.MOVE, {P0: AT_5, P1: AT_5}),
        (group({P0: AT_5}), group({P0: AT_5, P1: AT_7}), False, AdoptDecision.SAME, {}),
        (group({}), None, False, AdoptDecision.EMPTY, {}),
    ],
)
def test_offsets_missing_at_the_other_coordinator_are_moved(
    here: FoundGroup,
    there: FoundGroup | None,
    overwrite: bool,
    outcome: AdoptDecision,
    offsets: dict[TopicPartition, CommittedPosition],
) -> None:
    decided = plan(here, there, overwrite=overwrite)
    assert (decided.outcome, decided.offsets) == (outcome, offsets)


@pytest.mark.parametrize(
    ("here", "there", "reason"),
    [
        (group({P0: AT_5}, members=2), None, "has 2 members: stop them first"),
        (group({P0: AT_5}), group({}, members=1), "has 1 members at the other coordinator"),
        (group({P0: AT_5}, kind="share"), None, "is a share group"),
        (FoundGroup("g", error="UNSTABLE"), None, "UNSTABLE"),
        (group({P0: AT_5}), FoundGroup("g", "classic", "Empty", error="NOT_COORDINATOR"), "NOT_COORDINATOR"),
        (
            group({P0: AT_5, P1: AT_5}),
            group({P0: AT_7}),
            "has other offsets of 1 partitions: see --overwrite",
        ),
    ],
)
def test_adoption_is_refused_with_a_reason(here: FoundGroup, there: FoundGroup | None, reason: str) -> None:
    decided = plan(here, there, overwrite=False)
    assert decided.outcome is AdoptDecision.REFUSED
    assert decided.reason.endswith(reason)


class Refusing:
    """An admin client that describes no group named `dead` or `denied`, and has no offsets of `pending`."""

    def describe_consumer_groups(self, ids: Sequence[str], **_: Any) -> dict[str, Future[Any]]:
        errors = {"dead": KafkaError.GROUP_ID_NOT_FOUND, "denied": KafkaError.GROUP_AUTHORIZATION_FAILED}
        kind, state = SimpleNamespace(name="CLASSIC"), SimpleNamespace(name="EMPTY")
        empty = SimpleNamespace(type=kind, state=state, members=[])
        return {it: failed(errors[it]) if it in errors else completed(empty) for it in ids}

    def list_consumer_group_offsets(
        self, asked: Sequence[ConsumerGroupTopicPartitions], **_: Any
    ) -> dict[str, Future[Any]]:
        (group_id,) = (one.group_id for one in asked)
        if group_id == "pending":
            return {group_id: failed(KafkaError.UNSTABLE_OFFSET_COMMIT)}
        return {group_id: completed(SimpleNamespace(topic_partitions=[ConfluentPartition("orders", 0, 5)]))}


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
