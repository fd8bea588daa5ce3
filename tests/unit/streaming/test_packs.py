"""Packs, bad records and transactions in a batch."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import pandas as pd
import pytest

from kafka_why.contract.codec import (
    PACK_PREFIX,
    AnyRequest,
    Reason,
    clock_record,
    encode,
    is_pack,
    pack,
    pack_key,
    slot_of,
    unpack,
)
from kafka_why.contract.kafka.history import Offset
from kafka_why.contract.kafka.requests import TopicMetadata
from kafka_why.contract.messages import ErrorCode
from kafka_why.partitioner import partition_of
from state.kafka.classic_group import ClassicGroup
from state.kafka.group import PendingOffsets
from state.kafka.offsets import precede_other_log
from streaming.query import output as output_module
from streaming.query.admission import MAX_SHARDS
from streaming.query.operator import ConfigEpoch, Operator
from tests.harness.operator_call import CONFIG, OPERATOR, call, contents, spark_state
from tests.spark.log import LAYOUT, T0, Log, Record, heartbeat, join, marker, txn_commit

PARTITION = partition_of("g", LAYOUT.request_partitions)
SLOT = slot_of("g")
STRANGER = next(
    name
    for name in (f"stranger-{n}" for n in range(10_000))
    if slot_of(name) == SLOT and partition_of(name, LAYOUT.request_partitions) != PARTITION
)
BEAT = heartbeat("g", "m")


def packed(log: Log, *requests: AnyRequest | bytes, key: bytes = pack_key(SLOT)) -> Record:
    """Append a pack of requests of group g's slot. Bytes are in it unchanged."""
    messages = [request if isinstance(request, bytes) else encode(request) for request in requests]
    return log.append(T0, key, pack(messages), PARTITION)


def answer_records(frames: Sequence[pd.DataFrame]) -> list[bytes]:
    return [
        value
        for frame in frames
        for topic, value in zip(frame["topic"], frame["value"], strict=True)
        if topic == LAYOUT.responses_topic
    ]


def answers(frames: Sequence[pd.DataFrame]) -> list[dict[str, Any]]:
    """Return all answers, packed or not, in their order."""
    return [json.loads(answer) for value in answer_records(frames) for answer in unpack(value)]


def test_packed_requests_get_packed_answers_and_single_ones_single_answers() -> None:
    log = Log()
    beats = [heartbeat("g", f"m{n}") for n in range(3)]
    packs = [packed(log, *beats), packed(log, *beats)]
    single = log.request(T0, heartbeat("g", "m3"))
    records = answer_records(call([*packs, single, packed(log, *beats)], spark_state()))
    assert [(is_pack(value), len(unpack(value))) for value in records] == [(True, 6), (False, 1), (True, 3)]
    assert json.loads(records[1])["request"] == single.id


def test_packed_answers_over_the_limit_continue_in_another_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_module, "ANSWERS_MAX_BYTES", 400)
    beats = [heartbeat("g", f"m{n}") for n in range(7)]
    frames = call([packed(Log(), *beats)], spark_state())
    sizes = [len(value) for value in answer_records(frames)]
    assert len(sizes) > 1
    assert max(sizes) <= 400 + len(PACK_PREFIX) + len(beats), "a large response has a record of its own"
    assert [answer["request"][-2:] for answer in answers(frames)] == [f"#{n}" for n in range(7)]


def skipping(*records: str) -> Operator:
    ids = frozenset(f"{LAYOUT.requests_topic}-{PARTITION}-{record}" for record in records)
    return replace(OPERATOR, epochs=(ConfigEpoch(0, CONFIG, ids),))


REFUSED = ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize(
    ("requests", "operator", "codes", "letters"),
    [
        (
            [BEAT, b"garbage", encode(BEAT)[:-1] + b',"version":"x"}', BEAT],
            OPERATOR,
            [ErrorCode.UNKNOWN_MEMBER_ID, REFUSED, ErrorCode.UNKNOWN_MEMBER_ID],
            [("INVALID_REQUEST", "0#1", False), ("INVALID_REQUEST", "0#2", True)],
        ),
        ([join("g"), join(STRANGER)], OPERATOR, [0, REFUSED], [("WRONG_PARTITION", "0#1", True)]),
        ([BEAT, BEAT], skipping("0#0"), [ErrorCode.UNKNOWN_MEMBER_ID], [("SKIPPED", "0#0", False)]),
        ([BEAT, BEAT], skipping("0"), [], [("SKIPPED", "0", False)]),
        (
            [BEAT] * 5,
            replace(OPERATOR, layout=replace(LAYOUT, request_max_bytes=500)),
            [],
            [("REQUEST_TOO_LARGE", "0", False)],
        ),
        # The requests of a pack would belong to several states.
        ([BEAT], replace(OPERATOR, shards=MAX_SHARDS), [REFUSED], [("INVALID_REQUEST", "0#0", True)]),
    ],
    ids=["malformed", "of another partition", "skipped", "all skipped", "too large", "a state a group"],
)
def test_invalid_packed_request_is_refused_alone_unless_the_pack_is_unreadable(
    requests: list[AnyRequest | bytes],
    operator: Operator,
    codes: list[int],
    letters: list[tuple[str, str, bool]],
) -> None:
    frames = call([packed(Log(), *requests)], spark_state(), operator=operator)
    assert [answer["error_code"] for answer in answers(frames)] == codes
    found = contents(frames, LAYOUT.dead_letters_topic)
    prefix = f"{LAYOUT.requests_topic}-{PARTITION}-"
    assert [(at["reason"], at["request"].removeprefix(prefix), at["answered"]) for at in found] == letters


@pytest.mark.parametrize("key", [b"", b"x", b"g", b"\xff", pack_key(SLOT + 1), b" %d" % SLOT])
def test_packed_requests_under_the_key_of_another_slot_are_refused(key: bytes) -> None:
    frames = call([packed(Log(), join("g"), join("g"), key=key)], spark_state())
    assert [answer["error_code"] for answer in answers(frames)] == [REFUSED] * 2
    assert {letter["reason"] for letter in contents(frames, LAYOUT.dead_letters_topic)} == {"KEY_MISMATCH"}


MIB = 1024 * 1024
RIGHT = partition_of("x", LAYOUT.request_partitions)
NEST = 200_000
INVALID, REFUSED_CODE = Reason.INVALID_REQUEST, ErrorCode.INVALID_REQUEST
OTHER_VERSION = Reason.UNSUPPORTED_VERSION, ErrorCode.UNSUPPORTED_VERSION


class Case(NamedTuple):
    """A bad record, the reason of its refusal, and the sender's error, None if no response is possible."""

    key: bytes | None
    value: bytes | None
    reason: Reason
    error: ErrorCode | None
    partition: int = RIGHT


def changed(**fields: Any) -> bytes:
    """Return a heartbeat of group x with changed fields. A field that is None is left out."""
    request = json.loads(encode(heartbeat("x", "m"))) | fields
    return json.dumps({name: value for name, value in request.items() if value is not None}).encode()


BAD_RECORDS = {
    "not JSON": Case(b"x", b"hello", INVALID, None),
    "not JSON, and no key": Case(None, b"hello", INVALID, None),
    "nothing": Case(b"x", b"", INVALID, None),
    "null": Case(b"x", None, INVALID, None),
    "neither key nor value": Case(None, None, INVALID, None),
    "no UTF-8": Case(b"x", changed(member_id="M").replace(b"M", b"\xff"), INVALID, REFUSED_CODE),
    "half a surrogate pair": Case(b"x", changed(member_id="\ud800"), INVALID, None),
    "nested too deep": Case(b"x", changed(z=0)[:-2] + b"[" * NEST + b"]" * NEST + b"}", INVALID, None),
    "a list": Case(b"x", b"[]", INVALID, None),
    "a wrong type": Case(b"x", changed(generation_id="one"), INVALID, REFUSED_CODE),
    "a number out of range": Case(b"x", changed(generation_id=2**31), INVALID, REFUSED_CODE),
    "an endless number": Case(b"x", changed(version=10**4_200), *OTHER_VERSION),
    "a missing field": Case(b"x", changed(member_id=None), INVALID, REFUSED_CODE),
    "an unknown type": Case(b"x", changed(type="OffsetCommit"), INVALID, REFUSED_CODE),
    "no type": Case(b"x", changed(type=None), INVALID, REFUSED_CODE),
    "no correlation id": Case(b"x", changed(correlation_id=None), INVALID, None),
    "no reply partition": Case(b"x", changed(reply_partition=None), INVALID, None),
    "another record version": Case(b"x", changed(version=2), *OTHER_VERSION),
    "no key": Case(None, changed(), Reason.KEY_MISMATCH, REFUSED_CODE),
    "another key": Case(b"y", changed(), Reason.KEY_MISMATCH, REFUSED_CODE),
    "a key that is no UTF-8": Case(b"\xff\xfe", changed(), Reason.KEY_MISMATCH, REFUSED_CODE),
    "a key of a MiB": Case(b"\xff" * MIB, changed(), Reason.KEY_MISMATCH, REFUSED_CODE),
    "another key, and nobody waits": Case(
        b"y", encode(TopicMetadata(group_id="x", topics={"t": None})), Reason.KEY_MISMATCH, None
    ),
    "another partition": Case(b"x", changed(), Reason.WRONG_PARTITION, REFUSED_CODE, 1 - RIGHT),
    "a reply partition too high": Case(
        b"x", changed(reply_partition=LAYOUT.reply_partitions), Reason.NO_SUCH_REPLY_PARTITION, None
    ),
    "a negative reply partition": Case(
        b"x", changed(reply_partition=-1), Reason.NO_SUCH_REPLY_PARTITION, None
    ),
    "no request, and no such reply partition": Case(
        b"x", changed(type="?", reply_partition=99), INVALID, None
    ),
    "too large": Case(
        b"x",
        changed(member_id="m" * LAYOUT.request_max_bytes),
        Reason.REQUEST_TOO_LARGE,
        ErrorCode.UNKNOWN_SERVER_ERROR,
    ),
    "a closed connection without its name": Case(
        b"x", b'{"type":"CONNECTION_CLOSED","group_id":"x"}', INVALID, None
    ),
    "a pack without requests": Case(pack_key(slot_of("x")), PACK_PREFIX, INVALID, None),
    "a clock record with a key": Case(b"x", clock_record(T0 * 2), INVALID, None),
    "a clock record without a time": Case(None, b'{"type":"Clock"}', INVALID, None),
    "a clock record before all time": Case(None, b'{"type":"Clock","time_ms":-1}', INVALID, None),
    "a clock record after all time": Case(None, clock_record(10**15), INVALID, None),
    "a clock record with more": Case(None, b'{"type":"Clock","time_ms":1,"a":2}', INVALID, None),
}


def test_bad_record_is_dead_lettered_and_its_sender_gets_an_error() -> None:
    log = Log()
    good, member_id = log.stable_member(T0, "g")
    bad = {name: log.append(T0 + 1, c.key, c.value, c.partition) for name, c in BAD_RECORDS.items()}
    last = log.request(T0 + 2, heartbeat("g", member_id))
    frames = call([*good, *bad.values(), last], spark_state())
    letters = {
        letter["request"].partition("#")[0]: letter for letter in contents(frames, LAYOUT.dead_letters_topic)
    }
    codes = {answer["request"]: answer["error_code"] for answer in contents(frames, LAYOUT.responses_topic)}
    found = {
        name: (letters[r.id]["reason"], codes.pop(r.id, None), letters[r.id]["answered"])
        for name, r in bad.items()
    }
    assert found == {n: (case.reason, case.error, case.error is not None) for n, case in BAD_RECORDS.items()}
    assert len(letters) == len(BAD_RECORDS)
    assert codes == dict.fromkeys((record.id for record in (*good, last)), ErrorCode.NONE)
    assert {event["group_id"] for event in contents(frames, LAYOUT.events_topic)} == {"g"}


def test_transaction_begun_and_ended_in_one_call_writes_only_a_tombstone() -> None:
    log = Log()
    records = [log.request(T0, txn_commit("g", 5)), log.request(T0 + 1, marker("g", committed=False))]
    assert contents(call(records, spark_state()), LAYOUT.transactions_topic) == [None]


def offset_at(position: tuple[int, int]) -> Offset:
    return Offset(5, -1, "", T0, None, None, position)


def test_positions_of_moved_offsets_precede_the_new_log_in_their_order() -> None:
    group = ClassicGroup("g", "i")
    group.offsets = {"t": {0: offset_at((900, 3)), 1: offset_at((-1, 0))}, "u": {0: offset_at((900, 4))}}
    held = PendingOffsets("r", (950, 0), T0, "t-1", 4001, 7, 2, 0, 40, None, {"t": {0: offset_at((950, 0))}})
    group.pending = [held]
    precede_other_log(group)
    assert [o.position for of in group.offsets.values() for o in of.values()] == [(-3, 0), (-4, 0), (-2, 0)]
    (moved,) = group.pending
    assert (moved.position, moved.offsets["t"][0].position, moved.request) == ((-1, 0), (-1, 0), "r")
