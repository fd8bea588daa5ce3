"""A log that the real operator handles batch by batch, and its recording."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from checkpoints.codec import ShardRow
from checkpoints.metadata import Epoch, Identity, KnownOutage
from kafka_why.contract.codec import clock_record, is_clock_record, unpack
from operations.replay.collect import Collector, TopicRecord
from operations.replay.recording import HandledBatch, RecordingHeader
from state.config import Configs, CoordinatorConfig
from state.dispatch import step
from state.protocol import Outage
from state.timeline import StepFunction
from streaming.query.admission import DEFAULT_SHARDS, shard_of
from streaming.query.operator import Operator
from streaming.replica.answers import EarlyRecord
from streaming.replica.audit import request_of
from streaming.replica.groups import DECODED_LIMITS, DecodedLimits
from streaming.replica.state_machine import GAP_MAX_MS, StateMachine
from streaming.replica.state_machine import Record as LogRecord
from streaming.replica.terms import ReplicaSeed, Terms
from streaming.service.starts import config_epochs
from tests.harness.operator_call import call, spark_state
from tests.harness.recordings import Lines
from tests.spark import recorded_log
from tests.spark.log import LAYOUT, NAMESPACE, Record
from tests.spark.recorded_log import claim_of

SHARDS = 4
_COLUMNS = ("topic", "partition", "key", "value")


@dataclass
class CoordinatedLog:
    """Runs batches with the operator, and records its output. Batches are numbered from 0."""

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
        """Change the configuration after the last record. The next batch knows it."""
        self._epochs.append(Epoch(self.batch + 1, config.settings(), list(skip), "1", self.after_ms()))

    def without_coordinator(self, until_ms: int) -> None:
        """Add an outage from the last record until a time. The next batch knows it."""
        self.outages.append(KnownOutage(self.batch + 1, Outage(self.after_ms(), until_ms)))

    def after_ms(self) -> int:
        """Return the time of the latest record."""
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
        attested_ms = [min(claim_of(record), record.at_ms) for record in records]
        self.watermark_ms = max([self.watermark_ms, *attested_ms])

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
        partition = max(partition, 0)
        offset = self._offsets.get((topic, partition), 0)
        self._offsets[topic, partition] = offset + 1
        self.records.append(TopicRecord(topic, partition, offset, self.after_ms(), key, value))

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
        # `read_topics` does not read these two either.
        others = (LAYOUT.offsets_topic, LAYOUT.transactions_topic)
        outputs = (record for record in self.records if record.topic not in others)
        return Lines(header, [*collector.log(requests), *collector.outputs(outputs)])


OWNER = 7
CONFIG = CoordinatorConfig(group_initial_rebalance_delay_ms=0)
WITH_DELAY = CoordinatorConfig(group_initial_rebalance_delay_ms=3_000)
IDENTITY = Identity("c", LAYOUT.requests_topic, "id", LAYOUT.request_partitions, NAMESPACE, DEFAULT_SHARDS)


def terms(
    *,
    config: CoordinatorConfig = CONFIG,
    outages: Sequence[Outage] = (),
    skip: Iterable[str] = (),
    owner_epoch: int = OWNER,
    ended_outage: Outage | None = None,
    response_max_bytes: int = LAYOUT.response_max_bytes,
) -> Terms:
    return Terms(
        layout=replace(LAYOUT, response_max_bytes=response_max_bytes),
        shards=DEFAULT_SHARDS,
        configs=Configs(config),
        outages=outages,
        skip=frozenset(skip),
        owner_epoch=owner_epoch,
        ended_outage=ended_outage,
    )


def seed(rows: Iterable[tuple[int, bytes]] = ()) -> ReplicaSeed:
    """Return a replica's seed at the beginning of the log, with these rows of the state."""
    return ReplicaSeed(
        identity=IDENTITY,
        batch=-1,
        ends={},
        epochs=[Epoch(0, CONFIG.settings(), [], "1")],
        outages=[],
        rows=[ShardRow(str(n), *row) for n, row in enumerate(rows)],
    )


def machine(
    under: Terms | None = None,
    *,
    step: StepFunction = step,
    limits: DecodedLimits = DECODED_LIMITS,
    rows: Iterable[tuple[int, bytes]] = (),
) -> StateMachine:
    """Return a state machine that may answer."""
    state_machine = StateMachine(under or terms(), seed(rows), step=step, limits=limits)
    state_machine.is_permitted = True
    return state_machine


def apply_all(machine: StateMachine, records: Iterable[Record]) -> dict[str, bytes]:
    """Apply these records. Return the answers by request."""
    for record in records:
        machine.apply(LogRecord(*record))
    return answers_in(machine.answers.drain())


def answers_in(records: Iterable[EarlyRecord]) -> dict[str, bytes]:
    """Return the answers by request. Assert that each record has exactly the answers that it declares."""
    answers: dict[str, bytes] = {}
    for record in records:
        values = {request_of(value): value for value in unpack(record.value)}
        assert values == record.answers
        assert not answers.keys() & record.answers.keys()
        answers |= record.answers
    return answers


def with_clock_records(records: Iterable[Record], owner_epoch: int = OWNER) -> Iterator[Record]:
    """Yield the records of one partition, with clock records of the owner before each, without a gap."""
    last_ms: int | None = None
    clocks = 0
    for record in records:
        if is_clock_record(record.key, record.value):
            continue
        first_ms = record.at_ms if last_ms is None else last_ms + GAP_MAX_MS
        for at_ms in (*range(first_ms, record.at_ms, GAP_MAX_MS), record.at_ms):
            value = clock_record(at_ms - 1, owner_epoch)
            yield Record(record.partition, recorded_log.CLOCK_OFFSETS + clocks, at_ms, None, value)
            clocks += 1
        last_ms = record.at_ms
        yield record


def answers_of(partitions: Iterable[Iterable[Record]]) -> list[bytes]:
    """Apply the partitions to a replica, and return the records that it appends."""
    replica = machine(terms(config=WITH_DELAY))
    appended = []
    for records in partitions:
        for record in records:
            replica.apply(LogRecord(*record))
            appended += [early.value for early in replica.answers.drain()]
    return appended


def log_of(seed: int, length: int = 120) -> list[list[Record]]:
    """Return the partitions of a random log, with clock records."""
    rows = recorded_log.record(seed, length, WITH_DELAY)
    return [
        list(with_clock_records(recorded_log.records_of(rows, number)))
        for number in range(LAYOUT.request_partitions)
    ]
