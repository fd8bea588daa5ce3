"""Whatever record is in the requests topic: the query continues, no record vanishes, other groups are
unharmed.
"""

import json
from collections.abc import Callable
from typing import Any, NamedTuple

from records.codec import Reason, clock_record, encode
from records.partitioner import partition_of
from state.errors import ErrorCode
from tests.spark.harness import Bench, Written, answers, dead_letters, events, make_operator, of_topic
from tests.spark.log import LAYOUT, T0, Log, Record, heartbeat, join, sync

INT32_MAX = 2**31 - 1
MIB = 1024 * 1024
RIGHT = partition_of("x", LAYOUT.request_partitions)
NEST = 200_000


class Case(NamedTuple):
    """A bad record, the reason of its refusal, and the sender's error, None if no response is possible."""

    key: bytes | None
    value: bytes | None
    reason: Reason
    error: ErrorCode | None
    partition: int = RIGHT


def changed(**fields: Any) -> bytes:
    """A heartbeat of group x with changed fields. A field that is None is left out."""
    request = json.loads(encode(heartbeat("x", "m"))) | fields
    return json.dumps({name: value for name, value in request.items() if value is not None}).encode()


INVALID = Reason.INVALID_REQUEST
REFUSED = ErrorCode.INVALID_REQUEST
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
    "an endless number": Case(
        b"x", changed(version=10**4_200), Reason.UNSUPPORTED_VERSION, ErrorCode.UNSUPPORTED_VERSION
    ),
    "a missing field": Case(b"x", changed(member_id=None), INVALID, REFUSED),
    "an unknown type": Case(b"x", changed(type="OffsetCommit"), INVALID, REFUSED),
    "no type": Case(b"x", changed(type=None), INVALID, REFUSED),
    "no correlation id": Case(b"x", changed(correlation_id=None), INVALID, None),
    "no reply partition": Case(b"x", changed(reply_partition=None), INVALID, None),
    "another record version": Case(
        b"x", changed(version=2), Reason.UNSUPPORTED_VERSION, ErrorCode.UNSUPPORTED_VERSION
    ),
    "no key": Case(None, changed(), Reason.KEY_MISMATCH, REFUSED),
    "another key": Case(b"y", changed(), Reason.KEY_MISMATCH, REFUSED),
    "a key that is no UTF-8": Case(b"\xff\xfe", changed(), Reason.KEY_MISMATCH, REFUSED),
    "a key of a MiB": Case(b"\xff" * MIB, changed(), Reason.KEY_MISMATCH, REFUSED),
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
    "a clock record with a key": Case(b"x", clock_record(T0 * 2), INVALID, None),
    "a clock record without a time": Case(None, b'{"type":"Clock"}', INVALID, None),
    "a clock record before all time": Case(None, b'{"type":"Clock","time_ms":-1}', INVALID, None),
    "a clock record after all time": Case(None, clock_record(10**15), INVALID, None),
    "a clock record with more": Case(None, b'{"type":"Clock","time_ms":1,"a":2}', INVALID, None),
}


def test_a_bad_record_is_dead_lettered_and_its_sender_told(bench: Bench) -> None:
    log = Log()
    good, member_id = log.stable_member(T0, "g")
    bad = {name: log.append(T0 + 1, c.key, c.value, c.partition) for name, c in BAD_RECORDS.items()}
    last = log.request(T0 + 2, heartbeat("g", member_id))
    written = bench.run([*good, *bad.values(), last])
    letters, found = dead_letters(written), answers(written)
    assert {name: _outcome(letters, found, record) for name, record in bad.items()} == {
        name: (case.reason, case.error, case.error is not None) for name, case in BAD_RECORDS.items()
    }
    assert len(letters) == len(BAD_RECORDS)
    assert found[last.id]["error_code"] == ErrorCode.NONE
    assert not [event for event in of_topic(written, LAYOUT.events_topic) if event["group_id"] != "g"]
    expired = events(bench.run_at(log, T0 + 11_000), "g", "MemberRemoved")
    assert expired[0]["at_ms"] == T0 + 10_002, "no bad record moved time"


def _outcome(letters: dict[str, Any], found: dict[str, Any], record: Record) -> tuple[Any, ...]:
    letter, answer = letters[record.id], found.get(record.id)
    return letter["reason"], answer and answer["error_code"], letter["answered"]


def test_what_kafka_answers_is_answered_and_no_dead_letter(bench: Bench) -> None:
    """Odd but well-formed values: empty group ids, absurd timeouts."""
    log = Log()
    empty = [log.append(T0, key, changed(group_id=""), RIGHT) for key in (b"", None)]
    sessions = [log.request(T0, join("x", session_ms=ms)) for ms in (0, -1, INT32_MAX)]
    rebalances = [
        log.request(T0, join(f"r{n}", rebalance_ms=ms)) for n, ms in enumerate((0, -1, -(2**31), INT32_MAX))
    ]
    written = bench.run([*empty, *sessions, *rebalances])
    found = answers(written)
    assert {found[record.id]["error_code"] for record in empty} == {ErrorCode.INVALID_GROUP_ID}
    assert {found[record.id]["error_code"] for record in sessions} == {ErrorCode.INVALID_SESSION_TIMEOUT}
    assert {found[record.id]["error_code"] for record in rebalances} == {ErrorCode.NONE}
    assert not dead_letters(written)
    bench.run_at(log, T0 + 20_000)
    views = {view["group_id"]: view["state"] for view in of_topic(bench.written, LAYOUT.groups_topic)}
    assert views == {f"r{n}": "Empty" for n in range(4)}


def test_a_group_too_large_for_a_record_goes_on(make_bench: Callable[..., Bench]) -> None:
    """20 members of a MiB each: the leader gets an error, as in Kafka, and the view is truncated."""
    bench = make_bench(operator=make_operator(group_initial_rebalance_delay_ms=3_000))
    log = Log()
    joins = [
        log.request(T0, join("large", f"c{n}", session_ms=60_000, metadata=b"m" * MIB)) for n in range(20)
    ]
    small, small_id = log.stable_member(T0, "small")
    bench.run(joins, small)
    # The initial delay is extended once, because members joined during it.
    written = [
        *bench.run_at(log, T0 + 6_001),
        *bench.run([log.request(T0 + 7_000, heartbeat("small", small_id))]),
    ]
    leader, *followers = (answers(written)[record.id] for record in joins)
    assert leader["error_code"] == ErrorCode.UNKNOWN_SERVER_ERROR
    assert {follower["error_code"] for follower in followers} == {ErrorCode.NONE}
    letter = dead_letters(written)[joins[0].id]
    assert (letter["reason"], letter["answered"]) == ("RESPONSE_TOO_LARGE", True)
    assert "value" not in letter, "it was another moment, not this record, that made the answer"

    synced = log.request(T0 + 8_000, sync("large", followers[0]["leader"], 1, {}))
    written = bench.run([synced])
    assert answers(written)[synced.id]["error_code"] == ErrorCode.NONE
    (view,) = of_topic(written, LAYOUT.groups_topic)
    assert (view["state"], view["truncated"], len(view["members"])) == ("Stable", True, 20)
    assert _largest(bench.written) <= LAYOUT.response_max_bytes


def _largest(written: list[Written]) -> int:
    return max(len(record.value or b"") for record in written)
