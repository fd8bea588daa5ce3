"""AddOffsetsToTxn and TxnOffsetCommit over the core and scripted brokers: rows TG1 to TG11.

The conformance scripts have what a real broker answers, here it is what is hard to bring about.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from kafka.protocol.api_key import ApiKey

from gateway.apis import transactions
from gateway.upstream.transactions import OwnRequests, Transactions
from gateway.wire import codec
from kafka_why.contract.kafka.requests import TxnOffsetCommit
from kafka_why.contract.layout import TopicLayout
from tests.harness.gateway import NODE_ID, GatewayFixture, RawClient, outcomes, played, topic_id
from tests.harness.waiting import until

MARKERS = TopicLayout.named().txn_markers_topic
PRODUCER = {"transactional_id": "t", "producer_id": 4001, "producer_epoch": 7}
X = 40
FENCED = 90
VERSIONS = range(6)


@dataclass
class Brokers:
    """The transaction coordinator and the leader of the markers partition, by a script.

    `adds` and `finds` are the error codes of the next requests, then the last one for ever. `asked` are the
    api keys of the gateway's requests, in order.
    """

    adds: list[int] = field(default_factory=lambda: [0])
    finds: list[int] = field(default_factory=lambda: [0])
    ends: list[int] = field(default_factory=lambda: [0])
    describes: list[int] = field(default_factory=lambda: [0])
    state: str = "Ongoing"
    producer: tuple[int, int] = (4001, 7)
    partitions: tuple[int, ...] = (0,)
    asked: list[int] = field(default_factory=list)
    added: list[Any] = field(default_factory=list)

    def on(self, world: GatewayFixture) -> "Brokers":
        """Answer for the world's broker. It has the markers topic."""
        world.broker.topics[MARKERS] = 1
        world.broker.scripts.update(
            {
                ApiKey.FindCoordinator: self._find,
                ApiKey.AddPartitionsToTxn: self._add,
                ApiKey.ListOffsets: self._end,
                ApiKey.DescribeTransactions: self._describe,
            }
        )
        return self

    def _next(self, api_key: int, codes: list[int]) -> int:
        self.asked.append(api_key)
        return codes.pop(0) if len(codes) > 1 else codes[0]

    def _find(self, request: Any) -> codec.Fields:
        assert (request.key, request.key_type) == ("t", 1)
        code = self._next(ApiKey.FindCoordinator, self.finds)
        return {"error_code": code, "node_id": NODE_ID, "host": "broker.invalid", "port": 9092}

    def _add(self, request: Any) -> codec.Fields:
        self.added.append(request)
        code = self._next(ApiKey.AddPartitionsToTxn, self.adds)
        results = [{"partition_index": 0, "partition_error_code": code}]
        return {"results_by_topic_v3_and_below": [{"name": MARKERS, "results_by_partition": results}]}

    def _end(self, request: Any) -> codec.Fields:
        ((topic,),) = (request.topics,)
        assert (topic.name, topic.partitions[0].timestamp, request.isolation_level) == (MARKERS, -1, 0)
        code = self._next(ApiKey.ListOffsets, self.ends)
        found = {"partition_index": 0, "error_code": code, "offset": -1 if code else X}
        return {"topics": [{"name": MARKERS, "partitions": [found]}]}

    def _describe(self, request: Any) -> codec.Fields:
        assert request.transactional_ids == ["t"]
        state = {
            "error_code": self._next(ApiKey.DescribeTransactions, self.describes),
            "transactional_id": "t",
            "transaction_state": self.state,
            "producer_id": self.producer[0],
            "producer_epoch": self.producer[1],
            "topics": [{"topic": MARKERS, "partitions": list(self.partitions)}],
        }
        return {"transaction_states": [state]}


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions, "BROKERS_TIMEOUT_S", 0.5)


def topics_of(*offsets: tuple[str, int, int]) -> list[dict[str, Any]]:
    return [
        {"name": name, "partitions": [{"partition_index": p, "committed_offset": offset}]}
        for name, p, offset in offsets
    ]


async def commit(world: GatewayFixture, version: int, *offsets: tuple[str, int, int], **more: Any) -> Any:
    wanted = offsets or (("orders", 0, 7),)
    fields = {**PRODUCER, "group_id": "g", "topics": topics_of(*wanted), **more}
    return outcomes(await world.ask(ApiKey.TxnOffsetCommit, version, **fields))


async def add_offsets(client: RawClient, version: int) -> int:
    return int((await client.ask(ApiKey.AddOffsetsToTxn, version, **PRODUCER, group_id="g")).error_code)


@played
async def test_tg1_marker_partition_is_added_to_the_transaction(world: GatewayFixture) -> None:
    """By a request of the client's own version, up to the last one for clients, to this listener's broker."""
    brokers = Brokers().on(world)
    client = await world.client(await world.broker_port())
    for version in range(5):
        assert await add_offsets(client, version) == 0
    assert brokers.asked == [ApiKey.AddPartitionsToTxn] * 5
    assert [request.API_VERSION for request in brokers.added] == [0, 1, 2, 3, 3]
    for request in brokers.added:
        assert request.v3_and_below_transactional_id == "t"
        assert (request.v3_and_below_producer_id, request.v3_and_below_producer_epoch) == (4001, 7)
        (topic,) = request.v3_and_below_topics
        assert (topic.name, topic.partitions) == (MARKERS, [0])
    assert world.broker.passed == []


@pytest.mark.parametrize(
    ("code", "told"), [*((c, c) for c in (14, 16, 42, 47, 49, 51, 53, FENCED)), (3, 15), (29, 30)]
)
@played
async def test_tg2_add_offsets_passes_on_broker_errors(world: GatewayFixture, code: int, told: int) -> None:
    Brokers(adds=[code]).on(world)
    assert await add_offsets(await world.client(), 3) == told


@pytest.mark.usefixtures("short_waits")
@played
async def test_tg2_lost_transaction_coordinator_is_looked_up_again(world: GatewayFixture) -> None:
    Brokers().on(world)
    client = await world.client(await world.broker_port())
    world.broker.silent = True
    assert await add_offsets(client, 3) == 15


@pytest.mark.parametrize("version", VERSIONS)
@played
async def test_tg5_to_tg8_brokers_are_queried_in_order(world: GatewayFixture, version: int) -> None:
    """The position is read after the partition was added, and before the transaction is seen to be open."""
    brokers = Brokers().on(world)
    assert await commit(world, version) == [("orders", 0, 0)]
    # An old version adds nothing, because a late request could begin a transaction.
    added = [
        ApiKey.FindCoordinator,
        ApiKey.AddPartitionsToTxn,
        ApiKey.ListOffsets,
        ApiKey.DescribeTransactions,
    ]
    not_added = [ApiKey.ListOffsets, ApiKey.FindCoordinator, ApiKey.DescribeTransactions]
    assert brokers.asked == (added if version == 5 else not_added)
    (asked,) = world.core.asked
    assert isinstance(asked, TxnOffsetCommit)
    assert (asked.txn_partition, asked.txn_position, asked.txn_topic_id) == (0, X, topic_id(MARKERS))
    assert (asked.transactional_id, asked.producer_id, asked.producer_epoch) == ("t", 4001, 7)
    assert asked.txn_version == (2 if version == 5 else 1)
    (topic,) = asked.topics
    assert (topic.name, topic.topic_id) == ("orders", topic_id("orders"))


@played
async def test_tg5_ending_transaction_is_retried_for_a_short_time(world: GatewayFixture) -> None:
    brokers = Brokers(adds=[51, 51, 0]).on(world)
    assert await commit(world, 5) == [("orders", 0, 0)]
    assert brokers.asked.count(ApiKey.AddPartitionsToTxn) == 3
    brokers.adds = [51]
    assert await commit(world, 5) == [("orders", 0, 51)]
    assert brokers.asked.count(ApiKey.AddPartitionsToTxn) > 4


@pytest.mark.parametrize(
    ("code", "told"), [(FENCED, 47), (47, 47), (49, 49), (53, 53), (3, 15), (29, 30), (48, 48)]
)
@played
async def test_tg5_errors_of_adding_the_marker_partition_are_returned(
    world: GatewayFixture, code: int, told: int
) -> None:
    Brokers(adds=[code]).on(world)
    assert await commit(world, 5) == [("orders", 0, told)]
    assert world.core.asked == []


@pytest.mark.parametrize("code", [14, 15, 16])
@pytest.mark.parametrize("where", ["adds", "describes", "finds"])
@played
async def test_tg5_tg8_moved_coordinator_is_found_again(world: GatewayFixture, where: str, code: int) -> None:
    brokers = Brokers().on(world)
    setattr(brokers, where, [code, 0])
    assert await commit(world, 5) == [("orders", 0, 0)]
    assert brokers.asked.count(ApiKey.FindCoordinator) == 2
    assert await commit(world, 5) == [("orders", 0, 0)]
    assert brokers.asked.count(ApiKey.FindCoordinator) == 2  # the coordinator is remembered


@pytest.mark.parametrize("code", [3, 5, 6, 74, 78])
@played
async def test_tg7_end_offset_is_queried_until_the_leader_knows_it(world: GatewayFixture, code: int) -> None:
    """OFFSET_NOT_AVAILABLE: a new leader does not know yet whether it has all markers."""
    brokers = Brokers(ends=[code, code, 0]).on(world)
    assert await commit(world, 3) == [("orders", 0, 0)]
    assert brokers.asked.count(ApiKey.ListOffsets) == 3


OVER = (48, 48, 48, 48, 120, 47)


@pytest.mark.parametrize(
    ("brokers", "told"),
    [
        pytest.param(lambda: Brokers(state="PrepareCommit", producer=(4001, 8)), (51,) * 6, id="commits"),
        pytest.param(lambda: Brokers(state="PrepareAbort"), (51,) * 6, id="aborts"),
        pytest.param(lambda: Brokers(producer=(4001, 8)), (47,) * 6, id="other epoch"),
        pytest.param(lambda: Brokers(producer=(4002, 7)), (49,) * 6, id="other producer"),
        pytest.param(
            lambda: Brokers(producer=(-1, -1), state="Empty", partitions=()), (49,) * 6, id="no producer"
        ),
        pytest.param(lambda: Brokers(describes=[105]), (49,) * 6, id="unknown"),
        pytest.param(lambda: Brokers(describes=[53]), (53,) * 6, id="not allowed"),
        pytest.param(lambda: Brokers(finds=[53]), (53,) * 6, id="coordinator not allowed"),
        pytest.param(lambda: Brokers(state="CompleteCommit", partitions=()), OVER, id="committed"),
        pytest.param(lambda: Brokers(state="CompleteAbort", partitions=()), OVER, id="aborted"),
        pytest.param(lambda: Brokers(state="Empty", partitions=()), OVER, id="empty"),
        pytest.param(lambda: Brokers(partitions=(1,)), OVER, id="without our partition"),
    ],
)
@played
async def test_tg8_a_transaction_that_is_not_open_is_refused(
    world: GatewayFixture, brokers: Callable[[], Brokers], told: tuple[int, ...]
) -> None:
    """With the error of each version."""
    brokers().on(world)
    found = [await commit(world, version) for version in VERSIONS]
    assert found == [[("orders", 0, code)] for code in told]
    assert world.core.asked == []


@pytest.mark.usefixtures("short_waits")
@pytest.mark.parametrize("version", VERSIONS)
@played
async def test_tg9_silent_brokers_make_commits_fail_retriably(world: GatewayFixture, version: int) -> None:
    """COORDINATOR_LOAD_IN_PROGRESS, which versions 0 and 1 do not know."""
    Brokers(finds=[15]).on(world)
    told = await commit(world, version)
    assert told == [("orders", 0, 15 if version < 2 else 14)]
    assert world.core.asked == []


@pytest.mark.usefixtures("short_waits")
@played
async def test_tg9_gateway_resumed_after_a_pause_writes_no_late_request(
    world: GatewayFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5.11: the answer of the brokers and the end of the time come together."""
    look = transactions._error_unless_open

    def stand_still(*given: Any) -> Any:
        time.sleep(2 * transactions.BROKERS_TIMEOUT_S)
        return look(*given)

    Brokers().on(world)
    monkeypatch.setattr(transactions, "_error_unless_open", stand_still)
    assert await commit(world, 3) == [("orders", 0, 14)]
    assert world.core.asked == []


@played
async def test_tg10_request_of_a_disconnected_client_is_dropped(world: GatewayFixture) -> None:
    """The less a given-up request is written late, the better. Another client's request, which the brokers
    answer after the same pauses, is the only one that is written.
    """
    brokers = Brokers(finds=[15]).on(world)
    client = await world.client()
    await client.send(ApiKey.TxnOffsetCommit, 3, **PRODUCER, group_id="g", topics=topics_of(("orders", 0, 7)))
    await until(lambda: ApiKey.FindCoordinator in brokers.asked)
    client.writer.close()
    await until(lambda: not world.gateway.connections())
    brokers.finds = [15, 15, 15, 0]
    await commit(world, 3)
    assert brokers.asked.count(ApiKey.DescribeTransactions) == len(world.core.asked) == 1


@pytest.mark.parametrize(("length", "finds"), [(250, 1), (251, 2)])
@played
async def test_tg8_coordinator_of_a_long_transactional_id_is_not_cached(
    world: GatewayFixture, length: int, finds: int
) -> None:
    """Thousands of ids of 32 KiB would otherwise stay in memory."""
    named, found = "t" * length, []

    def find(request: Any) -> codec.Fields:
        found.append(request.key)
        return {"error_code": 0, "node_id": NODE_ID, "host": "broker.invalid", "port": 9092}

    state = {"error_code": 0, "transactional_id": named, "transaction_state": "Ongoing", "topics": []}
    world.broker.scripts[ApiKey.FindCoordinator] = find
    world.broker.answers[ApiKey.DescribeTransactions] = {"transaction_states": [state]}
    asked = Transactions(world.cluster, TopicLayout.named())
    try:
        for _ in range(2):
            assert (await asked.describe(named)).transactional_id == named
    finally:
        asked.close()
    assert found == [named] * finds


@played
async def test_tg7_end_offset_belongs_to_the_topic_id_returned_with_it(
    world: GatewayFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the answer with the end is under way, the topic is recreated and another request looks it up."""
    real, made_again_id = OwnRequests.ask, topic_id("made again")
    ends = {topic_id(MARKERS): X, made_again_id: 3}
    world.broker.topics[MARKERS] = 1
    world.broker.ids[MARKERS] = topic_id(MARKERS)

    def end(_: Any) -> codec.Fields:
        found = {"partition_index": 0, "error_code": 0, "offset": ends[world.broker.ids[MARKERS]]}
        return {"topics": [{"name": MARKERS, "partitions": [found]}]}

    async def ask(own: OwnRequests, node_id: int | None, api_key: int, *more: Any) -> Any:
        answer = await real(own, node_id, api_key, *more)
        if api_key == ApiKey.ListOffsets and world.broker.ids[MARKERS] != made_again_id:
            world.broker.ids[MARKERS] = made_again_id
            asked.forget_topic()
            assert await asked.markers_end(0) == (made_again_id, 3)
        return answer

    world.broker.scripts[ApiKey.ListOffsets] = end
    monkeypatch.setattr(OwnRequests, "ask", ask)
    asked = Transactions(world.cluster, TopicLayout.named())
    try:
        assert await asked.markers_end(0) == (made_again_id, 3)
    finally:
        asked.close()
