"""The replica's copy of the groups: it applies the records of the requests topic and gives the query's
answers.

No IO and no clock. Time is in the log: `at_ms` of a record is the broker's append time.

The replica answers nothing unless the log shows that its owner runs: a clock record of that owner
precedes the request by `OWNER_SILENCE_MS` at most. The first clock record of a later owner ends it in
that partition.
"""

from collections import OrderedDict, deque
from collections.abc import Mapping
from typing import NamedTuple

from checkpoints import codec
from kafka_why.contract.codec import Clock, clock_of
from kafka_why.contract.kafka.responses import DEAD, ListedGroup
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
from streaming.replica.groups import DECODED_MAX, ReplicaGroups
from streaming.replica.terms import NO_OWNER, ReplicaSeed, Terms

# The groups of a partition whose published view may be stale.
#
# The query writes a group's view with its batch. A replica knows which groups have changed since the last
# committed batch, and ListGroups shows their current state.


# More changed groups, or longer ids, are not listed. ListGroups then waits for the query's answer.
LISTED_MAX = 1_000
LISTED_MAX_CHARS = 256 * 1024


class ChangedGroups:
    """The ids of changed groups, each with the log position of its last change: the offset after it, and the
    change's time.
    """

    def __init__(self) -> None:
        self._positions: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._positions)

    def note(self, group: DecodedGroup, end: int, at_ms: int) -> bool:
        """Record a change of a group after its use, and return True if there is one. Without a new history
        entry, or other settings of a group that does not exist, nothing that its view shows has changed.
        """
        if group.version == group.version_noted:
            return False
        group.version_noted = group.version
        group_id = group.timeline.group_id
        self._positions[group_id] = end, at_ms
        self._positions.move_to_end(group_id)
        return True

    def committed(self, end: int, watermark_ms: int) -> None:
        """Forget the changes that the query has published: it has read up to offset `end`, and fired the
        deadlines before `watermark_ms`.
        """
        while self._positions:
            group_id = next(iter(self._positions))
            changed_end, at_ms = self._positions[group_id]
            if changed_end > end or at_ms >= watermark_ms:
                return
            del self._positions[group_id]

    def ids(self) -> list[str] | None:
        """Return the groups that may have changed, or None if there are too many."""
        if len(self._positions) > LISTED_MAX or sum(map(len, self._positions)) > LISTED_MAX_CHARS:
            return None
        return list(self._positions)


def listed_group(group_id: str, group: AnyGroup | None) -> ListedGroup:
    """Return the entry of a group in ListGroups. RocketMQ's groups, and settings without a group, are not
    listed.
    """
    if not isinstance(group, KafkaGroup):
        return ListedGroup(group_id, DEAD)
    return ListedGroup(group_id, group.state.value, group.protocol_type or "", group.type_name)


OWNER_SILENCE_MS = 1_000
# After this time without a clock record of the owner, the service may treat the time as an outage.
GAP_MAX_MS = 5_000
# The replica keeps groups decoded for long, so it copies them more often than a call of the operator.
JOURNAL_MAX_STEPS = 64
JOURNAL_MAX_BYTES = 256 * 1024


class InDoubt(RuntimeError):
    """The log violates a requirement of the replica, so the query's answers may differ. The message says
    why.
    """


class Record(NamedTuple):
    """A record of the requests topic. `key` and `value` are None if absent."""

    partition: int
    offset: int
    at_ms: int
    key: bytes | None
    value: bytes | None


class StateMachine:
    """The state machine of all partitions.

    `as_of_ms` is the latest time that it has acted on: of a request that it has applied, or of a deadline
    that it has fired. `is_owned` is True if the log shows at the last record that the replica's owner runs.
    `decoded_max` is the number of groups of a partition that stay decoded.
    """

    def __init__(
        self,
        terms: Terms,
        seed: ReplicaSeed,
        *,
        step: StepFunction = step_of_both,
        decoded_max: int = DECODED_MAX,
    ) -> None:
        self.answers = Answers(terms.layout.response_max_bytes, self._list_changed)
        self._terms = terms
        self.as_of_ms = 0
        self.is_owned = False
        self.is_permitted = False
        """True if answers may be given. False until the reader has reached the end of the topic."""
        count = terms.layout.request_partitions
        entries: dict[int, dict[str, codec.StoredGroup]] = {number: {} for number in range(count)}
        for group_id, entry in seed.groups():
            entries[partition_of(group_id, count)][group_id] = entry
        self.partitions = {
            number: Partition(
                number, terms, entries[number], self.answers, step, seed.ends.get(number, 0), decoded_max
            )
            for number in range(count)
        }

    def committed(self, ends: Mapping[int, int], watermark_ms: int) -> None:
        """Record that the query has committed a batch (`streaming.replica.terms.BatchCommitted`)."""
        for number, partition in self.partitions.items():
            partition.committed(ends.get(number, 0), watermark_ms)

    def _list_changed(self, group_id: str) -> list[ListedGroup] | None:
        number = partition_of(group_id, len(self.partitions))
        return self.partitions[number].changed_groups()

    def next_deadline_ms(self) -> int | None:
        """Return a time in ms before which no deadline fires, None if none is armed."""
        due_ms = [partition.groups.next_due_ms for partition in self._owned]
        return min((at_ms for at_ms in due_ms if at_ms is not None), default=None)

    @property
    def awaits_batch(self) -> bool:
        """True if the query has yet to write more than early answers."""
        return any(partition.awaits_batch for partition in self.partitions.values())

    @property
    def attested_ms(self) -> int:
        """The time in ms up to which all deadlines have fired."""
        return min((partition.attested_ms for partition in self._owned), default=0)

    @property
    def _owned(self) -> list["Partition"]:
        return [partition for partition in self.partitions.values() if not partition.has_ended]

    def change_terms(self, terms: Terms) -> None:
        """Continue under other terms. Raises InDoubt if they differ at times on which it has acted.

        A standby may have followed early answers that turn out not to count.
        """
        if _past(terms, self.as_of_ms) != _past(self._terms, self.as_of_ms):
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
            partition.await_batch(None if clock is None else acted_ms)


class Partition:
    """A partition of the requests topic: its groups, and the position up to which they are applied."""

    def __init__(
        self,
        number: int,
        terms: Terms,
        entries: dict[str, codec.StoredGroup],
        answers: Answers,
        step: StepFunction,
        next_offset: int,
        decoded_max: int,
    ) -> None:
        self.next_offset = next_offset
        self.has_ended = False
        """True once a later owner has taken the partition."""
        self.groups = ReplicaGroups(entries, self._decode_group, decoded_max=decoded_max)
        self.changed = ChangedGroups()
        self._terms = terms
        self._periods = Periods(terms.configs, terms.outages)
        self._answers = answers
        self._step = step
        self._admission = Admission(terms.layout, number, terms.shards, terms.skip)
        self.attested_ms = 0
        self._owner_seen_ms: int | None = None
        self.awaits_batch = False
        """True if the query has yet to write more than early answers."""
        # The offset after the last record with such output, and the time until which deadlines had fired.
        self._unwritten_end = self._unwritten_fired_ms = 0

    def await_batch(self, fired_ms: int | None) -> None:
        """Record that the query has more to write for the record before `next_offset`. If that is a clock
        record, deadlines have fired until `fired_ms`.
        """
        self.awaits_batch = True
        self._unwritten_end = self.next_offset
        if fired_ms is not None:
            self._unwritten_fired_ms = fired_ms

    def committed(self, end: int, watermark_ms: int) -> None:
        """Record that the query has read up to offset `end`, and fired the deadlines before
        `watermark_ms`.
        """
        self.changed.committed(end, watermark_ms)
        if self._unwritten_end <= end and self._unwritten_fired_ms < watermark_ms:
            self.awaits_batch = False

    def change_terms(self, terms: Terms) -> None:
        """Continue under other terms, for `StateMachine.change_terms`."""
        self.groups.encode_all()  # decoded groups use the old terms
        self._terms = terms
        self._periods = Periods(terms.configs, terms.outages)
        self._owner_seen_ms = None
        self._admission = Admission(terms.layout, self._admission.partition, terms.shards, terms.skip)

    def check_gap(self, record: Record) -> None:
        """Raise InDoubt if the owner was silent for so long that there may have been an unknown outage."""
        seen_ms = self._owner_seen_ms
        if seen_ms is None or record.at_ms - seen_ms <= GAP_MAX_MS or self.has_ended:
            return
        if not any(it.until_ms > seen_ms and it.after_ms < record.at_ms for it in self._terms.outages):
            raise InDoubt(f"no clock record of the owner came for {record.at_ms - seen_ms} ms")

    def acted_ms(self, record: Record, clock: Clock | None) -> int:
        """Return the time in ms on which the replica acts if it applies this record."""
        if self.has_ended:
            return 0
        if clock is None:
            return self._periods.handled_at(record.at_ms)
        return min(clock.time_ms, record.at_ms)

    def is_owned(self, record: Record, clock: Clock | None) -> bool:
        """Return True if the log shows at this record that the replica's owner runs."""
        if self.has_ended:
            return False
        terms = self._terms
        is_own_clock = clock is not None and clock.owner_epoch == terms.owner_epoch
        seen_ms = self._owner_seen_ms
        if is_own_clock or (seen_ms is not None and record.at_ms - seen_ms <= OWNER_SILENCE_MS):
            return True
        # This owner answers the requests of the outage that it has ended.
        ended = terms.ended_outage
        return ended is not None and ended.after_ms < record.at_ms <= ended.until_ms

    def apply_clock(self, record: Record, clock: Clock) -> None:
        """Fire the deadlines up to the attested time."""
        epoch = clock.owner_epoch
        if epoch is not None and epoch > self._terms.owner_epoch != NO_OWNER:
            self.has_ended = True
        if self.has_ended:
            return
        if epoch == self._terms.owner_epoch:
            self._owner_seen_ms = record.at_ms
        attested_ms = min(clock.time_ms, record.at_ms)
        if attested_ms > self.attested_ms:
            self.attested_ms = attested_ms
            for group in self.groups.due(attested_ms):
                group.fire_until(attested_ms, self._answers)
                self.groups.touched(group)
                self._note(group, record.offset + 1, attested_ms)

    def apply_request(self, record: Record) -> None:
        """Apply or refuse the messages of a record."""
        if self.has_ended:
            self._answers.is_incomplete = True  # the query answers
            return
        if record.at_ms <= self.attested_ms:
            # The query may have applied it before the deadlines that the replica has fired.
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
                self.groups.touched(group)
                self._note(group, record.offset + 1, record.at_ms)

    def _note(self, group: DecodedGroup, end: int, at_ms: int) -> None:
        if self.changed.note(group, end, at_ms):
            self._answers.is_incomplete = True  # the query writes a view

    def changed_groups(self) -> list[ListedGroup] | None:
        """Return the groups changed since the last committed batch, or None if there are too many."""
        group_ids = self.changed.ids()
        if group_ids is None:
            return None
        return [
            listed_group(group_id, self.groups.decoded(group_id).timeline.group) for group_id in group_ids
        ]

    def _decode_group(self, group_id: str, entry: codec.StoredGroup | None) -> DecodedGroup:
        terms = self._terms
        return DecodedGroup(
            group_id,
            entry,
            terms.configs,
            terms.outages,
            self._step,
            journal_max_steps=JOURNAL_MAX_STEPS,
            journal_max_bytes=JOURNAL_MAX_BYTES,
        )


def _past(terms: Terms, as_of_ms: int) -> tuple[list[Outage], CoordinatorConfig, list[ConfigChange]]:
    """Return the outages and configurations of these terms that began before a time."""
    return (
        [outage for outage in terms.outages if outage.after_ms < as_of_ms],
        terms.configs.first,
        [change for change in terms.configs.changes if change.after_ms < as_of_ms],
    )


# The log on a standby, whose replica does not act on later times than the owner's replica.
#
# A standby does not know yet when an outage begins. Requests of an outage are handled at its end, so applying
# one at its own time would be wrong. An outage begins after the horizon, the latest time that the owner's
# replica reports to have acted on (`kafka_why.contract.early_answers`). So all later records are held back.


# If this many records wait, the owner's replica is not answering, and a new seed is better than more records.
HELD_MAX = 200_000


class HeldRecords:
    """The records that a standby holds back, by partition."""

    def __init__(self, machine: StateMachine) -> None:
        self._machine = machine
        self._held: dict[int, deque[Record]] = {number: deque() for number in machine.partitions}

    def __len__(self) -> int:
        return sum(map(len, self._held.values()))

    def hold(self, record: Record) -> None:
        """Hold back the next record of a partition."""
        self._held[record.partition].append(record)

    def act_until(self, horizon_ms: int) -> None:
        """Apply the records that are not later than this time. Raises the errors of `StateMachine.apply`."""
        for number, held in self._held.items():
            partition = self._machine.partitions[number]
            while held and partition.acted_ms(held[0], clock_of(held[0].key, held[0].value)) <= horizon_ms:
                self._machine.apply(held.popleft())

    def act(self) -> None:
        """Apply all records."""
        for held in self._held.values():
            while held:
                self._machine.apply(held.popleft())
