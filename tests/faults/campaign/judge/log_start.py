"""The start of a topic's log, looked at without a pause, so that the time of a loss is known."""

import time
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

_TIMEOUT_S = 10.0
_NO_TOPIC = ("UNKNOWN_TOPIC_OR_PART", "_UNKNOWN_TOPIC", "UNKNOWN_TOPIC_ID")


class Look(NamedTuple):
    """The brokers' answer about a topic: its id, or "" if it does not exist, and the first offset of each
    partition. `at_s` (monotonic) is when the answers arrived.
    """

    at_s: float
    topic_id: str
    starts: Mapping[int, int]


def look(admin: AdminClient, topic: str, partitions: int, before: Sequence[Look]) -> Look:
    """Query a topic's id and first offsets. Return `before` if the brokers do not answer."""
    earliest: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
    asked = {TopicPartition(topic, number): earliest for number in range(partitions)}
    try:
        described = admin.describe_topics(TopicCollection([topic]), request_timeout=_TIMEOUT_S)
        topic_id = str(described[topic].result().topic_id)
        found = admin.list_offsets(asked, request_timeout=_TIMEOUT_S)
        starts = {place.partition: future.result().offset for place, future in found.items()}
    except KafkaException as error:
        if error.args[0].name() not in _NO_TOPIC:
            return before[-1]._replace(at_s=time.monotonic())
        return Look(time.monotonic(), "", {})
    return Look(time.monotonic(), topic_id, starts)


def lost_s(looks: Sequence[Look], handled: Mapping[int, int]) -> float | None:
    """Return when records from these offsets on, or the topic, were found gone, or None."""
    for look in looks:
        is_another = look.topic_id != looks[0].topic_id
        if is_another or any(start > handled.get(number, 0) for number, start in look.starts.items()):
            return look.at_s
    return None


def stalled_s(looks: Sequence[Look], from_s: float, to_s: float) -> float:
    """Return the longest time without a query between these two times."""
    times = [from_s, *(look.at_s for look in looks if from_s < look.at_s < to_s), to_s]
    return max(later - earlier for earlier, later in pairwise(times))
