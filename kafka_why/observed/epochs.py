"""Derives the history of groups with epochs: consumer, share and streams groups (rows OB20 to OB28 of
docs/observe.md).

The functions change the group of an `Observation`, the results of one record, and add history entries to it.

Kafka writes every change of these groups. The records of one request have the same time, and this order: the
members that joined, changed or left; the topics that patterns match, or the topology; the group epoch; the
target assignments and their epoch; a member's current assignment. The log does not show whether a member left
or expired.
"""

from typing import Any

from kafka_why.contract.kafka.history import (
    CONSUMER,
    LEAVE_GROUP_STATIC_MEMBER_EPOCH,
    SHARE,
    STREAMS,
    ConsumerGroupState,
    EntryType,
    MemberState,
)
from kafka_why.contract.kafka.snapshot import Partitions
from kafka_why.contract.protocols.subscriptions import TopicPartition
from kafka_why.observed import share, streams
from kafka_why.observed.group import CREATION, Assigned, Epochs, News, ObservedGroup
from kafka_why.observed.observation import Observation, listed, listed_partitions
from kafka_why.observed.records import (
    GroupEpoch,
    MemberAssigned,
    MemberAssignment,
    MemberSubscribed,
    MemberSubscription,
    MemberTarget,
    RegexResolved,
    SubscribedTopics,
    TargetEpoch,
)


def _describe_consumer_change(before: MemberSubscription, now: MemberSubscription) -> str:
    """Return the object of "the member changed", or "" if it still subscribes to the same topics."""
    has_changed = (before.topic_names, before.topic_regex) != (now.topic_names, now.topic_regex)
    return "what it subscribes to" if has_changed else ""


def observe_regex(seen: Observation, record: RegexResolved) -> None:
    """Apply the topics that a pattern matches."""
    epochs = seen.epochs(CONSUMER)
    seen.view_changed = True
    if record.topics is None:
        epochs.regexes.pop(record.regex, None)  # no member has the pattern any longer
        return
    if epochs.regexes.get(record.regex) != record.topics:
        epochs.news.regexes.append(record.regex)
    epochs.regexes[record.regex] = record.topics


def observe_topics(seen: Observation, record: SubscribedTopics) -> None:
    """Apply the names of the group's topics. Only Kafka 3.7 to 4.0 writes this record."""
    seen.epochs(CONSUMER).topics = dict(record.topics)
    seen.view_changed = True


# By code in the log.
_STATES = {0: MemberState.STABLE, 1: MemberState.UNREVOKED_PARTITIONS, 2: MemberState.UNRELEASED_PARTITIONS}
# A new group has epoch 1 in Kafka 3.7 to 4.2, and 2 later.
_FIRST_EPOCH_MAX = 2
# Rows of reasons that are reported even if members changed, too, because they are independent of members.
_ROWS_WITHOUT_MEMBERS = ("OB51", "OB52")
# By type of group: the function that describes a changed subscription ("" if it has no effect on the group).
_DESCRIBE_CHANGE = {
    CONSUMER: _describe_consumer_change,
    SHARE: share.describe_change,
    STREAMS: streams.describe_change,
}


def begin_run(group: ObservedGroup) -> None:
    """Forget the changes in the records of one request before those of the next request are applied."""
    if group.epochs is not None:
        group.state = group.state_now()
        group.epochs.news = News()


def observe_subscription(seen: Observation, record: MemberSubscribed) -> None:
    """Apply a member that joined, changed its subscription, or left."""
    epochs, member_id, now = seen.epochs(record.kind), record.member_id, record.subscription
    if epochs.is_ending:  # if the group becomes a classic group, its members are still needed
        return
    seen.view_changed = True
    before = epochs.subscriptions.get(member_id)
    if now is None:
        epochs.subscriptions.pop(member_id, None)
        if before is not None:
            _remove(seen, epochs, member_id, before)
        epochs.assigned.pop(member_id, None)
        epochs.targets.pop(member_id, None)
        return
    away = epochs.news.away.pop(now.instance_id or "", None)
    epochs.subscriptions[member_id] = now
    if away is not None:
        old_id, before = away
        fields, reason = _join_fields(member_id, now), "a static member came back"
        seen.record_or_update("OB28", EntryType.MEMBER_REPLACED, reason, replaced_member_id=old_id, **fields)
    elif before is None:
        epochs.news.joined.append(member_id)
        seen.record_or_update(
            "OB21", EntryType.MEMBER_ADDED, "a new member joined", **_join_fields(member_id, now)
        )
    if before is not None and (change := _DESCRIBE_CHANGE[epochs.kind](before, now)):
        epochs.news.changed[member_id] = change


def _remove(seen: Observation, epochs: Epochs, member_id: str, member: MemberSubscription) -> None:
    """Record that a member was removed, unless a static member may come back under a new member id."""
    assigned = epochs.assigned.get(member_id)
    if member.instance_id and assigned is not None and assigned.epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        # It had left temporarily: the next record may show it under a new member id.
        epochs.news.away[member.instance_id] = (member_id, member)
        return
    held = [] if assigned is None else _committed_by(seen, epochs, assigned.partitions)
    since_ms = 0 if assigned is None else assigned.since_ms
    reason = seen.group.removal_reason(member_id, held, since_ms, seen.at.time_ms)
    epochs.news.gone[member_id] = reason
    seen.record_or_update("OB22", EntryType.MEMBER_REMOVED, reason, **_member_fields(member_id, member))


def _committed_by(seen: Observation, epochs: Epochs, partitions: Partitions) -> list[TopicPartition]:
    """Return the partitions whose offsets a member with these `partitions` commits, or [] if unknown."""
    if epochs.kind == SHARE:
        return []
    if epochs.kind == STREAMS:
        return streams.partitions_read_by(epochs.topology, partitions)
    if not partitions.keys() <= seen.group.names(seen.names).keys():
        return []  # the name of a topic is unknown
    held = seen.group.partitions_by_name(partitions, seen.names)
    return [TopicPartition(topic, n) for topic, numbers in held.items() for n in numbers]


def _member_fields(member_id: str, member: MemberSubscription) -> dict[str, Any]:
    return {
        "member_id": member_id,
        "group_instance_id": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
    }


def _join_fields(member_id: str, member: MemberSubscription) -> dict[str, Any]:
    process_id = None if member.streams is None else member.streams.process_id
    return {**_member_fields(member_id, member), "process_id": process_id}


def observe_epoch(seen: Observation, record: GroupEpoch) -> None:
    """Apply a new group epoch, which begins or continues a rebalance. The same epoch again does neither."""
    epochs, group = seen.epochs(record.kind), seen.group
    epochs.is_ending = False
    last_epoch = group.generation
    other_reasons = _other_reasons(seen, epochs, record)
    epochs.metadata_hash, group.generation = record.metadata_hash, record.epoch
    epochs.topology.validated_epoch = record.validated_topology_epoch
    epochs.topology.configs = None if record.assignment_configs is None else dict(record.assignment_configs)
    seen.view_changed = True
    if record.epoch <= last_epoch:
        if epochs.is_found and group.seq > CREATION:  # a classic group was converted, so no member joined
            epochs.is_found, epochs.news = False, News()
        return
    if epochs.is_found:  # the group has no history yet
        if not _records_show_change(group, epochs, last_epoch, record.epoch):
            return
        _begin_history(seen, epochs, last_epoch)
    elif record.epoch > last_epoch + 1:  # compaction removed the records of epochs between the two
        seen.skip_seq()
    _remove_away_members(seen, epochs.news)
    rule, reason, member_ids = _news_reason(epochs.news, other_reasons)
    previous_rebalance_at_ms = group.last_rebalance_at_ms
    group.last_rebalance_at_ms, group.last_rebalance_reason = seen.at.time_ms, reason
    is_empty = not epochs.subscriptions
    epochs.is_settled = is_empty
    seen.record(
        rule,
        EntryType.GROUP_EPOCH_BUMPED,
        reason,
        to_state=None if is_empty else group.epochs_state(),
        member_id=member_ids[0] if len(member_ids) == 1 else None,
        last_rebalance_at_ms=previous_rebalance_at_ms,
    )
    if is_empty:
        seen.record(
            "OB26", EntryType.EMPTY, "the last member is gone", to_state=ConsumerGroupState.EMPTY.value
        )


def _remove_away_members(seen: Observation, news: News) -> None:
    """Record that the static members that are away have been removed."""
    for instance_id, (member_id, _) in news.away.items():
        news.gone[member_id] = f"static member {member_id} did not come back in time, or was removed"
        seen.record(
            "OB22",
            EntryType.MEMBER_REMOVED,
            news.gone[member_id],
            member_id=member_id,
            group_instance_id=instance_id,
        )
    news.away = {}


def _records_show_change(group: ObservedGroup, epochs: Epochs, last_epoch: int, epoch: int) -> bool:
    """Return True if the records show the change that led to this epoch.

    They do if an earlier epoch (`last_epoch`) was read, or if this is the first epoch of a new group with one
    member. A converted group begins with all its members at once.
    """
    if last_epoch > 0:
        return True
    is_first_epoch = group.seq == CREATION and epoch <= _FIRST_EPOCH_MAX
    have_all_just_joined = len(epochs.subscriptions) == len(epochs.news.joined)
    return is_first_epoch and have_all_just_joined and len(epochs.news.joined) <= 1


def _begin_history(seen: Observation, epochs: Epochs, last_epoch: int) -> None:
    """Begin a group's history with its creation, if the records show it, and the changes of this request."""
    group = seen.group
    epochs.is_found = False
    # AlterShareGroupOffsets may have created the group before, in a record that compaction has removed.
    existed_before = epochs.share is not None and epochs.share.first_ms < seen.at.time_ms
    if last_epoch == 0 and group.seq == CREATION and not group.offsets and not existed_before:
        seen.record("OB20", EntryType.GROUP_CREATED, "the group was created")
    for member_id in epochs.news.joined:
        subscription = epochs.subscriptions.get(member_id)
        if subscription is not None:
            fields = _join_fields(member_id, subscription)
            seen.record("OB21", EntryType.MEMBER_ADDED, "a new member joined", **fields)
    for member_id, reason in epochs.news.gone.items():
        seen.record("OB22", EntryType.MEMBER_REMOVED, reason, member_id=member_id)
    if epochs.news.is_new_topology:
        streams.record_topology(seen, epochs.topology)


def observe_target(seen: Observation, record: MemberTarget) -> None:
    """Apply a new target assignment of a member."""
    epochs = seen.epochs(record.kind)
    if record.partitions is None:
        if not epochs.is_ending:
            epochs.targets.pop(record.member_id, None)
        return
    epochs.targets[record.member_id] = record.partitions
    epochs.changed_targets[record.member_id] = record.partitions
    seen.view_changed = True


def observe_target_epoch(seen: Observation, record: TargetEpoch) -> None:
    """Apply the epoch of a complete target assignment."""
    epochs, group = seen.epochs(record.kind), seen.group
    seen.view_changed = True
    if record.epoch is None:
        epochs.is_ending = True  # a tombstone: the group's other records are removed next
        return
    epochs.assignment_epoch = record.epoch
    changed, epochs.changed_targets = epochs.changed_targets, {}
    if not epochs.subscriptions:
        return
    state = group.epochs_state()
    if state == ConsumerGroupState.STABLE and epochs.kind != SHARE:
        # The members have not acknowledged the target yet, even if their partitions do not change.
        state = ConsumerGroupState.RECONCILING.value
    seen.record_or_update(
        "OB24",
        EntryType.TARGET_ASSIGNMENT_COMPUTED,
        f"the target assignment of epoch {record.epoch} was computed",
        to_state=state,
        assignment_epoch=record.epoch,
        assignor_name=epochs.assignor(),
        targets={m: group.partitions_by_name(partitions, seen.names) for m, partitions in changed.items()},
    )


def observe_assignment(seen: Observation, record: MemberAssigned) -> None:
    """Apply a member's current assignment, which is a step towards its target."""
    epochs, group = seen.epochs(record.kind), seen.group
    member_id, now = record.member_id, record.assignment
    seen.view_changed = True
    if now is None or epochs.is_ending:
        return  # the tombstone of the member's subscription follows, or the group ends
    before = epochs.assigned.get(member_id)
    revoking_since_ms = before.revoking_since_ms if before is not None and before.revoking else None
    old_partitions, assigned_since_ms = ({}, 0) if before is None else (before.partitions, before.since_ms)
    # The first record read of a member that is not new does not show since when it has its partitions.
    is_time_known = before is not None or now.previous_epoch <= 0
    if old_partitions != now.assigned and is_time_known:
        assigned_since_ms = seen.at.time_ms
    epochs.assigned[member_id] = Assigned(
        epoch=now.epoch,
        previous_epoch=now.previous_epoch,
        state=_STATES.get(now.state),
        partitions=now.assigned,
        revoking=now.revoking,
        revoking_since_ms=(revoking_since_ms or seen.at.time_ms) if now.revoking else None,
        since_ms=assigned_since_ms,
    )
    if member_id not in epochs.subscriptions:
        return
    if now.epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        _record_step(seen, epochs, EntryType.MEMBER_LEFT_TEMPORARILY, member_id, now, revoking_since_ms)
    elif _STATES.get(now.state) is not None:
        _record_step(seen, epochs, EntryType.MEMBER_RECONCILED, member_id, now, revoking_since_ms)
    _record_settled(seen, epochs, group)


def _record_settled(seen: Observation, epochs: Epochs, group: ObservedGroup) -> None:
    """Record Stable once all members have reached their targets."""
    state = group.epochs_state()
    if state != ConsumerGroupState.STABLE or not group.are_members_at_target():
        return
    if group.state == state and epochs.is_settled:  # a share group with members is always in the state Stable
        return
    seen.record_or_update(
        "OB26",
        EntryType.STABLE,
        "every member has its target assignment",
        to_state=state,
        members=list(epochs.subscriptions),
        assignment_epoch=epochs.assignment_epoch,
    )
    epochs.is_settled = True


def _record_step(
    seen: Observation,
    epochs: Epochs,
    kind: EntryType,
    member_id: str,
    now: MemberAssignment,
    revoking_since_ms: int | None,
) -> None:
    """Record a member's step towards its target. `revoking_since_ms` is of its previous assignment."""
    group, names = seen.group, seen.names
    is_away = kind is EntryType.MEMBER_LEFT_TEMPORARILY
    target = epochs.targets.get(member_id, {}) if now.state == _UNRELEASED else {}
    awaiting = share.without(target, now.assigned)
    seen.record_or_update(
        "OB25",
        kind,
        "a static member left temporarily" if is_away else _step_reason(seen, now, awaiting),
        **_member_fields(member_id, epochs.subscriptions[member_id]),
        member_epoch=now.epoch,
        member_state=None if is_away else _STATES[now.state].value,
        assignment_epoch=epochs.assignment_epoch,
        assigned=group.partitions_by_name(now.assigned, names),
        revoking=group.partitions_by_name(now.revoking, names) or None,
        awaiting=group.partitions_by_name(awaiting, names) or None,
        took_ms=None if revoking_since_ms is None or now.revoking else seen.at.time_ms - revoking_since_ms,
    )


_UNRELEASED = 2
"""The code of `MemberState.UNRELEASED_PARTITIONS`: the member waits for partitions of its target."""


def _step_reason(seen: Observation, now: MemberAssignment, awaiting: Partitions) -> str:
    """Return a sentence about a member's assignment. `awaiting` are the partitions that it waits for."""
    if now.revoking:
        return f"the member has to revoke {listed_partitions(seen, now.revoking)}"
    nothing = "no task" if seen.group.type_name == STREAMS else "no partition"
    assigned = listed_partitions(seen, now.assigned) or nothing
    waits = f"; it waits for {listed_partitions(seen, awaiting)}" if awaiting else ""
    return f"the member is at epoch {now.epoch} and has {assigned}{waits}"


def _other_reasons(seen: Observation, epochs: Epochs, record: GroupEpoch) -> list[tuple[str, str]]:
    """Return the row and the text of each reason for a new epoch that is not in `News`."""
    reasons = []
    if epochs.kind == STREAMS:
        reasons = streams.epoch_reasons(epochs.topology, record)
    elif epochs.kind == SHARE:
        reasons = share.epoch_reasons(seen, epochs)
    if not reasons and record.metadata_hash != epochs.metadata_hash:
        reasons = [("OB27", "the partitions or racks of the subscribed topics changed")]
    return reasons


def _news_reason(news: News, other_reasons: list[tuple[str, str]]) -> tuple[str, str, list[str]]:
    """Return the row of a new epoch, its reason as a sentence, and the ids of members in the reason."""
    texts = []
    if news.joined:
        texts.append(f"{listed(news.joined, 'member')} joined")
    texts += news.gone.values()
    for change in dict.fromkeys(news.changed.values()):
        ids = [member_id for member_id, text in news.changed.items() if text == change]
        texts.append(f"{listed(ids, 'member')} changed {change}")
    if news.regexes:
        texts.append(f"{listed(news.regexes, 'pattern')} matches other topics")
    if texts:
        texts += [text for rule, text in other_reasons if rule in _ROWS_WITHOUT_MEMBERS]
        return "OB23", "; ".join(texts), [*news.joined, *news.gone, *news.changed]
    if other_reasons:
        return other_reasons[0][0], "; ".join(text for _, text in other_reasons), []
    return "OB23", "the records do not show why", []
