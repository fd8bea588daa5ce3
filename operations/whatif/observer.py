"""The observation of one process of the classic protocol through its requests and answers: its reactions, and
their times. Also the protocols and assignments that members send.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, NamedTuple

from assignors.kafka import ASSIGNORS, BROKER_ASSIGNORS
from assignors.kafka.server_side import COORDINATOR_ASSIGNORS, PREFIX
from assignors.kafka.uniform import UniformAssignor
from kafka_why.contract.kafka.requests import (
    Heartbeat,
    JoinGroup,
    LeaveGroup,
    MemberAssignment,
    OffsetCommit,
    Protocol,
    SyncGroup,
)
from kafka_why.contract.kafka.responses import (
    AnyResponse,
    JoinGroupMember,
    JoinGroupResponse,
    OffsetCommitResponse,
    SyncGroupResponse,
)
from kafka_why.contract.messages import ErrorCode
from kafka_why.contract.protocols.subscriptions import (
    HIGHEST_VERSION,
    PROTOCOL_TYPE,
    Assignment,
    Claim,
    MemberSubscription,
    ProtocolError,
    Subscription,
    TopicPartition,
    decode_assignment,
    decode_subscription,
    decode_version,
    encode_assignment,
    encode_cooperative_user_data,
    encode_sticky_user_data,
    encode_subscription,
)
from kafka_why.sticky.api import Assignor
from kafka_why.sticky.assignor import CooperativeStickyAssignor, StickyAssignor
from operations.whatif.facts import (
    LogMoment,
    ObservedProcess,
    ReactionKind,
    SentRequest,
    Stall,
    TimeSpan,
)
from operations.whatif.run import WhatIfError

LEADERS: Final[Mapping[str, Assignor]] = MappingProxyType({**BROKER_ASSIGNORS, **ASSIGNORS})
"""The assignors that the leader of a simulated group can have."""

# The names of all assignors that an experiment can have.
KNOWN: Final = (*LEADERS, *COORDINATOR_ASSIGNORS)


def is_cooperative(protocols: Sequence[Protocol]) -> bool:
    """Return True if a consumer with these assignors keeps its partitions while it joins: all are
    cooperative.
    """
    return bool(protocols) and all(
        _assignor_name(p.name) == CooperativeStickyAssignor.name for p in protocols
    )


def check_readable(request: JoinGroup) -> None:
    """Raise WhatIfError unless a consumer with a readable subscription sent this JoinGroup."""
    if request.protocol_type != PROTOCOL_TYPE:
        raise WhatIfError(
            f"the group's protocol type is {request.protocol_type!r}: what-if is for groups of consumers, "
            "because it reads their subscriptions and makes their assignments"
        )
    for protocol in request.protocols:
        _read_subscription(protocol)


def protocols(
    recorded: JoinGroup, assignors: Sequence[str] | None, held: Iterable[TopicPartition], claim: Claim | None
) -> list[Protocol]:
    """Return the protocols for a JoinGroup that otherwise equals `recorded`.

    If `assignors` is None, the member offers the recorded assignors. `held` are its current partitions.
    `claim` is its last assignment, or None before the first.
    """
    owned = tuple(sorted(held))
    if assignors is None or not recorded.protocols:
        return [_with_member_state(protocol, owned, claim) for protocol in recorded.protocols]
    subscription = _read_subscription(recorded.protocols[0])
    without_state = Subscription(subscription.topics, rack_id=subscription.rack_id)
    metadata = encode_subscription(without_state, version=HIGHEST_VERSION)
    return [_with_member_state(Protocol(name, metadata), owned, claim) for name in assignors]


def assignments(
    protocol_name: str, members: Sequence[JoinGroupMember], counts: Mapping[str, int]
) -> list[MemberAssignment]:
    """Return the assignment that a leader computes for these members. `counts` has each topic's number of
    partitions.

    Raises WhatIfError if this project does not implement the assignor.
    """
    if protocol_name not in LEADERS:
        raise WhatIfError(
            f"the group's assignor is {protocol_name!r}, whose assignments cannot be computed here; "
            f"known are {', '.join(LEADERS)}"
        )
    subscriptions = {
        m.member_id: MemberSubscription(decode_subscription(m.metadata), m.group_instance_id) for m in members
    }
    subscribed = {topic for s in subscriptions.values() for topic in s.subscription.topics}
    subscribed_counts = {topic: count for topic, count in counts.items() if topic in subscribed}
    assigned = LEADERS[protocol_name].assign(subscribed_counts, subscriptions)
    return [
        MemberAssignment(member_id, encode_assignment(Assignment(tuple(partitions))))
        for member_id, partitions in assigned.items()
    ]


def _with_member_state(
    protocol: Protocol, owned: tuple[TopicPartition, ...], claim: Claim | None
) -> Protocol:
    """Return the protocol with the metadata of a member that holds `owned`. `claim` is its last assignment,
    or None before the first.
    """
    name = _assignor_name(protocol.name)
    subscription, version = _read_subscription(protocol), decode_version(protocol.metadata)
    sends_owned = name == CooperativeStickyAssignor.name
    # `uniform` reads a member's last assignment from its owned partitions.
    if name == UniformAssignor.name and claim is not None:
        owned, sends_owned = claim.partitions, True
    user_data = subscription.user_data
    if name == StickyAssignor.name:
        user_data = None if claim is None else encode_sticky_user_data(claim)
    elif name == CooperativeStickyAssignor.name:
        user_data = encode_cooperative_user_data((claim or Claim()).generation_id)
    sends_generation = sends_owned or subscription.generation_id is not None
    updated = replace(
        subscription,
        user_data=user_data,
        owned_partitions=owned if sends_owned else (),
        generation_id=claim.generation_id if claim is not None and sends_generation else None,
    )
    return Protocol(protocol.name, encode_subscription(updated, version=version))


def _read_subscription(protocol: Protocol) -> Subscription:
    """Return the subscription in a member's protocol. Raises WhatIfError if it cannot be read."""
    try:
        return decode_subscription(protocol.metadata)
    except ProtocolError as error:
        raise WhatIfError(f"a member's subscription cannot be read ({protocol.name}): {error}") from error


def _assignor_name(name: str) -> str:
    """Return the assignor's own name, without the prefix by which the coordinator assigns."""
    return name.removeprefix(PREFIX)


# A client gives up after one of these answers, as Kafka's consumer does.
FATAL = frozenset(
    {
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.INCONSISTENT_GROUP_PROTOCOL,
        ErrorCode.INVALID_SESSION_TIMEOUT,
        ErrorCode.INVALID_GROUP_ID,
        ErrorCode.GROUP_MAX_SIZE_REACHED,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.UNSUPPORTED_ASSIGNOR,
        ErrorCode.INVALID_REQUEST,
    }
)
# Answers after which the client's member id is invalid.
LOST_ID = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID})

_REQUIRES_JOIN = LOST_ID | {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.ILLEGAL_GENERATION}

# A part of the reason in the LeaveGroup of Java's consumer, if its max.poll.interval.ms was exceeded.
POLL_TIMEOUT = "poll timeout"

Partitions = frozenset[TopicPartition]


class Gap(NamedTuple):
    """A time between two requests of a process that owed heartbeats."""

    span: TimeSpan
    is_join_due: bool  # an answer had required it to join again


@dataclass
class ProcessObserver(ObservedProcess[SentRequest, ReactionKind]):
    """An observer of a process of the classic protocol.

    The process may have three requests to send: a JoinGroup (`due`), a SyncGroup (`_sync_due`), and its next
    Heartbeat (`_heartbeat_wait_from_ms`). A sent JoinGroup clears all three. When the process has joined, it
    owes a SyncGroup and heartbeats, and any answer may make another JoinGroup due. `awaits` is the type of
    the request whose answer it awaits, or None.
    """

    awaits: type[JoinGroup] | type[SyncGroup] | None = None
    refused: bool = False  # True if it gave up after one of the errors in FATAL
    fenced: bool = False  # True if another process took its group.instance.id, which every experiment repeats
    answered_ms: int = 0  # time of its last answer
    joins: list[tuple[int, JoinGroup]] = field(default_factory=list)
    gaps: list[Gap] = field(default_factory=list)
    stalls: list[Stall] = field(default_factory=list)
    beats_while_due: bool = False  # True if it sent a heartbeat while a JoinGroup was due
    heartbeat_gaps_ms: list[int] = field(default_factory=list)  # between two heartbeats without a join
    _sync_due: tuple[ReactionKind, int] | None = None  # as `due`, for a SyncGroup
    _has_sent_heartbeat: bool = False  # since it joined
    _held: Partitions = frozenset()  # the partitions that it holds

    def has_lost_id(self) -> bool:
        """Return True if the process has lost its member id and may join as a new member."""
        return not (self.member_id or self.awaits or self.left or self.fenced)

    def record_join(self, moment: LogMoment, request_id: str, request: JoinGroup) -> None:
        """Record a JoinGroup of the process."""
        self._record_moment(moment)
        if self.due is not None:
            self._add_reaction(*self.due, moment, request_id)
        elif self.awaits is JoinGroup:
            self.repeated += 1
        elif self.joins:
            self.rejoins.append(SentRequest(moment, request_id, request))
        if self.stalls and self.stalls[-1].span.to_ms is None:  # this JoinGroup ends the stall
            stall = self.stalls[-1]
            self.stalls[-1] = stall._replace(span=TimeSpan(stall.span.from_ms, moment.at_ms))
        self.joins.append((moment.at_ms, request))
        if not is_cooperative(request.protocols) or not request.member_id:
            self._held = frozenset()
        self.awaits = JoinGroup
        self.refused = False
        self.due = None
        self.record_wait_until(moment.at_ms)
        self._sync_due = self._heartbeat_wait_from_ms = None

    def record_sync(self, moment: LogMoment, request_id: str, request: SyncGroup) -> None:
        """Record a SyncGroup of the process."""
        self._record_moment(moment)
        if self._sync_due is None:
            self.repeated += 1
            return
        self._add_reaction(*self._sync_due, moment, request_id)
        self.awaits = SyncGroup
        self._sync_due = None

    def record_heartbeat(self, moment: LogMoment, request_id: str, request: Heartbeat) -> None:
        """Record a Heartbeat of the process."""
        if self._heartbeat_wait_from_ms is None:
            # It is joining or has left, so the heartbeat changes nothing.
            self.repeated += 1
            return
        self._record_moment(moment)
        self.beats_while_due |= self.due is not None
        self._add_reaction(ReactionKind.HEARTBEAT, self._heartbeat_wait_from_ms, moment, request_id)
        if self._has_sent_heartbeat:
            self.heartbeat_gaps_ms.append(moment.at_ms - self._heartbeat_wait_from_ms)
        self._heartbeat_wait_from_ms = moment.at_ms
        self._has_sent_heartbeat = True

    def record_commit(self, moment: LogMoment, request_id: str, request: OffsetCommit) -> None:
        """Record an OffsetCommit of the process."""
        self._record_moment(moment)
        self.commits.append(SentRequest(moment, request_id, request))

    def record_leave(self, moment: LogMoment, request_id: str, request: LeaveGroup) -> None:
        """Record the process's own LeaveGroup."""
        sent = SentRequest(moment, request_id, request)
        self._record_moment(moment)
        self.record_wait_until(moment.at_ms)
        self.member_id = ""
        self.awaits = self._sync_due = self._heartbeat_wait_from_ms = None
        self._held = frozenset()
        if POLL_TIMEOUT in (request.members[0].reason or ""):
            self.due = ReactionKind.POLLED, moment.at_ms
            _, last_join = self.joins[-1]
            last_poll_ms = moment.at_ms - last_join.rebalance_timeout_ms  # which is max.poll.interval.ms
            self.stalls.append(Stall(TimeSpan(last_poll_ms, to_ms=None), sent))
        else:
            self.left = sent

    def observe_response(self, at_ms: int, response: AnyResponse) -> None:
        """Record the response to one of the process's requests."""
        self.answered_ms = at_ms
        error = response.error_code
        if error in LOST_ID:
            self.member_id = ""
        if isinstance(response, JoinGroupResponse):
            if self.awaits is JoinGroup:
                self._handle_join_response(at_ms, response)
        elif isinstance(response, SyncGroupResponse):
            if self.awaits is SyncGroup:
                self._handle_sync_response(at_ms, response)
        elif self.awaits is not JoinGroup and requires_join(response):
            self._set_join_due(at_ms, error)
        if error is ErrorCode.FENCED_INSTANCE_ID:
            self.fenced = True
        elif error in FATAL:
            self.refused = True

    def must_act(self) -> bool:
        """Return True if the process has a request to send, so that its silence means something."""
        return self.awaits is None and (
            self.due is not None or self._sync_due is not None or self._heartbeat_wait_from_ms is not None
        )

    def record_wait_until(self, until_ms: int) -> None:
        """Record that the process has waited to react until this time, and still waits."""
        heartbeat_due = (
            None
            if self._heartbeat_wait_from_ms is None
            else (ReactionKind.HEARTBEAT, self._heartbeat_wait_from_ms)
        )
        for reaction_due in (self.due, self._sync_due, heartbeat_due):
            if reaction_due is not None:
                kind, from_ms = reaction_due
                if from_ms < until_ms:
                    self._add_reaction(kind, from_ms, LogMoment(until_ms))

    def _handle_join_response(self, at_ms: int, response: JoinGroupResponse) -> None:
        """Record a JoinGroup response: a SyncGroup or another JoinGroup is due."""
        self.awaits = None
        if response.error_code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            self.due = ReactionKind.GIVEN_ID, at_ms
        elif response.error_code is not ErrorCode.NONE:
            self._set_join_due(at_ms, response.error_code)
        else:
            self.member_id = response.member_id
            assigns = (
                bool(response.members) and not response.skip_assignment
            )  # only a leader gets the members
            self._sync_due = ReactionKind.LEADER_SYNC if assigns else ReactionKind.SYNC, at_ms
            self._heartbeat_wait_from_ms = at_ms
            self._has_sent_heartbeat = False

    def _handle_sync_response(self, at_ms: int, response: SyncGroupResponse) -> None:
        """Record a SyncGroup response: the partitions, or that another JoinGroup is due."""
        self.awaits = None
        if response.error_code is not ErrorCode.NONE:
            self._set_join_due(at_ms, response.error_code)
            return
        held_before, self._held = self._held, read_partitions(response.assignment)
        if held_before - self._held and is_cooperative(self.joins[-1][1].protocols):
            self.due = ReactionKind.REVOKED, at_ms

    def _set_join_due(self, at_ms: int, error: ErrorCode) -> None:
        """Make a JoinGroup due because of this error, unless one is due already."""
        kind = ReactionKind.REBALANCE if error is ErrorCode.REBALANCE_IN_PROGRESS else ReactionKind.ERROR
        self.due = self.due or (kind, at_ms)  # an earlier cause stays

    def _record_moment(self, moment: LogMoment) -> None:
        """Record the moment of a request, and the gap before it."""
        if self._heartbeat_wait_from_ms is not None:
            from_ms = max(self.last_request.at_ms, self._heartbeat_wait_from_ms)
            self.gaps.append(Gap(TimeSpan(from_ms, moment.at_ms), is_join_due=self.due is not None))
        self.last_request = moment


def requires_join(response: AnyResponse) -> bool:
    """Return True if the client joins again after this answer to a heartbeat or a commit.

    A client whose commit is refused with REBALANCE_IN_PROGRESS has already joined: the group is in
    CompletingRebalance.
    """
    error = response.error_code
    if isinstance(response, OffsetCommitResponse) and error is ErrorCode.REBALANCE_IN_PROGRESS:
        return False
    return error in _REQUIRES_JOIN


def read_partitions(assignment: bytes) -> Partitions:
    """Return the partitions of an assignment. Empty bytes, and bytes of other protocols, have none."""
    try:
        return frozenset(decode_assignment(assignment).partitions) if assignment else frozenset()
    except ProtocolError:
        return frozenset()
