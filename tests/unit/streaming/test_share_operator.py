"""A share group's record that is too large. `tests/e2e/test_share_state.py` has a group's life."""

from uuid import UUID

from msgspec import json

from kafka_why.contract.history_reader import decode_snapshot
from kafka_why.contract.kafka.share_requests import ShareGroupHeartbeat, TopicImage
from records.truncation import encode_view
from tests.harness.operator_call import call, contents, spark_state
from tests.spark.log import LAYOUT, T0, Log


def test_a_view_that_is_too_large_keeps_its_oldest_task() -> None:
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
    view = decode_snapshot(json.encode(shown))
    assert view is not None and decode_snapshot(encode_view(view, 10_000)) == view
    left = json.decode(encode_view(view, 1))
    assert left["truncated"] and left["consumer"]["share"]["tasks"] == [task]
    assert left["members"] == [] and left["consumer"]["topics"] == {}
    assert left["consumer"]["share"]["initializing"] == {}
