"""Derives the history of groups with epochs: consumer, share and streams groups. Rows OB20 to OB28.

Kafka writes every change of these groups. The records of one request have the same time, and this order: the
members that joined, changed or left; the topics that patterns match, or the topology; the group epoch; the
target assignments and their epoch; a member's current assignment. The log does not show whether a member left
or expired.
"""

from collections.abc import Iterable
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


def _changed_by_consumer(before: MemberSubscription, now: MemberSubscription) -> str:
    is_other = (before.topic_names, before.topic_regex) != (now.topic_names, now.topic_regex)
    return "what it subscribes to" if is_other else ""


def observe_regex(seen: Observation, record: RegexResolved) -> None:
    """Apply the topics that a pattern matches."""
    epochs = seen.epochs(CONSUMER)
    seen.has_news = True
    if record.topics is None:
        epochs.regexes.pop(record.regex, None)  # no member has the pattern any longer
        return
    if epochs.regexes.get(record.regex) != record.topics:
        epochs.news.regexes.append(record.regex)
    epochs.regexes[record.regex] = record.topics


def observe_topics(seen: Observation, record: SubscribedTopics) -> None:
    """Apply the names of the group's topics. Only Kafka 3.7 to 4.0 writes this record."""
    seen.epochs(CONSUMER).topics = dict(record.topics)
    seen.has_news = True


_STATES = {0: MemberState.STABLE, 1: MemberState.UNREVOKED_PARTITIONS, 2: MemberState.UNRELEASED_PARTITIONS}
# A new group has epoch 1 in Kafka 3.7 to 4.2, and 2 later.
_FIRST_EPOCH_MAX = 2
# Rows of reasons that are reported even if members changed, too, because they are independent of members.
_INDEPENDENT = ("OB51", "OB52")
_CHANGED = {SHARE: share.changed, STREAMS: streams.changed}


def begin_run(group: ObservedGroup) -> None:
    """Begin a run: the records of the next request."""
    if group.epochs is not None:
        group.state = group.state_now()
        group.epochs.news = News()


def observe_subscription(seen: Observation, record: MemberSubscribed) -> None:
    """Apply a member that joined, changed its subscription, or left."""
    epochs, member_id, now = seen.epochs(record.kind), record.member_id, record.subscription
    if epochs.is_ending:  # if the group becomes a classic group, its members are still needed
        return
    seen.has_news = True
    before = epochs.subscriptions.get(member_id)
    if now is None:
        epochs.subscriptions.pop(member_id, None)
        if before is not None:
            _remove(seen, epochs, member_id, before)
        epochs.assigned.pop(member_id, None)
        epochs.targets.pop(member_id, None)
        return
    former = epochs.news.away.pop(now.instance_id or "", None)
    epochs.subscriptions[member_id] = now
    if former is not None:
        former_id, before = former
        fields, reason = _joining(member_id, now), "a static member came back"
        seen.record_if_seen("OB28", EntryType.MEMBER_REPLACED, reason, replaced_member_id=former_id, **fields)
    elif before is None:
        epochs.news.joined.append(member_id)
        seen.record_if_seen("OB21", EntryType.MEMBER_ADDED, "a new member joined", **_joining(member_id, now))
    if before is not None and (what := _CHANGED.get(epochs.kind, _changed_by_consumer)(before, now)):
        epochs.news.changed[member_id] = what


def _remove(seen: Observation, epochs: Epochs, member_id: str, member: MemberSubscription) -> None:
    assigned = epochs.assigned.get(member_id)
    if member.instance_id and assigned is not None and assigned.epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        # Left temporarily: the next record may show it under a new member id.
        epochs.news.away[member.instance_id] = (member_id, member)
        return
    held = [] if assigned is None else _committed_by(seen, epochs, assigned.partitions)
    since_ms = 0 if assigned is None else assigned.since_ms
    reason = seen.group.removal_reason(member_id, held, since_ms, seen.at.time_ms)
    epochs.news.gone[member_id] = reason
    seen.record_if_seen("OB22", EntryType.MEMBER_REMOVED, reason, **_member_fields(member_id, member))


def _committed_by(seen: Observation, epochs: Epochs, partitions: Partitions) -> list[TopicPartition]:
    """Return the partitions whose offsets a member commits, or [] if unknown."""
    if epochs.kind == SHARE:
        return []
    if epochs.kind == STREAMS:
        return streams.partitions_read_by(epochs.topology, partitions)
    if not partitions.keys() <= seen.group.names(seen.names).keys():
        return []
    held = seen.group.shown(partitions, seen.names)
    return [TopicPartition(topic, n) for topic, numbers in held.items() for n in numbers]


def _member_fields(member_id: str, member: MemberSubscription) -> dict[str, Any]:
    return {
        "member_id": member_id,
        "group_instance_id": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
    }


def _joining(member_id: str, member: MemberSubscription) -> dict[str, Any]:
    process_id = None if member.streams is None else member.streams.process_id
    return {**_member_fields(member_id, member), "process_id": process_id}


def observe_epoch(seen: Observation, record: GroupEpoch) -> None:
    """Apply a new group epoch, with which a rebalance begins or continues."""
    epochs, group = seen.epochs(record.kind), seen.group
    epochs.is_ending = False
    before = group.generation
    other_reasons = _other_reasons(seen, epochs, record)
    epochs.metadata_hash, group.generation = record.metadata_hash, record.epoch
    epochs.topology.validated_epoch = record.validated_topology_epoch
    epochs.topology.configs = None if record.assignment_configs is None else dict(record.assignment_configs)
    seen.has_news = True
    if record.epoch <= before:
        if epochs.is_found and group.seq > CREATION:  # a classic group was converted, so no member joined
            epochs.is_found, epochs.news = False, News()
        return
    if epochs.is_found:
        if not _is_seen_change(group, epochs, before, record.epoch):
            return
        _begin_history(seen, epochs, before)
    elif record.epoch > before + 1:
        seen.skip_seq()
    _remove_away(seen, epochs.news)
    rule, reason, member_ids = _reason(epochs.news, other_reasons)
    previous_ms = group.last_rebalance_at_ms
    group.last_rebalance_at_ms, group.last_rebalance_reason = seen.at.time_ms, reason
    epochs.is_settled = is_empty = not epochs.subscriptions
    seen.record(
        rule,
        EntryType.GROUP_EPOCH_BUMPED,
        reason,
        to_state=None if is_empty else group.epochs_state(),
        member_id=member_ids[0] if len(member_ids) == 1 else None,
        last_rebalance_at_ms=previous_ms,
    )
    if is_empty:
        reason = "the last member is gone"
        seen.record("OB26", EntryType.EMPTY, reason, to_state=ConsumerGroupState.EMPTY.value)


def _remove_away(seen: Observation, news: News) -> None:
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


def _is_seen_change(group: ObservedGroup, epochs: Epochs, before: int, epoch: int) -> bool:
    """Return True if the records show the change that led to this epoch.

    They do if an earlier epoch was read, or if this is the first epoch of a new group with one member. A
    converted group begins with all its members at once.
    """
    is_new = group.seq == CREATION and epoch <= _FIRST_EPOCH_MAX
    return before > 0 or (is_new and len(epochs.news.joined) == len(epochs.subscriptions) <= 1)


def _begin_history(seen: Observation, epochs: Epochs, before: int) -> None:
    """Begin a group's history with its creation, if the records show it, and its first changes."""
    group = seen.group
    epochs.is_found = False
    # AlterShareGroupOffsets creates a group without members. Compaction may have removed that record.
    is_older = epochs.share is not None and epochs.share.first_ms < seen.at.time_ms
    if before == 0 and group.seq == CREATION and not group.offsets and not is_older:
        seen.record("OB20", EntryType.GROUP_CREATED, "the group was created")
    for member_id in epochs.news.joined:
        now = epochs.subscriptions.get(member_id)
        if now is not None:
            reason = "a new member joined"
            seen.record("OB21", EntryType.MEMBER_ADDED, reason, **_joining(member_id, now))
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
    seen.has_news = True


def observe_target_epoch(seen: Observation, record: TargetEpoch) -> None:
    """Apply the epoch of a complete target assignment."""
    epochs, group = seen.epochs(record.kind), seen.group
    seen.has_news = True
    if record.epoch is None:
        epochs.is_ending = True  # a tombstone
        return
    epochs.assignment_epoch = record.epoch
    changed, epochs.changed_targets = epochs.changed_targets, {}
    if not epochs.subscriptions:
        return
    state = group.epochs_state()
    if state == ConsumerGroupState.STABLE and epochs.kind != SHARE:
        # The members have not acknowledged the target yet, even if their partitions do not change.
        state = ConsumerGroupState.RECONCILING.value
    seen.record_if_seen(
        "OB24",
        EntryType.TARGET_ASSIGNMENT_COMPUTED,
        f"the target assignment of epoch {record.epoch} was computed",
        to_state=state,
        assignment_epoch=record.epoch,
        assignor_name=_assignor(epochs),
        targets={member_id: group.shown(partitions, seen.names) for member_id, partitions in changed.items()},
    )


def _assignor(epochs: Epochs) -> str | None:
    """Return the assignor that all members name, or None if the coordinator chooses it."""
    names = {member.server_assignor for member in epochs.subscriptions.values()}
    return next(iter(names)) if len(names) == 1 else None


def observe_assignment(seen: Observation, record: MemberAssigned) -> None:
    """Apply a member's current assignment, which is a step towards its target."""
    epochs, group = seen.epochs(record.kind), seen.group
    member_id, now = record.member_id, record.assignment
    seen.has_news = True
    if now is None or epochs.is_ending:
        return  # the tombstone of the member's subscription follows, or the group ends
    before = epochs.assigned.get(member_id)
    is_revoking = bool(now.revoking)
    since_ms = before.revoking_since_ms if before is not None and before.revoking else None
    had, got_ms = ({}, 0) if before is None else (before.partitions, before.since_ms)
    if had != now.assigned and (before is not None or now.previous_epoch <= 0):
        got_ms = seen.at.time_ms
    epochs.assigned[member_id] = Assigned(
        epoch=now.epoch,
        previous_epoch=now.previous_epoch,
        state=_STATES.get(now.state),
        partitions=now.assigned,
        revoking=now.revoking,
        revoking_since_ms=(since_ms or seen.at.time_ms) if is_revoking else None,
        since_ms=got_ms,
    )
    if member_id not in epochs.subscriptions:
        return
    if now.epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        _record_step(seen, epochs, EntryType.MEMBER_LEFT_TEMPORARILY, member_id, now, since_ms)
    elif _STATES.get(now.state) is not None:
        _record_step(seen, epochs, EntryType.MEMBER_RECONCILED, member_id, now, since_ms)
    _settle(seen, epochs, group)


def _settle(seen: Observation, epochs: Epochs, group: ObservedGroup) -> None:
    """Record Stable when all members have reached their targets.

    A share group is always in the state Stable.
    """
    state = group.epochs_state()
    if state != ConsumerGroupState.STABLE or not group.are_members_at_target():
        return
    if group.state == state and epochs.is_settled:
        return
    seen.record_if_seen(
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
    since_ms: int | None,
) -> None:
    group, names = seen.group, seen.names
    is_away = kind is EntryType.MEMBER_LEFT_TEMPORARILY
    target = epochs.targets.get(member_id, {}) if now.state == _WAITS else {}
    awaiting = share.without(target, now.assigned)
    seen.record_if_seen(
        "OB25",
        kind,
        "a static member left temporarily" if is_away else _step_reason(seen, now, awaiting),
        **_member_fields(member_id, epochs.subscriptions[member_id]),
        member_epoch=now.epoch,
        member_state=None if is_away else _STATES[now.state].value,
        assignment_epoch=epochs.assignment_epoch,
        assigned=group.shown(now.assigned, names),
        revoking=group.shown(now.revoking, names) or None,
        awaiting=group.shown(awaiting, names) or None,
        took_ms=seen.at.time_ms - since_ms if since_ms is not None and not now.revoking else None,
    )


_WAITS = 2


def _step_reason(seen: Observation, now: MemberAssignment, awaiting: Partitions) -> str:
    if now.revoking:
        return f"the member has to revoke {listed_partitions(seen, now.revoking)}"
    nothing = "no task" if seen.group.type_name == STREAMS else "no partition"
    assigned = listed_partitions(seen, now.assigned) or nothing
    waits = f"; it waits for {listed_partitions(seen, awaiting)}" if awaiting else ""
    return f"the member is at epoch {now.epoch} and has {assigned}{waits}"


def _other_reasons(seen: Observation, epochs: Epochs, record: GroupEpoch) -> list[tuple[str, str]]:
    """Return the row and the text of each reason for a new epoch that is not about members or patterns."""
    found = []
    if epochs.kind == STREAMS:
        found = streams.reasons(epochs.topology, record)
    elif epochs.kind == SHARE:
        found = share.reasons(seen, epochs)
    if not found and record.metadata_hash != epochs.metadata_hash:
        found = [("OB27", "the partitions or racks of the subscribed topics changed")]
    return found


def _reason(news: News, other_reasons: list[tuple[str, str]]) -> tuple[str, str, list[str]]:
    """Return the row of a new epoch, its reason as a sentence, and the ids of members in the reason."""
    texts = []
    if news.joined:
        texts.append(f"{listed(news.joined, 'member')} joined")
    texts += news.gone.values()
    for what in dict.fromkeys(news.changed.values()):
        ids = [member_id for member_id, changed in news.changed.items() if changed == what]
        texts.append(f"{listed(ids, 'member')} changed {what}")
    if news.regexes:
        texts.append(f"{listed(news.regexes, 'pattern')} matches other topics")
    if texts:
        texts += [text for rule, text in other_reasons if rule in _INDEPENDENT]
        return "OB23", "; ".join(texts), [*news.joined, *news.gone, *news.changed]
    if other_reasons:
        return other_reasons[0][0], "; ".join(text for _, text in other_reasons), []
    return "OB23", "the records do not show why", []


def topic_ids_in(record: object) -> Iterable[bytes]:
    """Return the topic ids in a record's assignment."""
    if isinstance(record, MemberTarget) and record.kind != STREAMS:
        return record.partitions or ()
    if isinstance(record, MemberAssigned) and record.kind != STREAMS and record.assignment is not None:
        return {**record.assignment.assigned, **record.assignment.revoking}
    return ()
