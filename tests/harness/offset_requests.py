"""The requests about offsets and groups, from scenario commands."""

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid5

from kafka_why.contract.kafka.requests import (
    AnyRequest,
    CommittedPartition,
    CommittedTopic,
    DeleteGroup,
    DescribeGroup,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    OversizedRequest,
    TopicMetadata,
    TopicPartitions,
    TransactionMarker,
    TxnOffsetCommit,
)
from kafka_why.contract.kafka.share_requests import TopicImage
from tests.harness import options
from tests.harness.common import Common

Given = dict[str, str]


def _commit(common: Common, given: Given) -> AnyRequest:
    instance = given.get("instance")
    return OffsetCommit(
        **common,
        generation_id=int(given.get("epoch", given.get("generation", -1))),
        member_id=given.get("id", ""),
        group_instance_id=None if instance == "none" else instance,
        retention_time_ms=options.milliseconds(given.get("retention", "-1")),
        topics=_committed_topics(given),
    )


def _committed_topics(given: Given) -> list[CommittedTopic]:
    return [
        CommittedTopic(topic, [_committed(number, text) for number, text in partitions], _topic_id(given))
        for topic, partitions in options.partitions(given.get("offsets", ""))
    ] + _long_names(given)


def _txn_commit(common: Common, given: Given) -> AnyRequest:
    """Parse `producer=1 epoch=0 position=40` and the offsets of a commit. `txn-version=1` keeps the epoch."""
    instance = given.get("instance")
    return TxnOffsetCommit(
        **common,
        transactional_id=f"t{given['producer']}",
        producer_id=int(given["producer"]),
        producer_epoch=int(given.get("epoch", 0)),
        txn_version=1 if given.get("txn-version") == "1" else 2,
        txn_partition=int(given.get("txn-partition", 0)),
        txn_position=int(given["position"]),
        txn_topic_id=topic_id(given["txn-topic-id"]) if "txn-topic-id" in given else None,
        generation_id=int(given.get("generation", -1)),
        member_id=given.get("id", ""),
        group_instance_id=None if instance == "none" else instance,
        topics=_committed_topics(given),
    )


def _marker(common: Common, given: Given) -> AnyRequest:
    """Parse `producer=1 epoch=1 position=40 outcome=commit`. `from=40` is the first position that the marker
    is about, by default its own.
    """
    return TransactionMarker(
        **common,
        producer_id=int(given["producer"]),
        producer_epoch=int(given["epoch"]),
        txn_partition=int(given.get("txn-partition", 0)),
        txn_position=int(given["position"]),
        txn_topic_id=topic_id(given["txn-topic-id"]) if "txn-topic-id" in given else None,
        first_position=int(given.get("from", given["position"])),
        committed=given["outcome"] == "commit",
    )


def _long_names(given: Given) -> list[CommittedTopic]:
    """Parse `2000x3000`: 2000 partitions of a topic whose name has 3000 characters."""
    if "names" not in given:
        return []
    partitions, characters = map(int, given["names"].split("x"))
    return [CommittedTopic("t" * characters, [CommittedPartition(n, 0) for n in range(partitions)])]


def _committed(partition: int, text: str) -> CommittedPartition:
    """Parse `5` or `5:metadata`."""
    offset, colon, metadata = text.partition(":")
    return CommittedPartition(partition, int(offset), committed_metadata=_filled(metadata) if colon else None)


def _filled(metadata: str) -> str:
    """Expand `x*4097` to 4097 times `x`."""
    text, star, times = metadata.partition("*")
    return text * int(times) if star else metadata


def topic_id(name: str) -> UUID:
    """Return the topic id for a test's name of it. Topic `t` may have the id `t2` after it was recreated."""
    return uuid5(UUID(int=0), name)


def _topic_id(given: Given) -> UUID | None:
    return topic_id(given["topic-id"]) if "topic-id" in given else None


def _topics(given: Given) -> list[TopicPartitions]:
    return [
        TopicPartitions(topic, [number for number, _ in partitions], _topic_id(given))
        for topic, partitions in options.partitions(given.get("partitions", ""))
    ]


def _fetch(common: Common, given: Given) -> AnyRequest:
    return OffsetFetch(
        **common,
        topics=_topics(given) if "partitions" in given else None,
        require_stable=given.get("stable") == "yes",
        member_id=given.get("id"),
        member_epoch=int(given.get("epoch", -1)),
    )


def _delete_offsets(common: Common, given: Given) -> AnyRequest:
    return OffsetDelete(**common, topics=_topics(given))


def _topic_metadata(common: Common, given: Given) -> AnyRequest:
    """Parse `t:t2,u:none`: topic t has the id t2, topic u does not exist."""
    pairs = [topic.split(":") for topic in given["topics"].split(",")]
    topics = {name: None if id_ == "none" else TopicImage(topic_id(id_), 1) for name, id_ in pairs}
    return TopicMetadata(group_id=common["group_id"], topics=topics)


def _oversized(common: Common, given: Given) -> AnyRequest:
    """Return a JoinGroup or SyncGroup (`kind`) that is too large for the log."""
    kind: Any = given["kind"]
    return OversizedRequest(
        **common,
        kind=kind,
        size_bytes=int(given["bytes"]),
        max_bytes=int(given["limit"]),
        member_id=given["id"],
        generation_id=int(given["generation"]),
        group_instance_id=None if given["instance"] == "none" else given["instance"],
    )


# By the command's verb.
REQUESTS: dict[str, Callable[[Common, Given], AnyRequest]] = {
    "commit": _commit,
    "txn-commit": _txn_commit,
    "marker": _marker,
    "fetch": _fetch,
    "delete-offsets": _delete_offsets,
    "topic-metadata": _topic_metadata,
    "oversized": _oversized,
    "describe": lambda common, _: DescribeGroup(**common),
    "delete": lambda common, _: DeleteGroup(**common),
}
