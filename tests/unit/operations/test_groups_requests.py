"""An administrator's requests: side by side for all groups. Those that change a group wait for its views."""

from collections.abc import Callable
from itertools import permutations
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from kafka_why.contract.kafka.history import DEAD
from kafka_why.contract.kafka.requests import ConsumerGroupDescribe, DescribeGroup, LeavingMember
from kafka_why.contract.kafka.share_requests import ShareGroupDescribe
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.contract.kafka.streams_responses import StreamsGroupDescribe
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.protocols.subscriptions import TopicPartition
from operations.admin.requests import GroupRequests
from state.kafka.classic_group import ClassicGroup
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.share_group import ShareGroup
from state.kafka.streams_group import StreamsGroup
from tests.harness.core_client import CoreClient
from tests.unit.kafka_why.test_page_coordinator import pending

GROUPS = [f"g-{n}" for n in range(20)]
PARTITION = TopicPartition("orders", 0)


CHANGES: dict[str, Callable[[CoreClient], Any]] = {
    "delete": lambda client: GroupRequests(client).delete_groups(GROUPS),
    "delete-offsets": lambda client: GroupRequests(client).delete_offsets(GROUPS, [PARTITION]),
    "reset-offsets": lambda client: GroupRequests(client).commit_offsets(
        {name: {PARTITION: 4} for name in GROUPS}
    ),
    "remove-members": lambda client: GroupRequests(client).remove_members(
        {name: [LeavingMember("m")] for name in GROUPS}, None
    ),
    "release": lambda client: GroupRequests(client).release_groups(GROUPS),
    "abort-pending": lambda client: GroupRequests(client).abort_pending(
        [replace(pending(0), group_id=name) for name in GROUPS]
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changing_requests_are_sent_together_and_wait_for_views(change: Callable[[CoreClient], Any]) -> None:
    client = CoreClient()
    outcomes = change(client)
    assert len(outcomes) == client.sent_first == len(GROUPS)
    assert [request.group_id for request in client.sent] == GROUPS
    assert {request.waits_for_views for request in client.sent} == {True}


def test_describe_requests_are_sent_together_and_do_not_wait_for_views() -> None:
    client = CoreClient()
    described, fetched = GroupRequests(client).describe(dict.fromkeys(GROUPS), with_offsets=True)
    assert described.keys() == fetched.keys() == set(GROUPS)
    assert client.sent_first == len(client.sent) == 5 * len(GROUPS)
    assert {request.waits_for_views for request in client.sent} == {UNSET}


def type_of(answer: GroupSnapshot | ErrorCode) -> str:
    assert isinstance(answer, GroupSnapshot)
    return answer.group_type


def test_describe_sends_the_groups_types_request_or_all_if_it_changed() -> None:
    made = {"classic": ClassicGroup, "consumer": ConsumerGroup, "share": ShareGroup, "streams": StreamsGroup}
    client = CoreClient(*(group(group_id=name, incarnation="i") for name, group in made.items()))
    types = dict(zip(made, made, strict=True))
    described, _ = GroupRequests(client).describe(types)
    assert {name: type_of(answer) for name, answer in described.items()} == types
    asked = [DescribeGroup, ConsumerGroupDescribe, ShareGroupDescribe, StreamsGroupDescribe]
    assert [type(it) for it in client.sent] == asked
    for name, known in permutations(made, 2):
        client.sent.clear()
        described, _ = GroupRequests(client).describe({name: known})
        assert type_of(described[name]) == name
        assert len(client.sent) == 1 + len(made)
    described, _ = GroupRequests(client).describe({"gone": "share"})
    gone = described["gone"]
    assert isinstance(gone, GroupSnapshot)
    assert gone.state == DEAD


def test_large_reset_is_split_into_requests_that_are_sent_together() -> None:
    client = CoreClient()
    offsets = {TopicPartition("wide", n): 4 for n in range(25_000)}
    outcomes = GroupRequests(client).commit_offsets({"a": offsets, "b": {}, "c": offsets})
    assert [request.group_id for request in client.sent] == ["a"] * 3 + ["c"] * 3
    assert client.sent_first == 6
    assert {name: len(errors) for name, errors in outcomes.items()} == {"a": 25_000, "b": 0, "c": 25_000}
