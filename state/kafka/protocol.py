"""The interface of Kafka's protocols: classic, consumer, share and streams. `state.kafka.protocols` lists
them, and finds the handler of a request by the protocol of its group and the type of the request.

A row, such as K2, is a rule of docs/rules.md. `context.cite` records that a row was applied.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, TypeVar
from uuid import UUID

from msgspec import UNSET

from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.kafka.requests import (
    DeleteGroup,
    DescribeGroup,
    LeaveGroup,
    OffsetCommit,
    OffsetDelete,
    OffsetFetch,
    OversizedRequest,
    ReplyTo,
    TxnOffsetCommit,
)
from kafka_why.contract.kafka.responses import (
    DeleteGroupResponse,
    DescribeGroupResponse,
    LeaveGroupResponse,
    LeftMember,
    OffsetFetchResponse,
    OversizedRequestResponse,
)
from kafka_why.contract.kafka.snapshot import GroupSnapshot, TopicSnapshot
from kafka_why.contract.messages import ErrorCode, GroupType
from state.config import CoordinatorConfig, GroupSetting
from state.kafka.commits import commit, txn_commit
from state.kafka.context import Effects, KafkaGroup, RuleAndError, RuleId, StepContext, unchanged
from state.kafka.group import RANK, DeadlineReached, Timer, TimerKind, Topic
from state.kafka.offsets import delete_offsets, fetch
from state.protocol import Handler, Handlers, Outage, StoredKind

# An administrator's requests as most protocols answer them: DescribeGroups, which is for classic groups
# (rows AD8, AD9), and DeleteGroups (rows K2, K3).
#
# Source: GroupMetadataManager.describeGroups, ClassicGroup.validateDeleteGroup.


FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND = 6  # of DescribeGroups


def describe_as_not_classic(context: StepContext, request: DescribeGroup, reply_to: ReplyTo) -> None:
    """Answer that no classic group has this id. As in Kafka, only a newer client gets an error."""
    if request.api_version < FIRST_VERSION_WITH_GROUP_ID_NOT_FOUND:
        context.reply(reply_to, DescribeGroupResponse, context.cite("AD8"))
        return
    context.reply(
        reply_to,
        DescribeGroupResponse,
        context.cite("AD9"),
        ErrorCode.GROUP_ID_NOT_FOUND,
        error_message=f"Group {context.group_id} is not a classic group.",
    )


def delete_group(context: StepContext, _: DeleteGroup, reply_to: ReplyTo) -> None:
    """Delete an Empty group. Pending member ids do not prevent it."""
    if not context.group.is_empty:
        context.reply(reply_to, DeleteGroupResponse, context.cite("K2"), ErrorCode.NON_EMPTY_GROUP)
        return
    row = context.cite("K3")
    context.delete_group(row, "deleted by request")
    context.reply(reply_to, DeleteGroupResponse, row)


def answer_with(row: str, error: ErrorCode = ErrorCode.NONE) -> Handler:
    """Return a handler that gives every request the same answer: this error, by this row."""

    def answer(context: StepContext, request: Any, reply_to: ReplyTo) -> None:
        context.reply(reply_to, request.response_type, context.cite(row), error)

    return answer


def refuse_leave_with(row: str) -> Handler:
    """Return a handler that answers a LeaveGroup with UNKNOWN_MEMBER_ID for each of its members."""

    def refuse(context: StepContext, request: LeaveGroup, reply_to: ReplyTo) -> None:
        error = ErrorCode.UNKNOWN_MEMBER_ID
        members = [
            LeftMember(leaving.member_id, leaving.group_instance_id, error) for leaving in request.members
        ]
        context.reply(reply_to, LeaveGroupResponse, context.cite(row), members=members)

    return refuse


# A JoinGroup or SyncGroup that is too large for the log. The log has an OversizedRequest in its place. Rows
# J9, S11.


OVERSIZED_ERROR = ErrorCode.UNKNOWN_SERVER_ERROR


def refuse_oversized(context: StepContext, request: OversizedRequest, reply_to: ReplyTo) -> None:
    """Refuse a request that is too large for the log. The classic protocol has its own handler, because its
    groups need the assignment that a SyncGroup carries.
    """
    if request.kind == "JoinGroup":
        refuse_join(context, context.cite("J9"), request, reply_to)
    else:
        context.reply(reply_to, OversizedRequestResponse, context.cite("S11"), OVERSIZED_ERROR)


def refuse_join(context: StepContext, row: RuleId, request: OversizedRequest, reply_to: ReplyTo) -> None:
    """Refuse a JoinGroup to an existing group because it is too large for the log, and record the reason."""
    context.record(
        row,
        EntryType.JOIN_REFUSED,
        oversize_reason(request),
        member_id=request.member_id or None,
        client_id=request.client_id,
    )
    context.reply(reply_to, OversizedRequestResponse, row, OVERSIZED_ERROR)


def oversize_reason(request: OversizedRequest) -> str:
    """Return the reason of a refusal for the history, with the size and its limit."""
    return (
        f"a {request.kind} of {request.size_bytes} bytes is too large: "
        f"the limit of the requests topic is {request.max_bytes}"
    )


def common_fields(group: KafkaGroup) -> dict[str, Any]:
    """Return the fields of a group's view (`GroupSnapshot`) that groups of all protocols have."""
    return {
        "group_id": group.group_id,
        "incarnation": group.incarnation,
        "seq": group.seq,
        "at_ms": group.clock_ms,
        "state": group.state.value,
        "state_timestamp_ms": group.state_timestamp_ms,
        "generation": group.generation,
        "protocol_type": group.protocol_type,
        "last_rebalance_at_ms": group.last_rebalance_at_ms,
        "last_rebalance_reason": group.last_rebalance_reason,
        "quarantined": group.quarantined,
        "configs": group.configs or UNSET,
    }


def topic_snapshots(topics: Mapping[str, Topic | None]) -> dict[str, TopicSnapshot | None]:
    """Return the topics, sorted by name, as a view shows them."""
    return {
        name: None if topic is None else TopicSnapshot(str(UUID(bytes=topic.topic_id)), topic.partitions)
        for name, topic in sorted(topics.items())
    }


G = TypeVar("G", bound=KafkaGroup)

Before = tuple[str, bool]
"""The state of a group before a step, and True if its members were still moving to their assignments."""


Renewal = Callable[[Any, Any, str, int, CoordinatorConfig], Effects | None]
"""A faster function for one frequent request. It takes the group, the request, the request's id, the time in
ms and the configuration. It returns the effects that the general step would have, or changes nothing and
returns None.
"""


class KafkaProtocol(StoredKind[G, DeadlineReached]):
    """The rules of one of Kafka's protocols. A handler takes the context, its request, and the address of the
    answer.

    Commits and fetches of offsets differ between protocols only in who may send them, so a protocol has
    checks for these requests instead of handlers.

    A request is parked if a later step answers it. A group is quarantined after the handling of a deadline
    raised an exception: its deadlines do not fire until an operator releases it.
    """

    group_type = GroupType.KAFKA
    group_class: ClassVar[type[Any]]
    handlers: ClassVar[Handlers]
    """Handlers of requests to a group of this protocol, besides the common ones of `all_handlers`."""
    without_own_group: ClassVar[Handlers] = {}
    """Handlers of this protocol's own requests to a group id without a group, or to a group of another
    protocol whose `handlers` do not have the request.
    """
    renewals: ClassVar[Mapping[type, Renewal]] = {}
    """Faster functions for frequent requests that only renew a member's session or store its offsets."""
    unanswered_handlers: ClassVar[Handlers] = {}
    """Handlers of reports of the coordinator's own service, which get no answer. They take the context, the
    group and the report.
    """
    checks_group_id: ClassVar[Sequence[type]] = ()
    """Requests of this protocol that are handled even with an empty group id, because the handler checks it.
    """
    settings: ClassVar[Sequence[GroupSetting]] = ()
    """The settings that a group can have, by AlterConfigs of the resource GROUP."""
    breaks_ties_by_member = True
    """True if the member id decides which of two equal deadlines fires first, not the order of members."""
    refusal_effects = staticmethod(unchanged)

    def all_handlers(self) -> dict[type, Handler]:
        """Return `handlers`, and common handlers for requests that `handlers` does not contain."""
        return {
            OffsetCommit: self.commit,
            TxnOffsetCommit: self.txn_commit,
            OffsetFetch: self.fetch,
            OffsetDelete: delete_offsets,
            DescribeGroup: describe_as_not_classic,
            DeleteGroup: delete_group,
            **self.handlers,
        }

    # Deadlines.

    @abstractmethod
    def deadline_reached(self, context: StepContext, group: G, deadline: DeadlineReached) -> None:
        """Handle a due deadline. It is disarmed unless the handling arms it again."""

    @abstractmethod
    def take_over(self, context: StepContext, group: G, outage: Outage) -> None:
        """Handle the end of an outage, for which no deadline of the group has fired. This is not called for a
        quarantined group.
        """

    @abstractmethod
    def release(self, context: StepContext, group: G) -> int | None:
        """Resume the deadlines of a group whose quarantine has ended. Return the time in ms of a deadline of
        the whole group for the history, or None if no such deadline is armed.
        """

    @abstractmethod
    def member_timers(self, member: Any) -> Iterator[Timer]:
        """Return the armed timers of a member."""

    def group_timers(self, group: G) -> Iterator[Timer]:
        """Return the armed timers that belong to no member, except the timer of retention."""
        return iter(())

    def timers_of(self, group: G, member_id: str) -> Iterator[Timer]:
        """Return the armed timers of the member. If the id is empty, return those of the group, without
        that of its retention.
        """
        if not member_id:
            return self.group_timers(group)
        member = group.members.get(member_id)
        return iter(()) if member is None else self.member_timers(member)

    def next_deadline_ms(self, group: G, config: CoordinatorConfig) -> int | None:
        return min((at_ms for at_ms, _, _ in self._armed_timers(group)), default=None)

    def due_deadlines(self, group: G, until_ms: int, config: CoordinatorConfig) -> list[DeadlineReached]:
        due = [
            DeadlineReached(at_ms, kind, member_id)
            for at_ms, kind, member_id in self._armed_timers(group)
            if at_ms <= until_ms
        ]
        by_member = self.breaks_ties_by_member
        return sorted(due, key=lambda d: (d.deadline_ms, RANK[d.kind], d.member_id if by_member else ""))

    def is_armed(self, group: G, deadline: DeadlineReached, config: CoordinatorConfig) -> bool:
        if group.quarantined is not None:
            return False
        if deadline.kind is TimerKind.RETENTION:
            return group.retention_deadline_ms == deadline.deadline_ms
        timer = deadline.deadline_ms, deadline.kind, deadline.member_id
        return timer in self.timers_of(group, deadline.member_id)

    def _armed_timers(self, group: G) -> Iterator[Timer]:
        """Yield the timers that can fire: none if the group is quarantined, else those of all members, of the
        group, and of retention.
        """
        if group.quarantined is not None:
            return
        for member in group.members.values():
            yield from self.member_timers(member)
        yield from self.group_timers(group)
        if group.retention_deadline_ms is not None:
            yield group.retention_deadline_ms, TimerKind.RETENTION, ""

    @abstractmethod
    def shift_deadlines(self, context: StepContext, group: G, by_ms: int) -> None:
        """Restart the sessions, and delay the other deadlines by `by_ms`, the time during which they stood
        still.
        """

    def answer_parked(self, context: StepContext, group: G, row: RuleId) -> None:
        """Answer every parked request with an error, because the quarantined group fires no more deadlines.

        The default does nothing: it is for protocols that answer each request at once.
        """

    # Settings.

    def conflict_of(self, values: Mapping[str, int]) -> tuple[str, str] | None:
        """Return the row and a message if the values of the group's settings contradict each other, else
        None.
        """
        return None

    # The end of a step.

    def before(self, group: G) -> Before:
        """Return the state before a step, which `record_outcome` compares with the state after it."""
        return group.state, False

    def record_outcome(self, context: StepContext, group: G, before: Before) -> None:
        """Record how the step has changed the group's state. `before` is the result of `before()` at the
        start of the step, when the group may have had another protocol.
        """

    # Who may commit and fetch offsets.

    @abstractmethod
    def check_commit(self, context: StepContext, group: G, request: OffsetCommit) -> RuleAndError:
        """Return the row and the error for the sender of the request, NONE if it may commit."""
        ...

    @abstractmethod
    def check_txn_commit(self, context: StepContext, group: G, request: TxnOffsetCommit) -> RuleAndError:
        """Return the row and the error for the sender of the request, NONE if it may commit."""
        ...

    def check_fetch(self, context: StepContext, group: G, request: OffsetFetch) -> RuleAndError | None:
        """Return the row and the error that refuse the request, or None if the sender may fetch offsets."""
        return None

    def commit(self, context: StepContext, request: OffsetCommit, reply_to: ReplyTo) -> None:
        verdict = self.check_commit(context, context.group_of(self.group_class), request)
        commit(context, request, reply_to, verdict)

    def txn_commit(self, context: StepContext, request: TxnOffsetCommit, reply_to: ReplyTo) -> None:
        verdict = self.check_txn_commit(context, context.group_of(self.group_class), request)
        txn_commit(context, request, reply_to, verdict)

    def fetch(self, context: StepContext, request: OffsetFetch, reply_to: ReplyTo) -> None:
        refusal = self.check_fetch(context, context.group_of(self.group_class), request)
        if refusal is not None:
            context.reply(reply_to, OffsetFetchResponse, *refusal)
        else:
            fetch(context, request, reply_to)

    # Readers.

    @abstractmethod
    def view(self, group: G) -> GroupSnapshot: ...
