"""Derives a group's history from polls alone, for principals that may not read `__consumer_offsets`.

The changes from one poll to the next are converted to sightings of rebalances, and to the records that the
group's coordinator would have written at the time of the poll. `kafka_why.observed.step` then derives the
history as from a log. This module does no IO.
"""

from collections.abc import Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from kafka_why.contract.kafka.history import (
    CLASSIC,
    NOT_READY,
    SHARE,
    STREAMS,
    GroupState,
    HistoryEntry,
    Offset,
)
from kafka_why.contract.kafka.snapshot import Partitions
from kafka_why.contract.protocols.subscriptions import (
    PROTOCOL_TYPE,
    ProtocolError,
    TopicPartition,
    decode_subscription,
)
from kafka_why.contract.sightings import RebalanceSeen, SeenMember
from kafka_why.observed.group import CREATION, ObservedGroup
from kafka_why.observed.observation import RecordPosition
from kafka_why.observed.records import (
    AnyRecord,
    ClassicGeneration,
    ClassicGroupRemoved,
    ClassicMember,
    GroupEpoch,
    GroupEpochRemoved,
    MemberAssigned,
    MemberAssignment,
    MemberSubscribed,
    MemberSubscription,
    MemberTarget,
    OffsetCommitted,
    TargetEpoch,
    TopologySent,
)
from kafka_why.observed.step import observe, observe_rebalancing

REBALANCING = (GroupState.PREPARING_REBALANCE.value, GroupState.COMPLETING_REBALANCE.value)


class ClassicPoll(Struct, frozen=True):
    """The response to DescribeGroups for a classic group.

    The members' subscriptions and assignments are b"" unless the group is Stable.
    """

    requested_ms: int  # when the request was sent
    answered_ms: int  # when the response arrived
    state: str
    protocol_type: str
    protocol_name: str | None
    members: tuple[ClassicMember, ...]

    def shifted(self, by_ms: int) -> "ClassicPoll":
        """Return the poll with `by_ms` added to its times."""
        return replace(self, requested_ms=self.requested_ms + by_ms, answered_ms=self.answered_ms + by_ms)


class RebalanceDetector:
    """A detector of the beginning and the end of a group's rebalances, in successive polls."""

    def __init__(self) -> None:
        self.completing_ms: int | None = None
        """The time of the first poll that saw the current rebalance in CompletingRebalance, or None."""
        self._last_sighting: RebalanceSeen | None = None  # of the current rebalance
        self._not_rebalancing_ms: int | None = None  # time of the last poll that did not see a rebalance

    @property
    def is_rebalancing(self) -> bool:
        """True if the group was rebalancing at the last poll."""
        return self._last_sighting is not None

    def apply(self, poll: ClassicPoll, stable_ms: int) -> RebalanceSeen | None:
        """Apply the next poll. Return a sighting of a rebalance or its end, or None without a rebalance.

        `stable_ms` is a time before the first poll at which the group was not rebalancing.
        """
        before = self._last_sighting
        if poll.state not in REBALANCING:
            self._last_sighting, self.completing_ms = None, None
            self._not_rebalancing_ms = poll.requested_ms
            return (
                None if before is None else _to_sighting(before.run, before.first_ms, before.within_ms, poll)
            )
        if before is not None:
            run, first_ms, within_ms = before.run, before.first_ms, before.within_ms
        else:
            # The rebalance began after the last poll that did not see it, or after `stable_ms`.
            last_stable_ms = stable_ms if self._not_rebalancing_ms is None else self._not_rebalancing_ms
            run, first_ms = f"DescribeGroups at {poll.answered_ms}", poll.answered_ms
            within_ms = max(poll.answered_ms - last_stable_ms, 0)
        if poll.state == GroupState.COMPLETING_REBALANCE and self.completing_ms is None:
            self.completing_ms = poll.answered_ms
        elif poll.state == GroupState.PREPARING_REBALANCE:
            self.completing_ms = None
        self._last_sighting = _to_sighting(run, first_ms, within_ms, poll)
        return self._last_sighting


def _to_sighting(run: str, first_ms: int, within_ms: int, poll: ClassicPoll) -> RebalanceSeen:
    """Return the sighting of a poll in the series `run`, whose first poll was at `first_ms`."""
    return RebalanceSeen(
        run=run,
        state=poll.state,
        first_ms=first_ms,
        seen_ms=poll.answered_ms,
        within_ms=within_ms,
        read_ms=poll.answered_ms,  # the history has no other source
        is_over=poll.state not in REBALANCING,
        members=tuple(
            SeenMember(m.member_id, m.group_instance_id, m.client_id, m.client_host) for m in poll.members
        ),
    )


# Codes of `MemberAssignment.state`: Stable, UnreleasedPartitions, and one for a state that polls do not show.
_STABLE, _UNRELEASED, _NOT_SHOWN = 0, 2, -1


class PolledMember(Struct, frozen=True):
    """A member of a group with epochs, as a poll shows it."""

    epoch: int  # the member epoch
    subscription: MemberSubscription
    assigned: Partitions
    target: Partitions | None  # None in a share group, because polls do not show it


class EpochsPoll(Struct, frozen=True):
    """A coordinator's description of a group with epochs."""

    answered_ms: int
    kind: str  # consumer, share or streams
    state: str
    epoch: int  # the group epoch
    assignment_epoch: int
    members: dict[str, PolledMember]  # by member id
    names: Mapping[bytes, str]  # of topics, by id
    topology: TopologySent | None = None


class PolledGroup:
    """A group that is known from polls."""

    def __init__(self, group_id: str) -> None:
        self.entries: list[HistoryEntry] = []  # the history so far; the caller may remove entries
        self.polls = 0  # their number
        self._group_id = group_id
        self.group: ObservedGroup | None = None  # the current state; None if the group does not exist
        self._kind: str | None = None  # the group type at the last poll; None if the group did not exist
        self._last: EpochsPoll | None = None  # the last poll, if the group has epochs
        self._detector = RebalanceDetector()
        # The group's generation is the number of generations seen, because no member has reported it yet.
        self._is_generation_counted = True
        self._committed: dict[TopicPartition, int] = {}  # offsets at the last poll
        self._at = RecordPosition(time_ms=0, record="", incarnation="")  # of the last poll
        self.names: Mapping[bytes, str] = {}  # of topics, by id

    def apply(
        self,
        poll: ClassicPoll | EpochsPoll | None,
        committed: Mapping[TopicPartition, int],
        now_ms: int,
    ) -> None:
        """Apply the next poll, which is None if the group does not exist, and the committed offsets."""
        self.polls += 1
        name = f"poll {self.polls} at {now_ms}"
        self._at = RecordPosition(now_ms, name, name)
        for partition, offset in committed.items():
            if self._committed.get(partition) != offset:
                stored = Offset(
                    offset,
                    leader_epoch=-1,
                    metadata="",
                    committed_at_ms=now_ms,
                    expire_at_ms=None,
                    topic_id=None,
                )
                self._observe(OffsetCommitted(partition.topic, partition.partition, stored))
        self._committed = dict(committed)
        if poll is None:
            self._end()
            return
        kind = CLASSIC if isinstance(poll, ClassicPoll) else poll.kind
        # A group that first exists at a later poll was created, so it has no unknown past.
        if self._kind != kind and (self._kind is not None or self.polls == 1):
            self._begin_history(poll)
        self._kind = kind
        if isinstance(poll, ClassicPoll):
            self._apply_classic(poll)
            return
        self.names = poll.names
        for record in _changed_records(self._last or _empty_poll(kind, epoch=-1), poll):
            self._observe(record)
        self._last = poll

    def _begin_history(self, poll: ClassicPoll | EpochsPoll) -> None:
        """Begin the history of a group that existed before the first poll, or has changed its type."""
        previous = self.group
        self.group = ObservedGroup(
            self._group_id,
            self._at.incarnation if previous is None else previous.incarnation,
            seq=CREATION + 1 if previous is None else previous.seq + 1,
            offsets={} if previous is None else previous.offsets,
            generation=0 if isinstance(poll, ClassicPoll) else poll.epoch,
        )
        self._last, self._detector, self._is_generation_counted = None, RebalanceDetector(), True

    def _end(self) -> None:
        """End a group that no longer exists, after removing the members of the last poll."""
        kind, last = self._kind, self._last
        self._kind = self._last = None
        if kind == CLASSIC:
            if self.group is not None and self.group.member_ids():
                self._observe(self._next_generation(members=()))
            self._observe(ClassicGroupRemoved())
        elif kind is not None and last is not None:
            for record in _changed_records(last, _empty_poll(kind, last.epoch)):
                self._observe(record)
            self._observe(GroupEpochRemoved())

    def _apply_classic(self, poll: ClassicPoll) -> None:
        """Apply a poll of a classic group: a new generation, if any, then a rebalance, if it saw one."""
        group = self.group
        classic = None if group is None else group.classic
        was_rebalancing, completing_ms = self._detector.is_rebalancing, self._detector.completing_ms
        sighting = self._detector.apply(poll, poll.requested_ms if classic is None else classic.since_ms)
        if poll.state not in REBALANCING:
            reported = max(map(_reported_generation, poll.members), default=0)
            if self._is_generation_counted and reported and group is not None:
                # The first report replaces the counted number.
                group.generation, self._is_generation_counted = reported - 1, False
            is_later = group is not None and reported > group.generation
            has_same_assignment = classic is not None and (
                _assignment_bytes(classic.members) == _assignment_bytes(poll.members)
            )
            if was_rebalancing or is_later or not has_same_assignment:
                self._observe(self._next_generation(poll.members, poll, reported, completing_ms))
        if sighting is not None and self.group is not None:
            self.entries += observe_rebalancing(self.group, sighting, self._at).history

    def _next_generation(
        self,
        members: tuple[ClassicMember, ...],
        poll: ClassicPoll | None = None,
        reported: int = 0,
        formed_ms: int | None = None,
    ) -> ClassicGeneration:
        """Return the record of the next generation. `poll` is None if the group has ended.

        `reported` is its number in the members' subscriptions, or 0 if they do not have it. The number is
        then the previous one plus 1. The first known generation of a group that already existed has number 0.
        `formed_ms` is when it was formed, or None if unknown.
        """
        group = self.group
        is_first_known = group is not None and group.classic is None and group.seq > CREATION
        previous = 0 if group is None else group.generation
        number = previous if is_first_known else previous + 1
        return ClassicGeneration(
            protocol_type=PROTOCOL_TYPE if poll is None else poll.protocol_type,
            generation=max(number, reported),
            protocol_name=None if poll is None else poll.protocol_name,
            leader_id=None,
            since_ms=formed_ms,
            members=members,
        )

    def _observe(self, record: AnyRecord) -> None:
        """Apply a record that the group's coordinator would have written at the last poll."""
        seen = observe(self.group, self._group_id, record, self._at, self.names)
        self.entries += seen.history
        self.group = None if seen.is_over else seen.group


def _reported_generation(member: ClassicMember) -> int:
    """Return the group's generation by the member's subscription, or 0 if it does not have it."""
    try:
        # A subscription has the last generation before the member joined.
        return (decode_subscription(member.subscription).generation_id or -1) + 1
    except ProtocolError:
        return 0


def _assignment_bytes(members: tuple[ClassicMember, ...] | list[ClassicMember]) -> dict[str, bytes]:
    return {m.member_id: m.assignment for m in members}


def _changed_records(last: EpochsPoll, now: EpochsPoll) -> Iterator[AnyRecord]:
    """Yield the records of the changes between two polls, in the order in which a coordinator writes them."""
    old_members, kind = last.members, now.kind
    for member_id in old_members.keys() - now.members.keys():
        yield MemberSubscribed(member_id, None, kind)
    for member_id, member in now.members.items():
        if member_id not in old_members or old_members[member_id].subscription != member.subscription:
            yield MemberSubscribed(member_id, member.subscription, kind)
    if now.topology is not None and last.topology != now.topology:
        yield now.topology
    # The record of a streams group's epoch shows whether its topology is ready, too.
    if (last.epoch, last.state == NOT_READY) != (now.epoch, now.state == NOT_READY):
        yield _group_epoch(now)
    yield from _target_records(last, now)
    for member_id, member in now.members.items():
        before = old_members.get(member_id)
        current = _current_assignment(member, now, before)
        if before is None or _current_assignment(before, last, before) != current:
            yield MemberAssigned(member_id, current, kind)


def _target_records(last: EpochsPoll, now: EpochsPoll) -> Iterator[AnyRecord]:
    """Yield the records of changed targets, then the epoch of the target assignment if it changed."""
    for member_id, member in now.members.items():
        before, target = last.members.get(member_id), _target(member, now)
        if target is not None and (before is None or _target(before, last) != target):
            yield MemberTarget(member_id, target, now.kind)
    if last.assignment_epoch != now.assignment_epoch:
        yield TargetEpoch(now.assignment_epoch, now.kind)


def _group_epoch(now: EpochsPoll) -> GroupEpoch:
    """Return the record of the group epoch. Polls show neither a metadata hash nor configs."""
    if now.kind != STREAMS:
        return GroupEpoch(now.epoch, metadata_hash=0, kind=now.kind)
    # A group that is ready has validated its topology.
    is_ready = now.topology is not None and now.state != NOT_READY
    epoch = (now.topology.epoch if now.topology is not None else None) if is_ready else None
    return GroupEpoch(
        now.epoch,
        metadata_hash=0,
        kind=now.kind,
        validated_topology_epoch=-1 if epoch is None else epoch,
        assignment_configs={},
    )


def _target(member: PolledMember, poll: EpochsPoll) -> Partitions | None:
    """Return a member's target assignment, or None if unknown."""
    if poll.kind != SHARE:
        return member.target
    # Polls do not show a share group's target. A member at the epoch of the target assignment has its target.
    return member.assigned if member.epoch == poll.assignment_epoch else None


def _current_assignment(
    member: PolledMember, poll: EpochsPoll, before: PolledMember | None
) -> MemberAssignment:
    """Return a member's current assignment. `before` is the member in the poll before, or None.

    Polls do not show `revoking`. They show the state only of members that are at the target's epoch.
    """
    state_at_target_epoch = _STABLE if member.assigned == _target(member, poll) else _UNRELEASED
    return MemberAssignment(
        epoch=member.epoch,
        previous_epoch=member.epoch if before is None else before.epoch,
        state=state_at_target_epoch if member.epoch == poll.assignment_epoch else _NOT_SHOWN,
        assigned=member.assigned,
        revoking={},
    )


def _empty_poll(kind: str, epoch: int) -> EpochsPoll:
    """Return a poll of a group without members, for the time before a group's first poll or after its end."""
    return EpochsPoll(
        answered_ms=0, kind=kind, state="", epoch=epoch, assignment_epoch=epoch, members={}, names={}
    )
