"""What every Kafka group has, whatever its protocol: its clock, its offsets and its place in the history.

The groups of each protocol are such groups. A conversion from one to another keeps these fields. This file
holds data and queries only; the rooms of `state.kafka` change a group.
"""

from collections.abc import Mapping
from typing import ClassVar

from msgspec import Struct

from kafka_why.contract.kafka.offsets import LogPosition, Offset
from kafka_why.contract.settings import SettingValue


class Topic(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A topic of the cluster as the group knows it: the 16 bytes of its id, and its number of partitions."""

    topic_id: bytes
    partitions: int


class PendingOffsets(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The offsets of one TxnOffsetCommit, which are pending until their transaction ends.

    `request` is the id of the TxnOffsetCommit, and `position` its place in the log. `txn_topic_id` is the
    topic id of the markers topic in 16 bytes, None if it is unknown. The other fields are those of the
    request. `offsets`, by topic and partition, are never changed in place.
    """

    request: str
    position: LogPosition
    at_ms: int
    transactional_id: str
    producer_id: int
    producer_epoch: int
    txn_version: int
    txn_partition: int
    txn_position: int
    txn_topic_id: bytes | None
    offsets: dict[str, dict[int, Offset]]


class Ended(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The latest marker by which a transaction of a producer ended in a group: its place in the markers
    topic, and the group's time at which the group learnt of it.
    """

    txn_partition: int
    txn_position: int
    txn_topic_id: bytes | None
    at_ms: int


class Group(Struct, array_like=True, forbid_unknown_fields=True, dict=True):
    """What a Kafka group keeps when it changes its protocol, and what all protocols use alike.

    `incarnation` is the id of the request that created the group, and `seq` the number of history entries so
    far. `clock_ms` is the time of the group's last event. `last_fired_ms` is the latest deadline that fired.
    `quarantined` is the text of the coordinator's fault that stopped the group's timers, None in a healthy
    group. The deadlines of a quarantined group move with its clock.
    """

    type_name: ClassVar[str]
    """The protocol's name in ListGroups and in the history."""

    group_id: str
    incarnation: str
    seq: int = 0
    clock_ms: int = 0
    last_fired_ms: int = 0
    state_timestamp_ms: int = 0
    # The start of the latest rebalance, running or complete, and its reason.
    last_rebalance_at_ms: int | None = None
    last_rebalance_reason: str = ""
    quarantined: str | None = None
    offsets: dict[str, dict[int, Offset]] = {}  # by topic and partition
    retention_deadline_ms: int | None = None
    # Ids of topics that TopicMetadata showed to be deleted or replaced, the latest last.
    deleted_topic_ids: list[bytes] = []
    # Offsets that wait for the end of their transactions, in the order of their requests.
    pending: list[PendingOffsets] = []
    ended: dict[int, Ended] = {}  # by producer id
    # The group's own settings (AlterConfigs of the resource GROUP), by Kafka's names.
    configs: dict[str, SettingValue] = {}

    def entry_details(self) -> Mapping[str, object]:
        """Return the fields that each history entry of a group of this protocol has."""
        return {"group_type": self.type_name}

    def pending_partitions(self) -> dict[str, set[int]]:
        """Return the partitions that have a pending offset, by topic."""
        partitions: dict[str, set[int]] = {}
        for entry in self.pending:
            for topic, offsets in entry.offsets.items():
                partitions.setdefault(topic, set()).update(offsets)
        return partitions

    @property
    def is_empty(self) -> bool:
        """Whether the group has no members."""
        raise NotImplementedError

    def is_over(self) -> bool:
        """Row Z6: whether a retention pass deletes the group."""
        return self.is_empty and self.is_without_offsets()

    def is_without_offsets(self) -> bool:
        """Whether the group has neither a committed nor a pending offset."""
        return not self.offsets and not self.pending
