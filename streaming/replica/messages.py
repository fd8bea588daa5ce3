"""The messages between the service and its replica, as lines of JSON on the replica's standard input and
output.
"""

import msgspec
from msgspec import Struct

from checkpoints.metadata import Epoch, KnownOutage
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.early_answers import ReplicaId
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.service import ReplicaPhase
from streaming.replica.audit import AnswerDifference
from streaming.replica.log_watch import Loss


class StartReplica(Struct, frozen=True, kw_only=True):
    """The first message to the replica. `seed` is the path of its seed (`streaming.replica.terms`).

    `replica` has the epoch of the owner. A standby does not answer until it is promoted; until then, the
    owner is another coordinator.
    """

    client_config: ClientConfig
    layout: TopicLayout
    replica: ReplicaId
    seed: str
    is_standby: bool = False


class PromoteReplica(Struct, frozen=True, kw_only=True, tag=True):
    """The message that a standby has taken the topics: it continues as the replica `replica`, with all these
    configurations and outages. `handled` are the offsets of the first records that no committed batch has
    read, by partition.
    """

    replica: ReplicaId
    epochs: list[Epoch]
    outages: list[KnownOutage]
    handled: dict[int, int]


class BatchCommitted(Struct, frozen=True, kw_only=True, tag=True):
    """The message that the query has committed a batch: the offsets of the first records that it has not
    read, by partition, and the watermark in ms up to which it fired deadlines.
    """

    ends: dict[int, int]
    watermark_ms: int


class PendingChanges(Struct, frozen=True, kw_only=True, tag=True):
    """The keys and values that the query will write to the transactions topic with its next batch."""

    records: list[tuple[bytes, bytes | None]]


class ReplicaReport(Struct, frozen=True, kw_only=True, tag=True):
    """The state of a replica. `reason` says why it does not answer, "" while it does.

    `applied` are the offsets of the next records by partition. `lag_records` are the records that it has not
    applied, and `lag_ms` is the age of the last one that it applied. `lead_s` and `lead_bytes` are those of
    `streaming.replica.follower`. `answers` is the number of appended answers, `compared` of which were
    compared with the query's. `groups` is the number in memory. `alarm` is for the operator. `loss` says why
    the query cannot continue, None if it can. A `difference` ends the replica.
    """

    phase: ReplicaPhase
    reason: str = ""
    as_of_ms: int = 0
    applied: dict[int, int] = {}
    lag_records: int = 0
    lag_ms: int = 0
    lead_s: float = 0.0
    lead_bytes: int = 0
    answers: int = 0
    compared: int = 0
    groups: int = 0
    alarm: str | None = None
    loss: Loss | None = None
    difference: AnswerDifference | None = None


# All three raise msgspec.DecodeError.
decode_start = msgspec.json.Decoder(StartReplica).decode
decode_command = msgspec.json.Decoder[PromoteReplica | BatchCommitted](PromoteReplica | BatchCommitted).decode
decode_report = msgspec.json.Decoder[ReplicaReport | PendingChanges](ReplicaReport | PendingChanges).decode


def encode_line(
    message: StartReplica | PromoteReplica | BatchCommitted | ReplicaReport | PendingChanges,
) -> bytes:
    """Encode a message as it is sent."""
    return msgspec.json.encode(message) + b"\n"
