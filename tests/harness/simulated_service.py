"""Coordinators over topics in memory: each takes the topics, starts its query, and has a replica.

Spark and the processes are played. What decides an answer is the product's own code: the operator's calls,
the follower with its state machine and audit, horizon, outages, configurations and the checkpoint.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import cast

from pyspark.sql import SparkSession

from checkpoints.checkpoint import Checkpoint
from checkpoints.files import FolderError
from checkpoints.metadata import Epoch, KnownOutage, OwnerRecord
from records.codec import clock_record
from records.early_answers import ReplicaId
from records.layout import TopicLayout
from state.config import CoordinatorConfig, SettingValue
from state.dispatch import AnyEffects, AnyEvent, AnyGroup
from state.inputs import Received, cause_of
from state.timeline import Step
from streaming.query.operator import ConfigEpoch
from streaming.replica.audit import Difference
from streaming.replica.follower import Follower
from streaming.replica.pipes import Committed, Phase, Promote, Start
from streaming.replica.seed import Seed, ShardRow
from streaming.replica.state_machine import InDoubt, StateMachine
from streaming.replica.terms import NO_OWNER, first_terms, later_terms
from streaming.service.configuring import begin_epoch, config_epochs
from streaming.service.continuity import Continuity
from streaming.service.outage import Acted, acted_so_far
from streaming.service.replica import NEAR_MS, Spark, goes_on
from streaming.service.replica import Replica as ServicesReplica
from streaming.service.ticker import fence
from tests.harness.simulated_broker import CLIENT_CONFIG, Broker, EarlyProducer
from tests.harness.simulated_query import MemoryFiles, Query, QueryFailed, Store

# A seed may be of a batch that is not the newest.
SEEDS_KEPT = 3


def no_spark() -> SparkSession:
    """The states of this world are in memory."""
    raise NotImplementedError


@dataclass
class Notes:
    """When each request was handled, and at which step it was answered: its cause and time."""

    handled_ms: dict[str, int] = field(default_factory=dict)
    answered: dict[str, tuple[str, int]] = field(default_factory=dict)

    def of(self, step: Step) -> Step:
        """The step, noted."""

        def noted(
            group: AnyGroup | None, group_id: str, event: AnyEvent, now_ms: int, config: CoordinatorConfig
        ) -> AnyEffects:
            effects = step(group, group_id, event, now_ms, config)
            if isinstance(event, Received):
                self.handled_ms[event.request_id] = now_ms
            for reply in effects.replies:
                self.answered[reply.response.request] = (cause_of(event), now_ms)
            return effects

        return noted


class World(ABC):
    """What all services share."""

    def __init__(self, random: Random, broker: Broker, layout: TopicLayout, shards: int, step: Step) -> None:
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
        self.differences: list[Difference] = []
        self.happened: dict[str, int] = {}

    def now_ms(self) -> int:
        return self.broker.now_ms

    def seen(self, what: str) -> None:
        self.happened[what] = self.happened.get(what, 0) + 1

    @abstractmethod
    def next_settings(self) -> dict[str, SettingValue]:
        """The settings of the next owner."""

    @abstractmethod
    def others_act(self) -> None:
        """Those act that are not the owner."""

    def seed_of(self, epochs: list[Epoch], outages: list[KnownOutage]) -> Seed:
        """As `streaming.service.replica_seed`, but not always of the newest batch."""
        checkpoint = Checkpoint(self.files)
        batch = self.random.choice(sorted(self.stores)[-SEEDS_KEPT:])
        rows = [ShardRow(str(shard), *row) for shard, row in self.stores[batch].rows.items()]
        ends = checkpoint.planned_ends(batch, self.layout.requests_topic)
        return Seed(
            identity=checkpoint.identity(),
            batch=batch,
            ends=dict(ends) or dict.fromkeys(range(self.layout.request_partitions), 0),
            epochs=epochs,
            outages=outages,
            rows=rows,
        )


class Replica:
    """The service's side of a replica (`streaming.service.replica`), and its process."""

    def __init__(self, world: World, checkpoint: Checkpoint) -> None:
        self.follower: Follower | None = None
        self._world = world
        self._checkpoint = checkpoint
        self._owner_epoch = NO_OWNER
        self._number = 0
        self._plan: list[KnownOutage] | None = None
        self._is_wanted = False
        self._known: OwnerRecord | None = None
        self._start: Start | None = None
        self._seed: Seed | None = None
        self._producer: EarlyProducer | None = None
        self._notes = Notes()

    def own(self, owner_epoch: int) -> None:
        self._owner_epoch = owner_epoch

    def next_id(self) -> ReplicaId:
        return ReplicaId(self._owner_epoch, self._number + 1)

    def is_answering(self) -> bool:
        if self.follower is None:
            return False
        report = self.follower.report()
        return report.phase is Phase.ANSWERING and self._world.broker.now_ms - report.as_of_ms < NEAR_MS

    def follow(self, _: Spark, outages: list[KnownOutage]) -> None:
        self.end()
        self._plan, self._is_wanted = outages, True

    def stay_ended(self, _: str) -> None:
        self.end()

    def stand_by(self) -> None:
        self._plan, self._is_wanted = None, True

    def promote(self, _: Spark, record: OwnerRecord) -> bool:
        follower, known = self.follower, self._known
        is_standby = follower is not None and follower.report().phase is Phase.STANDBY
        if follower is None or known is None or not is_standby or not goes_on(known, record):
            self.end()
            return False
        assert self._start is not None
        assert self._seed is not None
        self._plan = record.outages
        self._number += 1
        promote = Promote(
            replica=ReplicaId(self._owner_epoch, self._number), epochs=record.epochs, outages=record.outages
        )
        self._world.notes[promote.replica] = self._notes
        follower.promote(promote.replica, later_terms(self._start, self._seed, promote))
        return True

    def end(self) -> None:
        self.die()
        self._is_wanted = False

    def die(self) -> None:
        """The process ends. What it has under way may come late."""
        if self._producer is not None:
            self._producer.deliver(self._world.random.choice((0, 0, 1, 1_000)))
            self._world.late.append(self._producer)
        self.follower = self._producer = None

    def act(self) -> None:
        """One thing that its process does."""
        random = self._world.random
        if not self._is_wanted:
            return
        if self.follower is None:
            if random.random() < 0.5:
                self._begin()
            return
        assert self._producer is not None
        try:
            if random.random() < 0.8:
                self.follower.round()
            if random.random() < 0.8:
                self._producer.deliver(1_000)
            if random.random() < 0.3:
                self.follower.responses.read()
        except InDoubt as doubt:
            assert "no clock record of the owner" in str(doubt), doubt
            self._world.seen("doubt")
            self.die()
            return
        if self.follower.responses.difference is not None:
            self._world.differences.append(self.follower.responses.difference)

    def check_standby(self) -> None:
        """As the service does every two seconds."""
        record = self._checkpoint.record()
        if self._known is not None and (record.epochs, record.outages) != (
            self._known.epochs,
            self._known.outages,
        ):
            self.die()

    def _begin(self) -> None:
        stands_by = self._plan is None
        self._known = record = self._checkpoint.record()
        if not record.epochs:
            return
        if not stands_by:
            try:
                self._checkpoint.check_owner(self._owner_epoch)
            except FolderError:
                return
        self._seed = self._world.seed_of(record.epochs, record.outages if self._plan is None else self._plan)
        self._number += not stands_by
        self._start = Start(
            client_config=CLIENT_CONFIG,
            layout=self._world.layout,
            replica=ReplicaId(self._owner_epoch, self._number),
            seed="",
            stands_by=stands_by,
        )
        self._notes = Notes()
        self._world.notes[self._start.replica] = self._notes
        machine = StateMachine(
            first_terms(self._start, self._seed),
            self._seed,
            step=self._notes.of(self._world.step),
            awake_max=self._world.random.choice((1, 2, 4_000)),
        )
        now_ms = self._world.now_ms
        self.follower = Follower(
            CLIENT_CONFIG,
            self._world.layout,
            self._start.replica,
            machine,
            stands_by=stands_by,
            wall_ms=now_ms,
            now_s=lambda: now_ms() / 1_000,
        )
        self._producer = self._world.broker.early_producers[-1]
        self.follower.begin()
        self._world.seen("standby" if stands_by else "replica")

    def committed(self, ends: dict[int, int], watermark_ms: int) -> None:
        if self.follower is not None:
            self.follower.committed(Committed(ends=ends, watermark_ms=watermark_ms))


class Service:
    """A coordinator: it takes the topics, and starts its query and its replica."""

    def __init__(self, world: World, standby: Replica | None) -> None:
        self.epoch = world.claims[-1] + 1
        self.query: Query | None = None
        self._world = world
        self._is_standby = standby is not None
        self._checkpoint = Checkpoint(world.files)
        self.replica = standby
        if standby is None and world.random.random() < 0.9:
            self.replica = Replica(world, self._checkpoint)
        self._epochs: Sequence[ConfigEpoch] = ()
        self._believes_clocks = True
        self._ticks = self._is_acting = False
        self._attested_ms = 0
        self._acted: Acted | None = None
        self._steps = self._starting()

    def start(self) -> None:
        """Take the topics, and go on until the query runs."""
        self._world.claims.append(self.epoch)
        for _ in self._steps:
            self._world.others_act()

    def go_on(self) -> None:
        """One step of the start, or one of the query."""
        if self._is_acting:
            return
        self._is_acting = True
        try:
            next(self._steps, None)
            self._query_on()
        finally:
            self._is_acting = False

    def _query_on(self) -> None:
        if self.query is None:
            return
        try:
            self.query.go_on()
        except QueryFailed:
            self.query = None
            if self.epoch == self._world.claims[-1]:
                self._world.seen("forged clock")
                self._believes_clocks = False
            else:
                self._world.seen("deposed query")
            return
        if self.replica is not None:
            for batch in self.query.committed:
                self.replica.committed(*batch)
        self.query.committed.clear()

    def start_query(self) -> None:
        outages = self._continuity.outages()
        self.query = Query(
            self._world.broker,
            self._world.layout,
            self._world.shards,
            self._world.step,
            self._checkpoint,
            self._world.stores,
            self._epochs,
            outages,
            self.epoch,
            self._world.claims,
            checks_clocks=self._believes_clocks,
        )
        self._continuity.query_started(no_spark, outages, checks_clocks=self._believes_clocks)

    def fence(self) -> None:
        topic, partitions = self._world.layout.requests_topic, self._world.layout.request_partitions
        fence(CLIENT_CONFIG, topic, partitions, self.epoch)

    def look(self) -> Acted:
        """Append the markers, and look how far coordinators have acted."""
        if self._acted is None:
            first = ReplicaId(self.epoch, 1)
            self._acted = acted_so_far(CLIENT_CONFIG, self._world.layout, self._checkpoint, first)
        return self._acted

    def _starting(self) -> Iterator[None]:
        """As `streaming.service.lease` and `streaming.service.coordinator` do."""
        world, layout = self._world, self._world.layout
        self.fence()
        self._checkpoint.own(self.epoch)
        self._ticks = True
        yield
        acted = self.look()
        epochs = begin_epoch(self._checkpoint, layout.requests_topic, world.next_settings(), (), acted)
        replica = cast(ServicesReplica | None, self.replica)
        self._continuity = Continuity(CLIENT_CONFIG, layout, self._checkpoint, replica, self.epoch, acted)
        if self.replica is not None:
            self.replica.own(self.epoch)
            if self._is_standby:
                self._continuity.promote(no_spark)
                world.seen("promotion" if self.replica.follower else "no promotion")
        yield
        self._epochs = config_epochs(epochs, self._checkpoint.identity())
        self.start_query()

    def die(self) -> None:
        self.query, self._ticks = None, False
        if self.replica is not None:
            self.replica.end()

    def tick(self) -> None:
        """A round of clock records, as `streaming.service.ticker` appends it."""
        if not self._ticks:
            return
        world = self._world
        appended = []
        for number in range(world.layout.request_partitions):
            value = clock_record(self._attested_ms, self.epoch)
            record = world.broker.append(world.layout.requests_topic, number, None, value)
            appended.append(record.timestamp)
            if world.random.random() < 0.2:
                world.broker.now_ms += world.random.choice((0, 1, 30))
        self._attested_ms = max(self._attested_ms, min(appended) - 1)
