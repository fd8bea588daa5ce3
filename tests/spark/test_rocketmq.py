"""A RocketMQ group through the real query: notified, kept over a restart, expired by the log's time."""

from collections.abc import Iterable

from state.errors import ErrorCode
from state.rocketmq.requests import GetConsumerListByGroup, MessageModel, RegisterConsumer, SubscriptionData
from tests.spark.harness import Bench, Written, events, of_topic
from tests.spark.log import LAYOUT, T0, Log, heartbeat

EXPIRY_MS = 120_000


def beat(connection: str, client_id: str, reply_partition: int) -> RegisterConsumer:
    return RegisterConsumer(
        group_id="g",
        connection=connection,
        client_id=client_id,
        correlation_id=connection,
        reply_partition=reply_partition,
        message_model=MessageModel.CLUSTERING,
        subscription_data_set=(SubscriptionData("t"),),
    )


def messages_of(written: Iterable[Written], kind: str) -> list[tuple[str, int | None]]:
    """The connections that got messages of this kind, each with its reply partition."""
    return [
        (record.content["connection"], record.partition)
        for record in written
        if record.topic == LAYOUT.responses_topic and record.content["type"] == kind
    ]


def test_a_group_lives_and_ends_by_its_log(bench: Bench) -> None:
    log = Log()
    first, second = beat("c1", "A", 1), beat("c2", "B", 2)
    written = bench.run([log.request(T0, first)], [log.request(T0 + 5_000, second)])
    assert messages_of(written, "NOTIFY_CONSUMER_IDS_CHANGED") == [("c1", 1), ("c1", 1), ("c2", 2)]
    bench.stop()
    asked = GetConsumerListByGroup(
        group_id="g", connection="c1", client_id="A", correlation_id="list", reply_partition=3
    )
    listing, strange = log.request(T0 + 6_000, asked), log.request(T0 + 6_001, heartbeat("g", "m"))
    written = bench.run([listing, strange, log.request(T0 + 60_000, second)])
    listed, refused, _ = of_topic(written, LAYOUT.responses_topic)
    assert listed["consumer_id_list"] == ["A", "B"]
    assert (refused["request"], refused["error_code"]) == (strange.id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    written = bench.run_at(log, T0 + EXPIRY_MS + 10_001)
    assert messages_of(written, "CLOSE_CONNECTION") == [("c1", 1)]
    (removed,) = events(written, "g", "ConsumerRemoved")
    assert removed["at_ms"] == (T0 + EXPIRY_MS) // 10_000 * 10_000 + 10_000
    assert messages_of(written, "NOTIFY_CONSUMER_IDS_CHANGED") == []
    written = bench.run_at(log, T0 + 60_000 + EXPIRY_MS + 10_001)
    assert [record.value for record in written if record.topic == LAYOUT.groups_topic] == [None]
    seqs = [event["seq"] for event in events(bench.written, "g")]
    assert seqs == list(range(1, len(seqs) + 1))
