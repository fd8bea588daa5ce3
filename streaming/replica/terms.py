"""The terms of a replica: everything besides the log that affects its answers, and the messages that bring
them.
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

# The messages between the service and its replica, as lines of JSON on the replica's standard input and
# output.


class StartReplica(Struct, frozen=True, kw_only=True):
    """The first message to the replica.

    `replica` has the epoch of the owner. A standby does not answer until it is promoted; until then, the
    owner is another coordinator.
    """

    client_config: ClientConfig
    layout: TopicLayout
    replica: ReplicaId
    seed: str  # the path of its seed (`streaming.replica.terms`)
    is_standby: bool = False


class PromoteReplica(Struct, frozen=True, kw_only=True, tag=True):
    """The message that a standby has taken the topics: it continues as the replica `replica`."""

    replica: ReplicaId
    epochs: list[Epoch]  # all configurations
    outages: list[KnownOutage]  # all outages
    # The offsets of the first records that no committed batch has read, by partition.
    handled: dict[int, int]


class BatchCommitted(Struct, frozen=True, kw_only=True, tag=True):
    """The message that the query has committed a batch."""

    ends: dict[int, int]  # the offsets of the first records that it has not read, by partition
    watermark_ms: int  # up to which it fired deadlines


class PendingChanges(Struct, frozen=True, kw_only=True, tag=True):
    """The keys and values that the query will write to the transactions topic with its next batch."""

    records: list[tuple[bytes, bytes | None]]


class NextDeadline(Struct, frozen=True, kw_only=True, tag=True):
    """The time in ms of the next deadline of any group. Clock records before that time fire nothing."""

    at_ms: int


class BatchWanted(Struct, frozen=True, kw_only=True, tag=True):
    """The message that the query has more to write than the replica's answers. Otherwise it may wait."""


class ReplicaReport(Struct, frozen=True, kw_only=True, tag=True):
    """The state of a replica. A `difference` ends the replica."""

    phase: ReplicaPhase
    reason: str = ""  # why it does not answer, "" while it does
    as_of_ms: int = 0
    applied: dict[int, int] = {}  # the offsets of the next records by partition
    lag_records: int = 0  # records that it has not applied
    lag_ms: int = 0  # the age of the last record that it applied
    lead_s: float = 0.0  # as in `streaming.replica.follower`
    lead_bytes: int = 0  # as in `streaming.replica.follower`
    answers: int = 0  # the number of appended answers
    compared: int = 0  # how many of them were compared with the query's
    groups: int = 0  # the number in memory
    alarm: str | None = None  # for the operator
    loss: Loss | None = None  # why the query cannot continue, None if it can
    difference: AnswerDifference | None = None


# All three raise msgspec.DecodeError.
decode_start = msgspec.json.Decoder(StartReplica).decode
decode_command = msgspec.json.Decoder[PromoteReplica | BatchCommitted](PromoteReplica | BatchCommitted).decode
FromReplica: TypeAlias = ReplicaReport | PendingChanges | NextDeadline | BatchWanted
decode_report = msgspec.json.Decoder[FromReplica](FromReplica).decode


def encode_line(message: StartReplica | PromoteReplica | BatchCommitted | FromReplica) -> bytes:
    """Encode a message as it is sent."""
    return msgspec.json.encode(message) + b"\n"


# The seed of a replica: the state after a committed batch, and the terms for the records that follow.
#
# The service writes it to a file, because only Spark reads its own state. The replica has no Spark.


class ReplicaSeed(Struct, frozen=True, kw_only=True):
    """The state after `batch`.

    `epochs` and `outages` are all known ones, including those of later batches. If there is no committed
    batch, `batch` is -1, and the replica starts at the beginning of the topic.
    """

    identity: Identity
    batch: int
    ends: dict[int, int]  # the offsets (exclusive) up to which `batch` has read
    epochs: list[Epoch]
    outages: list[KnownOutage]
    rows: list[codec.ShardRow]

    def groups(self) -> Iterator[tuple[str, codec.StoredGroup]]:
        """Yield the encoded groups. Raises StateError."""
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
"""The epoch of a standby's replica. No claim has it, and no later owner ends it."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Everything besides the log that affects a replica's answers."""

    layout: TopicLayout
    shards: int
    configs: Configs
    outages: Sequence[Outage]
    skip: frozenset[str]
    owner_epoch: int  # the epoch of the replica's coordinator
    # The outage that this coordinator has ended by taking over, or None if it is not known.
    ended_outage: Outage | None = None


def terms_of(
    identity: Identity,
    epochs: Sequence[Epoch],
    outages: Sequence[KnownOutage],
    layout: TopicLayout,
    owner_epoch: int,
    *,
    has_ended_last: bool = False,
) -> Terms:
    """Return the terms for a state with these configurations and outages. `has_ended_last` is True if this
    owner ended the last outage.
    """
    base = CoordinatorConfig(member_id_namespace=identity.member_id_namespace)
    return Terms(
        layout=layout,
        shards=identity.shards,
        configs=configs_of(epochs, base),
        outages=[known.outage for known in outages],
        skip=frozenset(epochs[-1].skip),
        owner_epoch=owner_epoch,
        ended_outage=outages[-1].outage if outages and has_ended_last else None,
    )


def first_terms(start: StartReplica, seed: ReplicaSeed) -> Terms:
    """Return the terms of a replica that starts. A standby does not know who will own the topics."""
    return terms_of(
        seed.identity,
        seed.epochs,
        seed.outages,
        start.layout,
        NO_OWNER if start.is_standby else start.replica.owner_epoch,
    )


def later_terms(start: StartReplica, seed: ReplicaSeed, promote: PromoteReplica) -> Terms:
    """Return the terms of a standby's replica that is promoted."""
    return terms_of(
        seed.identity,
        promote.epochs,
        promote.outages,
        start.layout,
        promote.replica.owner_epoch,
        has_ended_last=True,
    )
