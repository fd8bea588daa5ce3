"""Descriptions of groups, gathered from the coordinator and the broker."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from assignors.kafka.api import TopicPartition
from insight.admin.describe import (
    PartitionRow,
    is_consumer_group,
    mentioned_partitions,
    partition_rows,
    protocol_type,
)
from insight.admin.error_text import error_text
from insight.admin.log_offsets import LogOffsets
from insight.admin.requests import AnyDescribed, Committed, GroupRequests
from insight.admin.rocketmq import offsets_remark
from state.errors import ErrorCode

Offsets = Mapping[TopicPartition, Committed]


@dataclass(frozen=True, slots=True)
class Described:
    """Groups by id, in the order of their ids, with their committed offsets if these were requested.

    A group that could not be described is in neither mapping; `errors` has a sentence for each. `rocketmq`
    has RocketMQ's groups, which come from the groups topic.
    """

    groups: dict[str, AnyDescribed] = field(default_factory=dict)
    offsets: dict[str, Offsets] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    rocketmq: list[str] = field(default_factory=list)

    def refusals(self) -> list[str]:
        """Return why groups are missing, for callers that can only handle Kafka's groups."""
        return [*self.errors, *map(offsets_remark, self.rocketmq)]


def describe_groups(
    requests: GroupRequests, group_ids: Iterable[str], *, with_offsets: bool = False
) -> Described:
    """Send the requests that describe groups and, in the same round trip, OffsetFetch. A group that does not
    exist is Dead.

    Raises `clients.pending.ClientError` if a response is missing.
    """
    ids = list(group_ids)
    answers, fetched = requests.describe(ids, with_offsets=with_offsets)
    found = Described(rocketmq=sorted(set(ids) - answers.keys()))
    for group_id, answer in sorted(answers.items()):
        codes = {answer.error_code}
        if with_offsets:
            codes.add(fetched[group_id].error_code)
        error = max(codes - {ErrorCode.NONE}, default=None)
        if error is not None:
            reason = error_text(error.name)
            found.errors.append(f"Consumer group '{group_id}' cannot be described: {reason}.")
        elif not is_consumer_group(answer):
            found.errors.append(f"GroupId {group_id} is not a consumer group ({protocol_type(answer)}).")
        else:
            found.groups[group_id] = answer
            if with_offsets:
                found.offsets[group_id] = fetched[group_id].offsets
    return found


def describe_partitions(log: LogOffsets, described: Described) -> dict[str, list[PartitionRow]]:
    """Return the rows of each group's partitions; `described` must have offsets.

    The log ends are read after the committed offsets, so a lag is negative only if a committed offset is
    beyond the end of the log. Raises kafka-python's KafkaError.
    """
    mentioned: set[TopicPartition] = set()
    for group_id, group in described.groups.items():
        mentioned |= mentioned_partitions(group, described.offsets[group_id])
    ends = log.ends(log.there(mentioned))
    return {
        group_id: partition_rows(group, described.offsets[group_id], ends)
        for group_id, group in described.groups.items()
    }
