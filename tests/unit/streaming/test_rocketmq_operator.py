"""RocketMQ's groups through the operator's call: the records by topic, and the stored state."""

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import pandas as pd
import pytest

from assignors.rocketmq.message_queue import MessageQueue
from checkpoints import codec
from records.codec import Reason, decode_request, encode
from records.history import decode_entry, decode_snapshot
from state.config import BrokerConfig
from state.dispatch import AnyEffects, step
from state.errors import ErrorCode
from state.inputs import Received
from state.rocketmq.group import Group
from state.rocketmq.history import HistoryEntry
from state.rocketmq.requests import (
    ConnectionClosed,
    GetConsumerListByGroup,
    LockBatchMq,
    MessageModel,
    RegisterConsumer,
    SubscriptionData,
)
from state.rocketmq.responses import NotifyConsumerIdsChanged, ResponseCode
from state.rocketmq.snapshot import GroupSnapshot
from streaming.query.operator import ConfigEpoch
from tests.harness.operator_call import OPERATOR, call, contents, spark_state
from tests.spark.log import LAYOUT, T0, Log, heartbeat, join

PARTITION_OF_CONNECTION = {"c1": 1, "c2": 2}
SMALL = replace(OPERATOR, layout=replace(LAYOUT, response_max_bytes=700))


def beat(connection: str, client_id: str, *topics: str) -> RegisterConsumer:
    return RegisterConsumer(
        group_id="g",
        connection=connection,
        client_id=client_id,
        correlation_id=f"{connection} beats",
        reply_partition=PARTITION_OF_CONNECTION[connection],
        message_model=MessageModel.CLUSTERING,
        subscription_data_set=tuple(SubscriptionData(topic) for topic in topics or ("t",)),
    )


def closed(connection: str) -> ConnectionClosed:
    return ConnectionClosed(group_id="g", connection=connection)


def responses(frames: Sequence[pd.DataFrame]) -> list[tuple[int, str]]:
    """Partition and type of each record on the responses topic."""
    return [
        (partition, msgspec.json.decode(value)["type"])
        for frame in frames
        for topic, partition, value in zip(frame["topic"], frame["partition"], frame["value"], strict=True)
        if topic == LAYOUT.responses_topic
    ]


@pytest.mark.parametrize(("after_ms", "fired_ms"), [(140_000, 130_000), (100_000, 100_001), (10_000, 30_000)])
def test_a_group_that_rested_is_scanned_under_the_configuration_in_force_then(
    after_ms: int, fired_ms: int
) -> None:
    """Its connection was last heard of at T0, and the limit changes from 120 to 20 s. A scan that is overdue
    when the limit changes comes at once.
    """
    (old,) = OPERATOR.epochs
    sooner = replace(old.config, rocketmq=BrokerConfig(channel_expired_timeout_ms=20_000))
    operator = replace(OPERATOR, epochs=(old, ConfigEpoch(7, sooner, after_ms=T0 + after_ms)))
    log, state = Log(), spark_state()
    call([log.request(T0, beat("c1", "A"))], state)
    resting = spark_state(tuple(state.get), watermark_ms=T0 + 200_000, timed_out=True)
    said = contents(call([], resting, operator=operator), LAYOUT.events_topic)
    assert {entry["at_ms"] for entry in said} == {T0 + fired_ms}
    assert not resting.exists


def test_every_connection_is_told_on_its_own_reply_partition() -> None:
    log, state = Log(), spark_state()
    frames = call([log.request(T0, beat("c1", "A")), log.request(T0 + 1, beat("c2", "B"))], state)
    notify = "NOTIFY_CONSUMER_IDS_CHANGED"
    assert responses(frames) == [
        (1, "HEART_BEAT"),
        (1, notify),
        (2, "HEART_BEAT"),
        (1, notify),
        (2, notify),
    ]
    last = contents(frames, LAYOUT.responses_topic)[-1]
    expected = NotifyConsumerIdsChanged(group_id="g", connection="c2", client_id="B", request=log_id(log, 1))
    assert msgspec.convert(last, NotifyConsumerIdsChanged) == expected


def log_id(log: Log, offset: int) -> str:
    """The id of a request of group g, by its offset."""
    record = log.request(T0, closed("c1"))
    return f"requests-{record.partition}-{offset}"


def test_history_and_view_name_the_protocol_and_readers_of_kafkas_groups_skip_them() -> None:
    state = spark_state()
    frames = call([Log().request(T0, beat("c1", "A"))], state)
    entries = contents(frames, LAYOUT.events_topic)
    assert [entry["type"] for entry in entries][:2] == ["GroupCreated", "ConsumerConnected"]
    assert {entry["protocol"] for entry in entries} == {"RocketMQ"}
    assert [msgspec.convert(entry, HistoryEntry).seq for entry in entries] == list(range(1, len(entries) + 1))
    assert [decode_entry(encode(entry)) for entry in entries] == [None] * len(entries)
    (view,) = contents(frames, LAYOUT.groups_topic)
    snapshot = msgspec.convert(view, GroupSnapshot)
    assert (snapshot.seq, snapshot.subscriptions) == (len(entries), {"t": "*"})
    assert [(c.connection, c.client_id) for c in snapshot.consumers] == [("c1", "A")]
    assert decode_snapshot(encode(view)) is None


def test_a_duplicate_client_id_stands_in_the_view() -> None:
    log = Log()
    frames = call([log.request(T0, beat("c1", "X")), log.request(T0, beat("c2", "X"))], spark_state())
    assert contents(frames, LAYOUT.groups_topic)[-1]["duplicate_client_ids"] == {"X": ["c1", "c2"]}
    reasons = [e["reason"] for e in contents(frames, LAYOUT.events_topic) if e["type"] == "DuplicateClientId"]
    assert "is on c1 (last heard of 0 ms ago) already" in reasons[0]


def test_a_silent_connection_is_told_to_close_and_its_group_ends() -> None:
    state = spark_state()
    call([Log().request(T0, beat("c1", "A"))], state)
    due_ms = (T0 + 120_000) // 10_000 * 10_000 + 10_000
    assert state._timeout_timestamp == due_ms
    late = spark_state(tuple(state.get), watermark_ms=due_ms, timed_out=True)
    frames = call([], late)
    assert responses(frames) == [(1, "CLOSE_CONNECTION")]
    assert late._removed
    assert [frame["value"].tolist()[-1] for frame in frames] == [None]  # the tombstone


def test_a_group_is_stored_as_what_it_is() -> None:
    state = spark_state()
    call([Log().request(T0, beat("c1", "A"))], state)
    assert isinstance(codec.decode_group("g", codec.read_row("shard 0", *state.get)["g"]), Group)


def test_the_other_protocol_is_refused_with_a_message() -> None:
    log, state = Log(), spark_state()
    records = [log.request(T0, beat("c1", "A")), log.request(T0, join("g"))]
    refused = contents(call(records, state), LAYOUT.responses_topic)[-1]
    assert (refused["type"], refused["error_code"]) == ("Error", ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    assert refused["error_message"] == "group 'g' is a RocketMQ group; this is a Kafka request"


def test_a_close_needs_no_address_and_a_malformed_one_is_a_dead_letter() -> None:
    log, state = Log(), spark_state()
    call([log.request(T0, beat("c1", "A")), log.request(T0, closed("c1"))], state)
    assert not state.exists
    partition = log.request(T0, closed("c1")).partition
    stray = log.append(T0, b"g", b'{"type":"CONNECTION_CLOSED","group_id":"g"}', partition)
    (letter,) = contents(call([stray], spark_state()), LAYOUT.dead_letters_topic)
    assert (letter["reason"], letter["answered"]) == (Reason.INVALID_REQUEST, False)


def test_a_reply_partition_that_is_not_there_is_refused() -> None:
    record = Log().request(T0, msgspec.structs.replace(beat("c1", "A"), reply_partition=99))
    (letter,) = contents(call([record], spark_state()), LAYOUT.dead_letters_topic)
    assert letter["reason"] == Reason.NO_SUCH_REPLY_PARTITION


def test_a_close_that_fails_is_a_dead_letter_that_nobody_was_told_of() -> None:
    log = Log()
    records = [log.request(T0, beat("c1", "A")), log.request(T0, closed("c1"))]
    state = spark_state()
    frames = call(records, state, operator=replace(OPERATOR, step=fail_at_closes))
    (letter,) = contents(frames, LAYOUT.dead_letters_topic)
    assert (letter["request"], letter["answered"]) == (records[1].id, False)
    assert state.exists


def fail_at_closes(*args: object) -> AnyEffects:
    event = args[2]
    if isinstance(event, Received) and isinstance(event.request, ConnectionClosed):
        raise ValueError("told to")
    return step(*args)  # type: ignore[arg-type]


def test_an_answer_too_large_is_a_system_error_and_a_view_too_large_is_shortened() -> None:
    log, state = Log(), spark_state()
    asked = GetConsumerListByGroup(
        group_id="g", connection="c1", client_id="A", correlation_id="list", reply_partition=1
    )
    frames = call([log.request(T0, beat("c1", "A" * 600)), log.request(T0, asked)], state, operator=SMALL)
    answer = next(r for r in contents(frames, LAYOUT.responses_topic) if r.get("correlation_id") == "list")
    assert answer["code"] == ResponseCode.SYSTEM_ERROR
    assert answer["consumer_id_list"] == []
    (view,) = contents(frames, LAYOUT.groups_topic)
    assert (view["truncated"], view["consumers"]) == (True, [])


def test_requests_are_read_as_rocketmq_names_them() -> None:
    request = LockBatchMq(
        group_id="g",
        connection="c1",
        client_id="A",
        correlation_id="l",
        reply_partition=1,
        mq_set=(MessageQueue("t", "b", 0),),
    )
    value = encode(request)
    assert b'"type":"LOCK_BATCH_MQ"' in value
    assert b'"mq_set":[["t","b",0]]' in value
    assert decode_request(value) == request
    other = decode_request(encode(heartbeat("g", "m")))
    assert type(other).__name__ == "Heartbeat"


@pytest.mark.parametrize("kind", ["HEART_BEAT_CONSUMER", "LOCK_BATCH_MQ"])
def test_a_request_of_another_record_version_is_refused(kind: str) -> None:
    refused = decode_request(
        b'{"type":"%s","group_id":"g","connection":"c1","client_id":"A","correlation_id":"x",'
        b'"reply_partition":1,"message_model":"CLUSTERING","mq_set":[],"version":2}' % kind.encode()
    )
    assert getattr(refused, "reason", None) is Reason.UNSUPPORTED_VERSION
