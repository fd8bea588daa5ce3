"""The requests of share groups, from scenario commands.

A member's ShareGroupHeartbeat is that of `consumer_requests` with `share` before it:

    share A e0 names[foo,bar] rack=r1   joins, by default with the names of all topics, or as it joined before
    share A e2                          a keep-alive; `names[foo]` and `full` send more
    share A -1                          leaves

`facts=none`: the gateway could not reach the brokers. What the share coordinator answers is the outcome of
the open tasks, of all their partitions or of some:

    init watcher                        all done; `partitions[foo 0]`: of these, `task=...`: of another task
    init watcher error=31               CLUSTER_AUTHORIZATION_FAILED; `epoch=7 start=40`: what it has recorded
    deleted watcher                     of the tasks that delete, with the same options

An administrator's requests:

    describe-share admin
    describe-offsets admin              DescribeShareGroupOffsets
    alter-offsets admin offsets=foo-0=10,foo-1=-1
    reset-offsets admin topics=foo,bar  DeleteShareGroupOffsets
"""

from collections.abc import Callable, Mapping
from uuid import UUID

from kafka_why.contract.kafka.requests import AnyRequest
from kafka_why.contract.kafka.share_requests import (
    AlterShareGroupOffsets,
    AlterSharePartition,
    AlterShareTopic,
    DeleteShareGroupOffsets,
    DescribeShareGroupOffsets,
    ShareGroupDescribe,
    ShareGroupHeartbeat,
    ShareStatePartition,
    ShareStateResult,
)
from kafka_why.contract.kafka.snapshot import ShareTask
from state.kafka.share.protocol import open_tasks
from state.kafka.share_group import ShareGroup
from tests.harness import consumer_requests, options, partition_text
from tests.harness.cluster import Cluster
from tests.harness.common import Common

PREFIX = "share "

KINDS = {"init": "initialize", "deleted": "delete"}
"""The kind of the tasks, by the command's verb."""


def expand(command: str) -> str:
    """Return a member's heartbeat as a command with a verb, of a share group or of a consumer group."""
    if command.startswith(PREFIX):
        return f"share-{consumer_requests.expand(command.removeprefix(PREFIX))}"
    return consumer_requests.expand(command)


def share_heartbeat(
    common: Common, given: dict[str, str], joined_with: dict[str, str], cluster: Cluster
) -> AnyRequest:
    """Return the heartbeat of a member. `joined_with` are the member's options so far."""
    epoch = int(given["epoch"])
    is_full = epoch == 0 or "full" in given
    sent = {**joined_with, **given} if is_full else given
    names = sent.get("names", ",".join(sorted(cluster.topics)) if is_full else None)
    topics = None if names in (None, "none") else [name.strip() for name in names.split(",") if name]
    return ShareGroupHeartbeat(
        **common,
        member_id=given["id"],
        member_epoch=epoch,
        rack_id=sent.get("rack"),
        subscribed_topic_names=topics,
        topics=cluster.topic_metadata(topics) if given.get("facts") != "none" else None,
    )


def outcomes(
    verb: str, given: Mapping[str, str], group: object, group_id: str, labels: Mapping[UUID, str]
) -> list[ShareStateResult]:
    """Return what the share coordinator answers to the open tasks, by default that all is done."""
    assert isinstance(group, ShareGroup), f"there is no share group {group_id}"
    tasks = [task for task in open_tasks(group) if task.kind == KINDS[verb]]
    wanted = partition_text.parse(given["partitions"]) if "partitions" in given else None
    results = [_outcome(task, given, group_id, labels, wanted) for task in tasks]
    return [result for result in results if result.partitions]


def _outcome(
    task: ShareTask,
    given: Mapping[str, str],
    group_id: str,
    labels: Mapping[UUID, str],
    wanted: Mapping[str, list[int]] | None,
) -> ShareStateResult:
    epoch, start = given.get("epoch"), given.get("start")
    return ShareStateResult(
        group_id=group_id,
        task=given.get("task", task.task),
        partitions=[
            ShareStatePartition(
                UUID(topic.topic_id),
                number,
                int(given.get("error", 0)),
                None if epoch is None else int(epoch),
                None if start is None else int(start),
            )
            for topic in task.topics
            for number in topic.partitions
            if wanted is None or number in wanted.get(labels[UUID(topic.topic_id)], ())
        ],
    )


def _altered(given: dict[str, str]) -> list[AlterShareTopic]:
    return [
        AlterShareTopic(topic, [AlterSharePartition(number, int(offset)) for number, offset in partitions])
        for topic, partitions in options.partitions(given["offsets"])
    ]


# By the command's verb.
REQUESTS: dict[str, Callable[[Common, dict[str, str]], AnyRequest]] = {
    "describe-share": lambda common, _: ShareGroupDescribe(**common),
    "describe-offsets": lambda common, _: DescribeShareGroupOffsets(**common),
    "alter-offsets": lambda common, given: AlterShareGroupOffsets(**common, topics=_altered(given)),
    "reset-offsets": lambda common, given: DeleteShareGroupOffsets(
        **common, topics=[name for name in given["topics"].split(",") if name]
    ),
}
