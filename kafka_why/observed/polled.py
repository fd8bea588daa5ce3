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
from kafka_why.observed.observation import Observation, RecordPosition
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

    requested_ms: int
    answered_ms: int
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
        self._run: RebalanceSeen | None = None
        self._stable_ms: int | None = None

    @property
    def is_rebalancing(self) -> bool:
        """True if the group was rebalancing at the last poll."""
        return self._run is not None

    def apply(self, poll: ClassicPoll, stable_ms: int) -> RebalanceSeen | None:
        """Apply the next poll. Return a sighting of a rebalance or its end, or None without a rebalance.

        `stable_ms` is a time before the first poll at which the group was not rebalancing.
        """
        before = self._run
        if poll.state not in REBALANCING:
            self._run, self.completing_ms, self._stable_ms = None, None, poll.requested_ms
            return (
                None if before is None else _to_sighting(before.run, before.first_ms, before.within_ms, poll)
            )
        if before is not None:
            run, first_ms, within_ms = before.run, before.first_ms, before.within_ms
        else:
            since_ms = stable_ms if self._stable_ms is None else self._stable_ms
            run, first_ms = f"DescribeGroups at {poll.answered_ms}", poll.answered_ms
            within_ms = max(poll.answered_ms - since_ms, 0)
        if poll.state == GroupState.COMPLETING_REBALANCE and self.completing_ms is None:
            self.completing_ms = poll.answered_ms
        elif poll.state == GroupState.PREPARING_REBALANCE:
            self.completing_ms = None
        self._run = _to_sighting(run, first_ms, within_ms, poll)
        return self._run


def _to_sighting(run: str, first_ms: int, within_ms: int, poll: ClassicPoll) -> RebalanceSeen:
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


_STABLE, _WAITS, _NOT_SHOWN = 0, 2, -1


class PolledMember(Struct, frozen=True):
    """A member of a group with epochs."""

    epoch: int
    subscription: MemberSubscription
    assigned: Partitions
    target: Partitions | None  # None in a share group, because polls do not show it


class EpochsPoll(Struct, frozen=True):
    """A coordinator's description of a group with epochs."""

    answered_ms: int
    kind: str
    state: str
    epoch: int
    assignment_epoch: int
    members: dict[str, PolledMember]
    names: Mapping[bytes, str]  # of topics, by id
    topology: TopologySent | None = None


class PolledGroup:
    """A group that is known from polls.

    `entries` are its history so far, and `group` is its current state.
    """

    def __init__(self, group_id: str) -> None:
        self.entries: list[HistoryEntry] = []
        self.polls = 0
        self._group_id = group_id
        self.group: ObservedGroup | None = None
        self._kind: str | None = None
        self._last: EpochsPoll | None = None
        self._detector = RebalanceDetector()
        self._is_counted = True
        self._committed: dict[TopicPartition, int] = {}
        self._at = RecordPosition(0, "", "")
        self.names: Mapping[bytes, str] = {}

    def apply(
        self,
        poll: ClassicPoll | EpochsPoll | None,
        committed: Mapping[TopicPartition, int],
        now_ms: int,
    ) -> None:
        """Apply the next poll, which is None if the group does not exist."""
        self.polls += 1
        name = f"poll {self.polls} at {now_ms}"
        self._at = RecordPosition(now_ms, name, name)
        for partition, offset in committed.items():
            if self._committed.get(partition) != offset:
                found = Offset(offset, -1, "", now_ms, None, None)
                self._observe(OffsetCommitted(partition.topic, partition.partition, found))
        self._committed = dict(committed)
        if poll is None:
            self._end()
            return
        kind = CLASSIC if isinstance(poll, ClassicPoll) else poll.kind
        if self._kind != kind and (self._kind is not None or self.polls == 1):
            self._begin_history(poll)
        self._kind = kind
        if isinstance(poll, ClassicPoll):
            self._apply_classic(poll)
            return
        self.names = poll.names
        for record in _changes(self._last or _empty_poll(kind, -1), poll):
            self._observe(record)
        self._last = poll

    def _begin_history(self, poll: ClassicPoll | EpochsPoll) -> None:
        """Begin the history of a group that existed before the first poll, or has changed its type."""
        former = self.group
        self.group = ObservedGroup(
            self._group_id,
            self._at.incarnation if former is None else former.incarnation,
            seq=CREATION + 1 if former is None else former.seq + 1,
            offsets={} if former is None else former.offsets,
            generation=0 if isinstance(poll, ClassicPoll) else poll.epoch,
        )
        self._last, self._detector, self._is_counted = None, RebalanceDetector(), True

    def _end(self) -> None:
        """End a group that no longer exists, after removing the members of the last poll."""
        kind, last, self._kind, self._last = self._kind, self._last, None, None
        if kind == CLASSIC:
            if self.group is not None and self.group.member_ids():
                self._observe(self._generation(()))
            self._observe(ClassicGroupRemoved())
        elif kind is not None and last is not None:
            for record in _changes(last, _empty_poll(kind, last.epoch)):
                self._observe(record)
            self._observe(GroupEpochRemoved())

    def _apply_classic(self, poll: ClassicPoll) -> None:
        group = self.group
        has_members = group is not None and group.classic is not None
        was_rebalancing, completing_ms = self._detector.is_rebalancing, self._detector.completing_ms
        seen = self._detector.apply(
            poll, group.classic.since_ms if group and group.classic else poll.requested_ms
        )
        if poll.state not in REBALANCING:
            reported = max(map(_reported_generation, poll.members), default=0)
            before = group.classic.members if group is not None and group.classic is not None else ()
            if self._is_counted and reported and group is not None:
                group.generation, self._is_counted = reported - 1, False
            is_later = group is not None and reported > group.generation
            is_same = has_members and _assignments(before) == _assignments(poll.members)
            if was_rebalancing or is_later or not is_same:
                self._observe(self._generation(poll.members, poll, reported, completing_ms))
        if seen is not None and self.group is not None:
            self._add(observe_rebalancing(self.group, seen, self._at))

    def _generation(
        self,
        members: tuple[ClassicMember, ...],
        poll: ClassicPoll | None = None,
        reported: int = 0,
        formed_ms: int | None = None,
    ) -> ClassicGeneration:
        """Return the record of the next generation.

        `reported` is its number by the members' subscriptions. If it is 0, generations are counted.
        """
        group = self.group
        is_first = group is not None and group.classic is None and group.seq > CREATION
        number = (0 if group is None else group.generation) + (not is_first)
        return ClassicGeneration(
            protocol_type=PROTOCOL_TYPE if poll is None else poll.protocol_type,
            generation=max(number, reported),
            protocol_name=None if poll is None else poll.protocol_name,
            leader_id=None,
            since_ms=formed_ms,
            members=members,
        )

    def _observe(self, record: AnyRecord) -> None:
        seen = observe(self.group, self._group_id, record, self._at, self.names)
        self._add(seen)
        self.group = None if seen.is_over else seen.group

    def _add(self, seen: Observation) -> None:
        self.entries += seen.history


def _reported_generation(member: ClassicMember) -> int:
    """Return the group's generation by the member's subscription, or 0 if unknown."""
    try:
        # It has the generation before the member joined.
        return (decode_subscription(member.subscription).generation_id or -1) + 1
    except ProtocolError:
        return 0


def _assignments(members: tuple[ClassicMember, ...] | list[ClassicMember]) -> dict[str, bytes]:
    return {m.member_id: m.assignment for m in members}


def _changes(last: EpochsPoll, now: EpochsPoll) -> Iterator[AnyRecord]:
    """Yield the records of the changes between two polls, in the order of a coordinator."""
    had, kind = last.members, now.kind
    for member_id in had.keys() - now.members.keys():
        yield MemberSubscribed(member_id, None, kind)
    for member_id, member in now.members.items():
        if member_id not in had or had[member_id].subscription != member.subscription:
            yield MemberSubscribed(member_id, member.subscription, kind)
    if now.topology is not None and last.topology != now.topology:
        yield now.topology
    if (last.epoch, last.state == NOT_READY) != (now.epoch, now.state == NOT_READY):
        yield _group_epoch(now)
    yield from _targets(last, now)
    for member_id, member in now.members.items():
        before = had.get(member_id)
        if before is None or _current_assignment(before, last, before) != _current_assignment(
            member, now, before
        ):
            yield MemberAssigned(member_id, _current_assignment(member, now, before), kind)


def _targets(last: EpochsPoll, now: EpochsPoll) -> Iterator[AnyRecord]:
    for member_id, member in now.members.items():
        before, target = last.members.get(member_id), _target(member, now)
        if target is not None and (before is None or _target(before, last) != target):
            yield MemberTarget(member_id, target, now.kind)
    if last.assignment_epoch != now.assignment_epoch:
        yield TargetEpoch(now.assignment_epoch, None, now.kind)


def _group_epoch(now: EpochsPoll) -> GroupEpoch:
    if now.kind != STREAMS:
        return GroupEpoch(now.epoch, 0, now.kind)
    is_ready = now.topology is not None and now.state != NOT_READY
    epoch = (now.topology.epoch if now.topology is not None else None) if is_ready else None
    return GroupEpoch(now.epoch, 0, now.kind, -1 if epoch is None else epoch, {})


def _target(member: PolledMember, poll: EpochsPoll) -> Partitions | None:
    """Return a member's target assignment, or None if unknown."""
    if poll.kind != SHARE:
        return member.target
    # A share group's member has its target at the target's epoch.
    return member.assigned if member.epoch == poll.assignment_epoch else None


def _current_assignment(
    member: PolledMember, poll: EpochsPoll, before: PolledMember | None
) -> MemberAssignment:
    """Return a member's current assignment.

    Polls do not show `revoking`, and `state` only at the target's epoch.
    """
    is_at_target_epoch = member.epoch == poll.assignment_epoch
    has_all = member.assigned == _target(member, poll)
    return MemberAssignment(
        epoch=member.epoch,
        previous_epoch=member.epoch if before is None else before.epoch,
        state=_NOT_SHOWN if not is_at_target_epoch else _STABLE if has_all else _WAITS,
        assigned=member.assigned,
        revoking={},
    )


def _empty_poll(kind: str, epoch: int) -> EpochsPoll:
    return EpochsPoll(0, kind, "", epoch, epoch, {}, {})
