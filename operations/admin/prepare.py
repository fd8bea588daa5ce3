"""Preparation of a reset: the groups that can be reset, the selected partitions, their known offsets."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kafka_why.contract.kafka.history import DEAD, GroupState
from kafka_why.contract.protocols.subscriptions import TopicPartition
from kafka_why.groups.error_text import UNKNOWN_TOPIC_OR_PARTITION
from kafka_why.groups.gather import KnownTypes, LogOffsets, describe_groups
from kafka_why.groups.list_groups import GroupOffsets
from kafka_why.groups.selection import TopicChoice, choose_partitions
from operations.admin.requests import GroupRequests
from operations.admin.reset import (
    FromFile,
    KnownOffsets,
    ResetError,
    ResetPlan,
    Scenario,
    ShiftBy,
    ToCurrent,
    ToTime,
    partition_name,
    plan_reset,
)

INACTIVE = frozenset({GroupState.EMPTY.value, DEAD})


@dataclass(frozen=True, slots=True)
class PreparedReset:
    """The plan of each group. A group that cannot be reset has an empty plan and a sentence in `errors`."""

    plans: dict[str, ResetPlan]
    errors: list[str]


def prepare_reset(
    requests: GroupRequests,
    log: LogOffsets,
    groups: KnownTypes,
    scenario: Scenario,
    topics: Sequence[TopicChoice] | None,
) -> PreparedReset:
    """Plan the reset of these groups. `topics` None selects all partitions with a committed offset.

    The function reads and changes nothing. Raises ResetError, for all groups, if a partition does not exist
    or has no offset to shift; a ClientError or KafkaError if the coordinator or a broker does not respond.
    """
    described = describe_groups(requests, groups, with_offsets=_needs_committed(scenario, topics))
    shares = [g for g, d in described.groups.items() if d.group_type == "share"]
    active = {g: d.state for g, d in described.groups.items() if d.state not in INACTIVE}
    inactive = [group_id for group_id in described.groups if group_id not in (*active, *shares)]
    partitions = _partitions(log, inactive, scenario, topics, described.offsets)
    everything = {p for wanted in partitions.values() for p in wanted}
    if missing := everything - log.filter_existing(everything):
        raise _not_there(sorted(missing))
    bounds = log.bounds(everything)
    at_time = log.at_time(everything, scenario.at_ms) if isinstance(scenario, ToTime) else {}
    plans = {group_id: ResetPlan({}, []) for group_id in groups}
    for group_id, wanted in partitions.items():
        offsets = described.offsets.get(group_id, GroupOffsets())
        committed = {p: c.offset for p, c in offsets.committed.items()}
        plans[group_id] = plan_reset(scenario, group_id, wanted, KnownOffsets(bounds, committed, at_time))
    errors = [
        *described.refusals(),
        *(
            f"Assignments can only be reset if the group '{group_id}' is inactive, "
            f"but the current state is {state}."
            for group_id, state in active.items()
        ),
    ]
    errors += [
        f"Group '{group_id}' is a share group: reset it with kafka-share-groups." for group_id in shares
    ]
    if isinstance(scenario, FromFile):
        lost = [group_id for group_id in inactive if group_id not in scenario.plan]
        errors += [f"No reset plan for group {group_id} found." for group_id in lost]
    return PreparedReset(plans, errors)


def _needs_committed(scenario: Scenario, topics: Sequence[TopicChoice] | None) -> bool:
    if isinstance(scenario, FromFile):
        return False
    return topics is None or isinstance(scenario, (ShiftBy, ToCurrent))


def _partitions(
    log: LogOffsets,
    group_ids: Iterable[str],
    scenario: Scenario,
    topics: Sequence[TopicChoice] | None,
    offsets: Mapping[str, GroupOffsets],
) -> dict[str, list[TopicPartition]]:
    """Return the partitions to reset, by group."""
    if isinstance(scenario, FromFile):
        return {group_id: sorted(scenario.plan.get(group_id, {})) for group_id in group_ids}
    if topics is None:
        return {group_id: sorted(offsets[group_id].committed) for group_id in group_ids}
    chosen = choose_partitions(topics, log.existing({choice.topic for choice in topics}))
    if chosen.missing:
        raise _not_there(chosen.missing)
    return dict.fromkeys(group_ids, chosen.partitions)


def _not_there(missing: Iterable[TopicPartition]) -> ResetError:
    names = ",".join(p.topic if p.partition < 0 else partition_name(p) for p in missing)
    return ResetError(f'{UNKNOWN_TOPIC_OR_PARTITION}: The partitions "{names}" do not exist')
