"""Faults that tests plant into the replica and its surroundings, to prove that a simulated life's checks find
them.

A change of the simulation changes the life of each seed, so a fault may need another seed afterwards. Try the
seeds from 0 on: the first 100 show most of the faults.
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
from tests.harness.simulated_query import SimulatedCluster
from tests.harness.simulated_service import Service

Plant = Callable[[pytest.MonkeyPatch], None]


class Fault(NamedTuple):
    """A function that plants a fault, and the seed of a life that shows it."""

    plant: Plant
    seed: int


def as_of_without_the_end_of_the_outage(patch: pytest.MonkeyPatch) -> None:
    """A request from an outage counts as handled at its append time, not at the end of the outage."""

    def acted_ms(partition: Partition, record: Record, clock: Clock | None) -> int:
        if partition.has_ended:
            return 0
        return record.at_ms if clock is None else min(clock.time_ms, record.at_ms)

    patch.setattr(Partition, "acted_ms", acted_ms)


def as_of_without_attested_times(patch: pytest.MonkeyPatch) -> None:
    """The times in clock records do not count as times at which the replica has acted."""
    original = Partition.acted_ms

    def acted_ms(partition: Partition, record: Record, clock: Clock | None) -> int:
        return original(partition, record, clock) if clock is None else 0

    patch.setattr(Partition, "acted_ms", acted_ms)


def marker_before_the_fence(patch: pytest.MonkeyPatch) -> None:
    """A new owner appends the markers that end replicas' answers before it fences the requests topic."""
    original = Service.fence

    def fence(service: Service) -> None:
        service.end_earlier_replicas()
        original(service)

    patch.setattr(Service, "fence", fence)


def fence_that_ends_nothing(patch: pytest.MonkeyPatch) -> None:
    """A replica ignores the fence of a later owner."""
    patch.setattr(Partition, "has_ended", property(lambda _: False, lambda *_: None), raising=False)


def no_marker(patch: pytest.MonkeyPatch) -> None:
    """Answers of replaced replicas count."""
    patch.setattr(EarlyAnswers, "accepts", lambda *_: True)


def horizon_ignored(patch: pytest.MonkeyPatch) -> None:
    """A new owner takes 0 for the time up to which earlier replicas have answered."""
    original = outage.invalidate_early_answers
    patch.setattr(outage, "invalidate_early_answers", lambda *arguments: 0 * original(*arguments))


def outage_at_the_least_as_of(patch: pytest.MonkeyPatch) -> None:
    def wrong_max(first: Any, *others: Any, **default: Any) -> Any:
        return min(first or others[0], *others) if others else max(first, **default)

    patch.setattr(outage, "max", wrong_max, raising=False)


def seeded_without_later_outages(patch: pytest.MonkeyPatch) -> None:
    original = SimulatedCluster.seed_of

    def seed_of(cluster: SimulatedCluster, epochs: Any, outages: list[KnownOutage]) -> Any:
        seed = original(cluster, epochs, outages)
        return replace(seed, outages=[known for known in outages if known.from_batch <= seed.batch + 1])

    patch.setattr(SimulatedCluster, "seed_of", seed_of)


def configuration_of_the_seed_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(terms, "configs_of", lambda epochs, base: Configs(configs_of(epochs[-1:], base).first))


def outage_of_batches_not_planned_at_its_end(patch: pytest.MonkeyPatch) -> None:
    """An outage misses a batch that an earlier owner's driver plans just before its end."""
    original = Checkpoint.store_outage
    patch.setattr(Checkpoint, "store_outage", lambda self, after, until, _: original(self, after, until))


def merged_although_a_replica_has_passed_it(patch: pytest.MonkeyPatch) -> None:
    original = Checkpoint.store_outage

    def outages(self: Checkpoint, after_ms: int, until_ms: int, from_batch: int) -> list[KnownOutage]:
        record = self.record()
        kept = [known for known in record.outages if known.from_batch < from_batch]
        self._save(replace(record, outages=kept))
        return original(self, after_ms, until_ms, from_batch)

    patch.setattr(Checkpoint, "store_outage", outages)


def standby_that_holds_nothing_back(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(HeldRecords, "apply_until", lambda held, _: held.apply_all())


def promotion_under_the_terms_of_before(patch: pytest.MonkeyPatch) -> None:
    def change_terms(machine: StateMachine, terms: Any) -> None:
        for partition in machine.partitions.values():
            partition._terms = replace_epoch(partition._terms, terms.owner_epoch)

    patch.setattr(StateMachine, "change_terms", change_terms)


def replace_epoch(old: terms.Terms, owner_epoch: int) -> terms.Terms:
    return terms.Terms(old.layout, old.shards, old.configs, old.outages, old.skip, owner_epoch)


def answers_before_the_audit_reads(patch: pytest.MonkeyPatch) -> None:
    original = RequestsFollower.begin

    def begin(follower: RequestsFollower) -> None:
        original(follower)
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
