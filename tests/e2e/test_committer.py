"""Offset commits of a RocketMQ consumer: one request at a time, and no processed record is left out."""

from collections.abc import Iterator

import pytest

from clients.coordinator_client import CoordinatorClient
from clients.rocketmq.broker import Committer
from embedded.broker import EmbeddedBroker
from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.requests import OffsetCommit
from kafka_why.contract.kafka.responses import OffsetCommitResponse
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.protocols.subscriptions import TopicPartition
from tests.e2e.harness import new_layout, wait_until
from tests.e2e.other_side import OtherSide, PendingRequest

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

PATIENCE_S = 30.0
ZERO, ONE = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
def layout() -> TopicLayout:
    return new_layout(request_partitions=1, reply_partitions=1)


@pytest.fixture
def other_side(broker: EmbeddedBroker, layout: TopicLayout) -> Iterator[OtherSide]:
    """Here the test is the coordinator."""
    with OtherSide(broker.client_config, layout) as other_side:
        yield other_side


@pytest.fixture
def committer(
    other_side: OtherSide, broker: EmbeddedBroker, layout: TopicLayout
) -> Iterator[tuple[Committer, list[str]]]:
    """Yield a committer, and what it tells."""
    told: list[str] = []
    with CoordinatorClient(broker.client_config, layout, client_id="c") as client:
        yield Committer(client, "g", told.append), told


def _next_commit(other_side: OtherSide) -> tuple[PendingRequest, dict[TopicPartition, int]]:
    asked = other_side.next()
    assert isinstance(asked.request, OffsetCommit)
    return asked, {
        TopicPartition(topic.name, p.partition_index): p.committed_offset
        for topic in asked.request.topics
        for p in topic.partitions
    }


def test_commits_gather_while_one_is_under_way(
    other_side: OtherSide, committer: tuple[Committer, list[str]]
) -> None:
    commits, told = committer
    commits.commit({ZERO: 1})
    asked, offsets = _next_commit(other_side)
    assert offsets == {ZERO: 1}
    commits.commit({ZERO: 2})
    commits.commit({ONE: 5, ZERO: 3})
    assert not commits.flush(0)
    other_side.answer(asked, OffsetCommitResponse)
    asked, offsets = _next_commit(other_side)
    assert offsets == {ZERO: 3, ONE: 5}
    other_side.answer(asked, OffsetCommitResponse)
    assert commits.flush(PATIENCE_S)
    assert not told


def test_what_a_failed_commit_carried_goes_with_the_next(
    other_side: OtherSide, committer: tuple[Committer, list[str]]
) -> None:
    commits, told = committer
    commits.commit({ZERO: 1, ONE: 1})
    asked, _ = _next_commit(other_side)
    commits.commit({ZERO: 2})
    other_side.answer(asked, OffsetCommitResponse, error_code=ErrorCode.REBALANCE_IN_PROGRESS)
    wait_until(lambda: bool(told), "the refusal is told")
    assert told == ["offsets were not committed, records may be processed again: REBALANCE_IN_PROGRESS"]
    commits.commit({ZERO: 3})
    asked, offsets = _next_commit(other_side)
    assert offsets == {ZERO: 3, ONE: 1}
    other_side.answer(asked, OffsetCommitResponse)
    assert commits.flush(PATIENCE_S)
