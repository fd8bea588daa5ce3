"""The observation of one process through its requests and answers: what members send, its reactions, and
their times.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

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
from operations.whatif.facts import LogMoment, Reaction, ReactionKind, SentRequest, Stall, TimeSpan
from operations.whatif.run import WhatIfError

LEADERS: Final[Mapping[str, Assignor]] = MappingProxyType({**BROKER_ASSIGNORS, **ASSIGNORS})
"""The assignors that the leader of a simulated group can have."""

KNOWN: Final = (*LEADERS, *COORDINATOR_ASSIGNORS)


def is_cooperative(protocols: Sequence[Protocol]) -> bool:
    """Return True if a consumer with these assignors keeps its partitions while it joins: all are
    cooperative.
    """
    return bool(protocols) and all(_bare(p.name) == CooperativeStickyAssignor.name for p in protocols)


def check_readable(request: JoinGroup) -> None:
    """Raise WhatIfError if the JoinGroup is not that of a consumer whose subscription can be read."""
    if request.protocol_type != PROTOCOL_TYPE:
        raise WhatIfError(
            f"the group's protocol type is {request.protocol_type!r}: what-if is for groups of consumers, "
            "because it reads their subscriptions and makes their assignments"
        )
    for protocol in request.protocols:
        _read(protocol)


def protocols(
    recorded: JoinGroup, assignors: Sequence[str] | None, held: Iterable[TopicPartition], claim: Claim | None
) -> list[Protocol]:
    """Return the protocols of a JoinGroup that is otherwise as the recorded one.

    If `assignors` is None, the member offers the same assignors. `held` are its current partitions, `claim`
    is its last assignment, or None before the first.
    """
    owned = tuple(sorted(held))
    if assignors is None or not recorded.protocols:
        return [_updated(protocol, owned, claim) for protocol in recorded.protocols]
    subscription = _read(recorded.protocols[0])
    plain = Subscription(subscription.topics, rack_id=subscription.rack_id)
    bare = encode_subscription(plain, version=HIGHEST_VERSION)
    return [_updated(Protocol(name, bare), owned, claim) for name in assignors]


def assignments(
    protocol_name: str, members: Sequence[JoinGroupMember], counts: Mapping[str, int]
) -> list[MemberAssignment]:
    """Return the leader's assignment.

    Raises WhatIfError if the assignor is not one that the project implements.
    """
    if protocol_name not in LEADERS:
        raise WhatIfError(
            f"the group's assignor is {protocol_name!r}, whose assignments cannot be computed here; "
            f"known are {', '.join(LEADERS)}"
        )
    subscriptions = {
        m.member_id: MemberSubscription(decode_subscription(m.metadata), m.group_instance_id) for m in members
    }
    wanted = {topic for s in subscriptions.values() for topic in s.subscription.topics}
    known = {topic: count for topic, count in counts.items() if topic in wanted}
    dealt = LEADERS[protocol_name].assign(known, subscriptions)
    return [
        MemberAssignment(member_id, encode_assignment(Assignment(tuple(partitions))))
        for member_id, partitions in dealt.items()
    ]


def _updated(protocol: Protocol, owned: tuple[TopicPartition, ...], claim: Claim | None) -> Protocol:
    """Return the protocol with the metadata of a member that holds `owned`."""
    name = _bare(protocol.name)
    subscription, version = _read(protocol), decode_version(protocol.metadata)
    sends_owned = name == CooperativeStickyAssignor.name
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


def _read(protocol: Protocol) -> Subscription:
    try:
        return decode_subscription(protocol.metadata)
    except ProtocolError as error:
        raise WhatIfError(f"a member's subscription cannot be read ({protocol.name}): {error}") from error


def _bare(name: str) -> str:
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

NEVER = LogMoment(0)

# A part of the reason in the LeaveGroup of Java's consumer, if its max.poll.interval.ms was exceeded.
POLL_TIMEOUT = "poll timeout"

Partitions = frozenset[TopicPartition]


@dataclass(slots=True)
class Gap:
    """A time without a request of a process that owed heartbeats. `learned` is True if it knew of a
    rebalance.
    """

    span: TimeSpan
    learned: bool


@dataclass
class ProcessObserver:
    """An observer of one process, which takes its requests and answers in order.

    `member_id` is "" while it has none. `waits` is the request whose answer it awaits, None if there is none.
    """

    first: SentRequest
    client_id: str
    client_host: str
    instance_id: str | None
    member_id: str = ""
    waits: type[JoinGroup] | type[SyncGroup] | None = None
    left: SentRequest | None = None
    refused: bool = False
    fenced: bool = False  # another process has its group.instance.id, in every experiment
    last_sign: LogMoment = NEVER
    answered_ms: int = 0
    joins: list[tuple[int, JoinGroup]] = field(default_factory=list)
    reactions: dict[ReactionKind, list[Reaction]] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)
    stalls: list[Stall] = field(default_factory=list)
    rejoins: list[SentRequest] = field(default_factory=list)
    commits: list[SentRequest] = field(default_factory=list)
    beats_while_due: bool = False
    heartbeat_gaps_ms: list[int] = field(default_factory=list)
    repeated: int = 0
    _due: tuple[ReactionKind, int] | None = None  # its next JoinGroup: the cause, and since when
    _sync: tuple[ReactionKind, int] | None = None
    _beats_from_ms: int | None = None
    _beaten: bool = False
    _holds: Partitions = frozenset()

    def is_lost(self) -> bool:
        """Return True if the process has lost its member id and may join as a new member."""
        return not (self.member_id or self.waits or self.left or self.fenced)

    def joined(self, moment: LogMoment, request_id: str, request: JoinGroup) -> None:
        """Record a JoinGroup of the process."""
        self._record_sign_of_life(moment)
        if self._due is not None:
            self._react(*self._due, moment, request_id)
        elif self.waits is JoinGroup:
            self.repeated += 1
        elif self.joins:
            self.rejoins.append(SentRequest(moment, request_id, request))
        if self.stalls and self.stalls[-1].span.to_ms is None:
            stall = self.stalls[-1]
            self.stalls[-1] = stall._replace(span=TimeSpan(stall.span.from_ms, moment.at_ms))
        self.joins.append((moment.at_ms, request))
        if not is_cooperative(request.protocols) or not request.member_id:
            self._holds = frozenset()
        self.waits, self.refused, self._due = JoinGroup, False, None
        self.waited_until(moment.at_ms)
        self._sync = self._beats_from_ms = None

    def synced(self, moment: LogMoment, request_id: str, request: SyncGroup) -> None:
        """Record a SyncGroup of the process."""
        self._record_sign_of_life(moment)
        if self._sync is None:
            self.repeated += 1
            return
        self._react(*self._sync, moment, request_id)
        self.waits, self._sync = SyncGroup, None

    def beat(self, moment: LogMoment, request_id: str, request: Heartbeat) -> None:
        """Record a Heartbeat of the process."""
        if self._beats_from_ms is None:  # not in a generation: such a heartbeat renews nothing
            self.repeated += 1
            return
        self._record_sign_of_life(moment)
        self.beats_while_due |= self._due is not None
        self._react(ReactionKind.HEARTBEAT, self._beats_from_ms, moment, request_id)
        if self._beaten:
            self.heartbeat_gaps_ms.append(moment.at_ms - self._beats_from_ms)
        self._beats_from_ms, self._beaten = moment.at_ms, True

    def committed(self, moment: LogMoment, request_id: str, request: OffsetCommit) -> None:
        """Record an OffsetCommit of the process."""
        self._record_sign_of_life(moment)
        self.commits.append(SentRequest(moment, request_id, request))

    def leaves(self, moment: LogMoment, request_id: str, request: LeaveGroup) -> None:
        """Record the process's own LeaveGroup."""
        sent = SentRequest(moment, request_id, request)
        self._record_sign_of_life(moment)
        self.waited_until(moment.at_ms)
        self.member_id, self.waits, self._sync, self._beats_from_ms = "", None, None, None
        self._holds = frozenset()
        if POLL_TIMEOUT in (request.members[0].reason or ""):
            self._due = ReactionKind.POLLED, moment.at_ms
            self.stalls.append(
                Stall(TimeSpan(moment.at_ms - self.joins[-1][1].rebalance_timeout_ms, None), sent)
            )
        else:
            self.left = sent

    def observe_response(self, at_ms: int, response: AnyResponse) -> None:
        """Record the response to one of the process's requests."""
        self.answered_ms = at_ms
        error = response.error_code
        if error in LOST_ID:
            self.member_id = ""
        if isinstance(response, JoinGroupResponse):
            if self.waits is JoinGroup:
                self._join_answered(at_ms, response)
        elif isinstance(response, SyncGroupResponse):
            if self.waits is SyncGroup:
                self._sync_answered(at_ms, response)
        elif self.waits is not JoinGroup and requires_join(response):
            self._must_join(at_ms, error)
        if error is ErrorCode.FENCED_INSTANCE_ID:
            self.fenced = True
        elif error in FATAL:
            self.refused = True

    def must_act(self) -> bool:
        """Return True if the process has to do something next, so that its silence has a meaning."""
        return self.waits is None and (
            self._due is not None or self._sync is not None or self._beats_from_ms is not None
        )

    def waited_until(self, until_ms: int) -> None:
        """Record that the process has waited to react until this time, and still waits."""
        for pending in (self._due, self._sync, self._beat_due()):
            if pending is not None and pending[1] < until_ms:
                self._react(*pending, LogMoment(until_ms), "")

    def _beat_due(self) -> tuple[ReactionKind, int] | None:
        return None if self._beats_from_ms is None else (ReactionKind.HEARTBEAT, self._beats_from_ms)

    def _join_answered(self, at_ms: int, response: JoinGroupResponse) -> None:
        self.waits = None
        if response.error_code is ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
            self._due = ReactionKind.GIVEN_ID, at_ms
        elif response.error_code is not ErrorCode.NONE:
            self._must_join(at_ms, response.error_code)
        else:
            self.member_id = response.member_id
            leads = bool(response.members) and not response.skip_assignment
            self._sync = ReactionKind.LEADER_SYNC if leads else ReactionKind.SYNC, at_ms
            self._beats_from_ms, self._beaten = at_ms, False

    def _sync_answered(self, at_ms: int, response: SyncGroupResponse) -> None:
        self.waits = None
        if response.error_code is not ErrorCode.NONE:
            self._must_join(at_ms, response.error_code)
            return
        held, self._holds = self._holds, read_partitions(response.assignment)
        if held - self._holds and is_cooperative(self.joins[-1][1].protocols):
            self._due = ReactionKind.REVOKED, at_ms

    def _must_join(self, at_ms: int, error: ErrorCode) -> None:
        kind = ReactionKind.REBALANCE if error is ErrorCode.REBALANCE_IN_PROGRESS else ReactionKind.ERROR
        self._due = self._due or (kind, at_ms)

    def _react(self, kind: ReactionKind, from_ms: int, moment: LogMoment, request_id: str) -> None:
        self.reactions.setdefault(kind, []).append(Reaction(from_ms, moment, request_id))

    def _record_sign_of_life(self, moment: LogMoment) -> None:
        if self._beats_from_ms is not None:
            from_ms = max(self.last_sign.at_ms, self._beats_from_ms)
            self.gaps.append(Gap(TimeSpan(from_ms, moment.at_ms), self._due is not None))
        self.last_sign = moment


def requires_join(response: AnyResponse) -> bool:
    """Return True if the client joins again after this answer to a heartbeat or a commit.

    A commit in CompletingRebalance is refused with REBALANCE_IN_PROGRESS. The client has joined already then.
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


def long_gaps(gaps: list[Gap], least_ms: int, *, beats_while_rebalancing: bool) -> Iterator[TimeSpan]:
    """Yield the times longer than `least_ms` in which a process owed heartbeats and sent nothing."""
    for gap in gaps:
        length_ms = (gap.span.to_ms or 0) - gap.span.from_ms
        if length_ms > least_ms and (beats_while_rebalancing or not gap.learned):
            yield gap.span
