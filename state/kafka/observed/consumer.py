"""Groups of the consumer protocol: Kafka writes each change of them. Rows OB20 to OB28.

The records of one request have one time. They have, in this order: the members that came, changed or went,
what patterns match, the group epoch, the target assignments and their epoch, and what a member has from now
on. The log does not say whether a member that went had left or had expired.
"""

from collections.abc import Iterable
from typing import Any

from assignors.kafka.api import TopicPartition
from assignors.kafka.consumer_protocol import PROTOCOL_TYPE
from state.kafka.consumer.wording import listed_partitions
from state.kafka.consumer_group import (
    LEAVE_GROUP_STATIC_MEMBER_EPOCH,
    ConsumerGroupState,
    MemberState,
    Partitions,
)
from state.kafka.history import EntryType
from state.kafka.observed.group import CREATION, Assigned, Consumer, News, ObservedGroup
from state.kafka.observed.observation import Observation, listed
from state.kafka.observed.records import (
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
from state.kafka.snapshot import named

_STATES = {
    0: MemberState.STABLE,
    1: MemberState.UNREVOKED_PARTITIONS,
    2: MemberState.UNRELEASED_PARTITIONS,
}
# A new group has epoch 1 in Kafka 3.7 to 4.2, and 2 later.
_FIRST_EPOCH_MAX = 2


def consumer_of(seen: Observation) -> Consumer:
    """The group as one of the consumer protocol, which it is from its first such record on."""
    group = seen.group
    if group.consumer is None:
        if group.classic is not None:  # the record that ended it is missing
            seen.lose()
            group.generation = 0
        group.consumer, group.classic, group.protocol_type = Consumer(), None, PROTOCOL_TYPE
    return group.consumer


def begin_run(group: ObservedGroup) -> None:
    """The records that follow are of another request."""
    if group.consumer is not None:
        group.consumer.news = News()


def observe_subscription(seen: Observation, record: MemberSubscribed) -> None:
    """A member came, changed its subscription, or went."""
    consumer, member_id, now = consumer_of(seen), record.member_id, record.subscription
    if consumer.is_ending:  # what the group had is needed if it becomes a classic group
        return
    seen.has_news = True
    was = consumer.subscriptions.get(member_id)
    if now is None:
        consumer.subscriptions.pop(member_id, None)
        if was is not None:
            _remove(seen, member_id, was)
        consumer.assigned.pop(member_id, None)
        consumer.targets.pop(member_id, None)
        return
    former = consumer.news.away.pop(now.instance_id or "", None)
    consumer.subscriptions[member_id] = now
    if former is not None:
        about, reason = _about(member_id, now), "a static member came back"
        _record(seen, "OB28", EntryType.MEMBER_REPLACED, reason, replaced_member_id=former, **about)
    elif was is None:
        consumer.news.joined.append(member_id)
        _record(seen, "OB21", EntryType.MEMBER_ADDED, "a new member joined", **_about(member_id, now))
    elif (was.topic_names, was.topic_regex) != (now.topic_names, now.topic_regex):
        consumer.news.changed.append(member_id)


def _remove(seen: Observation, member_id: str, was: MemberSubscription) -> None:
    """A member went. A static one that had left for a while may be back under another id at once."""
    consumer = consumer_of(seen)
    has = consumer.assigned.get(member_id)
    if was.instance_id and has is not None and has.epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        consumer.news.away[was.instance_id] = member_id
        return
    names, held, since_ms = seen.group.names(seen.names), {}, 0
    if has is not None:
        held, since_ms = named(has.partitions, names), has.since_ms
    partitions = [TopicPartition(topic, n) for topic, numbers in held.items() for n in numbers]
    reason = seen.group.why_gone(member_id, partitions, since_ms, seen.at.time_ms)
    consumer.news.gone[member_id] = reason
    _record(seen, "OB22", EntryType.MEMBER_REMOVED, reason, **_about(member_id, was))


def _about(member_id: str, member: MemberSubscription) -> dict[str, Any]:
    return {
        "member_id": member_id,
        "group_instance_id": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
    }


def observe_regex(seen: Observation, record: RegexResolved) -> None:
    """A pattern has a result, or no member has it any more."""
    consumer = consumer_of(seen)
    seen.has_news = True
    if record.topics is None:
        consumer.regexes.pop(record.regex, None)
        return
    if consumer.regexes.get(record.regex) != record.topics:
        consumer.news.regexes.append(record.regex)
    consumer.regexes[record.regex] = record.topics


def observe_topics(seen: Observation, record: SubscribedTopics) -> None:
    """The topics of the group are known by their names, as Kafka 3.7 to 4.0 write them."""
    consumer_of(seen).topics = dict(record.topics)
    seen.has_news = True


def observe_epoch(seen: Observation, record: GroupEpoch) -> None:
    """The group has another epoch: a rebalance begins, or goes on."""
    group, consumer = seen.group, consumer_of(seen)
    consumer.is_ending = False
    before, news = group.generation, consumer.news
    is_changed_hash = record.metadata_hash != consumer.metadata_hash
    consumer.metadata_hash, group.generation = record.metadata_hash, record.epoch
    seen.has_news = True
    if record.epoch <= before:
        if consumer.is_found and group.seq > CREATION:  # a classic group was converted: nobody came
            consumer.is_found, consumer.news = False, News()
        return
    if consumer.is_found:
        if not _is_seen_from_here(group, before, record.epoch):
            return
        _begin(seen, before)
    elif record.epoch > before + 1:
        seen.lose()
    for instance_id, member_id in news.away.items():
        reason = f"static member {member_id} did not come back in time, or was removed"
        news.gone[member_id] = reason
        seen.record(
            "OB22",
            EntryType.MEMBER_REMOVED,
            reason,
            member_id=member_id,
            group_instance_id=instance_id,
        )
    news.away = {}
    rule, reason, member_ids = _reason(consumer, is_changed_hash)
    previous_ms = group.last_rebalance_at_ms
    group.last_rebalance_at_ms, group.last_rebalance_reason = seen.at.time_ms, reason
    is_empty = not consumer.subscriptions
    seen.record(
        rule,
        EntryType.GROUP_EPOCH_BUMPED,
        reason,
        to_state=None if is_empty else ConsumerGroupState.ASSIGNING.value,
        member_id=member_ids[0] if len(member_ids) == 1 else None,
        last_rebalance_at_ms=previous_ms,
    )
    if is_empty:
        reason = "the last member is gone"
        seen.record("OB26", EntryType.EMPTY, reason, to_state=ConsumerGroupState.EMPTY.value)


def _is_seen_from_here(group: ObservedGroup, before: int, epoch: int) -> bool:
    """Whether this epoch is a change that was seen, and not the first that was read of an older group."""
    assert group.consumer is not None
    is_first = epoch <= _FIRST_EPOCH_MAX and len(group.consumer.news.joined) == len(
        group.consumer.subscriptions
    )
    return before > 0 or is_first


def _begin(seen: Observation, before: int) -> None:
    """The history of a group begins: with its creation, or in its middle."""
    group, consumer = seen.group, seen.group.consumer
    assert consumer is not None
    consumer.is_found = False
    if before == 0 and group.seq == CREATION and not group.offsets:
        seen.record("OB20", EntryType.GROUP_CREATED, "the group was created")
    for member_id in consumer.news.joined:
        now = consumer.subscriptions.get(member_id)
        if now is not None:
            reason = "a new member joined"
            seen.record("OB21", EntryType.MEMBER_ADDED, reason, **_about(member_id, now))
    for member_id, reason in consumer.news.gone.items():
        seen.record("OB22", EntryType.MEMBER_REMOVED, reason, member_id=member_id)


def observe_target(seen: Observation, record: MemberTarget) -> None:
    """A member has another target assignment."""
    consumer = consumer_of(seen)
    if record.partitions is None:
        if not consumer.is_ending:
            consumer.targets.pop(record.member_id, None)
        return
    consumer.targets[record.member_id] = record.partitions
    consumer.changed_targets[record.member_id] = record.partitions
    seen.has_news = True


def observe_target_epoch(seen: Observation, record: TargetEpoch) -> None:
    """The target assignment of an epoch is complete, or is removed with the group's records."""
    group, consumer = seen.group, consumer_of(seen)
    seen.has_news = True
    if record.epoch is None:
        consumer.is_ending = True
        return
    consumer.assignment_epoch = record.epoch
    changed, consumer.changed_targets = consumer.changed_targets, {}
    if not consumer.subscriptions:
        return
    names = group.names(seen.names)
    _record(
        seen,
        "OB24",
        EntryType.TARGET_ASSIGNMENT_COMPUTED,
        f"the target assignment of epoch {record.epoch} was computed",
        # The members are not there yet, even if they have all that they shall have.
        to_state=ConsumerGroupState.RECONCILING.value,
        assignment_epoch=record.epoch,
        assignor_name=_assignor(consumer),
        targets={member_id: named(has, names) for member_id, has in changed.items()},
    )


def _assignor(consumer: Consumer) -> str | None:
    """The assignor that all members name. Where they name none, it is the coordinator's own choice."""
    names = {member.server_assignor for member in consumer.subscriptions.values()}
    return next(iter(names)) if len(names) == 1 else None


def observe_assignment(seen: Observation, record: MemberAssigned) -> None:
    """A member took a step towards its target assignment."""
    group, consumer = seen.group, consumer_of(seen)
    member_id, now = record.member_id, record.assignment
    seen.has_news = True
    if now is None or consumer.is_ending:
        return  # its subscription follows, or the group ends
    was = consumer.assigned.get(member_id)
    is_revoking = bool(now.revoking)
    since_ms = was.revoking_since_ms if was is not None and was.revoking else None
    consumer.assigned[member_id] = Assigned(
        epoch=now.epoch,
        previous_epoch=now.previous_epoch,
        state=_STATES.get(now.state),
        partitions=now.assigned,
        revoking=now.revoking,
        revoking_since_ms=(since_ms or seen.at.time_ms) if is_revoking else None,
        since_ms=was.since_ms if was is not None and was.partitions == now.assigned else seen.at.time_ms,
    )
    if member_id not in consumer.subscriptions:
        return
    if now.epoch == LEAVE_GROUP_STATIC_MEMBER_EPOCH:
        _record_step(seen, EntryType.MEMBER_LEFT_TEMPORARILY, member_id, now, since_ms)
    elif _STATES.get(now.state) is not None:
        _record_step(seen, EntryType.MEMBER_RECONCILED, member_id, now, since_ms)
    state = group.consumer_state()
    if state == ConsumerGroupState.STABLE and group.state != state:
        _record(
            seen,
            "OB26",
            EntryType.STABLE,
            "every member has its target assignment",
            to_state=state,
            members=list(consumer.subscriptions),
            assignment_epoch=consumer.assignment_epoch,
        )


def _record_step(
    seen: Observation, kind: EntryType, member_id: str, now: MemberAssignment, since_ms: int | None
) -> None:
    group, consumer = seen.group, consumer_of(seen)
    names, member = group.names(seen.names), consumer.subscriptions[member_id]
    is_away = kind is EntryType.MEMBER_LEFT_TEMPORARILY
    awaiting = _missing(consumer.targets.get(member_id, {}), now.assigned) if now.state == _WAITS else {}
    state = None if is_away else _STATES[now.state].value
    _record(
        seen,
        "OB25",
        kind,
        "a static member left, and keeps its place" if is_away else _step_reason(now, awaiting, names),
        member_id=member_id,
        group_instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_epoch=now.epoch,
        member_state=state,
        assignment_epoch=consumer.assignment_epoch,
        assigned=named(now.assigned, names),
        revoking=named(now.revoking, names) or None,
        awaiting=named(awaiting, names) or None,
        took_ms=seen.at.time_ms - since_ms if since_ms is not None and not now.revoking else None,
    )


_WAITS = 2


def _step_reason(now: MemberAssignment, awaiting: Partitions, names: dict[bytes, str]) -> str:
    if now.revoking:
        return f"the member has to revoke {listed_partitions(now.revoking, names)}"
    has = listed_partitions(now.assigned, names) or "no partition"
    waits = f"; it waits for {listed_partitions(awaiting, names)}" if awaiting else ""
    return f"the member is at epoch {now.epoch} and has {has}{waits}"


def _missing(target: Partitions, assigned: Partitions) -> Partitions:
    missing = {
        topic_id: [n for n in numbers if n not in assigned.get(topic_id, ())]
        for topic_id, numbers in target.items()
    }
    return {topic_id: numbers for topic_id, numbers in missing.items() if numbers}


def _reason(consumer: Consumer, is_changed_hash: bool) -> tuple[str, str, list[str]]:
    """Return the row, the reason of a new epoch in a sentence, and the members that it is about."""
    news = consumer.news
    texts = []
    if news.joined:
        texts.append(f"{listed(news.joined, 'member')} joined")
    if news.gone:
        texts += news.gone.values()
    if news.changed:
        texts.append(f"{listed(news.changed, 'member')} changed what it subscribes to")
    if news.regexes:
        texts.append(f"{listed(news.regexes, 'pattern')} matches other topics")
    if texts:
        about = [*news.joined, *news.gone, *news.changed]
        return "OB23", "; ".join(texts), about
    if is_changed_hash:
        return "OB27", "the subscribed topics changed: they have other partitions or racks", []
    return "OB23", "the log does not say why", []


def _record(
    seen: Observation,
    rule: str,
    kind: EntryType,
    reason: str,
    *,
    to_state: str | None = None,
    **about: Any,
) -> None:
    """Add an entry, unless no change of the group was seen yet."""
    consumer: Consumer | None = seen.group.consumer
    assert consumer is not None
    if not consumer.is_found:
        seen.record(rule, kind, reason, to_state=to_state, **about)
    elif to_state is not None or kind is EntryType.MEMBER_RECONCILED:
        seen.group.state, seen.group.state_timestamp_ms = seen.group.consumer_state(), seen.at.time_ms


def topic_ids_in(record: object) -> Iterable[bytes]:
    """Return the topic ids that a record names."""
    if isinstance(record, MemberTarget):
        return record.partitions or ()
    if isinstance(record, MemberAssigned) and record.assignment is not None:
        return {**record.assignment.assigned, **record.assignment.revoking}
    return ()
