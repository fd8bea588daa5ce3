"""The effects of a step, which applies one event to one group, and the step's context: the group, the time,
and the effects so far. A row is a rule of docs/rules.md or the other docs/rules-*.md.
"""

from collections.abc import Collection, Iterable, Mapping
from functools import cache
from hashlib import sha1
from typing import NewType, TypeVar
from uuid import UUID

from msgspec import Struct, field, msgpack, structs

from kafka_why.contract.kafka.history import DEAD, EntryType, HistoryEntry, LogPosition, Offset, OffsetChange
from kafka_why.contract.kafka.requests import ReplyTo
from kafka_why.contract.kafka.responses import AnyResponse
from kafka_why.contract.messages import RECORD_VERSION, ErrorCode, SettingValue
from state.config import CoordinatorConfig
from state.kafka.classic_group import ClassicGroup, ClassicGroupMember
from state.kafka.consumer_group import ConsumerGroup
from state.kafka.group import ConfigsOnly, Group, PendingOffsets
from state.kafka.modern_group import EpochMember
from state.kafka.share_group import ShareGroup, ShareMember
from state.kafka.streams_group import StreamsGroup
from state.protocol import BaseContext

# The effects of a step, as data.
#
# Ordering contract: replies and history entries of one step are published in their order here, and steps in
# the order in which they ran. Nothing is published before the group's new state is as durable as its log.
# The micro-batch guarantees this: a batch whose state was not committed runs again with byte-identical
# output. A reader that drops duplicates (by `Response.request`, by `(group_id, incarnation, seq)`)
# therefore never sees two different outcomes.


KafkaGroup = ClassicGroup | ConsumerGroup | ShareGroup | StreamsGroup


class Reply(Struct, frozen=True):
    """An answer, and its partition of the responses topic."""

    reply_partition: int
    response: AnyResponse


class TransactionChange(Struct, frozen=True):
    """The offsets of one TxnOffsetCommit, as they are pending after the step, or None if they are no longer
    pending.
    """

    producer_id: int
    request: str  # the id of the TxnOffsetCommit
    pending: PendingOffsets | None


class Effects(Struct, frozen=True):
    """The outcome of one step: the group after it, the messages to publish, and the changes of committed
    `offsets` and of pending ones (`transactions`).

    If the group does not exist, `group` has its settings, or is None if it has none. `rules` are the rows of
    docs/rules.md that were applied, in order, for the tests of these rows. `earliest_armed_ms` is the
    earliest deadline that the step armed, or None. The timeline uses it instead of searching the group.
    """

    group: KafkaGroup | ConfigsOnly | None
    replies: list[Reply]
    history: list[HistoryEntry]
    offsets: list[OffsetChange]
    rules: list[str]
    earliest_armed_ms: int | None
    transactions: list[TransactionChange] = []


def unchanged(group: KafkaGroup | ConfigsOnly, answers: Iterable[tuple[int, AnyResponse]]) -> Effects:
    """Return the effects of a step that changes nothing and sends these answers, each with its partition of
    the responses topic.
    """
    replies = [Reply(partition, response) for partition, response in answers]
    return Effects(group, replies, history=[], offsets=[], rules=[], earliest_armed_ms=None)


# Ids of new members in Kafka's form, `<prefix>-<uuid>`. The uuid is derived from the request and is not
# random.
#
# A replay of the same log assigns the same ids. Nobody can guess an id without the namespace.


def new_member_id(prefix: str, request_id: str, namespace: str) -> str:
    """Return the member id for the request `<topic>-<partition>-<offset>`."""
    # The same as `uuid.uuid5`, which takes three times as long because it imports `sha1` at each call.
    digest = sha1(_uuid_bytes(namespace) + request_id.encode(), usedforsecurity=False).digest()
    return f"{prefix}-{UUID(bytes=digest[:16], version=5)}"


@cache
def _uuid_bytes(namespace: str) -> bytes:
    return UUID(namespace).bytes


_encoder = msgpack.Encoder()
_decoder: msgpack.Decoder[KafkaGroup] = msgpack.Decoder(KafkaGroup)

RuleId = NewType("RuleId", str)
"""A row of docs/rules.md that was applied. Only `StepContext.cite` creates one."""

G = TypeVar("G", bound=Group)


def position_of(request_id: str) -> LogPosition:
    """Return the position in the log of the request `<topic>-<partition>-<offset>`, or of the request
    `<topic>-<partition>-<offset>#<index>` in a pack, a record with several requests.
    """
    offset, _, index = request_id.rpartition("-")[2].partition("#")
    return int(offset), int(index or 0)


RuleAndError = tuple[RuleId, ErrorCode]
"""The row that decided a check, and the error, NONE if the check was passed."""


AnyMember = ClassicGroupMember | EpochMember | ShareMember


class Saved(Struct, frozen=True):
    """The data that `StepContext.undo` restores: the group without its offsets, and the number of effects."""

    group: KafkaGroup | None  # the group itself, which later changes affect; only its offsets are read
    encoded: bytes  # the copy of the group, b"" if there is no group
    next_from_state: str | None
    retention_is_stale: bool
    earliest_armed_ms: int | None
    replies: int  # the number of replies
    entries: int  # the number of history entries


class StepContext(BaseContext[KafkaGroup, CoordinatorConfig], eq=False):
    """The context of Kafka's handlers, which change `group` and add effects by the methods here."""

    principal: str | None = None  # who sent the request; None for a deadline
    configs_only: ConfigsOnly | None = None  # the settings of a group that does not exist
    rules: list[str] = field(default_factory=list)
    offset_changes: list[OffsetChange] = field(default_factory=list)
    transaction_changes: list[TransactionChange] = field(default_factory=list)
    next_from_state: str | None = None  # `from_state` of the next history entry, None: as `to_state`
    retention_is_stale: bool = False  # True if the next expiry must be searched in all offsets
    _replies: list[Reply] = field(default_factory=list)
    _history: list[HistoryEntry] = field(default_factory=list)
    _saved: Saved | None = None  # None until `save` is called

    def group_of(self, group_type: type[G]) -> G:
        """Return the group, which must have this type."""
        group = self.group_or_none
        assert isinstance(group, group_type), f"this step needs a {group_type.__name__}"
        return group

    @property
    def configs(self) -> dict[str, SettingValue]:
        """The settings of the group itself. A group id without a group may have settings, too."""
        if self.group_or_none is not None:
            return self.group_or_none.configs
        return {} if self.configs_only is None else self.configs_only.configs

    def set_configs(self, configs: dict[str, SettingValue]) -> None:
        """Replace the group's own settings."""
        if self.group_or_none is not None:
            self.group_or_none.configs = configs
        else:
            self._set_configs_only(configs)

    def _set_configs_only(self, configs: dict[str, SettingValue]) -> None:
        configs_only = ConfigsOnly(self.group_id, self.cause, self.now_ms, configs)
        self.configs_only = configs_only if configs else None

    def create_group(self, group_type: type[KafkaGroup], rule: RuleId, reason: str) -> None:
        """Create the group. Its incarnation is the id of the request."""
        assert self.group_or_none is None, "the group exists already"
        self.group_or_none = group_type(
            group_id=self.group_id,
            incarnation=self.cause,
            clock_ms=self.now_ms,
            state_timestamp_ms=self.now_ms,
            configs=self.configs,
        )
        self.retention_is_stale = True
        self.record(rule, EntryType.GROUP_CREATED, reason)

    def replace_group(self, group: KafkaGroup) -> None:
        """Replace the group with its conversion to another protocol."""
        self.next_from_state = self.group.state
        self.group_or_none = group
        self.retention_is_stale = True

    def save(self) -> None:
        """Save the group and the effects for `undo`. The changes to undo must not include offsets.

        Only the first call in a step has an effect.
        """
        if self._saved is not None:
            return
        group = self.group_or_none
        encoded = b""
        if group is not None:
            encoded = _encoder.encode(structs.replace(group, offsets={}, pending=[], ended={}))
        self._saved = Saved(
            group,
            encoded,
            self.next_from_state,
            self.retention_is_stale,
            self._earliest_armed_ms,
            len(self._replies),
            len(self._history),
        )

    def undo(self) -> None:
        """Undo everything since `save`, if it was called. The list of applied rows stays as it is."""
        saved = self._saved
        if saved is None:
            return
        changed = saved.group
        self.group_or_none = None
        if changed is not None:
            restored = _decoder.decode(saved.encoded)
            restored.offsets, restored.pending, restored.ended = (
                changed.offsets,
                changed.pending,
                changed.ended,
            )
            self.group_or_none = restored
        self.next_from_state, self.retention_is_stale = saved.next_from_state, saved.retention_is_stale
        self._earliest_armed_ms = saved.earliest_armed_ms
        del self._replies[saved.replies :]
        del self._history[saved.entries :]

    @property
    def has_history(self) -> bool:
        """Return True if this step has recorded an entry."""
        return bool(self._history)

    def has_recorded(self, event: EntryType) -> bool:
        """Return True if this step has recorded an entry of this type."""
        return any(entry.type is event for entry in self._history)

    def delete_group(self, rule: RuleId, reason: str) -> None:
        """Delete the group and its offsets. The settings of the group id stay."""
        self.record(rule, EntryType.GROUP_DELETED, reason, to_state=DEAD)
        for topic, partitions in self.group.offsets.items():
            self.offset_changes += [OffsetChange(topic, partition, None) for partition in partitions]
        self.remove_pending(self.group.pending)
        self._set_configs_only(self.group.configs)
        self.group_or_none = None

    @property
    def position(self) -> LogPosition:
        """The position in the log of the request that is being handled."""
        return position_of(self.cause)

    def store_offset(self, topic: str, partition: int, offset: Offset) -> None:
        """Store a committed offset."""
        self.group.offsets.setdefault(topic, {})[partition] = offset
        self.offset_changes.append(OffsetChange(topic, partition, offset))

    def remove_offsets(self, partitions: Mapping[str, Collection[int]]) -> None:
        """Remove committed offsets. Each of them must exist."""
        self.retention_is_stale = True
        for topic, numbers in partitions.items():
            for partition in numbers:
                del self.group.offsets[topic][partition]
                self.offset_changes.append(OffsetChange(topic, partition, None))
            if not self.group.offsets[topic]:
                del self.group.offsets[topic]

    def add_pending(self, entry: PendingOffsets) -> None:
        """Add offsets that are pending in a transaction."""
        self.group.pending.append(entry)
        self.transaction_changes.append(TransactionChange(entry.producer_id, entry.request, entry))

    def remove_pending(self, entries: Collection[PendingOffsets]) -> None:
        """Remove entries of offsets that are pending in transactions."""
        removed = {id(entry) for entry in entries}  # entries contain dicts, so they cannot be hashed
        self.retention_is_stale = True
        self.transaction_changes += [TransactionChange(e.producer_id, e.request, None) for e in entries]
        self.group.pending = [entry for entry in self.group.pending if id(entry) not in removed]

    def effects(self) -> Effects:
        """Return the outcome of the step. Call this at its end."""
        return Effects(
            self.group_or_none if self.group_or_none is not None else self.configs_only,
            self._replies,
            self._history,
            self.offset_changes,
            self.rules,
            self._earliest_armed_ms,
            self.transaction_changes,
        )

    def deadline(self, delay_ms: int) -> int:
        """Arm a deadline `delay_ms` from now, and return its time. A negative delay counts as 0."""
        return self.deadline_at(self.now_ms + delay_ms if delay_ms > 0 else self.now_ms)

    def delayed(self, deadline_ms: int | None, by_ms: int) -> int | None:
        """Arm the deadline again `by_ms` later, and return its new time. If `deadline_ms` is None, which
        means that no deadline is armed, return None.
        """
        return None if deadline_ms is None else self.deadline_at(deadline_ms + by_ms)

    def renewed(self, deadline_ms: int | None, delay_ms: int) -> int | None:
        """If the deadline is already due, arm it again `delay_ms` from now and return its new time. Otherwise
        return `deadline_ms`, which is None if no deadline is armed.
        """
        is_due = deadline_ms is not None and deadline_ms <= self.now_ms
        return self.deadline(delay_ms) if is_due else deadline_ms

    def cite(self, row: str) -> RuleId:
        """Record that this row of docs/rules.md or docs/rules-*.md decides, and return it for the answer or
        entry that it decides.
        """
        self.rules.append(row)
        return row  # type: ignore[return-value] # to call a NewType takes longer than the rest

    def record(self, rule: RuleId, event: EntryType, reason: str, **details: object) -> None:
        """Add a history entry. Call this after the change that the entry describes.

        `rule` is the row that decided the change. `details` are further fields of the entry. Only an entry of
        a deleted group has a `to_state` among them, because the group cannot show that state.
        """
        group = self.group
        group.seq += 1
        state = group.state
        # An entry starts from the state in which the last one ended.
        from_state = self.next_from_state or state
        to_state = details.pop("to_state", state)
        self.next_from_state = state
        details.setdefault("last_rebalance_at_ms", group.last_rebalance_at_ms)
        details.update(group.entry_details())
        self._history.append(
            HistoryEntry(
                version=RECORD_VERSION,
                type=event,
                group_id=group.group_id,
                incarnation=group.incarnation,
                seq=group.seq,
                at_ms=self.now_ms,
                from_state=str(from_state),
                to_state=str(to_state),
                generation=group.generation,
                reason=reason,
                rule=rule,
                cause=self.cause,
                principal=self.principal,
                **details,  # type: ignore[arg-type]
            )
        )

    def record_member(
        self,
        rule: RuleId,
        event: EntryType,
        member: AnyMember,
        reason: str,
        **details: object,
    ) -> None:
        """Add a history entry about one member."""
        self.record(
            rule,
            event,
            reason,
            member_id=member.member_id,
            group_instance_id=member.instance_id,
            client_id=member.client_id,
            client_host=member.client_host,
            **details,
        )

    def reply(
        self,
        to: ReplyTo,
        response: type[AnyResponse],
        rule: RuleId,
        error: ErrorCode = ErrorCode.NONE,
        **fields: object,
    ) -> None:
        """Answer one request: `rule` is the row that decided the answer."""
        body = response(
            group_id=self.group_id,
            correlation_id=to.correlation_id,
            request=to.request,
            error_code=error,
            rule=rule,
            **fields,  # type: ignore[arg-type]
        )
        self._replies.append(Reply(to.reply_partition, body))


def deciding_rule(verdicts: Iterable[RuleAndError]) -> RuleId:
    """Return the row that decided a request of several parts, such as members or topics: the row of the first
    error, or the first row if there is no error. Return "" for a request without parts.
    """
    rows_and_errors = list(verdicts)
    first_row = rows_and_errors[0][0] if rows_and_errors else RuleId("")
    return next((row for row, error in rows_and_errors if error is not ErrorCode.NONE), first_row)


# A new group that replaces an Empty one does not inherit these fields.
_NOT_INHERITED = {
    "incarnation",
    "seq",
    "state_timestamp_ms",
    "last_rebalance_at_ms",
    "last_rebalance_reason",
}


def restart_group(context: StepContext, rule: RuleId, group_type: type[KafkaGroup], reason: str) -> None:
    """Replace an Empty group with a new one of the protocol of `group_type`. Epochs start again, and offsets
    and settings stay.
    """
    old = context.group
    inherited = {name: getattr(old, name) for name in Group.__struct_fields__ if name not in _NOT_INHERITED}
    context.replace_group(
        group_type(incarnation=context.cause, state_timestamp_ms=context.now_ms, **inherited)
    )
    context.record(rule, EntryType.GROUP_CREATED, reason)
