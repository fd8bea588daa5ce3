"""The interface of Kafka's protocols. `state.kafka.protocols` has all of them. A request's handler depends on
the protocol of its group and on its own type (`state.kafka.protocols`).
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
    OffsetFetchResponse,
    OversizedRequestResponse,
)
from kafka_why.contract.kafka.snapshot import GroupSnapshot, TopicSnapshot
from kafka_why.contract.messages import ErrorCode, ErrorResponse, GroupType
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
        context.reply(reply_to, DescribeGroupResponse, context.rule("AD8"))
        return
    context.reply(
        reply_to,
        DescribeGroupResponse,
        context.rule("AD9"),
        ErrorCode.GROUP_ID_NOT_FOUND,
        error_message=f"Group {context.group_id} is not a classic group.",
    )


def delete_group(context: StepContext, _: DeleteGroup, reply_to: ReplyTo) -> None:
    """Delete an Empty group. Pending member ids do not prevent it."""
    if not context.group.is_empty:
        context.reply(reply_to, DeleteGroupResponse, context.rule("K2"), ErrorCode.NON_EMPTY_GROUP)
        return
    row = context.rule("K3")
    context.delete_group(row, "deleted by request")
    context.reply(reply_to, DeleteGroupResponse, row)


def answer_with(row: str, error: ErrorCode = ErrorCode.NONE) -> Handler:
    """Return a handler that gives every request the same answer: this error, by this row."""

    def answer(context: StepContext, request: Any, reply_to: ReplyTo) -> None:
        context.reply(reply_to, request.answer, context.rule(row), error)

    return answer


# A JoinGroup or SyncGroup that is too large for the log. Rows J9, S11. S10 is the classic protocol's.


FAILED = ErrorCode.UNKNOWN_SERVER_ERROR


def refuse_oversized(context: StepContext, request: OversizedRequest, reply_to: ReplyTo) -> None:
    """Refuse a request that is too large for the log. The classic protocol, whose groups need the assignment
    of a SyncGroup, has its own handler.
    """
    if request.kind == "JoinGroup":
        refuse_join(context, context.rule("J9"), request, reply_to)
    else:
        context.reply(reply_to, OversizedRequestResponse, context.rule("S11"), FAILED)


def refuse_join(context: StepContext, row: RuleId, request: OversizedRequest, reply_to: ReplyTo) -> None:
    """Refuse a JoinGroup to an existing group because it is too large for the log, and record the reason."""
    context.record(
        row,
        EntryType.JOIN_REFUSED,
        reason_of(request),
        member_id=request.member_id or None,
        client_id=request.client_id,
    )
    context.reply(reply_to, OversizedRequestResponse, row, FAILED)


def reason_of(request: OversizedRequest) -> str:
    """Return the reason for the history, with the size and its limit."""
    return (
        f"a {request.kind} of {request.size_bytes} bytes is too large: "
        f"the limit of the requests topic is {request.max_bytes}"
    )


def common_fields(group: KafkaGroup) -> dict[str, Any]:
    """Return the fields that groups of all protocols have."""
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
"""The state of a group before a step, and True if its members were still moving to their targets."""


Renewal = Callable[[Any, Any, str, int, CoordinatorConfig], Effects | None]
"""It takes the group, the request, the request's id, the time in ms and the configuration. It returns the
effects of the general step, or changes nothing and returns None.
"""


class KafkaProtocol(StoredKind[G, DeadlineReached]):
    """The rules of one of Kafka's protocols. A handler takes the context, its request, and the address of the
    answer.

    Commits and fetches of offsets differ between protocols only in who may send them, so a protocol has
    checks for these requests instead of handlers.
    """

    group_type = GroupType.KAFKA
    group_class: ClassVar[type[Any]]
    handlers: ClassVar[Handlers]
    without_own_group: ClassVar[Handlers] = {}
    """Handlers of this protocol's own requests to a group id without a group, or with a group of another
    protocol. The `handlers` of that other protocol come first.
    """
    renewals: ClassVar[Mapping[type, Renewal]] = {}
    """Faster functions for frequent requests that change nothing but the session and offsets of a member."""
    unanswered_handlers: ClassVar[Handlers] = {}
    """Handlers of reports of the coordinator's own service, which get no answer. They take the context, the
    group and the report.
    """
    checks_group_id: ClassVar[Sequence[type]] = ()
    """This protocol's own requests that themselves check for an empty group id."""
    settings: ClassVar[Sequence[GroupSetting]] = ()
    """The settings that a group can have, by AlterConfigs of the resource GROUP."""
    breaks_ties_by_member = True
    """True if the member id decides which of two equal deadlines fires first, not the order of `timers`."""

    def all_handlers(self) -> dict[type, Handler]:
        """Return `handlers`, and the common handlers of requests that it does not contain."""
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
        """Handle the end of an outage. The group is not quarantined."""

    @abstractmethod
    def release(self, context: StepContext, group: G) -> int | None:
        """Resume the deadlines of a group whose quarantine has ended. Return the time in ms of a deadline of
        the whole group, if any.
        """

    @abstractmethod
    def timers(self, group: G) -> Iterator[Timer]:
        """Return the armed timers of the group and its members, without retention."""

    @abstractmethod
    def timers_of(self, group: G, kind: TimerKind, member_id: str) -> Iterator[Timer]:
        """Return the armed timers of the member, or of the group, without visiting all members. Timers of
        other kinds may be among them.
        """

    def next_deadline_ms(self, group: G, config: CoordinatorConfig) -> int | None:
        return min((at_ms for at_ms, _, _ in self._armed_timers(group)), default=None)

    def due_deadlines(self, group: G, until_ms: int, config: CoordinatorConfig) -> list[DeadlineReached]:
        due = [DeadlineReached(*timer) for timer in self._armed_timers(group) if timer[0] <= until_ms]
        by_member = self.breaks_ties_by_member
        return sorted(due, key=lambda d: (d.deadline_ms, RANK[d.kind], d.member_id if by_member else ""))

    def is_armed(self, group: G, deadline: DeadlineReached, config: CoordinatorConfig) -> bool:
        if group.quarantined is not None:
            return False
        kind = deadline.kind
        if kind is TimerKind.RETENTION:
            return group.retention_deadline_ms == deadline.deadline_ms
        timers = self.timers_of(group, kind, deadline.member_id)
        return next((at_ms for at_ms, of, _ in timers if of is kind), None) == deadline.deadline_ms

    def _armed_timers(self, group: G) -> Iterator[Timer]:
        if group.quarantined is not None:
            return
        yield from self.timers(group)
        if group.retention_deadline_ms is not None:
            yield group.retention_deadline_ms, TimerKind.RETENTION, ""

    @abstractmethod
    def shift_deadlines(self, context: StepContext, group: G, by_ms: int) -> None:
        """Restart the sessions, and shift the other deadlines by `by_ms`, for which time stood still."""

    def answer_parked(self, context: StepContext, group: G, row: RuleId) -> None:
        """Answer every parked request with an error, because the group's deadlines stop. A protocol that
        answers each request at once has no parked requests.
        """

    # Settings.

    def conflict_of(self, values: Mapping[str, int]) -> tuple[str, str] | None:
        """Return the row and a message if the values of the group's settings contradict each other, else
        None.
        """
        return None

    # The end of a step.

    def before(self, group: G) -> Before:
        """Return the state before a step, for `settle` to compare."""
        return group.state, False

    def settle(self, context: StepContext, group: G, before: Before) -> None:
        """Record the outcome of a step for the group. `before` is the result of `before()` under the protocol
        that the group had then.
        """

    # Who may commit and fetch offsets.

    @abstractmethod
    def check_commit(self, context: StepContext, group: G, request: OffsetCommit) -> RuleAndError: ...

    @abstractmethod
    def check_txn_commit(self, context: StepContext, group: G, request: TxnOffsetCommit) -> RuleAndError: ...

    def check_fetch(self, context: StepContext, group: G, request: OffsetFetch) -> RuleAndError | None:
        """Return the row and the error that refuse the request, or None."""
        return None

    def commit(self, context: StepContext, request: OffsetCommit, reply_to: ReplyTo) -> None:
        commit(
            context,
            request,
            reply_to,
            self.check_commit(context, context.group_of(self.group_class), request),
        )

    def txn_commit(self, context: StepContext, request: TxnOffsetCommit, reply_to: ReplyTo) -> None:
        txn_commit(
            context,
            request,
            reply_to,
            self.check_txn_commit(context, context.group_of(self.group_class), request),
        )

    def fetch(self, context: StepContext, request: OffsetFetch, reply_to: ReplyTo) -> None:
        refusal = self.check_fetch(context, context.group_of(self.group_class), request)
        if refusal is not None:
            context.reply(reply_to, OffsetFetchResponse, *refusal)
        else:
            fetch(context, request, reply_to)

    # Readers.

    @abstractmethod
    def view(self, group: G) -> GroupSnapshot: ...

    def refused(self, group: G, answers: Sequence[tuple[int, ErrorResponse]]) -> Effects:
        return unchanged(group, answers)
