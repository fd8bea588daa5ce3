"""Coordinators over topics in memory: each takes the topics, starts its query, and has a replica.

Spark and the processes are simulated. The product's own code decides the answers: the operator, the follower
with its state machine and audit, horizon, outages, configurations and the checkpoint.
"""

from collections.abc import Iterator, Sequence
from typing import cast

from pyspark.sql import SparkSession

from checkpoints.checkpoint import Checkpoint
from kafka_why.contract.codec import clock_record
from kafka_why.contract.early_answers import ReplicaId
from streaming.query.operator import ConfigEpoch
from streaming.service.clock.ticker import fence
from streaming.service.outages.outage import ActedUntil, end_replicas_before
from streaming.service.query.coordinating import Continuity
from streaming.service.replica.supervision import Replica as ServicesReplica
from streaming.service.starts import begin_epoch, config_epochs
from streaming.service.topics import LogAndState
from tests.harness.simulated_broker import CLIENT_CONFIG
from tests.harness.simulated_query import Query, QueryFailed, SimulatedCluster
from tests.harness.simulated_replica import Replica


def no_spark() -> SparkSession:
    """Raise NotImplementedError, because the states are in memory."""
    raise NotImplementedError


class Service:
    """A coordinator: it takes the topics, and starts its query and its replica."""

    def __init__(self, world: SimulatedCluster, standby: Replica | None) -> None:
        self.epoch = world.claims[-1] + 1
        self.query: Query | None = None
        self._world = world
        self._is_standby = standby is not None
        self._checkpoint = Checkpoint(world.files)
        self.replica = standby
        if standby is None and world.random.random() < 0.9:
            self.replica = Replica(world, self._checkpoint)
        self._epochs: Sequence[ConfigEpoch] = ()
        self._trusts_clocks = True
        self._ticks = self._is_acting = False
        self._attested_ms = 0
        self._acted: ActedUntil | None = None
        self._steps = self._starting()

    def start(self) -> None:
        """Take the topics, and take all steps until the query runs."""
        self._world.claims.append(self.epoch)
        for _ in self._steps:
            self._world.others_act()

    def take_step(self) -> None:
        """Take one step of the start, or of the query."""
        if self._is_acting:
            return
        self._is_acting = True
        try:
            next(self._steps, None)
            self._take_query_step()
        finally:
            self._is_acting = False

    def _take_query_step(self) -> None:
        if self.query is None:
            return
        try:
            self.query.take_step()
        except QueryFailed:
            self.query = None
            if self.epoch == self._world.claims[-1]:
                self._world.count("forged clock")
                self._trusts_clocks = False
            else:
                self._world.count("deposed query")
            return
        if self.replica is not None:
            for batch in self.query.committed:
                self.replica.committed(*batch)
        self.query.committed.clear()

    def start_query(self) -> None:
        outages = self._continuity.end_outage_or_promote(no_spark)
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
            checks_clocks=self._trusts_clocks,
        )
        self._continuity.query_started(no_spark, outages, checks_clocks=self._trusts_clocks)

    def fence(self) -> None:
        topic, partitions = self._world.layout.requests_topic, self._world.layout.request_partitions
        fence(CLIENT_CONFIG, topic, partitions, self.epoch)

    def end_earlier_replicas(self) -> ActedUntil:
        """End the replicas of earlier owners. Return the time until which coordinators have acted."""
        if self._acted is None:
            first = ReplicaId(self.epoch, 1)
            self._acted = end_replicas_before(self._ours(), first)
        return self._acted

    def _ours(self) -> LogAndState:
        return LogAndState(CLIENT_CONFIG, self._world.layout, self._checkpoint)

    def _starting(self) -> Iterator[None]:
        """Take the steps of `streaming.service.ownership.lease` and `streaming.service.coordinator`."""
        world, layout = self._world, self._world.layout
        self.fence()
        self._checkpoint.own(self.epoch)
        self._ticks = True
        yield
        if self.replica is not None and not self._is_standby and self._checkpoint.record().epochs:
            self.replica.stand_by()
            yield
        acted = self.end_earlier_replicas()
        epochs = begin_epoch(self._checkpoint, layout.requests_topic, world.next_settings(), (), acted)
        replica = cast(ServicesReplica | None, self.replica)
        self._continuity = Continuity(self._ours(), replica, self.epoch, acted)
        if self.replica is not None:
            self.replica.set_owner_epoch(self.epoch)
            if self._is_standby:
                self._continuity.promote(no_spark)
                world.count("promotion" if self.replica.follower else "no promotion")
        yield
        self._epochs = config_epochs(epochs, self._checkpoint.identity())
        self.start_query()

    def die(self) -> None:
        self.query, self._ticks = None, False
        if self.replica is not None:
            self.replica.end()

    def tick(self) -> None:
        """Append a round of clock records, as `streaming.service.clock.ticker` does."""
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
