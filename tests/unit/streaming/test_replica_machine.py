"""The replica's state machine: when it answers, when it is in doubt, and that its answers are the query's."""

import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from kafka_why.contract.codec import clock_record, encode, pack, pack_key, slot_of, unpack
from state.config import ConfigChange, Configs, CoordinatorConfig
from state.protocol import Outage
from streaming.query.operator import ConfigEpoch, Operator
from streaming.replica.audit import request_of
from streaming.replica.state_machine import GAP_MAX_MS, InDoubt
from streaming.replica.terms import Terms
from tests.harness.operator_call import call, spark_state
from tests.harness.replica_log import CONFIG, OWNER, apply_all, machine, owned, terms
from tests.spark.log import LAYOUT, T0, Log, Record, heartbeat
from tests.unit.streaming.test_bad_records import BAD_RECORDS

ROOT = Path(__file__).parents[3]
LATER = terms(owner_epoch=OWNER + 1)
NOBODY = heartbeat("a", "nobody")
"""A request that is answered whatever the state. Groups a and b are in partition 0, d is in 1."""


def clock(log: Log, at_ms: int, attested_ms: int = 0, owner_epoch: int | None = OWNER) -> Record:
    return log.append(at_ms, None, clock_record(attested_ms, owner_epoch), 0)


def ask(log: Log, at_ms: int) -> Record:
    return log.append(at_ms, b"a", encode(NOBODY), 0)


# The owner.


@pytest.mark.parametrize(
    ("clocks", "answers"),
    [
        ([(0, OWNER)], 1),
        ([(-1_000, OWNER)], 1),
        ([(-1_001, OWNER)], 0),
        ([], 0),
        ([(0, None)], 0),
        ([(0, OWNER - 1)], 0),
        ([(0, OWNER), (0, None)], 1),
        ([(0, OWNER), (0, OWNER - 1)], 1),
    ],
)
def test_a_request_is_answered_within_a_second_of_a_clock_record_of_the_owner(
    clocks: Sequence[tuple[int, int | None]], answers: int
) -> None:
    log = Log()
    records = [clock(log, T0 + at_ms, owner_epoch=epoch) for at_ms, epoch in clocks]
    assert len(apply_all(machine(), [*records, ask(log, T0)])) == answers


def test_replica_answers_requests_of_the_outage_its_owner_ended() -> None:
    outage = Outage(T0, T0 + 50_000)
    log = Log()
    records = [ask(log, at_ms) for at_ms in (T0, T0 + 1, T0 + 50_000, T0 + 50_001)]
    replica = machine(terms(outages=[outage], ended_outage=outage))
    assert set(apply_all(replica, records)) == {records[1].id, records[2].id}
    assert apply_all(machine(terms(outages=[outage])), records) == {}


# Time.


@pytest.mark.parametrize("at_ms", [T0 + 9, T0 + 10])
def test_request_older_than_fired_deadlines_raises_a_doubt(at_ms: int) -> None:
    log = Log()
    with pytest.raises(InDoubt, match=f"record 0-1 was appended at {at_ms}, but .* attests {T0 + 10}"):
        apply_all(machine(), [clock(log, T0 + 20, T0 + 10), ask(log, at_ms)])
    log = Log()
    assert len(apply_all(machine(), [clock(log, T0 + 20, T0 + 10), ask(log, T0 + 11)])) == 1


@pytest.mark.parametrize(
    ("pause_ms", "outages", "is_doubt"),
    [
        (GAP_MAX_MS, [], False),
        (GAP_MAX_MS + 1, [], True),
        (GAP_MAX_MS + 1, [Outage(T0 + 1, T0 + 2_000)], False),
        (GAP_MAX_MS + 1, [Outage(T0 - 5_000, T0)], True),
        (GAP_MAX_MS + 1, [Outage(T0 + GAP_MAX_MS + 1, T0 + 90_000)], True),
    ],
    ids=["short", "long", "a known outage", "an earlier outage", "a later outage"],
)
def test_long_owner_silence_raises_a_doubt_about_an_unknown_outage(
    pause_ms: int, outages: Sequence[Outage], is_doubt: bool
) -> None:
    log = Log()
    replica = machine(terms(outages=outages))
    apply_all(replica, [clock(log, T0)])
    later = clock(log, T0 + pause_ms)
    if is_doubt:
        with pytest.raises(InDoubt, match=f"no clock record of the owner came for {pause_ms} ms"):
            apply_all(replica, [later])
    else:
        apply_all(replica, [later])


@pytest.mark.parametrize(
    ("changed", "is_doubt"),
    [
        (terms(outages=[Outage(T0 + 10, T0 + 90)], owner_epoch=OWNER + 1), False),
        (terms(outages=[Outage(T0 + 9, T0 + 90)], owner_epoch=OWNER + 1), True),
        (terms(config=CoordinatorConfig(), owner_epoch=OWNER + 1), True),
        (replace(LATER, configs=Configs(CONFIG, [ConfigChange(T0 + 10, CoordinatorConfig())])), False),
        (replace(LATER, configs=Configs(CONFIG, [ConfigChange(T0 + 9, CoordinatorConfig())])), True),
    ],
    ids=["outage of later", "outage of then", "another configuration", "change of later", "change of then"],
)
def test_new_terms_that_change_the_past_raise_a_doubt(changed: Terms, is_doubt: bool) -> None:
    log = Log()
    replica = machine()
    apply_all(replica, [clock(log, T0), ask(log, T0 + 10)])
    if is_doubt:
        with pytest.raises(InDoubt, match=f"the outages or settings until {T0 + 10} are not"):
            replica.change_terms(changed)
    else:
        replica.change_terms(changed)
        assert len(apply_all(replica, [clock(log, T0 + 91, 0, OWNER + 1), ask(log, T0 + 92)])) == 1


# The same answers as the query's. `test_replica_life.py` has all other records.


def test_replica_answers_refused_records_as_the_query_does() -> None:
    log = Log()
    bad = [log.append(T0, case.key, case.value, case.partition) for case in BAD_RECORDS.values()]
    records = [*bad, log.append(T0, pack_key(slot_of("a")), pack([encode(NOBODY), b"{"]), 0), ask(log, T0)]
    under = terms(skip=[records[-1].id])
    by_partition = [owned([r for r in records if r.partition == number]) for number in (0, 1)]
    found = apply_all(machine(under), [record for rows in by_partition for record in rows])
    epochs = (ConfigEpoch(0, under.configs.first, under.skip),)
    frames = call(records, spark_state(), operator=Operator(under.layout, epochs, shards=under.shards))
    rows = (zip(frame["topic"], frame["value"], strict=True) for frame in frames)
    values = [value for topic, value in chain.from_iterable(rows) if topic == LAYOUT.responses_topic]
    answers = [answer for value in values for answer in unpack(value)]
    assert found == {request_of(answer): answer for answer in answers}
    assert len(found) > sum(case.error is not None for case in BAD_RECORDS.values())
    assert records[-1].id not in found


def test_no_answer_depends_on_the_order_of_a_set() -> None:
    """The query's workers and the replica are processes with hash seeds of their own."""
    program = (
        "from hashlib import sha256; "
        "from tests.harness.replica_log import answers_of, log_of; "
        "print(sha256(b''.join(answers_of(log_of(923, 300)))).hexdigest())"
    )
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            cwd=ROOT,
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1
