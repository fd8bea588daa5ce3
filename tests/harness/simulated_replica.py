"""The replica of a simulated service: its start, promotion and end, and its process."""

from checkpoints.checkpoint import Checkpoint
from checkpoints.metadata import KnownOutage, OwnerRecord
from kafka_why.contract.early_answers import ReplicaId
from kafka_why.contract.service import ReplicaPhase
from kafka_why.local_files import FolderError
from streaming.replica.follower import RequestsFollower
from streaming.replica.groups import DecodedLimits
from streaming.replica.state_machine import InDoubt, StateMachine
from streaming.replica.terms import (
    NO_OWNER,
    BatchCommitted,
    PromoteReplica,
    ReplicaSeed,
    StartReplica,
    terms_after_promotion,
    terms_at_start,
)
from streaming.service.can_continue import handled_ends
from streaming.service.replica.supervision import NEAR_MS, SparkSource, can_continue_with
from tests.harness.simulated_broker import CLIENT_CONFIG, TOPIC_ID, EarlyProducer
from tests.harness.simulated_query import Notes, SimulatedCluster


class Replica:
    """A replica and its supervision by the service (`streaming.service.replica.supervision`)."""

    def __init__(self, world: SimulatedCluster, checkpoint: Checkpoint) -> None:
        self.follower: RequestsFollower | None = None
        self._world = world
        self._checkpoint = checkpoint
        self._owner_epoch = NO_OWNER
        self._number = 0
        self._plan: list[KnownOutage] | None = None
        self._is_wanted = False
        self._seeded_record: OwnerRecord | None = None
        self._seeding: tuple[bool, OwnerRecord, ReplicaSeed] | None = None
        """While the seed is built: True for a standby, the owner record, and the seed."""
        self._promotion: PromoteReplica | None = None
        self._start: StartReplica | None = None
        self._seed: ReplicaSeed | None = None
        self._producer: EarlyProducer | None = None
        self._notes = Notes()

    def set_owner_epoch(self, owner_epoch: int) -> None:
        self._owner_epoch = owner_epoch

    def next_id(self) -> ReplicaId:
        return ReplicaId(self._owner_epoch, self._number + 1)

    def is_answering(self) -> bool:
        if self.follower is None:
            return False
        report = self.follower.report()
        return (
            report.phase is ReplicaPhase.ANSWERING and self._world.broker.now_ms - report.as_of_ms < NEAR_MS
        )

    def follow(self, _: SparkSource, outages: list[KnownOutage]) -> None:
        self.end()
        self._plan, self._is_wanted = outages, True

    def end_because(self, _: str) -> None:
        self.end()

    def stand_by(self, _: SparkSource | None = None) -> None:
        self._plan, self._is_wanted = None, True

    @property
    def is_standby(self) -> bool:
        return self._is_wanted and self._plan is None

    def promote(self, _: SparkSource, record: OwnerRecord) -> bool:
        follower, seeded = self.follower, self._seeded_record
        can_continue = follower is None or (seeded is not None and can_continue_with(seeded, record))
        if not (self.is_standby and can_continue):
            self.end()
            return False
        self._plan = record.outages
        self._number += 1
        self._promotion = PromoteReplica(
            replica=ReplicaId(self._owner_epoch, self._number),
            epochs=record.epochs,
            outages=record.outages,
            handled=handled_ends(self._checkpoint, self._world.layout.requests_topic),
        )
        if follower is not None:
            self._promote(follower, self._promotion)
        return True

    def _promote(self, follower: RequestsFollower, promotion: PromoteReplica) -> None:
        assert self._start is not None
        assert self._seed is not None
        self._world.notes[promotion.replica] = self._notes
        follower.promote(
            promotion.replica, terms_after_promotion(self._start, self._seed, promotion), promotion.handled
        )

    def end(self) -> None:
        self.die()
        self._is_wanted = False

    def die(self) -> None:
        """End the process. Its records in flight may be appended later."""
        if self._producer is not None:
            self._producer.deliver(self._world.random.choice((0, 0, 1, 1_000)))
            self._world.late.append(self._producer)
        self.follower = self._producer = self._seeding = None

    def act(self) -> None:
        """Take a random step of the replica's process."""
        random = self._world.random
        if not self._is_wanted:
            return
        if self.follower is None:
            if random.random() < 0.5:
                self._take_seed_or_begin()
            return
        assert self._producer is not None
        try:
            if random.random() < 0.8:
                self.follower.log_watch.poll()
                self.follower.round()
            if random.random() < 0.8:
                self._producer.deliver(1_000)
            if random.random() < 0.3:
                self.follower.responses.read()
        except InDoubt as doubt:
            if "no clock record of the owner" not in str(doubt):
                # It may only have followed answers that do not count (`StateMachine.change_terms`).
                assert "are not those that it has applied" in str(doubt), doubt
                assert self.follower.report().as_of_ms <= self.follower.responses.horizon_ms, doubt
            self._world.count("doubt")
            self.die()
            return
        if self.follower.responses.difference is not None:
            self._world.differences.append(self.follower.responses.difference)

    def reseed_outdated_standby(self) -> None:
        """Check the standby, as the service does every two seconds."""
        record = self._checkpoint.record()
        if self._seeded_record is not None and (record.epochs, record.outages) != (
            self._seeded_record.epochs,
            self._seeded_record.outages,
        ):
            self.die()

    def _take_seed_or_begin(self) -> None:
        if self._seeding is None:
            self._take_seed()
        else:
            (is_standby, record, self._seed), self._seeding = self._seeding, None
            self._begin(record, self._seed, is_standby=is_standby)

    def _take_seed(self) -> None:
        is_standby = self._plan is None
        self._seeded_record = record = self._checkpoint.record()
        if not record.epochs:
            return
        if not is_standby:
            try:
                self._checkpoint.check_owner(self._owner_epoch)
            except FolderError:
                return
        outages = record.outages if self._plan is None else self._plan
        self._seeding = is_standby, record, self._world.seed_of(record.epochs, outages)

    def _begin(self, record: OwnerRecord, seed: ReplicaSeed, *, is_standby: bool) -> None:
        promotion = self._promotion if is_standby and self._plan is not None else None
        if promotion is not None and not can_continue_with(record, promotion):
            self._world.count("promotion of another seed")
            return
        self._number += not is_standby
        self._start = StartReplica(
            client_config=CLIENT_CONFIG,
            layout=self._world.layout,
            replica=ReplicaId(self._owner_epoch, self._number),
            seed="",
            is_standby=is_standby,
        )
        self._notes = Notes()
        self._world.notes[self._start.replica] = self._notes
        machine = StateMachine(
            terms_at_start(self._start, seed),
            seed,
            step=self._notes.of(self._world.step),
            limits=DecodedLimits(self._world.random.choice((0, 10_000, 2**30)), min_groups=1),
        )
        now_ms = self._world.now_ms
        self.follower = RequestsFollower(
            CLIENT_CONFIG,
            self._world.layout,
            self._start.replica,
            machine,
            topic_id=TOPIC_ID,
            is_standby=is_standby,
            wall_ms=now_ms,
            now_s=lambda: now_ms() / 1_000,
        )
        self._producer = self._world.broker.early_producers[-1]
        self.follower.begin()
        if promotion is not None:
            self._world.count("promotion while seeding")
            self._promote(self.follower, promotion)
        self._world.count("standby" if is_standby else "replica")

    def committed(self, ends: dict[int, int], watermark_ms: int) -> None:
        if self.follower is not None:
            self.follower.committed(BatchCommitted(ends=ends, watermark_ms=watermark_ms))
