"""Logs for a replica's state machine, and what it answers."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from checkpoints.codec import ShardRow
from checkpoints.metadata import Epoch, Identity
from kafka_why.contract.codec import clock_record, is_clock_record, unpack
from state.config import Configs, CoordinatorConfig
from state.dispatch import step as step_of_both
from state.protocol import Outage
from state.timeline import StepFunction
from streaming.query.admission import DEFAULT_SHARDS
from streaming.replica.answers import EarlyRecord
from streaming.replica.audit import request_of
from streaming.replica.groups import DECODED_MAX
from streaming.replica.state_machine import GAP_MAX_MS, StateMachine
from streaming.replica.state_machine import Record as LogRecord
from streaming.replica.terms import ReplicaSeed, Terms
from tests.spark import recorded_log
from tests.spark.log import LAYOUT, NAMESPACE, Record

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
    """Return a seed with these rows of the state, at the beginning of the log."""
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
    step: StepFunction = step_of_both,
    decoded_max: int = DECODED_MAX,
    rows: Iterable[tuple[int, bytes]] = (),
) -> StateMachine:
    """Return a state machine that may answer."""
    made = StateMachine(under or terms(), seed(rows), step=step, decoded_max=decoded_max)
    made.is_permitted = True
    return made


def apply_all(machine: StateMachine, records: Iterable[Record]) -> dict[str, bytes]:
    """Take these records. Return the answers by their requests."""
    for record in records:
        machine.apply(LogRecord(*record))
    return answers_in(machine.answers.drain())


def answers_in(records: Iterable[EarlyRecord]) -> dict[str, bytes]:
    """Return the answers by their requests. Asserts that each record has those that it says."""
    found: dict[str, bytes] = {}
    for record in records:
        values = {request_of(value): value for value in unpack(record.value)}
        assert values == record.answers
        assert not found.keys() & record.answers.keys()
        found |= record.answers
    return found


def owned(records: Iterable[Record], owner_epoch: int = OWNER) -> Iterator[Record]:
    """Yield the records of one partition in the order of time, each just behind a clock record of the
    owner.
    """
    seen_ms: int | None = None
    clocks = 0
    for record in records:
        if is_clock_record(record.key, record.value):
            continue
        first_ms = record.at_ms if seen_ms is None else seen_ms + GAP_MAX_MS
        for at_ms in (*range(first_ms, record.at_ms, GAP_MAX_MS), record.at_ms):
            value = clock_record(at_ms - 1, owner_epoch)
            yield Record(record.partition, recorded_log.CLOCK_OFFSETS + clocks, at_ms, None, value)
            clocks += 1
        seen_ms = record.at_ms
        yield record


def answers_of(partitions: Iterable[Iterable[Record]]) -> list[bytes]:
    """Return what the replica appends, record by record."""
    replica = machine(terms(config=WITH_DELAY))
    appended = []
    for records in partitions:
        for record in records:
            replica.apply(LogRecord(*record))
            appended += [early.value for early in replica.answers.drain()]
    return appended


def log_of(seed: int, length: int = 120) -> list[list[Record]]:
    """Return a random log by partitions."""
    rows = recorded_log.record(seed, length, WITH_DELAY)
    return [list(owned(recorded_log.records_of(rows, number))) for number in range(LAYOUT.request_partitions)]
