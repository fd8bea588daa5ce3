"""Faults of the replica and of what surrounds it, planted to see that the property of a life finds them.

After a change of the simulation other lives show them: try the seeds from 0 on. Most are found in 100 lives.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pytest
from msgspec.structs import replace

from checkpoints.checkpoint import Checkpoint
from checkpoints.metadata import KnownOutage, configs_of
from kafka_why.contract.codec import Clock
from kafka_why.contract.early_answers import EarlyAnswers
from state.config import Configs
from streaming.replica import responses_reader, terms
from streaming.replica.follower import RequestsFollower
from streaming.replica.state_machine import HeldRecords, Partition, Record, StateMachine
from streaming.service.outages import outage
from tests.harness.simulated_cluster import SimulatedCluster
from tests.harness.simulated_service import Service

Plant = Callable[[pytest.MonkeyPatch], None]


class Fault(NamedTuple):
    """A fault, and the seed of a life in which it is found."""

    plant: Plant
    seed: int


def as_of_without_the_end_of_the_outage(patch: pytest.MonkeyPatch) -> None:
    def acted_ms(partition: Partition, record: Record, clock: Clock | None) -> int:
        if partition.has_ended:
            return 0
        return record.at_ms if clock is None else min(clock.time_ms, record.at_ms)

    patch.setattr(Partition, "acted_ms", acted_ms)


def as_of_without_attested_times(patch: pytest.MonkeyPatch) -> None:
    right = Partition.acted_ms

    def acted_ms(partition: Partition, record: Record, clock: Clock | None) -> int:
        return right(partition, record, clock) if clock is None else 0

    patch.setattr(Partition, "acted_ms", acted_ms)


def marker_before_the_fence(patch: pytest.MonkeyPatch) -> None:
    right = Service.fence

    def fence(service: Service) -> None:
        service.look()
        right(service)

    patch.setattr(Service, "fence", fence)


def fence_that_ends_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Partition, "has_ended", property(lambda _: False, lambda *_: None), raising=False)


def no_marker(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(EarlyAnswers, "accepts", lambda *_: True)


def horizon_ignored(patch: pytest.MonkeyPatch) -> None:
    right = outage.end_replicas
    patch.setattr(outage, "end_replicas", lambda *arguments: 0 * right(*arguments))


def outage_at_the_least_as_of(patch: pytest.MonkeyPatch) -> None:
    def max_of(found: Any, *now: Any, **default: Any) -> Any:
        return min(found or now[0], *now) if now else max(found, **default)

    patch.setattr(outage, "max", max_of, raising=False)


def seeded_without_later_outages(patch: pytest.MonkeyPatch) -> None:
    right = SimulatedCluster.seed_of

    def seed_of(world: SimulatedCluster, epochs: Any, outages: list[KnownOutage]) -> Any:
        seed = right(world, epochs, outages)
        return replace(seed, outages=[known for known in outages if known.from_batch <= seed.batch + 1])

    patch.setattr(SimulatedCluster, "seed_of", seed_of)


def configuration_of_the_seed_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(terms, "configs_of", lambda epochs, base: Configs(configs_of(epochs[-1:], base).first))


def outage_of_batches_not_planned_at_its_end(patch: pytest.MonkeyPatch) -> None:
    """A driver of an earlier owner may have planned one between the look at the last one and that time."""
    right = Checkpoint.store_outage
    patch.setattr(Checkpoint, "store_outage", lambda self, after, until, _: right(self, after, until))


def merged_although_a_replica_has_passed_it(patch: pytest.MonkeyPatch) -> None:
    right = Checkpoint.store_outage

    def outages(self: Checkpoint, after_ms: int, until_ms: int, from_batch: int) -> list[KnownOutage]:
        record = self.record()
        kept = [known for known in record.outages if known.from_batch < from_batch]
        self._save(replace(record, outages=kept))
        return right(self, after_ms, until_ms, from_batch)

    patch.setattr(Checkpoint, "store_outage", outages)


def standby_that_holds_nothing_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HeldRecords, "act_until", lambda held, _: held.act())


def promotion_under_the_terms_of_before(patch: pytest.MonkeyPatch) -> None:
    def change_terms(machine: StateMachine, terms: Any) -> None:
        for partition in machine.partitions.values():
            partition._terms = replace_epoch(partition._terms, terms.owner_epoch)

    patch.setattr(StateMachine, "change_terms", change_terms)


def replace_epoch(of: terms.Terms, owner_epoch: int) -> terms.Terms:
    return terms.Terms(of.layout, of.shards, of.configs, of.outages, of.skip, owner_epoch)


def answers_before_the_audit_reads(patch: pytest.MonkeyPatch) -> None:
    right = RequestsFollower.begin

    def begin(follower: RequestsFollower) -> None:
        right(follower)
        follower._first_ends = dict.fromkeys(follower._first_ends, 0)

    patch.setattr(RequestsFollower, "begin", begin)


def audit_by_a_replaced_replica(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(responses_reader, "marker_of", lambda _: None)


FAULTS: Mapping[str, Fault] = {
    plant.__name__.replace("_", " "): Fault(plant, seed)
    for plant, seed in (
        (as_of_without_the_end_of_the_outage, 9),
        (as_of_without_attested_times, 2),
        (marker_before_the_fence, 85),
        (fence_that_ends_nothing, 20),
        (no_marker, 152),
        (horizon_ignored, 2),
        (outage_at_the_least_as_of, 2),
        (seeded_without_later_outages, 266),
        (configuration_of_the_seed_only, 149),
        (outage_of_batches_not_planned_at_its_end, 393),
        (merged_although_a_replica_has_passed_it, 9),
        (standby_that_holds_nothing_back, 9),
        (promotion_under_the_terms_of_before, 9),
        (answers_before_the_audit_reads, 12),
        (audit_by_a_replaced_replica, 5232),
    )
}
