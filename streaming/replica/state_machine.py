"""The replica's copy of the groups: it applies the records of the requests topic and gives the query's
answers.

No IO and no clock. Time is in the log: `at_ms` of a record is the broker's append time.

A replica belongs to an owner: the coordinator that claimed the topics with the replica's epoch. It answers
a request only if the log shows that this owner runs: a clock record of the owner precedes the request by
`OWNER_SILENCE_MS` at most. The first clock record of a later owner ends the replica's work in a partition.
"""

from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import NamedTuple

from checkpoints import codec
from kafka_why.contract.codec import Clock, clock_of
from kafka_why.contract.kafka.history import DEAD
from kafka_why.contract.kafka.responses import ListedGroup
from kafka_why.partitioner import partition_of
from state.config import ConfigChange, CoordinatorConfig
from state.dispatch import AnyGroup
from state.dispatch import step as step_of_both
from state.kafka.context import KafkaGroup
from state.protocol import Outage
from state.timeline import Periods, StepFunction
from streaming.query.admission import Admission, LogRow
from streaming.query.handling import DecodedGroup, handle
from streaming.replica.answers import Answers
from streaming.replica.groups import DECODED_LIMITS, DecodedLimits, ReplicaGroups
from streaming.replica.terms import NO_OWNER, ReplicaSeed, Terms

# More changed groups, or longer ids, are not listed. ListGroups then waits for the query's answer.
LISTED_MAX = 1_000
LISTED_MAX_CHARS = 256 * 1024


class ChangedGroups:
    """The groups of a partition that have changed since the last committed batch, so that their views on the
    groups topic are stale. ListGroups shows their current state.
    """

    def __init__(self) -> None:
        # By group id, in the order of the changes: the offset after the group's last change, and its time.
        self._last_changes: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._last_changes)

    def record_if_changed(self, group: DecodedGroup, end: int, at_ms: int) -> bool:
        """Record the group and return True if its view has changed since the last call. The view changes only
        with the group's `version`. The record before the offset `end` was applied, at the time `at_ms`.
        """
        if group.version == group.recorded_version:
            return False
        group.recorded_version = group.version
        group_id = group.timeline.group_id
        self._last_changes[group_id] = end, at_ms
        self._last_changes.move_to_end(group_id)
        return True

    def committed(self, end: int, watermark_ms: int) -> None:
        """Forget the changes that the query has published: it has read up to offset `end`, and fired the
        deadlines before `watermark_ms`.
        """
        while self._last_changes:
            group_id, (end_of_change, changed_ms) = next(iter(self._last_changes.items()))
            if end_of_change > end or changed_ms >= watermark_ms:
                return
            del self._last_changes[group_id]

    def ids(self) -> list[str] | None:
        """Return the ids of these groups, or None if they are too many or too long to be listed."""
        if len(self._last_changes) > LISTED_MAX or sum(map(len, self._last_changes)) > LISTED_MAX_CHARS:
            return None
        return list(self._last_changes)


def listed_group(group_id: str, group: AnyGroup | None) -> ListedGroup:
    """Return the entry of a group for ListGroups. RocketMQ's groups, and settings alone, count as DEAD."""
    if not isinstance(group, KafkaGroup):
        return ListedGroup(group_id, DEAD)
    return ListedGroup(group_id, group.state.value, group.protocol_type or "", group.type_name)


OWNER_SILENCE_MS = 1_000
# After this time without a clock record of the owner, the service may treat the time as an outage.
GAP_MAX_MS = 5_000
# The replica keeps groups decoded for long, so it ends their journals sooner than a call of the operator.
JOURNAL_MAX_BYTES = 4 * 1024


class InDoubt(RuntimeError):
    """The log violates a requirement, so the query's answers may differ. The message says why."""


class Record(NamedTuple):
    """A record of the requests topic. `key` and `value` are None if absent."""

    partition: int
    offset: int
    at_ms: int
    key: bytes | None
    value: bytes | None


class StateMachine:
    """The state machine of all partitions.

    `terms` are its inputs besides the log, such as the configurations and outages. `as_of_ms` is the latest
    time that it has acted on: of a request that it has applied, or of a deadline that it has fired.
    `is_owned` is True if the log shows at the last record that the replica's owner runs. `limits` apply to
    the decoded groups of all partitions together.
    """

    def __init__(
        self,
        terms: Terms,
        seed: ReplicaSeed,
        *,
        step: StepFunction = step_of_both,
        limits: DecodedLimits = DECODED_LIMITS,
    ) -> None:
        self.answers = Answers(terms.layout.response_max_bytes, self._changed_in_partition_of)
        self._terms = terms
        self.as_of_ms = 0
        self.is_owned = False
        self.is_permitted = False
        """True while `RequestsFollower` lets the replica answer."""
        count = terms.layout.request_partitions
        entries: dict[int, dict[str, codec.StoredGroup]] = {number: {} for number in range(count)}
        for group_id, entry in seed.groups():
            entries[partition_of(group_id, count)][group_id] = entry
        partition_limits = limits._replace(max_bytes=limits.max_bytes // count)
        self.partitions = {
            n: Partition(n, terms, entries[n], self.answers, step, seed.ends.get(n, 0), partition_limits)
            for n in range(count)
        }

    def committed(self, ends: Mapping[int, int], watermark_ms: int) -> None:
        """Record that the query has committed a batch (`streaming.replica.terms.BatchCommitted`)."""
        for number, partition in self.partitions.items():
            partition.committed(ends.get(number, 0), watermark_ms)

    def _changed_in_partition_of(self, group_id: str) -> list[ListedGroup] | None:
        """Return the changed groups in the partition of this group, or None if there are too many."""
        return self.partitions[partition_of(group_id, len(self.partitions))].changed_groups()

    def next_deadline_ms(self) -> int | None:
        """Return a time in ms before which no deadline fires, None if none is armed."""
        due_ms = [partition.groups.next_due_ms for partition in self._owned_partitions]
        return min((at_ms for at_ms in due_ms if at_ms is not None), default=None)

    @property
    def awaits_batch(self) -> bool:
        """True if the query still has to write something besides early answers, such as views."""
        return any(partition.awaits_batch for partition in self.partitions.values())

    @property
    def attested_ms(self) -> int:
        """The time in ms up to which the deadlines of all owned partitions have fired."""
        return min((partition.attested_ms for partition in self._owned_partitions), default=0)

    @property
    def _owned_partitions(self) -> list["Partition"]:
        """The partitions that no later owner has taken."""
        return [partition for partition in self.partitions.values() if not partition.has_ended]

    def change_terms(self, terms: Terms) -> None:
        """Continue under other terms. Raises InDoubt if they differ at times on which the replica has acted.

        A standby acts up to the times that early answers report (`HeldRecords`). If it began to read the
        responses topic after a marker, it may have used answers that this marker invalidates. The new owner
        ignores these answers, so its terms may have an outage that begins before their times.
        """
        if _terms_before(terms, self.as_of_ms) != _terms_before(self._terms, self.as_of_ms):
            raise InDoubt(f"the outages or settings until {self.as_of_ms} are not those that it has applied")
        self._terms = terms
        for partition in self.partitions.values():
            partition.change_terms(terms)

    def apply(self, record: Record) -> None:
        """Apply the next record of a partition. Raises InDoubt, OperatorError and StateError."""
        partition = self.partitions[record.partition]
        clock = clock_of(record.key, record.value)
        partition.check_gap(record)
        acted_ms = partition.acted_ms(record, clock)
        if acted_ms > self.as_of_ms:
            self.as_of_ms = acted_ms
        self.is_owned = partition.is_owned(record, clock)
        self.answers.is_silent = not (self.is_permitted and self.is_owned)
        if clock is None:
            partition.apply_request(record)
        else:
            partition.apply_clock(record, clock)
        partition.next_offset = record.offset + 1
        if self.answers.is_incomplete:
            self.answers.is_incomplete = False
            # The query writes the rest when it has read this request, or fired these deadlines.
            partition.await_batch(fired_ms=None if clock is None else acted_ms)


class Partition:
    """A partition of the requests topic: its groups, and the offset of the next record to apply."""

    def __init__(
        self,
        number: int,
        terms: Terms,
        entries: dict[str, codec.StoredGroup],
        answers: Answers,
        step: StepFunction,
        next_offset: int,
        limits: DecodedLimits,
    ) -> None:
        self.next_offset = next_offset
        self.has_ended = False
        """True once a later owner has taken the partition."""
        self.groups = ReplicaGroups(entries, self._decode_group, limits=limits)
        self.changed = ChangedGroups()
        self._terms = terms
        self._periods = Periods(terms.configs, terms.outages)
        self._answers = answers
        self._step = step
        self._admission = Admission(terms.layout, number, terms.shards, terms.skip)
        self.attested_ms = 0  # the latest time of a clock record: the deadlines up to it have fired
        self._last_owner_clock_ms: int | None = None  # the append time of the owner's last clock record
        self.awaits_batch = False
        """True if the query still has to write something besides early answers, such as views."""
        # A batch has written it if it has read up to this offset, and fired the deadlines up to this time.
        self._awaited_end = 0
        self._awaited_fired_ms = 0

    def await_batch(self, fired_ms: int | None) -> None:
        """Record that the query has to write more than early answers for the record before `next_offset`.

        `fired_ms` is the time up to which that record has fired deadlines, or None if it is a request.
        """
        self.awaits_batch = True
        self._awaited_end = self.next_offset
        if fired_ms is not None:
            self._awaited_fired_ms = fired_ms

    def committed(self, end: int, watermark_ms: int) -> None:
        """Record that the query has read up to offset `end`, and fired the deadlines before
        `watermark_ms`.
        """
        self.changed.committed(end, watermark_ms)
        if self._awaited_end <= end and self._awaited_fired_ms < watermark_ms:
            self.awaits_batch = False

    def change_terms(self, terms: Terms) -> None:
        """Continue under other terms, for `StateMachine.change_terms`."""
        self.groups.encode_all()  # decoded groups use the old terms
        self._terms = terms
        self._periods = Periods(terms.configs, terms.outages)
        self._last_owner_clock_ms = None
        self._admission = Admission(terms.layout, self._admission.partition, terms.shards, terms.skip)

    def check_gap(self, record: Record) -> None:
        """Raise InDoubt if the owner was silent before this record for so long that the service may have
        stored an outage, and no known outage explains the silence.
        """
        clock_ms = self._last_owner_clock_ms
        if clock_ms is None or record.at_ms - clock_ms <= GAP_MAX_MS or self.has_ended:
            return
        is_explained = any(o.until_ms > clock_ms and o.after_ms < record.at_ms for o in self._terms.outages)
        if not is_explained:
            raise InDoubt(f"no clock record of the owner came for {record.at_ms - clock_ms} ms")

    def acted_ms(self, record: Record, clock: Clock | None) -> int:
        """Return the time in ms up to which the replica has acted once it has applied this record, or 0 if a
        later owner has taken the partition. `clock` is the record's content if it is a clock record.
        """
        if self.has_ended:
            return 0
        if clock is None:
            return self._periods.handled_at(record.at_ms)
        return min(clock.time_ms, record.at_ms)  # a clock record attests no time after its append

    def is_owned(self, record: Record, clock: Clock | None) -> bool:
        """Return True if the log shows at this record that the replica's owner runs."""
        if self.has_ended:
            return False
        terms = self._terms
        is_own_clock = clock is not None and clock.owner_epoch == terms.owner_epoch
        clock_ms = self._last_owner_clock_ms
        if is_own_clock or (clock_ms is not None and record.at_ms - clock_ms <= OWNER_SILENCE_MS):
            return True
        # The owner answers the requests of the outage that it has ended.
        outage = terms.ended_outage
        return outage is not None and outage.after_ms < record.at_ms <= outage.until_ms

    def apply_clock(self, record: Record, clock: Clock) -> None:
        """Fire the deadlines up to the time that a clock record attests: all requests up to it are read.

        A clock record of a later owner ends the partition instead. Nothing ends it on a standby, which has no
        owner.
        """
        clock_epoch, own_epoch = clock.owner_epoch, self._terms.owner_epoch
        if clock_epoch is not None and own_epoch != NO_OWNER and clock_epoch > own_epoch:
            self.has_ended = True
        if self.has_ended:
            return
        if clock_epoch == own_epoch:
            self._last_owner_clock_ms = record.at_ms
        attested_ms = min(clock.time_ms, record.at_ms)
        if attested_ms > self.attested_ms:
            self.attested_ms = attested_ms
            for group in self.groups.due(attested_ms):
                group.fire_until(attested_ms, self._answers)
                self.groups.end_use(group)
                self._record_if_changed(group, record.offset + 1, attested_ms)

    def apply_request(self, record: Record) -> None:
        """Apply or refuse the messages of a record. Raises InDoubt if its time is attested already."""
        if self.has_ended:
            self._answers.is_incomplete = True  # the query answers
            return
        if record.at_ms <= self.attested_ms:
            # The query may apply it before the deadlines that the replica has fired.
            raise InDoubt(
                f"record {record.partition}-{record.offset} was appended at {record.at_ms}, but a clock "
                f"record before it attests {self.attested_ms}"
            )
        row = LogRow(record.partition, record.offset, record.at_ms, record.key or b"", record.value or b"")
        for message in self._admission.messages(row):
            group = handle(
                message, self._admission, self.groups.__contains__, self.groups.decoded, self._answers
            )
            if group is not None:
                self.groups.end_use(group)
                self._record_if_changed(group, record.offset + 1, record.at_ms)

    def _record_if_changed(self, group: DecodedGroup, end: int, at_ms: int) -> None:
        if self.changed.record_if_changed(group, end, at_ms):
            self._answers.is_incomplete = True  # the query writes a view

    def changed_groups(self) -> list[ListedGroup] | None:
        """Return the groups whose views are stale, or None if they are too many (`ChangedGroups.ids`)."""
        group_ids = self.changed.ids()
        if group_ids is None:
            return None
        return [
            listed_group(group_id, self.groups.decoded(group_id).timeline.group) for group_id in group_ids
        ]

    def _decode_group(self, group_id: str, entry: codec.StoredGroup | None) -> DecodedGroup:
        terms = self._terms
        return DecodedGroup(
            group_id, entry, terms.configs, terms.outages, self._step, journal_max_bytes=JOURNAL_MAX_BYTES
        )


def _terms_before(terms: Terms, as_of_ms: int) -> tuple[list[Outage], CoordinatorConfig, list[ConfigChange]]:
    """Return the outages and configurations of these terms that began before a time."""
    return (
        [outage for outage in terms.outages if outage.after_ms < as_of_ms],
        terms.configs.first,
        [change for change in terms.configs.changes if change.after_ms < as_of_ms],
    )


# If this many records wait, the owner's replica is not answering, and a new seed is better than more records.
HELD_MAX = 200_000


class HeldRecords:
    """The records that a standby holds back, because it does not know yet when an outage begins.

    Requests of an outage are handled at its end, so applying one at its own time would be wrong. No outage
    begins before the horizon: the latest time up to which the owner's replica has acted, as its early answers
    report (`kafka_why.contract.early_answers.AsOf`). So all later records are held back.
    """

    def __init__(self, machine: StateMachine) -> None:
        self._machine = machine
        self._records: dict[int, deque[Record]] = {number: deque() for number in machine.partitions}

    def __len__(self) -> int:
        return sum(map(len, self._records.values()))

    def hold(self, record: Record) -> None:
        """Hold back the next record of a partition."""
        self._records[record.partition].append(record)

    def apply_until(self, horizon_ms: int) -> None:
        """Apply the records on which the replica acts at this time or earlier. Raises the errors of
        `StateMachine.apply`.
        """
        for number, records in self._records.items():
            acted_ms = self._machine.partitions[number].acted_ms
            while records and acted_ms(records[0], clock_of(records[0].key, records[0].value)) <= horizon_ms:
                self._machine.apply(records.popleft())

    def apply_all(self) -> None:
        """Apply all records."""
        for records in self._records.values():
            while records:
                self._machine.apply(records.popleft())
