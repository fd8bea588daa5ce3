"""The operator over Spark's rows, without a query: Kafka's, RocketMQ's and share groups, and large views."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from pyspark.sql.streaming.state import GroupState as SparkGroupState

from checkpoints import codec
from kafka_why.contract.history_reader import decode_snapshot
from kafka_why.contract.kafka.requests import (
    CommittedPartition,
    CommittedTopic,
    OffsetCommit,
    TopicMetadata,
)
from kafka_why.contract.kafka.share_requests import ShareGroupHeartbeat, TopicImage
from kafka_why.contract.rocketmq.requests import (
    ConnectionClosed,
    GetConsumerListByGroup,
    MessageModel,
    RegisterConsumer,
    ResponseCode,
    SubscriptionData,
)
from records.truncation import encode_view
from state.config import BrokerConfig, CoordinatorConfig
from state.dispatch import AnyEffects, AnyEvent, AnyGroup, step
from state.kafka.classic_group import ClassicGroup
from state.kafka.group import DeadlineReached
from state.protocol import Received
from streaming.query.operator import ConfigEpoch
from tests.harness.common import Common
from tests.harness.operator_call import OPERATOR, call, contents, spark_state
from tests.harness.planted_version import ADDED, planted, row_of
from tests.spark.log import LAYOUT, T0, Log, Record, heartbeat

TO: Common = {
    "group_id": "g",
    "correlation_id": "c",
    "reply_partition": 1,
    "api_version": 9,
    "client_id": "c",
}
PASS_MS, WEEK_MS = 600_000, 7 * 24 * 3_600_000


def again(state: SparkGroupState, **given: Any) -> SparkGroupState:
    """Return the state as the next call gets it."""
    return spark_state(tuple(state.get) if state.exists else None, **given)


def group_in(state: SparkGroupState) -> ClassicGroup:
    group = codec.decode_group("g", codec.read_row("shard 0", *state.get)["g"])
    assert isinstance(group, ClassicGroup)
    return group


def stable(log: Log) -> tuple[SparkGroupState, str]:
    """Return the state of group g with one member at T0, and the member's id."""
    records, member_id = log.stable_member(T0, "g")
    state = spark_state()
    call(records, state)
    return again(state), member_id


def test_rows_in_any_order_are_applied_in_log_order() -> None:
    """A value with line feeds is one row, too."""
    log = Log()
    records, member_id = log.stable_member(T0, "g")
    records += [log.request(T0 + n, heartbeat("g", member_id)) for n in range(1, 30)]
    pretty = json.dumps(json.loads(records[9].value or b""), indent=1).encode()
    records[9] = records[9]._replace(value=pretty)
    in_order = spark_state()
    expected = call(records, in_order)
    assert len(contents(expected, LAYOUT.responses_topic)) == len(records)
    for chunks in (1, 3, 31):
        state = spark_state()
        found = call(records[::-1], state, chunks=chunks)
        assert [frame.to_dict() for frame in found] == [frame.to_dict() for frame in expected]
        assert state.get == in_order.get


def test_state_timeout_is_never_set_before_the_watermark() -> None:
    """Spark refuses such a timeout. Deadlines of a group whose clock is far behind fire, so none remains
    there.
    """
    resting, _ = stable(Log())
    for ahead_ms in (9_998, 9_999):
        state = again(resting, watermark_ms=T0 + ahead_ms, timed_out=True)
        call([], state)
        assert state._timeout_timestamp == T0 + 10_000


def commit(offsets: dict[int, int]) -> OffsetCommit:
    """Return a commit of offsets of partitions of topic t without a member."""
    partitions = [CommittedPartition(*committed) for committed in offsets.items()]
    return OffsetCommit(**TO, topics=[CommittedTopic("t", partitions)])


def test_only_the_last_offset_of_each_partition_is_written() -> None:
    log, state = Log(), spark_state()
    frames = call([log.request(T0 + n, commit({0: n, n % 3: n})) for n in range(9)], state)
    found = [(o["partition"], o["offset"]) for o in contents(frames, LAYOUT.offsets_topic)]
    assert found == [(0, 8), (1, 7), (2, 8)]
    frames = call([log.request(T0 + 10, commit(dict.fromkeys(range(10_000), 1)))], state := again(state))
    assert state._timeout_timestamp == -(-(T0 + 10 + WEEK_MS) // PASS_MS) * PASS_MS, "not at every pass"
    (frame,) = call([log.request(T0 + 11, commit({5_000: 2}))], again(state))
    assert set(frame["topic"]) == {LAYOUT.responses_topic, LAYOUT.offsets_topic}
    assert sum(map(len, [*frame["key"], *frame["value"]])) <= 1_024


def test_group_of_an_earlier_state_version_is_rewritten_in_the_current_one() -> None:
    log, state = Log(), spark_state()
    call([log.request(T0, commit({0: 5}))], state)
    with planted():
        earlier = spark_state(row_of(2, {"g": group_in(state)}))
        assert call([log.request(T0 + 1, commit({0: 5}))], earlier)
    assert earlier.get[0] == codec.STATE_VERSION
    assert group_in(earlier).wanted_topics == [ADDED]
    with pytest.raises(codec.StateError, match="the state of 'shard 0 of partition 0' is of version 99"):
        call([], spark_state((99, b"")))


CLOSED = ConnectionClosed(group_id="g", connection="c1")


def is_poison(event: AnyEvent) -> bool:
    return isinstance(event, Received) and getattr(event.request, "client_id", "") == "poison"


def received(kind: type) -> Callable[[AnyEvent], bool]:
    return lambda event: isinstance(event, Received) and isinstance(event.request, kind)


def beats(log: Log, member_id: str) -> list[Record]:
    clients = ("poison", "c", "poison")
    return [log.request(T0 + n, heartbeat("g", member_id, client=c)) for n, c in enumerate(clients, 1)]


@pytest.mark.parametrize(
    ("fails", "records", "letters", "codes"),
    [
        (is_poison, beats, [("requests-1-2", True), ("requests-1-4", True)], [-1, 0, -1]),
        (
            received(TopicMetadata),
            lambda log, _: [log.request(T0 + 1, TopicMetadata(group_id="g", topics={"t": None}))],
            [("requests-1-2", False)],
            [],
        ),
        (
            received(ConnectionClosed),
            lambda log, _: [log.request(T0 + 1, CLOSED)],
            [("requests-1-2", False)],
            [],
        ),
        # The group is quarantined by its deadline while a record is applied, which is not at fault.
        (
            lambda event: isinstance(event, DeadlineReached),
            lambda log, member_id: [log.request(T0 + 11_000, heartbeat("g", member_id))],
            [("", False)],
            [15],
        ),
    ],
    ids=["requests", "topic metadata", "a close", "a deadline"],
)
def test_failed_request_is_dead_lettered_and_answered_if_it_expects_a_response(
    fails: Callable[[AnyEvent], bool],
    records: Callable[[Log, str], list[Record]],
    letters: list[tuple[str, bool]],
    codes: list[int],
) -> None:
    def failing(
        group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
    ) -> AnyEffects:
        effects = step(group, group_id, event, now_ms, config)
        if fails(event):
            raise ValueError("told to")
        return effects

    log = Log()
    state, member_id = stable(log)
    frames = call(records(log, member_id), state, operator=replace(OPERATOR, step=failing))
    found = contents(frames, LAYOUT.dead_letters_topic)
    assert [(letter["request"], letter["answered"]) for letter in found] == letters
    assert {letter["reason"] for letter in found} == {"HANDLER_FAILED"}
    assert all("told to" in letter["message"] for letter in found)
    assert [answer["error_code"] for answer in contents(frames, LAYOUT.responses_topic)] == codes


SMALL = replace(OPERATOR, layout=replace(LAYOUT, response_max_bytes=700))


def beat(client_id: str) -> RegisterConsumer:
    return RegisterConsumer(
        group_id="g",
        connection="c1",
        client_id=client_id,
        correlation_id="beats",
        reply_partition=1,
        message_model=MessageModel.CLUSTERING,
        subscription_data_set=(SubscriptionData("t"),),
    )


@pytest.mark.parametrize(("after_ms", "fired_ms"), [(140_000, 130_000), (100_000, 100_001), (10_000, 30_000)])
def test_scan_of_a_resting_group_uses_the_configuration_valid_at_that_time(
    after_ms: int, fired_ms: int
) -> None:
    """Its connection was last heard of at T0, and the limit changes from 120 to 20 s. A scan that is overdue
    when the limit changes comes at once.
    """
    (old,) = OPERATOR.epochs
    sooner = replace(old.config, rocketmq=BrokerConfig(channel_expired_timeout_ms=20_000))
    operator = replace(OPERATOR, epochs=(old, ConfigEpoch(7, sooner, after_ms=T0 + after_ms)))
    log, state = Log(), spark_state()
    call([log.request(T0, beat("A"))], state)
    resting = spark_state(tuple(state.get), watermark_ms=T0 + 200_000, timed_out=True)
    said = contents(call([], resting, operator=operator), LAYOUT.events_topic)
    assert {entry["at_ms"] for entry in said} == {T0 + fired_ms}
    assert not resting.exists


def test_oversized_rocketmq_answer_is_an_error_and_its_view_is_shortened() -> None:
    log, state = Log(), spark_state()
    asked = GetConsumerListByGroup(
        group_id="g", connection="c1", client_id="A", correlation_id="list", reply_partition=1
    )
    frames = call([log.request(T0, beat("A" * 600)), log.request(T0, asked)], state, operator=SMALL)
    answer = next(r for r in contents(frames, LAYOUT.responses_topic) if r.get("correlation_id") == "list")
    assert (answer["code"], answer["consumer_id_list"]) == (ResponseCode.SYSTEM_ERROR, [])
    (view,) = contents(frames, LAYOUT.groups_topic)
    assert (view["truncated"], view["consumers"]) == (True, [])


def test_oversized_view_of_a_share_group_keeps_its_oldest_task() -> None:
    joins = ShareGroupHeartbeat(
        group_id="g",
        correlation_id="c",
        reply_partition=0,
        api_version=1,
        client_id="c",
        member_id="m",
        member_epoch=0,
        subscribed_topic_names=["foo"],
        topics={"foo": TopicImage(UUID(int=7), 2)},
    )
    (shown,) = contents(call([Log().request(T0, joins)], spark_state()), LAYOUT.groups_topic)
    (task,) = shown["consumer"]["share"]["tasks"]
    assert task["kind"] == "initialize"
    view = decode_snapshot(json.dumps(shown).encode())
    assert view is not None and decode_snapshot(encode_view(view, 10_000)) == view
    left = json.loads(encode_view(view, 1))
    assert left["truncated"] and left["consumer"]["share"]["tasks"] == [task]
    assert left["members"] == [] and left["consumer"]["topics"] == {}
    assert left["consumer"]["share"]["initializing"] == {}
