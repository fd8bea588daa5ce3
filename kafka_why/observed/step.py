"""Applies records of `__consumer_offsets` to a group. The result depends only on the records."""

from collections.abc import Callable, Mapping

from kafka_why.contract.kafka.history import OffsetChange
from kafka_why.contract.sightings import RebalanceSeen
from kafka_why.observed import classic, epochs, share, streams
from kafka_why.observed.group import ObservedGroup
from kafka_why.observed.observation import Observation, RecordPosition
from kafka_why.observed.records import (
    AnyRecord,
    ClassicGeneration,
    ClassicGroupRemoved,
    GroupEpoch,
    GroupEpochRemoved,
    MemberAssigned,
    MemberSubscribed,
    MemberTarget,
    OffsetCommitted,
    RegexResolved,
    SharePartitions,
    SubscribedTopics,
    TargetEpoch,
    TopologySent,
)
from kafka_why.observed.sightings import observe_sighting

# No record of the log has this time, so the next record begins a new run.
_NO_TIME = -1


def observe(
    group: ObservedGroup | None,
    group_id: str,
    record: AnyRecord,
    at: RecordPosition,
    names: Mapping[bytes, str],
    removed_ms: int | None = None,
) -> Observation:
    """Apply the next record of the group's partition. Return the group after it, and the changes.

    `group` is changed in place, or None before the group's first record. `names` are known topic names by id.
    `removed_ms` is that of the previous observation.
    """
    if group is None:
        group = ObservedGroup(group_id, at.incarnation)
    if at.time_ms != group.run_ms or not group.run:
        group.run, group.run_ms = at.record, at.time_ms
        epochs.begin_run(group)
    # The group's coordinator may have moved to a broker whose clock is behind.
    if at.time_ms >= group.at_ms:
        group.at_ms = at.time_ms
    else:
        at = at._replace(time_ms=group.at_ms)
    seen = Observation(group, at, names, removed_ms=removed_ms)
    _HANDLERS[type(record)](seen, record)
    if seen.is_over and group.offsets:
        seen.group = ObservedGroup(group_id, at.incarnation, at_ms=group.at_ms, offsets=group.offsets)
        seen.is_over = False
    return seen


def observe_rebalancing(
    group: ObservedGroup, seen_rebalancing: RebalanceSeen, at: RecordPosition
) -> Observation:
    """Apply a poll that found the group rebalancing, or the end of the rebalance."""
    group.run, group.run_ms = at.record, _NO_TIME
    seen = Observation(group, at._replace(time_ms=group.at_ms), {})
    observe_sighting(seen, seen_rebalancing)
    return seen


def _observe_generation(seen: Observation, record: ClassicGeneration) -> None:
    epochs = seen.group.epochs
    if epochs is None:
        classic.observe_generation(seen, record)
    elif epochs.is_ending:
        classic.convert_to_classic(seen, record)
    else:  # the records that ended the group with epochs are missing
        seen.group.epochs = None
        classic.begin_again(seen, record)


def _observe_offset(seen: Observation, record: OffsetCommitted) -> None:
    group, topic, number = seen.group, record.topic, record.partition
    is_new = not group.offsets
    if record.offset is not None:
        group.offsets.setdefault(topic, {})[number] = record.offset
        seen.has_news = is_new
    else:
        of_topic = group.offsets.get(topic, {})
        of_topic.pop(number, None)
        if not of_topic:
            group.offsets.pop(topic, None)
        seen.is_over = not group.offsets and group.classic is None and group.epochs is None
    seen.offsets.append(OffsetChange(topic, number, record.offset))


_HANDLERS: dict[type[AnyRecord], Callable[..., None]] = {
    OffsetCommitted: _observe_offset,
    ClassicGeneration: _observe_generation,
    ClassicGroupRemoved: lambda seen, _: classic.remove_classic(seen),
    GroupEpoch: epochs.observe_epoch,
    GroupEpochRemoved: lambda seen, _: classic.remove_epochs(seen),
    SubscribedTopics: epochs.observe_topics,
    MemberSubscribed: epochs.observe_subscription,
    RegexResolved: epochs.observe_regex,
    TargetEpoch: epochs.observe_target_epoch,
    MemberTarget: epochs.observe_target,
    MemberAssigned: epochs.observe_assignment,
    SharePartitions: share.observe_partitions,
    TopologySent: streams.observe_topology,
}
