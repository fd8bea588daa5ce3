"""A log that the real operator has coordinated, batch by batch, and its recording."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from checkpoints.metadata import Epoch, Identity, KnownOutage
from kafka_why.contract.codec import is_clock_record
from operations.replay.collect import Collector, TopicRecord
from operations.replay.recording import HandledBatch, RecordingHeader
from state.config import CoordinatorConfig
from state.dispatch import step
from state.protocol import Outage
from state.timeline import StepFunction
from streaming.query.admission import shard_of
from streaming.query.operator import Operator
from streaming.service.starts import config_epochs
from tests.harness.operator_call import call, spark_state
from tests.harness.recordings import Lines
from tests.spark.log import LAYOUT, NAMESPACE, Record
from tests.spark.recorded_log import claim_of

SHARDS = 4
_COLUMNS = ("topic", "partition", "key", "value")


@dataclass
class CoordinatedLog:
    """Runs batches with the operator, and keeps what it writes. Batches are numbered from 0."""

    config: CoordinatorConfig
    outages: list[KnownOutage] = field(default_factory=list)
    step: StepFunction = step
    records: list[TopicRecord] = field(default_factory=list)
    log: list[Record] = field(default_factory=list)
    watermark_ms: int = 0
    batch: int = -1
    _states: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    _timeouts: dict[int, int] = field(default_factory=dict)
    _offsets: dict[tuple[str, int], int] = field(default_factory=dict)
    _watermark_of_batch: int = 0

    def __post_init__(self) -> None:
        self._epochs = [Epoch(0, self.config.settings(), [], "1")]

    def configure(self, config: CoordinatorConfig, skip: Sequence[str] = ()) -> None:
        """Change the configuration, in force after the last record. The next batch knows it."""
        self._epochs.append(Epoch(self.batch + 1, config.settings(), list(skip), "1", self.after_ms()))

    def without_coordinator(self, until_ms: int) -> None:
        """Add an outage from the last record until a time. The next batch knows it."""
        self.outages.append(KnownOutage(self.batch + 1, Outage(self.after_ms(), until_ms)))

    def after_ms(self) -> int:
        """Return the greatest time at which anything has happened."""
        return max((record.at_ms for record in self.log), default=0)

    @property
    def _identity(self) -> Identity:
        partitions = LAYOUT.request_partitions
        return Identity("cluster", LAYOUT.requests_topic, "id", partitions, NAMESPACE, SHARDS)

    def _ends(self) -> dict[int, int]:
        """Return the offsets after the requests. Clock records have offsets of their own in these logs."""
        ends = dict.fromkeys(range(LAYOUT.request_partitions), 0)
        for record in self.log:
            if not is_clock_record(record.key, record.value):
                ends[record.partition] = max(ends[record.partition], record.offset + 1)
        return ends

    def run(self, records: Sequence[Record], *, times: int = 1) -> None:
        """Run one batch, `times` times with the same outcome, as after a kill before the commit."""
        self.log += records
        self.batch += 1
        self._watermark_of_batch = self.watermark_ms
        written: list[tuple[str, int, bytes | None, bytes | None]] = []
        for shard, rows in self._by_shard(records).items():
            written += self._call(shard, rows)
        for _ in range(times):
            for topic, partition, key, value in written:
                self._append(topic, partition, key, value)
        claims = [min(claim_of(record), record.at_ms) for record in records]
        self.watermark_ms = max([self.watermark_ms, *claims])

    def _by_shard(self, records: Iterable[Record]) -> dict[int, list[Record]]:
        shards: dict[int, list[Record]] = {
            shard: [] for shard, at_ms in self._timeouts.items() if at_ms < self.watermark_ms
        }
        for record in records:
            if is_clock_record(record.key, record.value):
                continue
            key = (record.key or b"").decode(errors="replace")
            is_pack = (record.value or b"").startswith(b"pack\n")
            shard = record.partition * SHARDS + (int(key) if is_pack else 0) % SHARDS
            if not is_pack:
                shard = shard_of(key, record.partition, SHARDS)
            shards.setdefault(shard, []).append(record)
        return shards

    def _call(self, shard: int, rows: Sequence[Record]) -> list[tuple[str, int, bytes | None, bytes | None]]:
        operator = Operator(
            LAYOUT,
            config_epochs(self._epochs, self._identity),
            tuple(known for known in self.outages if known.from_batch <= self.batch),
            step=self.step,
            shards=SHARDS,
        )
        state = spark_state(
            self._states.get(shard), watermark_ms=self._watermark_of_batch, timed_out=not rows
        )
        frames = call(rows, state, operator=operator, shard=shard)
        self._timeouts.pop(shard, None)
        if state.exists:
            version, payload = state.get
            self._states[shard] = (int(version), bytes(payload))
            if state._timeout_timestamp >= 0:
                self._timeouts[shard] = state._timeout_timestamp
        else:
            self._states.pop(shard, None)
        return [row for frame in frames for row in zip(*map(frame.get, _COLUMNS), strict=True) if row[0]]

    def _append(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> None:
        at = max(partition, 0)
        offset = self._offsets.get((topic, at), 0)
        self._offsets[topic, at] = offset + 1
        at_ms = max((record.at_ms for record in self.log), default=0)
        self.records.append(TopicRecord(topic, at, offset, at_ms, key, value))

    def header(self, groups: list[str] | None = None) -> RecordingHeader:
        partitions = range(LAYOUT.request_partitions)
        ends = self._ends()
        return RecordingHeader(
            recorded_at_ms=0,
            code_version="1",
            groups=groups,
            identity=self._identity,
            layout=LAYOUT,
            epochs=list(self._epochs),
            outages=list(self.outages),
            begins=dict.fromkeys(partitions, 0),
            ends=ends,
            is_first=list(partitions),
            handled=HandledBatch(self.batch, ends, self._watermark_of_batch),
            kept_since_ms={},
        )

    def recording(self, groups: list[str] | None = None) -> Lines:
        header = self.header(groups)
        collector = Collector(header)
        log = sorted(self.log, key=lambda record: (record.partition, record.offset))
        requests = (TopicRecord(LAYOUT.requests_topic, *record) for record in log)
        # As `read_topics`, which does not read these two.
        others = (LAYOUT.offsets_topic, LAYOUT.transactions_topic)
        outputs = (record for record in self.records if record.topic not in others)
        return Lines(header, [*collector.log(requests), *collector.outputs(outputs)])
