"""A random simulation of clients, a log, and coordinators one after the other with their queries and
replicas.

Chance decides who acts next, and who is killed, is paused, or wakes up late.
"""

from random import Random

import pytest

from checkpoints.checkpoint import Checkpoint
from checkpoints.metadata import Identity, OwnerRecord
from kafka_why.contract.codec import clock_record
from kafka_why.contract.layout import TopicLayout
from kafka_why.contract.messages import SettingValue
from state.config import CoordinatorConfig
from tests.harness import batches
from tests.harness.client_log import ClientLog, Sent, random_settings
from tests.harness.simulated_broker import Broker
from tests.harness.simulated_query import SimulatedCluster
from tests.harness.simulated_replica import Replica
from tests.harness.simulated_service import Service
from tests.spark.log import NAMESPACE

BEGIN_MS = 1_700_000_000_000
LENGTHS = (20, 60, 100)
TICKS_MS = (100, 100, 700, 1_500, 4_900)
LONG_TICK_MS = 4_900
SILENT_MS = 20_000
FORGED_EPOCH = 99


class Killed(Exception):
    """The service is killed at this point."""


class Life(SimulatedCluster):
    """One simulation, from `play` to `finish`. A service that is paused for long becomes a sleeper."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)
        broker = Broker(random)
        layout = TopicLayout.named(
            "t",
            request_partitions=random.choice((1, 2, 2)),
            reply_partitions=random.choice((1, 2, 3)),
            request_max_bytes=3_000,
            response_max_bytes=random.choice((100_000, 100_000, 400)),
        )
        one_in = random.choice((0, 0, 0, 60))
        fails = batches.one_fails_in(seed, one_in) if one_in else lambda _: False
        super().__init__(random, broker, layout, random.choice((1, 64)), batches.failing_step(fails))
        broker.now_ms = BEGIN_MS
        broker.meanwhile = self._meanwhile
        broker.fully_read_topic = layout.responses_topic
        self.asked: dict[str, dict[int, int]] = {}
        """The ends of the responses topic when a record was appended, by the record's id."""
        self._settings = random_settings(random)
        self._settings_change = random.random() < 0.5
        config = CoordinatorConfig(member_id_namespace=NAMESPACE).with_settings(self._settings)
        self._clients = ClientLog(random, self.layout, config, random.choice(LENGTHS)).records()
        self._next_record = next(self._clients, None)
        self._service: Service | None = None
        self._sleepers: list[Service] = []
        self._standby: Replica | None = None
        self._is_starting = False
        self._depth = 0
        self._catastrophe_rate = random.choice((0.02, 0.05, 0.1, 0.3))
        self._service_weight = random.choice((0.2, 1.0, 1.0, 4.0))
        identity = Identity(
            "c", self.layout.requests_topic, "id", self.layout.request_partitions, NAMESPACE, self.shards
        )
        Checkpoint(self.files).create(identity, OwnerRecord())

    def next_settings(self) -> dict[str, SettingValue]:
        if self._settings_change and self.random.random() < 0.5:
            self._settings = random_settings(self.random)
            self.count("settings")
        return self._settings

    def play(self) -> None:
        """Play until all clients have sent everything."""
        while self._next_record is not None:
            if self.random.random() < 0.3:
                self._append_next_record()
            else:
                self._act()

    def finish(self) -> None:
        """Let one owner handle all remaining records."""
        self._is_starting = False
        self.random = self.broker.random = Random(1)
        while self._service is None or self._service.query is None:
            self._restart()
        for _ in range(4):
            self._pass_time(70_137)
            self._service.tick()
        self.broker.meanwhile = lambda: None
        self._handle_all()
        self._service.tick()
        self._handle_all()
        self._service.die()
        for sleeper in self._sleepers:
            sleeper.die()
        for producer in self.late:
            producer.deliver(1_000)

    def _handle_all(self) -> None:
        assert self._service is not None
        topic, checkpoint = self.layout.requests_topic, Checkpoint(self.files)
        ends = {number: self.broker.end(topic, number) for number in range(self.layout.request_partitions)}

        def is_behind() -> bool:
            read = checkpoint.planned_ends(max(self.stores), topic)
            return any(read.get(number, 0) < end for number, end in ends.items())

        while is_behind():
            if self._service.query is None:
                self._restart()
            self._service.take_step()
            if self._service.replica is not None:
                self._service.replica.act()

    def _append_next_record(self) -> None:
        record = self._next_record
        if record is None:
            return
        self._pass_time(record.pause_ms)
        self._append(record)
        self._next_record = next(self._clients, None)

    def _append(self, record: Sent) -> None:
        topic = self.layout.requests_topic
        offset = self.broker.end(topic, record.partition)
        value = record.value(offset)
        responses = self.layout.responses_topic
        self.asked[f"{topic}-{record.partition}-{offset}"] = {
            number: self.broker.end(responses, number) for number in range(self.layout.reply_partitions)
        }
        self.broker.append(topic, record.partition, record.key, value)

    def _pass_time(self, pause_ms: int) -> None:
        """Let time pass, in which the owner's ticker runs."""
        until_ms = self.broker.now_ms + pause_ms
        while self.broker.now_ms < until_ms:
            is_long = until_ms - self.broker.now_ms > 10_000
            gap_ms = LONG_TICK_MS if is_long else self.random.choice(TICKS_MS)
            if self.random.random() < 0.0007:
                gap_ms = SILENT_MS
            self.broker.now_ms = min(until_ms, self.broker.now_ms + gap_ms)
            if self._service is not None:
                self._service.tick()
        if self._service is not None and self.random.random() < 0.5:
            self._service.tick()
            self.broker.now_ms += 1

    def _act(self) -> None:
        random = self.random
        if random.random() < self._catastrophe_rate / 3:
            self._catastrophe()
        kind = random.random() * (9 + self._service_weight)
        if kind < self._service_weight:
            if self._service is not None:
                self._service.take_step()
        elif kind < self._service_weight + 7:
            if self._service is not None and self._service.replica is not None:
                self._service.replica.act()
        else:
            self.others_act()

    def _catastrophe(self) -> None:
        random, service = self.random, self._service
        kind = random.randrange(7)
        if service is None or kind == 0:
            self._restart()
        elif kind == 1:
            self.count("takeover")
            service.die() if random.random() < 0.5 else self._sleepers.append(service)
            self._service = None
        elif kind == 2:
            if service.replica is not None:
                service.replica.die()
        elif kind == 3:
            service.query = None
        elif kind == 4 and self._standby is None:
            self._standby = Replica(self, Checkpoint(self.files))
            self._standby.stand_by()
        elif kind == 5 and self._sleepers:
            self._sleepers.pop(random.randrange(len(self._sleepers))).die()
        elif kind == 6 and random.random() < 0.3:
            number = random.randrange(self.layout.request_partitions)
            forged = clock_record(0, FORGED_EPOCH)
            self.broker.append(self.layout.requests_topic, number, None, forged)

    def _restart(self) -> None:
        """Start a service if none runs, or else the query again if it has ended."""
        service = self._service
        self._depth, self._is_starting = self._depth + 1, True
        try:
            if service is None:
                standby, self._standby = self._standby, None
                self._service = service = Service(self, standby)
                service.start()
            elif service.query is None:
                self.count("query again")
                service.start_query()
        except Killed:
            self.count("killed at its start")
            assert self._service is not None
            self._service.die()
            self._service = None
        finally:
            self._depth, self._is_starting = self._depth - 1, False

    def others_act(self) -> None:
        """Let sleepers and standbys act, and late records arrive, while the owner is busy."""
        self._depth += 1
        try:
            self._others_act()
        finally:
            self._depth -= 1

    def _others_act(self) -> None:
        random = self.random
        if self._sleepers and random.random() < 0.5:
            self._wake(random.choice(self._sleepers))
        if self._standby is not None:
            self._standby.act()
            if random.random() < 0.1:
                self._standby.reseed_outdated_standby()
        if self._is_starting and self._service is not None and self._service.replica is not None:
            self._service.replica.act()
        if self.late and random.random() < 0.2:
            random.choice(self.late).deliver(1)

    def _wake(self, sleeper: Service) -> None:
        """Let some processes of a paused service run for a while."""
        for _ in range(self.random.choice((1, 1, 8))):
            kind = self.random.random()
            if kind < 0.6:
                if sleeper.replica is not None:
                    sleeper.replica.act()
            elif kind < 0.8:
                if sleeper.query is not None:
                    sleeper.take_step()
            else:
                sleeper.tick()

    def _meanwhile(self) -> None:
        """Let clients and other processes act before a call of a Kafka client."""
        if self._depth > 1:
            return
        self._depth += 1
        try:
            if self._is_starting and self.random.random() < 0.01:
                raise Killed
            for _ in range(self.random.choice((0, 0, 1, 3, 10))):
                if self.random.random() < 0.3:
                    self._append_next_record()
                else:
                    self.others_act()
        finally:
            self._depth -= 1


def play(seed: int) -> Life:
    """Play a life to its end, and return it."""
    life = Life(seed)
    with pytest.MonkeyPatch.context() as patch:
        life.broker.connect(patch)
        life.play()
        life.finish()
    return life
