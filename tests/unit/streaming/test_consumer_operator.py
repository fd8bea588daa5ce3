"""The operator with groups of the consumer protocol, and with settings of a group that does not exist."""

import json

from pyspark.sql.streaming.state import GroupState as SparkGroupState

from checkpoints import codec
from state.dispatch import AnyRequest
from state.kafka.consumer_group import ConsumerGroup, ConsumerMember
from state.kafka.group import Offset
from state.kafka.requests import AlterGroupConfigs, DeleteGroup, OffsetCommit
from tests.harness.common import Common
from tests.harness.operator_call import call, contents, spark_state
from tests.spark.log import LAYOUT, T0, Log

TO: Common = {
    "group_id": "g",
    "correlation_id": "c",
    "reply_partition": 0,
    "api_version": 9,
    "client_id": "c",
}


def test_the_first_call_of_a_consumer_group_that_moved_writes_its_view_and_its_offsets() -> None:
    group = ConsumerGroup(
        "g",
        "old-requests-0-0",
        members={"m": ConsumerMember("m", session_deadline_ms=T0 + 45_000)},
        offsets={"t": {0: Offset(5, -1, "", T0, None, None)}},
    )
    entry = codec.encode_group(group, codec.UNPUBLISHED_DEADLINE_MS)
    state = spark_state(codec.write_row({"g": entry}), watermark_ms=T0 + 1, timed_out=True)
    first = call([], state)
    assert [view["state"] for view in contents(first, LAYOUT.groups_topic)] == ["Reconciling"]
    assert [(o["offset"], o["request"]) for o in contents(first, LAYOUT.offsets_topic)] == [(5, "")]
    assert contents(first, LAYOUT.events_topic) == []
    assert codec.read_row("shard 0", *state.get)["g"].next_deadline_ms == T0 + 45_000


def test_settings_without_a_group_are_a_record_of_their_own_and_end_with_a_tombstone() -> None:
    log, state = Log(), spark_state()
    own = {"consumer.heartbeat.interval.ms": 7_000}

    def views(request: AnyRequest) -> list[dict[str, object] | None]:
        nonlocal state
        state = spark_state(tuple(state.get) if state.exists else None)
        return views_after(request, state, log)

    configs: dict[str, str | None] = {name: str(value) for name, value in own.items()}
    (alone,) = views(AlterGroupConfigs(configs=configs, **TO))
    assert alone is not None
    assert (alone["protocol"], alone["group_id"], alone["configs"]) == ("KafkaConfigs", "g", own)
    (group,) = views(OffsetCommit(topics=[], **TO))
    assert group is not None and (group["state"], group["configs"]) == ("Empty", own)
    (left,) = views(DeleteGroup(**TO))
    assert left is not None and (left["protocol"], left["configs"]) == ("KafkaConfigs", own)
    assert views(DeleteGroup(**TO)) == [], "there is no group"
    assert views(AlterGroupConfigs(configs=dict.fromkeys(own), **TO)) == [None]
    assert not state.exists


def views_after(request: AnyRequest, state: SparkGroupState, log: Log) -> list[dict[str, object] | None]:
    """The records of the groups topic that a request leads to, None for a tombstone."""
    return [
        None if value is None else json.loads(value)
        for frame in call([log.request(T0, request)], state)
        for topic, value in zip(frame["topic"], frame["value"], strict=True)
        if topic == LAYOUT.groups_topic
    ]
