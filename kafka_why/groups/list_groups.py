"""Lists the existing groups of Kafka and RocketMQ from the compacted groups topic, and their offsets. Also
parses a user's selection of groups, partitions, states, types, times and durations.

The list contains every record before the topic's end offsets at the time of the call, and so the results of
all batches that the coordinator has committed. A result of the current batch may be missing, even if a client
already has the response. Listing does not involve the coordinator.

A view is a record of the groups topic: the latest snapshot of one group.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import structlog
from msgspec import Struct

from kafka_why.connections import kafka_clients
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import UNREADABLE, PendingTransaction, decode_offset, decode_offset_key
from kafka_why.contract.history_reader import AnyView, GroupTable, decode_any_snapshot
from kafka_why.contract.kafka.history import CLASSIC, CONSUMER, NOT_READY, SHARE, STREAMS
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import ErrorCode, GroupType
from kafka_why.contract.protocols.subscriptions import PROTOCOL_TYPE, TopicPartition
from kafka_why.contract.rocketmq.history import GroupSnapshot as RocketMqSnapshot
from kafka_why.numbers import INT32_MAX, parse_whole_number
from kafka_why.rocketmq_group import RocketMqGroupState, client_version, group_state
from kafka_why.topic_reader import Record, TopicReader

# The types as Kafka's tool prints them. Source: GroupType.java.
TYPES = {kind: kind.capitalize() for kind in (CLASSIC, CONSUMER, SHARE, STREAMS)}
"""The types by their names in the history."""
ROCKETMQ_TYPE = GroupType.ROCKETMQ.value

log = structlog.get_logger()


class GroupListRow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A group's row in the list."""

    group: str
    type: str
    state: str
    protocol_type: str
    clients: int | None = None  # number of client ids, only of a RocketMQ group
    client_versions: list[str] = []  # that connections report, only of a RocketMQ group

    @property
    def is_of_consumers(self) -> bool:
        """True for groups of Kafka's consumers, groups with epochs, and groups that never had members."""
        is_share_or_streams = self.type in (TYPES[SHARE], TYPES[STREAMS])
        is_of_consumers = is_share_or_streams or self.protocol_type in ("", PROTOCOL_TYPE)
        return self.type != ROCKETMQ_TYPE and is_of_consumers


def list_groups(client_config: ClientConfig, layout: TopicLayout, timeout_ms: int) -> list[AnyView]:
    """Return all Kafka and RocketMQ groups in the order of their ids. Raises KafkaError."""
    table: GroupTable[AnyView] = GroupTable(decode_any_snapshot)
    with TopicReader(client_config, max_record_bytes=layout.response_record_max_bytes) as reader:
        for record in reader.read_all(layout.groups_topic, timeout_ms=timeout_ms):
            apply_view(table, record)
    return table.groups


def apply_view(table: GroupTable[Any], record: Record) -> None:
    """Apply a record of the groups topic to a table, or log that it cannot be read."""
    try:
        table.apply(record.key, record.value)
    except UNREADABLE as error:
        log.warning("a record of the groups topic cannot be read", key=record.key, error=str(error))


def consumer_groups(groups: Iterable[AnyView]) -> list[AnyView]:
    """Return RocketMQ's groups, and those that Kafka's tools for consumer, share and streams groups list.

    Source: ListGroupsOptions.forConsumerGroups, forShareGroups, forStreamsGroups.
    """
    return [g for g in groups if isinstance(g, RocketMqSnapshot) or list_row(g).is_of_consumers]


def list_row(group: AnyView) -> GroupListRow:
    """Return the group's row in the list."""
    if isinstance(group, RocketMqSnapshot):
        return GroupListRow(
            group=group.group_id,
            type=ROCKETMQ_TYPE,
            state=group_state(group),
            protocol_type="",
            clients=len({consumer.client_id for consumer in group.consumers}),
            client_versions=sorted({client_version(consumer) for consumer in group.consumers}),
        )
    return GroupListRow(
        group=group.group_id,
        type=TYPES[group.group_type],
        state=group.state,
        protocol_type=group.protocol_type or "",
    )


def list_broker_groups(client_config: ClientConfig) -> list[GroupListRow]:
    """Return the groups of the cluster's own coordinator that the principal may describe, by id."""
    with closing(kafka_clients.admin(client_config)) as admin:
        groups: list[dict[str, str]] = admin.list_groups()
    rows = [
        GroupListRow(
            group=group["group_id"],
            type=TYPES.get(group.get("group_type", "").lower(), TYPES[CLASSIC]),
            state=group.get("group_state", ""),
            protocol_type=group["protocol_type"],
        )
        for group in groups
    ]
    return sorted(rows, key=lambda row: row.group)


def select_groups(
    rows: Iterable[GroupListRow],
    states: frozenset[str],
    types: frozenset[str],
    protocols: frozenset[str] = frozenset(),
) -> list[GroupListRow]:
    """Return the rows that match `states`, `types` and `protocols`. An empty set matches all.

    Source: GroupsCommand.listGroups.
    """
    return [
        row
        for row in rows
        if (not types or row.type in types)
        and (not states or row.state in states)
        and (not protocols or row.protocol_type in protocols)
    ]


# Offsets of groups: committed, and pending in transactions.


@dataclass(frozen=True, slots=True)
class OffsetWithEpoch:
    """The committed offset of a partition."""

    offset: int
    leader_epoch: int  # -1 if the client did not send it


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """All committed and pending offsets of a group. They are empty if `error_code` is set."""

    committed: Mapping[TopicPartition, OffsetWithEpoch] = field(default_factory=dict)
    # Offsets that are committed if their transactions commit.
    pending: Mapping[TopicPartition, int] = field(default_factory=dict)
    error_code: ErrorCode = ErrorCode.NONE


def committed_offsets(
    client_config: ClientConfig, layout: TopicLayout, group_ids: Collection[str], timeout_ms: int
) -> dict[str, GroupOffsets]:
    """Return the committed offsets of these groups from the offsets topic. Raises KafkaError."""
    offsets_of: dict[str, dict[TopicPartition, OffsetWithEpoch]] = {group_id: {} for group_id in group_ids}
    with TopicReader(client_config, max_record_bytes=layout.response_record_max_bytes) as reader:
        for record in reader.read_all(layout.offsets_topic, timeout_ms=timeout_ms):
            group_id, topic, number = decode_offset_key(record.key)
            if group_id not in offsets_of:
                continue
            partition = TopicPartition(topic, number)
            offsets_of[group_id].pop(partition, None)
            if record.value is not None:
                committed = decode_offset(record.value)
                offsets_of[group_id][partition] = OffsetWithEpoch(committed.offset, committed.leader_epoch)
    return {group_id: GroupOffsets(offsets) for group_id, offsets in offsets_of.items()}


_decode_pending = msgspec.json.Decoder(PendingTransaction).decode


def pending_transactions(
    client_config: ClientConfig, layout: TopicLayout, timeout_ms: int
) -> list[PendingTransaction]:
    """Return the transactions with pending offsets, the oldest first. Raises KafkaError."""
    values: dict[bytes, bytes] = {}  # the latest by key
    with TopicReader(client_config, timeout_ms=timeout_ms) as reader:
        for record in reader.read_all(layout.transactions_topic, timeout_ms=timeout_ms):
            if record.value is None:
                values.pop(record.key, None)
            else:
                values[record.key] = record.value
    return sorted(filter(None, map(_decode_or_none, values.values())), key=lambda pending: pending.at_ms)


def _decode_or_none(value: bytes) -> PendingTransaction | None:
    try:
        return _decode_pending(value)
    except UNREADABLE:
        return None


# The states of Kafka's tool and those of RocketMQ's groups.
_STATES = (
    "Empty",
    "PreparingRebalance",
    "CompletingRebalance",
    "Stable",
    "Dead",
    "Assigning",
    "Reconciling",
    NOT_READY,
    *RocketMqGroupState,
)
_TYPES = (*TYPES.values(), ROCKETMQ_TYPE)


@dataclass(frozen=True, slots=True)
class TopicChoice:
    """A `--topic` option."""

    topic: str
    partitions: tuple[int, ...] | None  # None means all


@dataclass(frozen=True, slots=True)
class ChosenPartitions:
    """The chosen partitions, those that exist and those that are missing."""

    partitions: list[TopicPartition]
    missing: list[TopicPartition]  # partition -1 stands for a missing topic


def parse_states(text: str) -> frozenset[str]:
    """Parse group states such as `stable,empty`, ignoring case. Raises ValueError."""
    return _parse_names(text, _STATES, "state list", "states")


def parse_types(text: str) -> frozenset[str]:
    """Parse group types such as `classic,consumer`, ignoring case. Raises ValueError."""
    return _parse_names(text, _TYPES, "types list", "types")


def parse_protocols(text: str) -> frozenset[str]:
    """Parse protocol types such as `consumer,connect`."""
    return frozenset(name.strip() for name in text.split(",")) if text else frozenset()


def _parse_names(text: str, valid: Sequence[str], list_noun: str, plural: str) -> frozenset[str]:
    """Return the `valid` names that the text lists in any case. Raises ValueError with Kafka's message."""
    by_lower_case = {name.lower(): name for name in valid}
    names = [name.strip().lower() for name in text.split(",")] if text else []
    if not by_lower_case.keys() >= set(names):
        raise ValueError(f"Invalid {list_noun} '{text}'. Valid {plural} are: {', '.join(valid)}")
    return frozenset(by_lower_case[name] for name in names)


def parse_topic(text: str) -> TopicChoice:
    """Parse `topic` or `topic:0,1,2`. Raises ValueError."""
    topic, colon, numbers = text.partition(":")
    if not topic or (colon and not numbers) or ":" in numbers:
        raise ValueError(f"Invalid topic arg '{text}', expected topic name and partitions")
    if not colon:
        return TopicChoice(topic, None)
    return TopicChoice(topic, tuple(_parse_partition(number, text) for number in numbers.split(",")))


def _parse_partition(number: str, text: str) -> int:
    try:
        return parse_whole_number(number, 0, INT32_MAX)
    except ValueError:
        raise ValueError(f"Invalid partition '{number}' specified in topic arg '{text}'") from None


def choose_partitions(
    choices: Sequence[TopicChoice], existing: Mapping[str, frozenset[int]]
) -> ChosenPartitions:
    """Return the chosen partitions in order. `existing` has each topic's partitions."""
    chosen: set[TopicPartition] = set()
    for choice in choices:
        numbers: Collection[int] | None = choice.partitions
        if numbers is None:
            numbers = existing.get(choice.topic) or (-1,)  # -1 stands for a missing topic
        chosen.update(TopicPartition(choice.topic, number) for number in numbers)
    present = {p for p in chosen if p.partition in existing.get(p.topic, ())}
    return ChosenPartitions(sorted(present), missing=sorted(chosen - present))


# Times and durations in the formats of kafka-consumer-groups.

_NUMBER = r"[-+]?[0-9]{1,15}"
# Days, then perhaps "T" with hours, minutes and seconds. Each of the four is optional, but
# `parse_duration_ms` refuses a duration without any of them.
_DURATION = re.compile(
    rf"(?P<sign>[-+]?)P(?:(?P<days>{_NUMBER})D)?"
    rf"(?:T(?=[-+\d])(?:(?P<hours>{_NUMBER})H)?(?:(?P<minutes>{_NUMBER})M)?"
    rf"(?:(?P<seconds>{_NUMBER})(?:[.,](?P<fraction>\d{{0,9}}))?S)?)?",
    re.IGNORECASE | re.ASCII,
)
_MAX_DURATION_MS = 10**15
_UNITS_MS = {"days": 86_400_000, "hours": 3_600_000, "minutes": 60_000, "seconds": 1_000}


def parse_datetime_ms(text: str) -> int:
    """Return milliseconds since 1970 from `YYYY-MM-DDTHH:mm:SS.sss`. Raises ValueError.

    The time is in UTC unless an offset follows (`Z`, `+02:00`, `+02`). Unlike in Kafka (Utils.getDateTime),
    the milliseconds may be omitted.
    """
    if "T" not in text:
        raise ValueError(f"'{text}' is not a date and time: there is no 'T' between the two")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"'{text}' is not a date and time like 2026-01-31T18:30:00.000") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def parse_duration_ms(text: str) -> int:
    """Return milliseconds from `PnDTnHnMn.nS`. Raises ValueError.

    Each number may have a sign, and so may the whole duration (java.time.Duration.parse).
    """
    match = _DURATION.fullmatch(text)
    if match is None or all(match[unit] is None for unit in _UNITS_MS):
        raise ValueError(f"'{text}' is not a duration like P1DT2H30M or PT15M")
    total_ms = sum(int(match[unit] or 0) * unit_ms for unit, unit_ms in _UNITS_MS.items())
    fraction_ms = int((match["fraction"] or "").ljust(3, "0")[:3])
    is_negative = (match["seconds"] or "").startswith("-")  # as in -0.5, whose whole part has no sign
    total_ms += -fraction_ms if is_negative else fraction_ms
    if abs(total_ms) > _MAX_DURATION_MS:
        raise ValueError(f"'{text}' is a duration of more than 30,000 years")
    return -total_ms if match["sign"] == "-" else total_ms
