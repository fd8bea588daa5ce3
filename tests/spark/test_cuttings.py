"""The output is a function of the log alone: neither its cut into batches nor a crash changes it.

`--seeds 300` cuts the log in 300 ways.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain
from random import Random

import pytest
from pyspark.errors import StreamingQueryException

from state.config import CoordinatorConfig
from tests.spark import recorded_log
from tests.spark.harness import Bench, Written, make_operator
from tests.spark.log import LAYOUT, Record

CONFIG = CoordinatorConfig(group_initial_rebalance_delay_ms=3_000)
LOG_SEED = 923
LOG_LENGTH = 400
WORDS = (
    b"no heartbeat within",
    b"left the group",
    b"MemberReplaced",
    b"the coordinator made the assignment",
    b'"Stable"',
    b'"Empty"',
)
TRANSACTIONS = (b'"TO8"', b'"TO14"', b'"TO6"')  # held, ended, refused
BATCHES = 8
KILLS = 2
STATE_PARTITIONS = 3

Said = dict[str, dict[str, list[bytes]]]


def said_once(written: Iterable[Written]) -> Said:
    """Return the responses and events of each group without copies. Asserts that copies are
    byte-identical.
    """
    said: Said = {LAYOUT.responses_topic: {}, LAYOUT.events_topic: {}}
    first: dict[object, bytes] = {}
    for record in written:
        if record.topic not in said:
            continue
        assert record.value is not None
        content = record.content
        if record.topic == LAYOUT.responses_topic:
            name: object = content["request"]
        else:
            name = (content["group_id"], content["incarnation"], content["seq"])
        if name in first:
            assert first[name] == record.value, "a copy differs"
        else:
            first[name] = record.value
            said[record.topic].setdefault(content["group_id"], []).append(record.value)
    return said


def compacted(written: Iterable[Written], topic: str, field: str) -> dict[bytes | None, int]:
    """Return the content of a compacted topic: a field of the last record of each key."""
    last = {record.key: record for record in written if record.topic == topic}
    return {key: record.content[field] for key, record in last.items() if record.value is not None}


def kill_in_some(batches: int, seed: int) -> dict[int, list[float]]:
    """Batches in which the query dies, some of them twice: before, while or after its output is written."""
    random = Random(seed)
    chosen = random.sample(range(batches), KILLS)
    return {batch: random.choice([[1.0], [0.5], [1.0, 0.3], [0.0, 1.0]]) for batch in chosen}


def run_to_the_end(bench: Bench, batches: Iterable[Iterable[Record]], kills: int) -> None:
    for records in batches:
        bench.add_file(records)
    for _ in range(kills):
        with pytest.raises(StreamingQueryException, match="SinkFailure"):
            bench.run()
        bench.query = None
    bench.run()


def test_recorded_log_covers_every_kind_of_event() -> None:
    rows = recorded_log.record(LOG_SEED, LOG_LENGTH, CONFIG)
    partitions, attested_ms = recorded_log.with_clock(rows, LOG_SEED)
    assert all(len(records) > 100 for records in partitions)
    said = recorded_log.expected(rows, attested_ms, CONFIG)
    answers = b"".join(chain(*said[LAYOUT.responses_topic].values()))
    assert all(rule in answers for rule in TRANSACTIONS)
    history = said[LAYOUT.events_topic]
    assert len(history) == len(recorded_log.NAMES)
    counts = Counter(word for event in chain(*history.values()) for word in WORDS if word in event)
    assert len(counts) == len(WORDS), counts
    assert min(counts.values()) > 5, counts
    assert b"AppliedLate" not in b"".join(chain(*history.values())), "the clock records keep their word"


def test_log_cut_into_batches_with_kills_has_the_same_outcome(
    make_bench: Callable[..., Bench], campaign_seed: int
) -> None:
    rows = recorded_log.record(LOG_SEED, LOG_LENGTH, CONFIG)
    partitions, attested_ms = recorded_log.with_clock(rows, LOG_SEED)
    operator = make_operator(group_initial_rebalance_delay_ms=3_000)
    bench = make_bench(operator=operator, state_partitions=STATE_PARTITIONS)
    bench.failures = kill_in_some(BATCHES, campaign_seed)
    kills = sum(len(shares) for shares in bench.failures.values())
    run_to_the_end(bench, recorded_log.cut(partitions, BATCHES, campaign_seed), kills)
    assert not any(bench.failures.values()), "every kill happened"
    assert said_once(bench.written) == recorded_log.expected(rows, attested_ms, CONFIG)
    offsets, transactions = recorded_log.expected_compacted(rows, attested_ms, CONFIG)
    assert compacted(bench.written, LAYOUT.offsets_topic, "offset") == offsets
    assert compacted(bench.written, LAYOUT.transactions_topic, "partitions") == transactions
    assert bench.partitions_of_state == STATE_PARTITIONS
