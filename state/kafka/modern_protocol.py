"""The base classes of the protocols of groups with epochs: a group's view, its state after an outage, the
deadlines of members, the end of a step, and the checks of commits and fetches.

`ModernProtocol` is for consumer, share and streams groups, `EpochProtocol` only for consumer and streams
groups.

A row, such as F5, is a rule of docs/rules.md. `context.cite` records that a row was applied.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, TypeVar

from msgspec import Struct

from kafka_why.contract.kafka.history import ConsumerGroupState, EntryType
from kafka_why.contract.kafka.requests import CommittedTopic, OffsetCommit, OffsetFetch, TxnOffsetCommit
from kafka_why.contract.kafka.snapshot import (
    ConsumerGroupSnapshot,
    ConsumerMemberSnapshot,
    GroupSnapshot,
    MemberSnapshot,
)
from kafka_why.contract.messages import ErrorCode
from state.kafka.commits import FIRST_VERSION_WITH_ERRORS_OF_GROUPS, FIRST_VERSION_WITH_MEMBER_EPOCH
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.context import RuleAndError, RuleId, StepContext
from state.kafka.group import Timer, TimerKind
from state.kafka.modern import AnyModernGroup, ModernSettings, record_stable
from state.kafka.protocol import Before, KafkaProtocol, common_fields
from state.kafka.streams_group import StreamsGroup
from state.protocol import Outage

G = TypeVar("G", bound=AnyModernGroup | StreamsGroup)
E = TypeVar("E", bound=ConsumerGroup | StreamsGroup)


class ModernProtocol(KafkaProtocol[G]):
    """The rules of a protocol whose groups have epochs."""

    group_settings: ClassVar[ModernSettings]
    """The timeouts and intervals that a group can set."""
    resumption: ClassVar[str]
    """The part of a history entry that says what happens to the members' deadlines after an outage."""

    def conflict_of(self, values: Mapping[str, int]) -> tuple[str, str] | None:
        return self.group_settings.conflict_of(values)

    # Readers.

    def view(self, group: G) -> GroupSnapshot:
        """Return a copy of the group for readers of the groups topic."""
        names, members = group.names_by_id(), group.members.values()
        return GroupSnapshot(
            **common_fields(group),
            protocol_name=None,
            leader_id=None,
            members=[self._member_snapshot(group, member, names) for member in members],
            pending_members=[],
            subscribed_topics=sorted(group.subscribed()),
            consumer=self.details(group),
        )

    def _member_snapshot(self, group: G, member: Any, names: Mapping[bytes, str]) -> MemberSnapshot:
        return MemberSnapshot(
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            session_timeout_ms=member.session_timeout_ms or 0,
            rebalance_timeout_ms=member.rebalance_timeout_ms,
            metadata=b"",
            assignment=b"",
            rejoined=False,
            consumer=self.member_details(group, member, names),
        )

    @abstractmethod
    def member_details(self, group: G, member: Any, names: Mapping[bytes, str]) -> ConsumerMemberSnapshot:
        """Return the fields of a member in the view that members of classic groups do not have."""

    @abstractmethod
    def details(self, group: G) -> ConsumerGroupSnapshot:
        """Return the fields of the view that classic groups do not have."""

    # Deadlines.

    def member_timers(self, member: Any) -> Iterator[Timer]:
        """Yield the timer of the session, if it is armed."""
        if (at_ms := member.session_deadline_ms) is not None:
            yield at_ms, TimerKind.HEARTBEAT, member.member_id

    def shift_deadlines(self, context: StepContext, group: G, by_ms: int) -> None:
        """Restart the sessions."""
        for member in group.members.values():
            self.group_settings.arm_session(context, member)

    def release(self, context: StepContext, group: G) -> None:
        """Row F4: do nothing, because `shift_deadlines` has restarted the sessions."""

    def take_over(self, context: StepContext, group: G, outage: Outage) -> None:
        """Restart all sessions, and delay the other timers by the length of the outage (row F5). The next
        heartbeat or join compares the topics with their fingerprint, because they may have changed in the
        outage (row MD11).
        """
        group.metadata_stale = True
        row = context.cite("F5")
        self.shift_deadlines(context, group, outage.length_ms)
        if group.members:
            # Only a streams group may have an initial delay, and at most one.
            initial_delays_ms = [
                at_ms for at_ms, kind, _ in self.group_timers(group) if kind is TimerKind.INITIAL_DELAY
            ]
            context.record(
                row,
                EntryType.TAKEN_OVER,
                f"no coordinator ran for {outage.length_ms} ms: {self.resumption}",
                members=list(group.members),
                deadline_ms=min(initial_delays_ms, default=None),
            )

    # The end of a step.

    def before(self, group: G) -> Before:
        """Return the state of the group, and True if its members are still moving to their targets."""
        return group.progress


class EpochRows(Struct, frozen=True):
    """The rows of a protocol whose groups move to their targets step by step, and whose members commit by
    member epoch.

    A request is `without_member` if it names no member, and `of_no_member` if it names one that the group
    does not have.
    """

    session_over: str
    not_revoked: str  # the rebalance timeout is over
    emptied: str  # the last member is gone
    stable: str  # every member has its target
    commit_to_empty_group: str
    commit_without_member: str
    commit_of_no_member: str
    commit_too_old: str  # the version of the request has no member epoch
    commit_at_epoch: str  # the member's current epoch
    commit_above_epoch: str
    error_unknown_to_client: str  # the version of the request has another error instead
    fetch_without_member: str
    fetch_of_no_member: str
    fetch_of_member: str


class EpochProtocol(ModernProtocol[E]):
    """The rules of a protocol whose members move to their targets step by step and commit offsets."""

    rows: ClassVar[EpochRows]
    resumption = "sessions begin anew, reconciliations go on"

    # Deadlines of members: the session, and the revocation of partitions or tasks.

    def member_timers(self, member: Any) -> Iterator[Timer]:
        """Yield the timer of the session, and that of a member that has to give something up."""
        yield from super().member_timers(member)
        if (at_ms := member.rebalance_deadline_ms) is not None:
            yield at_ms, TimerKind.REBALANCE, member.member_id

    def cause_of_deadline(
        self, context: StepContext, group: E, member: Any, kind: TimerKind
    ) -> tuple[RuleId, str]:
        """Return the row of a member's due deadline, and a text that says what the member failed to do."""
        if kind is TimerKind.REBALANCE:
            timeout = f"its rebalance timeout of {member.rebalance_timeout_ms} ms"
            return context.cite(self.rows.not_revoked), f"did not revoke its {group.noun} within {timeout}"
        timeout = f"the session timeout of {self.group_settings.of(context).session_timeout_ms} ms"
        missed = "left for a while and did not come back" if member.is_away else "no heartbeat"
        return context.cite(self.rows.session_over), f"{missed} within {timeout}"

    def shift_deadlines(self, context: StepContext, group: E, by_ms: int) -> None:
        """Restart the sessions, and delay the other deadlines by `by_ms`."""
        super().shift_deadlines(context, group, by_ms)
        for member in group.members.values():
            member.rebalance_deadline_ms = context.delayed(member.rebalance_deadline_ms, by_ms)

    # The end of a step: the group may have become Stable or Empty.

    def record_outcome(self, context: StepContext, group: E, before: Before) -> None:
        """Record that the group has become Stable or Empty, and store the time of a change of its state."""
        # Every change of the state has a history entry, so a step without an entry has not changed it.
        if not context.has_history:
            return
        state_before, was_rebalancing = before
        group.forget_progress()
        state, _ = group.progress
        if state == state_before:
            return
        group.state_timestamp_ms = context.now_ms
        if state == ConsumerGroupState.EMPTY:
            context.record(context.cite(self.rows.emptied), EntryType.EMPTY, "the last member is gone")
        elif state == ConsumerGroupState.STABLE:
            # A static member that comes back in time ends no rebalance.
            has_rebalanced = was_rebalancing or group.last_rebalance_at_ms == context.now_ms
            row = context.cite(self.rows.stable)
            record_stable(context, group, row, group.members, has_rebalanced=has_rebalanced)

    # Who may commit and fetch offsets.

    def stale_error(self, member: Any) -> ErrorCode:
        """Return the error for a request of the member that has another epoch than the member."""
        return ErrorCode.STALE_MEMBER_EPOCH

    def validate_epoch(
        self, context: StepContext, group: E, member: Any, epoch: int, topics: Iterable[CommittedTopic]
    ) -> RuleAndError:
        """Check the epoch of a commit. The whole commit is refused if the member may not commit one of its
        partitions.
        """
        if epoch == member.member_epoch:
            return context.cite(self.rows.commit_at_epoch), ErrorCode.NONE
        if epoch > member.member_epoch:
            return context.cite(self.rows.commit_above_epoch), self.stale_error(member)
        return self.validate_past_epoch(context, group, member, epoch, topics)

    @abstractmethod
    def validate_past_epoch(
        self, context: StepContext, group: E, member: Any, epoch: int, topics: Iterable[CommittedTopic]
    ) -> RuleAndError:
        """Check a commit with an epoch that the member had before."""

    def check_commit(self, context: StepContext, group: E, request: OffsetCommit) -> RuleAndError:
        """Return the row and the error for an OffsetCommit."""
        rows = self.rows
        if request.generation_id < 0 and group.is_empty:
            return context.cite(rows.commit_to_empty_group), ErrorCode.NONE
        member = group.members.get(request.member_id)
        if member is None:
            return context.cite(rows.commit_of_no_member), ErrorCode.UNKNOWN_MEMBER_ID
        is_old_version = request.api_version < FIRST_VERSION_WITH_MEMBER_EPOCH
        # A classic member, which has another `stale_error`, may use any version.
        if is_old_version and self.stale_error(member) is ErrorCode.STALE_MEMBER_EPOCH:
            return context.cite(rows.commit_too_old), ErrorCode.UNSUPPORTED_VERSION
        return self.validate_epoch(context, group, member, request.generation_id, request.topics)

    def check_txn_commit(self, context: StepContext, group: E, request: TxnOffsetCommit) -> RuleAndError:
        """Return the row and the error for a TxnOffsetCommit."""
        rows = self.rows
        has_no_epoch = request.generation_id < 0
        if has_no_epoch and group.is_empty:
            return context.cite(rows.commit_to_empty_group), ErrorCode.NONE
        if has_no_epoch and not request.member_id and request.group_instance_id is None:
            return context.cite(rows.commit_without_member), ErrorCode.NONE
        member = group.members.get(request.member_id)
        if member is None:
            return context.cite(rows.commit_of_no_member), ErrorCode.UNKNOWN_MEMBER_ID
        row, error = self.validate_epoch(context, group, member, request.generation_id, request.topics)
        client_knows_error = request.api_version >= FIRST_VERSION_WITH_ERRORS_OF_GROUPS
        if error is ErrorCode.STALE_MEMBER_EPOCH and not client_knows_error:
            context.cite(rows.error_unknown_to_client)
            error = ErrorCode.ILLEGAL_GENERATION
        return row, error

    def check_fetch(self, context: StepContext, group: E, request: OffsetFetch) -> RuleAndError | None:
        """Return the row and the error that refuse an OffsetFetch, or None if it is accepted."""
        rows = self.rows
        if request.member_id is None and request.member_epoch < 0:
            context.cite(rows.fetch_without_member)
            return None
        member = None if request.member_id is None else group.members.get(request.member_id)
        if member is None:
            return context.cite(rows.fetch_of_no_member), ErrorCode.UNKNOWN_MEMBER_ID
        row = context.cite(rows.fetch_of_member)
        return None if request.member_epoch == member.member_epoch else (row, self.stale_error(member))
