"""What the service and its replica tell each other, and the seed: everything is read as it was written."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from checkpoints.codec import ShardRow
from checkpoints.metadata import Epoch, KnownOutage
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.early_answers import ReplicaId
from kafka_why.contract.service import ReplicaPhase
from state.protocol import Outage
from streaming.replica.__main__ import write_traceback
from streaming.replica.audit import AnswerDifference
from streaming.replica.log_watch import Loss
from streaming.replica.terms import (
    BatchCommitted,
    PendingChanges,
    PromoteReplica,
    ReplicaReport,
    ReplicaSeed,
    StartReplica,
    decode_command,
    decode_report,
    decode_start,
    encode_line,
    take_seed,
    write_seed,
)
from tests.harness.operator_call import call, spark_state
from tests.harness.replica_log import CONFIG, IDENTITY
from tests.spark.log import LAYOUT, T0, Log

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


def test_a_traceback_for_a_terminal_has_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    try:
        raise RuntimeError("group a\x1b[2J\x9b\u202e")
    except RuntimeError:
        write_traceback()
    told = capsys.readouterr().err
    assert told.endswith("RuntimeError: group a\\x1b[2J\\x9b\\u202e\n")
    assert told.replace("\n", "").isprintable()
