"""Applies records of `__consumer_offsets`, and polls of a rebalancing group, to a group.

The result depends only on the records and polls.
"""

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

# No record has this time, so the record after a poll begins a new run (a series of records with one time).
_NO_RECORD_MS = -1


def observe(
    group: ObservedGroup | None,
    group_id: str,
    record: AnyRecord,
    at: RecordPosition,
    names: Mapping[bytes, str],
    removed_ms: int | None = None,
) -> Observation:
    """Apply the next record about a group. Return the group after it, and the changes.

    `group` is changed in place. It is None before the group's first record. `at` is the record's position.
    `names` are known topic names by id. `removed_ms` is the `removed_ms` of the group's previous observation.
    If the group ends but has offsets, the result has a new group with these offsets.
    """
    if group is None:
        group = ObservedGroup(group_id, at.incarnation)
    if at.time_ms != group.run_ms or not group.run:
        group.run, group.run_ms = at.record, at.time_ms
        epochs.begin_run(group)
    # The group's time never goes back, although its coordinator may move to a broker whose clock is behind.
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
    """Apply a poll that found the group rebalancing, or that found the end of the rebalance.

    `at` is the position of the record with the poll's result. The entries get the time of the group's last
    record unless they have a time of their own.
    """
    group.run, group.run_ms = at.record, _NO_RECORD_MS
    seen = Observation(group, at._replace(time_ms=group.at_ms), {})
    observe_sighting(seen, seen_rebalancing)
    return seen


def _observe_generation(seen: Observation, record: ClassicGeneration) -> None:
    epochs = seen.group.epochs
    if epochs is None:
        classic.observe_generation(seen, record)
    elif epochs.is_ending:  # its records are being removed, so the group is converted
        classic.convert_to_classic(seen, record)
    else:  # the records that ended the group with epochs are missing
        seen.group.epochs = None
        classic.begin_again(seen, record)


def _observe_offset(seen: Observation, record: OffsetCommitted) -> None:
    group, topic, partition = seen.group, record.topic, record.partition
    if record.offset is not None:
        seen.view_changed = not group.offsets  # with its first offset, the group may have begun to exist
        group.offsets.setdefault(topic, {})[partition] = record.offset
    else:
        topic_offsets = group.offsets.get(topic, {})
        topic_offsets.pop(partition, None)
        if not topic_offsets:
            group.offsets.pop(topic, None)
        has_only_offsets = group.classic is None and group.epochs is None
        seen.is_over = has_only_offsets and not group.offsets
    seen.offsets.append(OffsetChange(topic, partition, record.offset))


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
