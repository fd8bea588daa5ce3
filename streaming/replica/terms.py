"""The terms of a replica: everything besides the log that affects its answers, and the messages that bring
them. The service, the process that keeps the query running, starts the replica and sends these messages.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias
from uuid import uuid4

import msgspec
from msgspec import Struct

from checkpoints import codec
from checkpoints.metadata import Epoch, Identity, KnownOutage, configs_of
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.early_answers import ReplicaId
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.service import ReplicaPhase
from state.config import Configs, CoordinatorConfig
from state.protocol import Outage
from streaming.replica.audit import AnswerDifference
from streaming.replica.log_watch import Loss

# The messages between the service and its replica are lines of JSON on the replica's standard input and
# output.


class StartReplica(Struct, frozen=True, kw_only=True):
    """The first message to the replica.

    A standby's replica does not answer until it is promoted. Its `replica` is replaced then.
    """

    client_config: ClientConfig
    layout: TopicLayout
    replica: ReplicaId
    seed: str  # the path of its `ReplicaSeed`
    is_standby: bool = False


class PromoteReplica(Struct, frozen=True, kw_only=True, tag=True):
    """The message that a standby has taken the topics. Its replica continues as `replica`."""

    replica: ReplicaId
    epochs: list[Epoch]  # all configurations, including the new owner's
    outages: list[KnownOutage]  # all outages, including the one that this takeover has ended
    # The offsets of the first records that no committed batch has read, by partition.
    handled: dict[int, int]


class BatchCommitted(Struct, frozen=True, kw_only=True, tag=True):
    """The message that the query has committed a batch."""

    ends: dict[int, int]  # the offsets of the first records that the batch has not read, by partition
    watermark_ms: int  # the time up to which the batch has fired deadlines


class PendingChanges(Struct, frozen=True, kw_only=True, tag=True):
    """The keys and values that the query will write to the transactions topic with its next batch."""

    records: list[tuple[bytes, bytes | None]]


class NextDeadline(Struct, frozen=True, kw_only=True, tag=True):
    """The message that no group has a deadline before `at_ms`, a time of the log in ms. Clock records of
    earlier times fire nothing.
    """

    at_ms: int


class BatchWanted(Struct, frozen=True, kw_only=True, tag=True):
    """The message that the query has more to write than the replica's answers, such as views, so a batch must
    begin soon.
    """


class ReplicaReport(Struct, frozen=True, kw_only=True, tag=True):
    """The state of a replica. A `difference` ends the replica."""

    phase: ReplicaPhase
    reason: str = ""  # why it does not answer, "" while it does
    as_of_ms: int = 0  # the time up to which it has acted (`StateMachine.as_of_ms`)
    applied: dict[int, int] = {}  # the offsets of the first records that it has not applied, by partition
    lag_records: int = 0  # the number of records of the requests topic that it has not applied
    lag_ms: int = 0  # the age of the last record that it read, 0 if it is at the end of the topic
    lead_s: float = 0.0  # `streaming.replica.follower.Lead`
    lead_bytes: int = 0
    answers: int = 0  # the number of appended answers
    compared: int = 0  # how many of them were compared with the query's
    groups: int = 0  # the number in memory
    alarm: str | None = None  # for the operator
    loss: Loss | None = None  # why the query cannot continue, None if it can
    difference: AnswerDifference | None = None  # from the query's answer to the same request


# All three decode a line, and raise msgspec.DecodeError.
decode_start = msgspec.json.Decoder(StartReplica).decode
decode_command = msgspec.json.Decoder[PromoteReplica | BatchCommitted](PromoteReplica | BatchCommitted).decode
FromReplica: TypeAlias = ReplicaReport | PendingChanges | NextDeadline | BatchWanted
decode_report = msgspec.json.Decoder[FromReplica](FromReplica).decode


def encode_line(message: StartReplica | PromoteReplica | BatchCommitted | FromReplica) -> bytes:
    """Encode a message as it is sent."""
    return msgspec.json.encode(message) + b"\n"


class ReplicaSeed(Struct, frozen=True, kw_only=True):
    """The state after a committed batch, from which a replica starts. The service reads it with Spark and
    writes it to a file, because the replica has no Spark.

    `epochs` and `outages` are all known ones, including those of later batches.
    """

    identity: Identity
    batch: int  # -1 if no batch is committed
    ends: dict[int, int]  # the offsets (exclusive) up to which `batch` has read, or the topic's beginnings
    epochs: list[Epoch]
    outages: list[KnownOutage]
    rows: list[codec.ShardRow]  # the groups

    def groups(self) -> Iterator[tuple[str, codec.StoredGroup]]:
        """Yield the ids and the encoded groups of all rows. Raises StateError."""
        for row in self.rows:
            yield from codec.read_row(*row).items()


def write_seed(folder: Path, seed: ReplicaSeed) -> Path:
    """Write a seed to a new file that only its owner may read, because the identity is secret."""
    path = folder / f"replica-seed-{uuid4()}"
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # noqa: PTH123
        file.write(msgspec.msgpack.encode(seed))
    return path


def take_seed(path: Path) -> ReplicaSeed:
    """Read a seed and remove its file."""
    encoded = path.read_bytes()
    path.unlink()
    return msgspec.msgpack.decode(encoded, type=ReplicaSeed)


NO_OWNER = 0
"""The `Terms.owner_epoch` of a standby's replica, which no owner's clock record ends. No claim has it."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Everything besides the log that affects a replica's answers."""

    layout: TopicLayout
    shards: int  # the number of shards of a partition
    configs: Configs
    outages: Sequence[Outage]
    skip: frozenset[str]  # ids of records to refuse without decoding them
    owner_epoch: int  # the epoch of the owner's claim, or NO_OWNER
    # The outage that ended when this owner took the topics, or None if it is not known.
    ended_outage: Outage | None = None


def terms_of(
    identity: Identity,
    epochs: Sequence[Epoch],
    outages: Sequence[KnownOutage],
    layout: TopicLayout,
    owner_epoch: int,
    *,
    ended_last_outage: bool = False,
) -> Terms:
    """Return the terms for a state with these configurations and outages. If `ended_last_outage`, the last
    outage ended when the owner with `owner_epoch` took the topics.
    """
    base = CoordinatorConfig(member_id_namespace=identity.member_id_namespace)
    return Terms(
        layout=layout,
        shards=identity.shards,
        configs=configs_of(epochs, base),
        outages=[known.outage for known in outages],
        skip=frozenset(epochs[-1].skip),
        owner_epoch=owner_epoch,
        ended_outage=outages[-1].outage if outages and ended_last_outage else None,
    )


def terms_at_start(start: StartReplica, seed: ReplicaSeed) -> Terms:
    """Return the terms of a replica at its start. A standby's have NO_OWNER until its promotion."""
    return terms_of(
        seed.identity,
        seed.epochs,
        seed.outages,
        start.layout,
        NO_OWNER if start.is_standby else start.replica.owner_epoch,
    )


def terms_after_promotion(start: StartReplica, seed: ReplicaSeed, promote: PromoteReplica) -> Terms:
    """Return the terms of a standby's replica once its coordinator owns the topics."""
    return terms_of(
        seed.identity,
        promote.epochs,
        promote.outages,
        start.layout,
        promote.replica.owner_epoch,
        ended_last_outage=True,
    )
