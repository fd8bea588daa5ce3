"""The query over topics and files in memory: Spark is simulated, the operator is the real one."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

import msgspec
from pyspark.sql.streaming.state import GroupState as SparkGroupState

from checkpoints import codec
from checkpoints.checkpoint import Checkpoint
from checkpoints.codec import ShardRow
from checkpoints.metadata import Epoch, KnownOutage
from checkpoints.spark_logs import SPARK
from kafka_why.contract.codec import Clock, clock_of, is_pack
from kafka_why.contract.early_answers import ReplicaId
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import SettingValue
from state.config import Configs, CoordinatorConfig
from state.dispatch import AnyEffects, AnyEvent, AnyGroup
from state.protocol import Outage, Received, cause_of
from state.timeline import StepFunction
from streaming.query.admission import Admission, LogRow, shard_of
from streaming.query.operator import ConfigEpoch, Operator, ShardCall
from streaming.replica.audit import AnswerDifference
from streaming.replica.terms import ReplicaSeed
from tests.harness.operator_call import spark_state
from tests.harness.simulated_broker import Broker, EarlyProducer, StoredRecord


class QueryFailed(Exception):
    """A task or the driver has found a later owner, which ends the query."""


class Out(NamedTuple):
    """A record that the operator writes."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None


@dataclass
class Store:
    """Spark's state after a batch: the rows and the timeouts of the shards, and the watermark of the next."""

    rows: dict[int, tuple[int, bytes]] = field(default_factory=dict)
    timeouts: dict[int, int] = field(default_factory=dict)
    next_watermark_ms: int = 0

    def copy(self) -> "Store":
        return Store(dict(self.rows), dict(self.timeouts), self.next_watermark_ms)

    def entries(self) -> dict[str, codec.StoredGroup]:
        """Return the stored groups."""
        groups: dict[str, codec.StoredGroup] = {}
        for shard, row in self.rows.items():
            groups |= codec.read_row(f"shard {shard}", *row)
        return groups


@dataclass(frozen=True)
class Batch:
    """The input of a batch: its records, and the parameters that apply to it."""

    records: Sequence[StoredRecord]
    watermark_ms: int
    configs: Configs
    skip: frozenset[str]
    outages: Sequence[Outage]


def clocks_of(records: Iterable[StoredRecord]) -> Iterator[tuple[StoredRecord, Clock]]:
    for record in records:
        clock = clock_of(record.key, record.value)
        if clock is not None:
            yield record, clock


def run_batch(
    layout: TopicLayout, shards: int, step: StepFunction, store: Store, batch: Batch
) -> Iterator[list[Out]]:
    """Run the operator's calls of a batch, which change `store`. Yield the output of each call."""
    rows: dict[int, list[LogRow]] = {
        shard: [] for shard, at_ms in store.timeouts.items() if at_ms < batch.watermark_ms
    }
    for record in batch.records:
        if clock_of(record.key, record.value) is None:
            row = LogRow(
                record.partition, record.offset, record.timestamp, record.key or b"", record.value or b""
            )
            rows.setdefault(_shard(row, shards), []).append(row)
    for shard, shard_rows in rows.items():
        admission = Admission(layout, shard // shards, shards, batch.skip)
        state = spark_state(store.rows.get(shard), watermark_ms=batch.watermark_ms, timed_out=not shard_rows)
        call = ShardCall(shard, admission, batch.configs, state, outages=batch.outages, step=step)
        frames = [*call.apply(sorted(shard_rows)), *call.finish(batch.watermark_ms)]
        _store_state(store, shard, state)
        yield [Out(*row) for frame in frames for row in frame.itertuples(index=False) if row[0] is not None]
    attested_ms = (min(clock.time_ms, record.timestamp) for record, clock in clocks_of(batch.records))
    store.next_watermark_ms = max([batch.watermark_ms, *attested_ms])


def _shard(row: LogRow, shards: int) -> int:
    """Return the shard as `streaming.query.pipeline` does."""
    if not is_pack(row.value):
        return shard_of(row.key.decode(errors="surrogateescape"), row.partition, shards)
    slot = int(row.key) if row.key.isdigit() else 0
    return row.partition * shards + slot % shards


def _store_state(store: Store, shard: int, state: SparkGroupState) -> None:
    store.timeouts.pop(shard, None)
    store.rows.pop(shard, None)
    if state.exists:
        version, payload = state.get
        store.rows[shard] = (int(version), bytes(payload))
        if state._timeout_timestamp >= 0:
            store.timeouts[shard] = state._timeout_timestamp


class Query:
    """One run of the query. It may be killed or paused between its steps (`take_step`).

    `stores` are the states after the committed batches. The last of `claims` is the newest owner's epoch.
    With `checks_clocks`, clock records of later owners end the query.
    """

    def __init__(
        self,
        broker: Broker,
        layout: TopicLayout,
        shards: int,
        step: StepFunction,
        checkpoint: Checkpoint,
        stores: dict[int, Store],
        epochs: Sequence[ConfigEpoch],
        outages: Sequence[KnownOutage],
        owner_epoch: int,
        claims: list[int],
        *,
        checks_clocks: bool,
    ) -> None:
        self.committed: list[tuple[dict[int, int], int]] = []
        """The ends and the watermark of each batch that this run has committed."""
        self._broker = broker
        self._layout = layout
        self._shards = shards
        self._step = step
        self._checkpoint = checkpoint
        self._stores = stores
        self._operator = Operator(layout, tuple(epochs), tuple(outages), step, shards)
        self._owner_epoch = owner_epoch
        self._claims = claims
        self._checks_clocks = checks_clocks
        self._running = self._run()

    def take_step(self) -> None:
        """Continue the query until its next step. Raises QueryFailed."""
        next(self._running)

    def _run(self) -> Iterator[None]:
        while True:
            batch = self._checkpoint.last_batch("commits") + 1
            if self._checkpoint.last_batch("offsets") < batch:
                is_planned = self._plan(batch)
                yield
                if not is_planned:
                    continue
            store = self._stores[batch - 1].copy()
            for output in run_batch(
                self._layout, self._shards, self._step, store, self._input_of(batch, store)
            ):
                self._guard()
                for record in output:
                    if self._broker.random.random() < 0.1:
                        yield
                    self._broker.append(
                        record.topic, max(record.partition, 0), record.key or None, record.value
                    )
            self._guard()
            yield
            assert self._stores.setdefault(batch, store) == store, "a batch that ran again has another state"
            self._checkpoint.files.write(f"{SPARK}/commits/{batch}", b"v1\n{}")
            ends = self._checkpoint.planned_ends(batch, self._layout.requests_topic)
            self.committed.append((ends, self._stores[batch - 1].next_watermark_ms))
            yield

    def _guard(self) -> None:
        if self._claims[-1] > self._owner_epoch:
            raise QueryFailed

    def _plan(self, batch: int) -> bool:
        """Plan a batch with all records that are there. Return False if there are no new ones.

        The ends of the partitions are queried one after the other, and others may act in between.
        """
        topic = self._layout.requests_topic
        ends = {}
        for number in range(self._layout.request_partitions):
            ends[number] = self._broker.end(topic, number)
            self._broker.meanwhile()
        if ends == (self._checkpoint.planned_ends(batch - 1, topic) or dict.fromkeys(ends, 0)):
            return False
        if self._checkpoint.last_batch("offsets") >= batch:
            raise QueryFailed  # another driver has planned it
        plan = msgspec.json.encode({topic: ends})
        self._checkpoint.files.write(f"{SPARK}/offsets/{batch}", b"v1\n{}\n" + plan)
        return True

    def _input_of(self, batch: int, store: Store) -> Batch:
        topic = self._layout.requests_topic
        begins = self._checkpoint.planned_ends(batch - 1, topic)
        ends = self._checkpoint.planned_ends(batch, topic)
        records = [
            record
            for number, end in ends.items()
            for record in self._broker.logs[topic, number][begins.get(number, 0) : end]
        ]
        if self._checks_clocks and any(
            (clock.owner_epoch or 0) > self._owner_epoch for _, clock in clocks_of(records)
        ):
            raise QueryFailed
        return Batch(
            records,
            store.next_watermark_ms,
            self._operator.configs(batch),
            self._operator.skip(batch),
            self._operator.known_outages(batch),
        )


class MemoryFiles:
    """A place for files (`checkpoints.metadata.Files`) in memory."""

    uri = "memory"
    local_path = None

    def __init__(self) -> None:
        self._files: dict[str, bytes] = {}

    def read(self, name: str) -> bytes:
        try:
            return self._files[name]
        except KeyError:
            raise FileNotFoundError(name) from None

    def write(self, name: str, content: bytes) -> None:
        self._files[name] = content

    def create(self, name: str, content: bytes) -> bool:
        return self._files.setdefault(name, content) is content

    def names(self, folder: str) -> list[str]:
        return [name.removeprefix(f"{folder}/") for name in self._files if name.startswith(f"{folder}/")]

    def remove(self, name: str) -> None:
        self._files.pop(name, None)


# A seed is of one of the last batches.
SEEDS_KEPT = 3


@dataclass
class Notes:
    """Records when each request was handled, and the cause and time of the step that answered it."""

    handled_ms: dict[str, int] = field(default_factory=dict)
    answered: dict[str, tuple[str, int]] = field(default_factory=dict)

    def of(self, step: StepFunction) -> StepFunction:
        """Return the step with recording."""

        def recording_step(
            group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
        ) -> AnyEffects:
            effects = step(group, group_id, event, now_ms, config)
            if isinstance(event, Received):
                self.handled_ms[event.request_id] = now_ms
            for reply in effects.replies:
                self.answered[reply.response.request] = (cause_of(event), now_ms)
            return effects

        return recording_step


class SimulatedCluster(ABC):
    """The parts of a simulated cluster that all its services share. `happened` counts events by name."""

    def __init__(
        self, random: Random, broker: Broker, layout: TopicLayout, shards: int, step: StepFunction
    ) -> None:
        self.random = random
        self.broker = broker
        self.layout = layout
        self.shards = shards
        self.step = step
        self.files = MemoryFiles()
        self.stores = {-1: Store()}
        self.claims = [0]
        self.notes: dict[ReplicaId, Notes] = {}
        self.late: list[EarlyProducer] = []
        """Producers of processes that have ended."""
        self.differences: list[AnswerDifference] = []
        self.happened: dict[str, int] = {}

    def now_ms(self) -> int:
        return self.broker.now_ms

    def count(self, what: str) -> None:
        self.happened[what] = self.happened.get(what, 0) + 1

    @abstractmethod
    def next_settings(self) -> dict[str, SettingValue]:
        """Return the settings of the next owner."""

    @abstractmethod
    def others_act(self) -> None:
        """Let everything but the owner act."""

    def seed_of(self, epochs: list[Epoch], outages: list[KnownOutage]) -> ReplicaSeed:
        """Return a seed as `streaming.service.replica.process` does, but not always of the newest batch."""
        checkpoint = Checkpoint(self.files)
        batch = self.random.choice(sorted(self.stores)[-SEEDS_KEPT:])
        rows = [ShardRow(str(shard), *row) for shard, row in self.stores[batch].rows.items()]
        ends = checkpoint.planned_ends(batch, self.layout.requests_topic)
        return ReplicaSeed(
            identity=checkpoint.identity(),
            batch=batch,
            ends=dict(ends) or dict.fromkeys(range(self.layout.request_partitions), 0),
            epochs=epochs,
            outages=outages,
            rows=rows,
        )
