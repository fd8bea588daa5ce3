"""The replica's state machine beside the real query: one log, the same answers."""

from collections.abc import Callable

import pytest

from streaming.replica.state_machine import Record
from tests.harness.replica_log import WITH_DELAY, answers_in, log_of, machine, terms
from tests.spark import recorded_log
from tests.spark.harness import Bench, make_operator
from tests.spark.log import LAYOUT
from tests.spark.test_cuttings import LOG_LENGTH, LOG_SEED, kill_in_some, run_to_the_end, said_once

BATCHES = 6


@pytest.mark.parametrize(("seed", "state_partitions"), [(4, 1), (5, 3)])
def test_the_replica_gives_every_answer_of_the_query(
    make_bench: Callable[..., Bench], seed: int, state_partitions: int
) -> None:
    """However the query's batches are cut and killed. The owner's clock records are so near to each request
    that the replica is never silent.
    """
    partitions = log_of(LOG_SEED, LOG_LENGTH)
    replica = machine(terms(config=WITH_DELAY), awake_max=1)
    early: dict[str, bytes] = {}
    for records in partitions:
        for record in records:
            replica.apply(Record(*record))
            early |= answers_in(replica.answers.drain())
    bench = make_bench(
        operator=make_operator(group_initial_rebalance_delay_ms=3_000), state_partitions=state_partitions
    )
    bench.failures = kill_in_some(BATCHES, seed)
    kills = sum(len(shares) for shares in bench.failures.values())
    run_to_the_end(bench, recorded_log.cut(partitions, BATCHES, seed), kills)
    said = said_once(bench.written)[LAYOUT.responses_topic]
    by_query = [answer for answers in said.values() for answer in answers]
    assert len(early) > LOG_LENGTH / 2
    assert sorted(early.values()) == sorted(by_query)
