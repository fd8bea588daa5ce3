"""Committed offsets of groups."""

from dataclasses import dataclass

from kafka_why.contract.errors import ErrorCode
from kafka_why.contract.protocols.subscriptions import TopicPartition


@dataclass(frozen=True, slots=True)
class Committed:
    """The committed offset of a partition; `leader_epoch` is -1 if the committer sent none."""

    offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True)
class FetchedOffsets:
    """All committed offsets of a group; empty if `error_code` is set."""

    error_code: ErrorCode
    offsets: dict[TopicPartition, Committed]
