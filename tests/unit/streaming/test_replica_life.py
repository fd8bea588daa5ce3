"""The great property of the replica: whatever happens to owners, queries and replicas, a client that has an
early answer has the query's answer.

A life has everything at once (`tests.harness.replicated_life`): random logs of all protocols, batches that
are cut, killed and run again, replicas that die, sleep, lag and are seeded anew, takeovers by new
coordinators and by standbys, starts of the query alone, old owners that wake up, other configurations, forged
clock records.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import codec
from checkpoints.checkpoint import Checkpoint
from clients.coordinator_client import decode_response
from kafka_why.contract.codec import unpack
from kafka_why.contract.early_answers import EarlyAnswers, as_of, is_from_query, marker_of
from kafka_why.contract.rocketmq.requests import NotifyConsumerIdsChanged
from streaming.query.handling import DecodedGroup
from streaming.query.operator import Operator
from streaming.replica.audit import request_of
from streaming.replica.follower import LEAD_MAX_BYTES, LEAD_MAX_S, Lead
from streaming.service.starts import config_epochs
from tests.harness.examples import examples
from tests.harness.life_faults import FAULTS, Fault
from tests.harness.replicated_life import Life, play
from tests.harness.simulated_query import Batch, Notes, Out, Store, run_batch


@dataclass
class Whole:
    """The outcome of a life's log in one batch, which knows all outages."""

    answers: dict[str, bytes]
    history: set[bytes]
    store: Store
    notes: Notes


def whole(life: Life) -> Whole:
    """Run the whole log in one batch."""
    notes, store = Notes(), Store()
    written: list[Out] = []
    for output in run_batch(life.layout, life.shards, notes.of(life.step), store, _one_batch(life)):
        written += output
    answers = (
        answer
        for out in written
        if out.topic == life.layout.responses_topic
        for answer in unpack(out.value or b"")
    )
    return Whole(
        _by_request(answers),
        {out.value or b"" for out in written if out.topic == life.layout.events_topic},
        store,
        notes,
    )


def _one_batch(life: Life) -> Batch:
    checkpoint = Checkpoint(life.files)
    identity, record = checkpoint.identity(), checkpoint.record()
    operator = Operator(life.layout, config_epochs(record.epochs, identity), tuple(record.outages))
    records = [
        record
        for number in range(life.layout.request_partitions)
        for record in life.broker.logs[life.layout.requests_topic, number]
    ]
    return Batch(
        records,
        life.stores[max(life.stores) - 1].next_watermark_ms,
        operator.configs(None),
        operator.skip(None),
        operator.known_outages(None),
    )


def _by_request(answers: Iterable[bytes]) -> dict[str, bytes]:
    """Answers by their requests. Asserts that no request is answered in two ways."""
    found: dict[str, bytes] = {}
    for answer in answers:
        request = request_of(answer)
        if request is not None:
            assert found.setdefault(request, answer) == answer, f"{request} is answered in two ways"
    return found


def check_query(life: Life, expected: Whole) -> None:
    """Check that the query has the outcome of the whole log, however often it dies, whoever runs it."""
    layout, logs = life.layout, life.broker.logs
    by_query = (
        answer
        for number in range(layout.reply_partitions)
        for record in logs[layout.responses_topic, number]
        if is_from_query(record.headers)
        for answer in unpack(record.value or b"")
    )
    assert _by_request(by_query) == expected.answers
    assert {record.value for record in logs[layout.events_topic, 0]} == expected.history
    batch = _one_batch(life)
    assert _at_rest(life, life.stores[max(life.stores)].entries(), batch) == _at_rest(
        life, expected.store.entries(), batch
    )


def _at_rest(life: Life, entries: Mapping[str, codec.StoredGroup], batch: Batch) -> dict[str, bytes]:
    """Return the groups, each with all that time brings: groups without requests have not met the last
    outages.
    """
    found = {}
    for group_id, entry in entries.items():
        group = DecodedGroup(group_id, entry, batch.configs, batch.outages, life.step)
        group.timeline.fire_until(batch.watermark_ms)
        if group.timeline.group is not None:
            found[group_id] = codec.encode_group(group.timeline.group, None).group
    return found


def _answers(value: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the answers of a record by their requests. Asserts that the others are notifications."""
    for answer in unpack(value):
        if (request := request_of(answer)) is None:
            assert isinstance(decode_response(answer), NotifyConsumerIdsChanged)
        else:
            yield request, answer


def check_early(life: Life, expected: Whole) -> None:
    """Check that an early answer that any reader takes is the query's, was given by the same step at the same
    time, and to a request that was handled at the same time.
    """
    topic = life.layout.responses_topic
    for number in range(life.layout.reply_partitions):
        log = life.broker.logs[topic, number]
        markers = [record for record in log if marker_of(record.headers)]
        for record in log:
            early = as_of(record.headers)
            if early is None:
                continue
            assert record.value is not None
            for request, answer in _answers(record.value):
                # The reader that has begun last before its request knows the fewest markers.
                begin = life.asked[request.partition("#")[0]][number]
                reader = EarlyAnswers()
                for marker in markers:
                    if begin <= marker.offset < record.offset:
                        reader.accepts(number, marker.headers)
                if not reader.accepts(number, record.headers):
                    life.count("answers that do not count")
                    continue
                life.count("early answers")
                notes = life.notes[early.replica]
                assert expected.answers.get(request) == answer, f"{request} was answered early in another way"
                assert notes.answered.get(request) == expected.notes.answered.get(request)
                if request in notes.handled_ms:
                    assert notes.handled_ms[request] == expected.notes.handled_ms[request]
                if request in notes.answered:
                    assert notes.answered[request][1] <= early.as_of_ms


def check(life: Life) -> None:
    """Check everything that is promised of a life."""
    expected = whole(life)
    check_query(life, expected)
    check_early(life, expected)
    assert not life.differences, life.differences[0]


# Each of these happens in some of so many lives.
LIVES = 40
HAPPENS = (
    "deposed query",
    "doubt",
    "early answers",
    "forged clock",
    "killed at its start",
    "promotion",
    "query again",
    "replica",
    "settings",
    "standby",
    "takeover",
)


@examples(15)
@given(st.integers(0, 2**32))
def test_early_answer_equals_the_querys_answer(seed: int) -> None:
    check(play(seed))


def test_random_replica_lives_reach_every_listed_event() -> None:
    happened: Counter[str] = Counter()
    for seed in range(LIVES):
        life = play(seed)
        check(life)
        happened.update(life.happened)
    assert set(HAPPENS) <= happened.keys()
    assert happened["early answers"] > 5 * LIVES


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_planted_fault_is_detected(fault: Fault) -> None:
    """Each fault has the seed of a life that shows it."""
    check(play(fault.seed))
    with pytest.MonkeyPatch.context() as patch:
        fault.plant(patch)
        with pytest.raises(AssertionError):
            check(play(fault.seed))


seconds = st.floats(0, LEAD_MAX_S * 3)
sizes = st.integers(0, LEAD_MAX_BYTES * 3)


@given(seconds, sizes)
def test_replica_lead_over_the_query_raises_an_alarm_at_half_limit(lead_s: float, size_bytes: int) -> None:
    lead = Lead(lead_s, size_bytes)
    assert bool(lead.why_silent()) == (lead_s > LEAD_MAX_S or size_bytes > LEAD_MAX_BYTES)
    assert (lead.alarm() is not None) == (lead_s > LEAD_MAX_S / 2 or size_bytes > LEAD_MAX_BYTES / 2)
