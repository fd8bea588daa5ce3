"""A bad record in the requests topic is dead-lettered, its sender is told, and no other group is harmed."""

import json
from typing import Any, NamedTuple

from kafka_why.contract.codec import PACK_PREFIX, Reason, clock_record, encode, pack_key, slot_of
from kafka_why.contract.kafka.requests import TopicMetadata
from kafka_why.contract.messages import ErrorCode
from kafka_why.partitioner import partition_of
from tests.harness.operator_call import call, contents, spark_state
from tests.spark.log import LAYOUT, T0, Log, heartbeat

MIB = 1024 * 1024
RIGHT = partition_of("x", LAYOUT.request_partitions)
NEST = 200_000
INVALID, REFUSED = Reason.INVALID_REQUEST, ErrorCode.INVALID_REQUEST
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
    "no UTF-8": Case(b"x", changed(member_id="M").replace(b"M", b"\xff"), INVALID, REFUSED),
    "half a surrogate pair": Case(b"x", changed(member_id="\ud800"), INVALID, None),
    "nested too deep": Case(b"x", changed(z=0)[:-2] + b"[" * NEST + b"]" * NEST + b"}", INVALID, None),
    "a list": Case(b"x", b"[]", INVALID, None),
    "a wrong type": Case(b"x", changed(generation_id="one"), INVALID, REFUSED),
    "a number out of range": Case(b"x", changed(generation_id=2**31), INVALID, REFUSED),
    "an endless number": Case(b"x", changed(version=10**4_200), *OTHER_VERSION),
    "a missing field": Case(b"x", changed(member_id=None), INVALID, REFUSED),
    "an unknown type": Case(b"x", changed(type="OffsetCommit"), INVALID, REFUSED),
    "no type": Case(b"x", changed(type=None), INVALID, REFUSED),
    "no correlation id": Case(b"x", changed(correlation_id=None), INVALID, None),
    "no reply partition": Case(b"x", changed(reply_partition=None), INVALID, None),
    "another record version": Case(b"x", changed(version=2), *OTHER_VERSION),
    "no key": Case(None, changed(), Reason.KEY_MISMATCH, REFUSED),
    "another key": Case(b"y", changed(), Reason.KEY_MISMATCH, REFUSED),
    "a key that is no UTF-8": Case(b"\xff\xfe", changed(), Reason.KEY_MISMATCH, REFUSED),
    "a key of a MiB": Case(b"\xff" * MIB, changed(), Reason.KEY_MISMATCH, REFUSED),
    "another key, and nobody waits": Case(
        b"y", encode(TopicMetadata(group_id="x", topics={"t": None})), Reason.KEY_MISMATCH, None
    ),
    "another partition": Case(b"x", changed(), Reason.WRONG_PARTITION, REFUSED, 1 - RIGHT),
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
