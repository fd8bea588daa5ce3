"""The operator with a share group: requests and outcomes come by the requests topic, answers and the tasks
for the share coordinator go to the others.
"""

from typing import Any
from uuid import UUID

from msgspec import json

from kafka_why.contract.any_group import AnyRequest
from kafka_why.contract.history_reader import decode_snapshot
from kafka_why.contract.kafka.requests import DeleteGroup
from kafka_why.contract.kafka.share_requests import (
    ShareGroupDescribe,
    ShareGroupHeartbeat,
    ShareStatePartition,
    ShareStateResult,
)
from kafka_why.contract.kafka.topic_images import TopicImage
from records.truncation import encode_view
from tests.harness.common import Common
from tests.harness.operator_call import call, contents, spark_state
from tests.spark.log import LAYOUT, T0, Log

TO: Common = {
    "group_id": "g",
    "correlation_id": "c",
    "reply_partition": 0,
    "api_version": 1,
    "client_id": "c",
}
FOO = UUID(int=7)


class World:
    """A group, and what each request leads to: the answers, and the group's last view."""

    def __init__(self) -> None:
        self.log, self.state, self.at_ms = Log(), spark_state(), T0
        self.view: dict[str, Any] = {}
        self.answers: list[dict[str, Any]] = []

    def send(self, request: AnyRequest) -> None:
        self.at_ms += 1_000
        self.state = spark_state(tuple(self.state.get) if self.state.exists else None)
        frames = call([self.log.request(self.at_ms, request)], self.state)
        self.answers = contents(frames, LAYOUT.responses_topic)
        for view in contents(frames, LAYOUT.groups_topic):
            self.view = view or {}

    def beat(self, epoch: int, *names: str) -> dict[str, Any]:
        """The answer to a heartbeat of the one member, with these names of topics if there are any."""
        self.send(
            ShareGroupHeartbeat(
                **TO,
                member_id="m",
                member_epoch=epoch,
                subscribed_topic_names=list(names) or None,
                topics={name: TopicImage(FOO, 2) for name in names},
            )
        )
        (answer,) = self.answers
        return answer

    @property
    def share(self) -> dict[str, Any]:
        """How far the partitions are, in the view."""
        share: dict[str, Any] = self.view["consumer"]["share"]
        return share

    def done(self) -> None:
        """The share coordinator has done the first open task."""
        task = self.share["tasks"][0]
        outcomes = [
            ShareStatePartition(UUID(t["topic_id"]), n) for t in task["topics"] for n in t["partitions"]
        ]
        self.send(ShareStateResult(group_id="g", task=task["task"], partitions=outcomes))
        assert not any(answer["type"] == "ShareStateResult" for answer in self.answers)


def test_a_share_group_lives_by_the_log() -> None:
    """Rows SP5, SP8: a task is in the view until its outcome comes, and a DeleteGroups waits for one."""
    world = World()
    assert world.beat(0, "foo")["member_epoch"] == 2
    share = world.share
    (task,) = share["tasks"]
    assert (task["kind"], share["initializing"], share["initialized"]) == ("initialize", {"foo": [0, 1]}, {})
    (topic,) = task["topics"]
    assert (topic["state_epoch"], topic["start_offset"], topic["partitions"]) == (2, -1, [0, 1])
    world.done()
    assert (world.share["tasks"], world.share["initialized"]) == ([], {"foo": [0, 1]})
    answer = world.beat(2)
    assert (answer["type"], answer["member_epoch"]) == ("ShareGroupHeartbeat", 3)
    assert answer["assignment"] == [{"topic_id": str(FOO), "partitions": [0, 1], "topic_name": ""}]
    world.send(ShareGroupDescribe(**TO))
    (described,) = world.answers
    assert (described["group_state"], described["members"][0]["member_id"]) == ("Stable", "m")
    world.beat(-1)
    world.send(DeleteGroup(**TO))
    assert world.answers == []
    assert [task["kind"] for task in world.share["tasks"]] == ["delete"]
    world.done()
    assert [(answer["type"], answer["error_code"]) for answer in world.answers] == [("DeleteGroup", 0)]
    assert world.view == {} and not world.state.exists


def test_a_view_that_is_too_large_keeps_its_oldest_task() -> None:
    world = World()
    world.beat(0, "foo")
    view = decode_snapshot(json.encode(world.view))
    assert view is not None and decode_snapshot(encode_view(view, 10_000)) == view
    left = json.decode(encode_view(view, 1))
    assert left["truncated"] and left["consumer"]["share"]["tasks"] == world.share["tasks"]
    assert left["members"] == [] and left["consumer"]["topics"] == {}
    assert left["consumer"]["share"]["initializing"] == {}
