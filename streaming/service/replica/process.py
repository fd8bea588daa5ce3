"""The service's handle of a replica process, which answers requests before the query does. The process starts
from a seed: the state after a committed batch.
"""

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec
from kafka import TopicPartition
from pyspark.sql import SparkSession

from checkpoints.checkpoint import Checkpoint
from checkpoints.metadata import Epoch, KnownOutage
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.service import ReplicaPhase
from kafka_why.local_files import FolderError
from kafka_why.topic_reader import TopicReader
from streaming.query.pipeline import read_state
from streaming.replica.terms import (
    BatchCommitted,
    BatchWanted,
    FromReplica,
    NextDeadline,
    PendingChanges,
    PromoteReplica,
    ReplicaReport,
    ReplicaSeed,
    StartReplica,
    decode_report,
    encode_line,
)
from streaming.service.stored_state.moving import retained_batches

_END_GRACE_S = 1.0


@dataclass(frozen=True, slots=True)
class ReplicaListener:
    """The callbacks for a replica's messages, called in the thread of `ReplicaProcess.follow`.

    `on_pending` gets a record that the query will write to the transactions topic with its next batch,
    `on_deadline` the time in ms of the next deadline. `on_batch_wanted` is called when a batch has to begin,
    because the query has to write other records than answers.
    """

    on_pending: Callable[[bytes, bytes | None], None] = lambda *_: None
    on_deadline: Callable[[int], None] = lambda _: None
    on_batch_wanted: Callable[[], None] = lambda: None


class ReplicaProcess:
    """The process of a running replica. `follow` reads its reports in the caller's thread: `report` is then
    the last one, which came at `reported_s`. Other methods are thread-safe.
    """

    def __init__(self, start: StartReplica, listener: ReplicaListener | None = None) -> None:
        self._listener = listener or ReplicaListener()
        self.report = ReplicaReport(phase=ReplicaPhase.SEEDING, reason="its process starts")
        self.reported_s = time.monotonic()
        self._seed_file = Path(start.seed)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "streaming.replica"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A terminal sends Ctrl-C to its whole process group. The service itself ends the replica.
            process_group=0,
        )
        self.send(start)

    def follow(self) -> str:
        """Read the reports of the process until it ends. Return the reason of its end."""
        assert self._process.stdout is not None
        for text in self._process.stdout:
            with suppress(msgspec.DecodeError):  # the last line of a process that was killed may be cut
                self._handle(decode_report(text))
        code = self._process.wait()
        self._process.stdout.close()
        self._close_stdin()
        self._seed_file.unlink(missing_ok=True)  # the process may have ended before it read the seed
        if self.report.phase is ReplicaPhase.ENDED and self.report.reason:
            return self.report.reason
        return f"its process ended with {code}"

    def _handle(self, message: FromReplica) -> None:
        """Store a report, or pass another message of the process to the listener."""
        match message:
            case ReplicaReport():
                self.report, self.reported_s = message, time.monotonic()
            case NextDeadline():
                self._listener.on_deadline(message.at_ms)
            case BatchWanted():
                self._listener.on_batch_wanted()
            case PendingChanges():
                for key, value in message.records:
                    self._listener.on_pending(key, value)

    def send(self, message: StartReplica | BatchCommitted | PromoteReplica) -> None:
        """Send a message to the replica. It is lost if the process has ended."""
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):  # `follow` notices the end of the process
            self._process.stdin.write(encode_line(message))
            self._process.stdin.flush()

    def end(self) -> None:
        """End the process, which sends a last report if it can."""
        self._close_stdin()
        try:
            self._process.wait(_END_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _close_stdin(self) -> None:
        """Close the replica's standard input, which ends the replica."""
        assert self._process.stdin is not None
        with suppress(OSError):  # the process may have ended before it read everything
            self._process.stdin.close()


def make_seed(
    checkpoint: Checkpoint,
    spark: SparkSession,
    client_config: ClientConfig,
    epochs: list[Epoch],
    outages: list[KnownOutage],
) -> ReplicaSeed:
    """Return a seed with the state after the newest committed batch, or an empty state if there is none. The
    query may continue meanwhile.

    Raises PySparkException or FileNotFoundError if Spark removes that batch's state meanwhile. Raises
    FolderError and KafkaError.
    """
    if not epochs:
        raise FolderError(f"{checkpoint} has no configuration yet")
    identity = checkpoint.identity()
    batch = max(retained_batches(checkpoint), default=-1)
    rows = list(read_state(spark, checkpoint.spark_uri, batch)) if batch >= 0 else []
    ends = dict(checkpoint.planned_ends(batch, identity.requests_topic))
    if not ends:
        ends = _beginnings(client_config, identity.requests_topic, identity.request_partitions)
    return ReplicaSeed(
        identity=identity,
        batch=batch,
        ends=ends,
        epochs=epochs,
        outages=outages,
        rows=rows,
    )


def _beginnings(client_config: ClientConfig, topic: str, partitions: int) -> dict[int, int]:
    """Return the offset of the first record of each partition, by its number."""
    with TopicReader(client_config) as reader:
        beginnings = reader.beginnings([TopicPartition(topic, number) for number in range(partitions)])
        return {partition.partition: offset for partition, offset in beginnings.items()}
