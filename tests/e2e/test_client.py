"""The client on a real broker. The tests write the answers, so that they can be late, double or broken."""

from collections.abc import Iterator
from concurrent.futures import Future
from itertools import count

import pytest

from clients.coordinator_client import CoordinatorClient
from clients.pending import RequestTooLarge
from embedded.broker import EmbeddedBroker
from kafka_why.contract.codec import NO_PACKS, pack_key, slot_of
from kafka_why.contract.early_answers import ReplicaId
from kafka_why.contract.kafka.requests import Heartbeat, Protocol
from kafka_why.contract.kafka.responses import HeartbeatResponse
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import ErrorCode, ErrorResponse
from kafka_why.partitioner import partition_of
from kafka_why.topic_reader import TopicsMissing, layout_on
from tests.e2e.harness import OtherSide
from tests.harness.member_requests import heartbeat, join_group

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

PATIENCE_S = 30.0
REPLICA = ReplicaId(3, 1)
_prefixes = (f"client-{number}" for number in count())


@pytest.fixture
def layout() -> TopicLayout:
    return TopicLayout.named(next(_prefixes), request_partitions=3, reply_partitions=2)


@pytest.fixture
def other_side(broker: EmbeddedBroker, layout: TopicLayout) -> Iterator[OtherSide]:
    with OtherSide(broker.client_config, layout) as other_side:
        yield other_side


@pytest.fixture
def client(broker: EmbeddedBroker, layout: TopicLayout, other_side: OtherSide) -> Iterator[CoordinatorClient]:
    with CoordinatorClient(broker.client_config, layout, client_id="me") as client:
        yield client


def beat(client: CoordinatorClient, group_id: str = "g") -> Future[HeartbeatResponse]:
    return heartbeat(client, group_id, 3, "m")


def test_request_is_written_to_its_groups_partition(client: CoordinatorClient, other_side: OtherSide) -> None:
    for group_id in ("orders", "цены", ""):
        beat(client, group_id)
        asked = other_side.next()
        assert asked.key == pack_key(slot_of(group_id))
        assert asked.partition == partition_of(group_id, 3)
        assert isinstance(asked.request, Heartbeat)
        assert (asked.request.group_id, asked.request.client_id) == (group_id, "me")
        assert asked.request.reply_partition == client.reply_partition


def test_requests_queued_behind_an_unfinished_write_share_one_record(
    client: CoordinatorClient, other_side: OtherSide
) -> None:
    """Their answers share a record, too. A request is identified by its number in the record."""
    futures = [beat(client, "g") for _ in range(500)]
    asked = [other_side.next() for _ in futures]
    assert [one.request.correlation_id for one in asked] == sorted(
        (one.request.correlation_id for one in asked), key=lambda id_: int(id_.rsplit("-", 1)[1])
    ), "in the order in which they were sent"
    records = {one.id.split("#")[0] for one in asked}
    assert len(records) < len(asked) / 4
    other_side.answer_packed(asked, HeartbeatResponse)
    assert {future.result(PATIENCE_S).request for future in futures} == {one.id for one in asked}


def test_coordinator_that_refuses_packed_records_gets_each_request_as_its_own_record(
    client: CoordinatorClient, other_side: OtherSide
) -> None:
    futures = [beat(client, f"group-{number}") for number in range(3)]
    for packed in [other_side.next() for _ in futures]:
        assert "#" in packed.id
        other_side.answer(packed, ErrorResponse, error_code=ErrorCode.INVALID_REQUEST, error_message=NO_PACKS)
    for _ in futures:
        single = other_side.next()
        assert (single.key, "#" in single.id) == (single.request.group_id.encode(), False)
        other_side.answer(single, HeartbeatResponse)
    assert {future.result(PATIENCE_S).error_code for future in futures} == {ErrorCode.NONE}


def test_answers_of_a_replaced_replica_are_ignored(client: CoordinatorClient, other_side: OtherSide) -> None:
    later = ReplicaId(REPLICA.owner_epoch + 1, 0)
    first, second = beat(client, "g"), beat(client, "h")
    of_first, of_second = other_side.next(), other_side.next()
    other_side.mark(client.reply_partition, later)
    for asked in (of_first, of_second):
        other_side.answer(asked, HeartbeatResponse, early=REPLICA, error_code=ErrorCode.UNKNOWN_MEMBER_ID)
    other_side.answer(of_first, HeartbeatResponse)
    other_side.answer(of_second, HeartbeatResponse, early=later)
    for future in (first, second):
        assert future.result(PATIENCE_S).error_code is ErrorCode.NONE


def test_clients_sharing_a_reply_partition_get_only_their_own_answers(
    broker: EmbeddedBroker, layout: TopicLayout, other_side: OtherSide
) -> None:
    with (
        CoordinatorClient(broker.client_config, layout, client_id="a", reply_partition=1) as a,
        CoordinatorClient(broker.client_config, layout, client_id="b", reply_partition=1) as b,
    ):
        futures = {"a": beat(a), "b": beat(b)}
        for _ in futures:
            asked = other_side.next()
            code = ErrorCode.NONE if asked.request.client_id == "a" else ErrorCode.UNKNOWN_MEMBER_ID
            other_side.answer(asked, HeartbeatResponse, error_code=code)
        assert futures["a"].result(PATIENCE_S).error_code is ErrorCode.NONE
        assert futures["b"].result(PATIENCE_S).error_code is ErrorCode.UNKNOWN_MEMBER_ID


def test_foreign_records_among_the_answers_are_ignored(
    client: CoordinatorClient, other_side: OtherSide
) -> None:
    first = beat(client)
    asked = other_side.next()
    other_side.write(client.reply_partition, b"\xff not JSON")
    other_side.write(client.reply_partition, b'{"type":"Surprise"}')
    for _ in range(2):
        other_side.answer(asked, HeartbeatResponse)
    other_side.answer(asked, HeartbeatResponse, correlation_id="somebody-elses", request="requests-0-999")
    assert first.result(PATIENCE_S).error_code is ErrorCode.NONE
    last = beat(client)
    other_side.answer(other_side.next(), HeartbeatResponse)
    assert last.result(PATIENCE_S).error_code is ErrorCode.NONE


def test_a_request_too_large_for_the_topic_is_not_sent(
    client: CoordinatorClient, layout: TopicLayout, other_side: OtherSide
) -> None:
    future = join_group(
        client,
        "g",
        [Protocol("range", bytes(layout.request_record_max_bytes))],
        session_timeout_ms=1,
        rebalance_timeout_ms=1,
    )
    with pytest.raises(RequestTooLarge, match=r"JoinGroup for group 'g' is too large: the record has \d+"):
        future.result(PATIENCE_S)
    beat(client)
    assert isinstance(other_side.next().request, Heartbeat), "nothing of it is in the log"


def test_missing_coordinator_topics_are_named(broker: EmbeddedBroker) -> None:
    with pytest.raises(TopicsMissing, match="no topic nowhere-requests"):
        layout_on(broker.client_config, "nowhere")
    with pytest.raises(TopicsMissing, match="nowhere-requests has 0 partitions, 1 are expected"):
        CoordinatorClient(broker.client_config, TopicLayout.named("nowhere"), client_id="me")
