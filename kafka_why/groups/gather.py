"""Descriptions of groups, gathered from the coordinator and the broker."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.kafka.history import DEAD
from kafka_why.contract.kafka.snapshot import GroupSnapshot
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.protocols.subscriptions import TopicPartition
from kafka_why.groups.describe import LagsMs, PartitionRow, mentioned_partitions, partition_rows
from kafka_why.groups.error_text import error_text
from kafka_why.groups.list_groups import GroupOffsets, committed_offsets, list_groups, listed
from kafka_why.groups.log_offsets import LogOffsets
from kafka_why.groups.rocketmq import offsets_remark
from kafka_why.lag.definitions import LogBounds, lag_records, next_offset

# Sources of descriptions of groups, and the groups topic as one of them.


KnownTypes = Mapping[str, str | None]
"""The type of each group as its history names it, by group id, None if it is not known."""

Answers = dict[str, GroupSnapshot | ErrorCode]
"""Groups by id, or why they cannot be described."""


class Describing(Protocol):
    """A source of descriptions of groups."""

    def describe(
        self, groups: KnownTypes, *, with_offsets: bool = False
    ) -> tuple[Answers, dict[str, GroupOffsets]]:
        """Return the groups, or why they cannot be described, and their offsets if wanted."""
        ...


class TopicsGroups(Describing):
    """Describes groups from the topics of an observer or a coordinator, as far as these are written."""

    def __init__(self, client_config: ClientConfig, layout: TopicLayout, timeout_ms: int) -> None:
        self._topics = client_config, layout, timeout_ms

    def describe(
        self, groups: KnownTypes, *, with_offsets: bool = False
    ) -> tuple[Answers, dict[str, GroupOffsets]]:
        """Describe the groups. Raises KafkaError. The result omits groups that are not Kafka's."""
        client_config, layout, timeout_ms = self._topics
        views = {view.group_id: view for view in list_groups(*self._topics)}
        kafkas: Answers = {}
        for group_id in groups:
            view = views.get(group_id) or dead(group_id)
            if isinstance(view, GroupSnapshot):
                kafkas[group_id] = view
        if not with_offsets:
            return kafkas, {}
        return kafkas, committed_offsets(client_config, layout, kafkas, timeout_ms)


def dead(group_id: str) -> GroupSnapshot:
    """Return a group that does not exist, as Kafka describes it."""
    return snapshot_without_times(group_id, DEAD, protocol_type=None, members=[])


def snapshot_without_times(group_id: str, state: str, **fields: Any) -> GroupSnapshot:
    """Return a group with these fields. Times, and what else no answer about a group has, are empty."""
    empty: dict[str, Any] = {
        **dict.fromkeys(("incarnation", "last_rebalance_reason"), ""),
        **dict.fromkeys(("seq", "at_ms", "state_timestamp_ms", "generation"), 0),
        **dict.fromkeys(("protocol_name", "leader_id", "last_rebalance_at_ms", "quarantined")),
        "pending_members": [],
    }
    return GroupSnapshot(**empty | {"group_id": group_id, "state": state, **fields})


@dataclass(frozen=True, slots=True)
class Described:
    """Groups by id, in the order of their ids, with their offsets if these were requested.

    A group that could not be described is in neither mapping; `errors` has a sentence for each. `rocketmq`
    has RocketMQ's groups, which come from the groups topic.
    """

    groups: dict[str, GroupSnapshot] = field(default_factory=dict)
    offsets: dict[str, GroupOffsets] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    rocketmq: list[str] = field(default_factory=list)

    def refusals(self) -> list[str]:
        """Return why groups are missing, for callers that can only handle Kafka's groups."""
        return [*self.errors, *map(offsets_remark, self.rocketmq)]


def describe_groups(requests: Describing, groups: KnownTypes, *, with_offsets: bool = False) -> Described:
    """Send the requests that describe groups and, in the same round trip, OffsetFetch. A group that does not
    exist is Dead.

    Raises `kafka_why.topic_reader.ClientError` if a response is missing.
    """
    answers, fetched = requests.describe(groups, with_offsets=with_offsets)
    found = Described(rocketmq=sorted(groups.keys() - answers.keys()))
    for group_id, answer in sorted(answers.items()):
        codes = {fetched[group_id].error_code} if with_offsets else set()
        if isinstance(answer, ErrorCode):
            codes.add(answer)
        error = max(codes - {ErrorCode.NONE}, default=None)
        if error is not None:
            reason = error_text(error.name)
            found.errors.append(f"Consumer group '{group_id}' cannot be described: {reason}.")
            continue
        assert isinstance(answer, GroupSnapshot), "without an error"
        if not listed(answer).is_of_consumers:
            found.errors.append(f"GroupId {group_id} is not a consumer group ({answer.protocol_type}).")
            continue
        found.groups[group_id] = answer
        if with_offsets:
            found.offsets[group_id] = fetched[group_id]
    return found


def describe_partitions(
    log: LogOffsets, described: Described, *, with_lag_seconds: bool = False
) -> dict[str, list[PartitionRow]]:
    """Return the rows of each group's partitions; `described` must have offsets. `with_lag_seconds` looks for
    the times of records, too.

    The logs' bounds are read after the committed offsets, so what was committed is in the log. Raises
    kafka-python's KafkaError.
    """
    mentioned: set[TopicPartition] = set()
    for group_id, group in described.groups.items():
        mentioned |= mentioned_partitions(group, described.offsets[group_id])
    bounds = log.bounds(log.there(mentioned))
    lags_ms = _lags_ms(log, described, bounds) if with_lag_seconds else None
    return {
        group_id: partition_rows(group, described.offsets[group_id], bounds, lags_ms)
        for group_id, group in described.groups.items()
    }


def _lags_ms(log: LogOffsets, described: Described, bounds: Mapping[TopicPartition, LogBounds]) -> LagsMs:
    """Return the lags in time of the committed offsets that are behind."""
    behind = {
        (partition, committed.offset)
        for offsets in described.offsets.values()
        for partition, committed in offsets.committed.items()
        if partition in bounds and lag_records(committed.offset, bounds[partition])
    }
    found = log.lags_ms({(p, next_offset(offset, bounds[p])) for p, offset in behind})
    return {
        (p, offset): ms
        for p, offset in behind
        if (ms := found.get((p, next_offset(offset, bounds[p])))) is not None
    }
