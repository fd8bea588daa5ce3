"""The replica's state machine: when it answers, when it is in doubt, and that its answers are the query's."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import msgspec
import pytest

from checkpoints import codec
from checkpoints.codec import ShardRow
from checkpoints.metadata import Epoch, KnownOutage
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.codec import clock_record, encode, pack, pack_key, slot_of, unpack
from kafka_why.contract.early_answers import ReplicaId
from kafka_why.contract.service import ReplicaPhase
from state.config import ConfigChange, Configs, CoordinatorConfig
from state.dispatch import step
from state.kafka.classic_group import ClassicGroup
from state.protocol import Outage
from streaming.query.handling import DecodedGroup
from streaming.query.operator import ConfigEpoch, Operator
from streaming.replica.__main__ import write_traceback
from streaming.replica.audit import AnswerDifference, request_of
from streaming.replica.groups import DecodedLimits, ReplicaGroups
from streaming.replica.log_watch import Loss
from streaming.replica.state_machine import GAP_MAX_MS, InDoubt
from streaming.replica.state_machine import Record as LogRecord
from streaming.replica.terms import (
    BatchCommitted,
    PendingChanges,
    PromoteReplica,
    ReplicaReport,
    ReplicaSeed,
    StartReplica,
    Terms,
    decode_command,
    decode_report,
    decode_start,
    encode_line,
    take_seed,
    write_seed,
)
from tests.harness.coordinated_log import (
    CONFIG,
    IDENTITY,
    OWNER,
    apply_all,
    machine,
    terms,
    with_clock_records,
)
from tests.harness.operator_call import call, spark_state
from tests.spark.log import LAYOUT, T0, Log, Record, heartbeat
from tests.unit.streaming.test_packs import BAD_RECORDS

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
def test_replica_answers_only_within_a_second_of_an_owners_clock_record(
    clocks: Sequence[tuple[int, int | None]], answers: int
) -> None:
    log = Log()
    records = [clock(log, T0 + at_ms, owner_epoch=epoch) for at_ms, epoch in clocks]
    assert len(apply_all(machine(), [*records, ask(log, T0)])) == answers


def test_replica_answers_requests_from_the_outage_its_owner_ended() -> None:
    outage = Outage(T0, T0 + 50_000)
    log = Log()
    records = [ask(log, at_ms) for at_ms in (T0, T0 + 1, T0 + 50_000, T0 + 50_001)]
    replica = machine(terms(outages=[outage], ended_outage=outage))
    assert set(apply_all(replica, records)) == {records[1].id, records[2].id}
    assert apply_all(machine(terms(outages=[outage])), records) == {}


# Time.


@pytest.mark.parametrize("at_ms", [T0 + 9, T0 + 10])
def test_replica_stops_in_doubt_at_a_request_older_than_attested_time(at_ms: int) -> None:
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
def test_replica_stops_in_doubt_after_an_unexplained_owner_silence(
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
def test_replica_stops_in_doubt_if_past_outages_or_settings_change(changed: Terms, is_doubt: bool) -> None:
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
    by_partition = [with_clock_records([r for r in records if r.partition == number]) for number in (0, 1)]
    found = apply_all(machine(under), [record for rows in by_partition for record in rows])
    epochs = (ConfigEpoch(0, under.configs.first, under.skip),)
    frames = call(records, spark_state(), operator=Operator(under.layout, epochs, shards=under.shards))
    rows = (zip(frame["topic"], frame["value"], strict=True) for frame in frames)
    values = [value for topic, value in chain.from_iterable(rows) if topic == LAYOUT.responses_topic]
    answers = [answer for value in values for answer in unpack(value)]
    assert found == {request_of(answer): answer for answer in answers}
    assert len(found) > sum(case.error is not None for case in BAD_RECORDS.values())
    assert records[-1].id not in found


def test_answers_do_not_depend_on_the_hash_seed() -> None:
    """The query's workers and the replica are processes with hash seeds of their own."""
    program = (
        "from hashlib import sha256; "
        "from tests.harness.coordinated_log import answers_of, log_of; "
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


SETTINGS = CONFIG.settings()
FIRST = Epoch(0, SETTINGS, [], "1")
SECOND = Epoch(3, {**SETTINGS, "group.max.size": 5}, ["requests-0-7"], "1", 1_000)
THIRD = Epoch(4, {**SETTINGS, "group.max.size": 6}, ["requests-0-7"], "1", 9_000)
OUTAGES = [KnownOutage(2, Outage(100, 900)), KnownOutage(4, Outage(2_000, 9_000))]
START = StartReplica(
    client_config=ClientConfig("one:9092,two:9092", {"sasl.jaas.config": 'a "secret"\n'}),
    layout=LAYOUT,
    replica=ReplicaId(7, 3),
    seed="/tmp/a seed",
)
PROMOTE = PromoteReplica(
    replica=ReplicaId(8, 1), epochs=[FIRST, SECOND, THIRD], outages=OUTAGES, handled={0: 5}
)
REPORT = ReplicaReport(
    phase=ReplicaPhase.ENDED,
    reason="a line\nand another",
    as_of_ms=T0,
    applied={0: 5, 11: 2**40},
    lag_records=3,
    lag_ms=70,
    answers=9,
    compared=8,
    groups=2,
    loss=Loss(reason="requests[0] 3 to 4"),
    difference=AnswerDifference("requests-0-7", b"\xff\n", None),
)
MESSAGES: list[tuple[msgspec.Struct, Callable[[bytes], msgspec.Struct]]] = [
    (START, decode_start),
    (PROMOTE, decode_command),
    (BatchCommitted(ends={0: 5, 11: 2**40}, watermark_ms=T0), decode_command),
    (REPORT, decode_report),
    (ReplicaReport(phase=ReplicaPhase.SEEDING), decode_report),
    (PendingChanges(records=[(b'["g",1]', b"\xff\n"), (b"key", None)]), decode_report),
]


@pytest.mark.parametrize(("message", "read"), MESSAGES, ids=lambda value: type(value).__name__)
def test_replica_message_is_one_line_and_round_trips(
    message: StartReplica | PromoteReplica | BatchCommitted | ReplicaReport | PendingChanges,
    read: Callable[[bytes], msgspec.Struct],
) -> None:
    written = encode_line(message)
    assert written.endswith(b"\n")
    assert written.count(b"\n") == 1
    assert read(written) == message
    with pytest.raises(msgspec.DecodeError):
        read(written[:-3])


def seed() -> ReplicaSeed:
    log, state = Log(), spark_state()
    for name in ("a", "b"):
        call(log.stable_member(T0, name)[0], state)
        state = spark_state(tuple(state.get))
    return ReplicaSeed(
        identity=IDENTITY,
        batch=4,
        ends={0: 17, 1: 3},
        epochs=[FIRST, SECOND],
        outages=OUTAGES[:1],
        rows=[ShardRow('{"shard":0}', *state.get)],
    )


def test_seed_file_is_read_once_and_only_by_its_owner(tmp_path: Path) -> None:
    written = seed()
    path = write_seed(tmp_path, written)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path != write_seed(tmp_path, written)
    taken = take_seed(path)
    assert taken == written
    assert dict(taken.groups()) == dict(written.groups())
    assert set(dict(taken.groups())) == {"a", "b"}
    assert not path.exists()


def test_replica_traceback_on_a_terminal_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise RuntimeError("group a\x1b[2J\x9b\u202e")
    except RuntimeError:
        write_traceback()
    told = capsys.readouterr().err
    assert told.endswith("RuntimeError: group a\\x1b[2J\\x9b\\u202e\n")
    assert told.replace("\n", "").isprintable()


NAMES = ("a", "b", "c", "d")


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_least_recently_used_groups_over_the_limit_are_encoded(kept: int) -> None:
    woken = []

    def decode(group_id: str, entry: codec.StoredGroup | None) -> DecodedGroup:
        woken.append(group_id)
        return DecodedGroup(group_id, entry, Configs(CONFIG), (), step)

    entries = {name: codec.encode_group(ClassicGroup(name, "requests-0-0"), None) for name in NAMES}
    group_bytes = decode("a", entries["a"]).timeline.memory_bytes
    woken.clear()
    groups = ReplicaGroups(entries, decode, limits=DecodedLimits(kept * group_bytes, min_groups=1))
    for name in (*NAMES, *reversed(NAMES)):
        groups.decoded(name)
    assert woken == [*NAMES, *reversed(NAMES[:-kept])]
    assert len(groups) == len(NAMES)


@pytest.mark.parametrize("max_bytes", [0, 2**30])
def test_postponed_deadline_is_rescheduled_when_the_earlier_one_is_due(max_bytes: int) -> None:
    """A session of 10 s is prolonged after 5 s. Each record comes behind a clock record of 1 ms before."""
    log, replica = Log(), machine(limits=DecodedLimits(max_bytes, min_groups=1))
    records, member_id = log.stable_member(T0, "a", session_ms=10_000)
    records.append(log.request(T0 + 5_000, heartbeat("a", member_id)))
    records += [log.request(T0 + at_ms, heartbeat("b", "nobody")) for at_ms in (10_001, 15_000, 15_001)]
    has_member = []
    for record in with_clock_records(records):
        replica.apply(LogRecord(*record))
        group = replica.partitions[record.partition].groups.decoded("a").timeline.group
        if record.key == b"b":
            assert isinstance(group, ClassicGroup)
            has_member.append(member_id in group.members)
    assert has_member == [True, True, False]
