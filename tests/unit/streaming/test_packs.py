"""Packs in the operator: each request of a pack is a request of its own, in the log's order."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from records.codec import encode
from records.pack import PACK_PREFIX, is_pack, pack, pack_key, slot_of, unpack
from records.partitioner import partition_of
from records.sharding import MAX_SHARDS
from state.dispatch import AnyRequest
from state.errors import ErrorCode
from state.kafka.member_id import new_member_id
from streaming.query import output as output_module
from streaming.query.operator import ConfigEpoch
from tests.harness.operator_call import CONFIG, OPERATOR, call, contents, spark_state
from tests.spark.log import LAYOUT, NAMESPACE, T0, Log, Record, heartbeat, join, sync

PARTITION = partition_of("g", LAYOUT.request_partitions)


def packed(log: Log, at_ms: int, *requests: AnyRequest | bytes, key: bytes | None = None) -> Record:
    """Append a pack of requests of group g's slot. Bytes are in it unchanged."""
    messages = [request if isinstance(request, bytes) else encode(request) for request in requests]
    key = pack_key(slot_of("g")) if key is None else key
    return log.append(at_ms, key, pack(messages), PARTITION)


def answers(frames: Sequence[pd.DataFrame]) -> list[dict[str, Any]]:
    """All answers, packed or not, in their order."""
    values = [
        value
        for frame in frames
        for topic, value in zip(frame["topic"], frame["value"], strict=True)
        if topic == LAYOUT.responses_topic
    ]
    return [json.loads(answer) for value in values for answer in unpack(value)]


def answer_records(frames: Sequence[pd.DataFrame]) -> list[tuple[int, bytes]]:
    return [
        (partition, value)
        for frame in frames
        for topic, partition, value in zip(frame["topic"], frame["partition"], frame["value"], strict=True)
        if topic == LAYOUT.responses_topic
    ]


def neighbours(count: int) -> list[str]:
    """Groups of the partition and the slot of group g."""
    found: list[str] = []
    n = 0
    while len(found) < count:
        name = f"neighbour-{n}"
        if slot_of(name) == slot_of("g") and partition_of(name, LAYOUT.request_partitions) == PARTITION:
            found.append(name)
        n += 1
    return found


def test_requests_of_a_pack_have_its_time_and_their_order() -> None:
    log = Log()
    member_id = new_member_id("c", f"requests-{PARTITION}-0#0", NAMESPACE)
    record = packed(
        log, T0, join("g"), sync("g", member_id, 1, {member_id: b"all"}), heartbeat("g", member_id)
    )
    frames = call([record], spark_state())
    assert [answer["request"] for answer in answers(frames)] == [f"{record.id}#{n}" for n in range(3)]
    assert [answer["error_code"] for answer in answers(frames)] == [0, 0, 0]
    assert {entry["at_ms"] for entry in contents(frames, LAYOUT.events_topic)} == {T0}
    assert {entry["incarnation"] for entry in contents(frames, LAYOUT.events_topic)} == {f"{record.id}#0"}


def test_answers_to_packs_are_one_record_and_others_are_single() -> None:
    log = Log()
    beats = [heartbeat("g", f"m{n}") for n in range(3)]
    packs = [packed(log, T0, *beats), packed(log, T0, *beats)]
    single = log.request(T0, heartbeat("g", "m3"))
    later = packed(log, T0, *beats)
    records = answer_records(call([*packs, single, later], spark_state()))
    assert [(partition, is_pack(value), len(unpack(value))) for partition, value in records] == [
        (1, True, 6),
        (1, False, 1),
        (1, True, 3),
    ]
    assert json.loads(records[1][1])["request"] == single.id


def test_a_full_pack_of_answers_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output_module, "ANSWERS_MAX_BYTES", 400)
    beats = [heartbeat("g", f"m{n}") for n in range(7)]
    frames = call([packed(Log(), T0, *beats)], spark_state())
    sizes = [len(value) for _, value in answer_records(frames)]
    assert len(sizes) > 1
    assert max(sizes) <= 400 + len(PACK_PREFIX) + len(beats), (
        "a response that is large has a record of its own"
    )
    assert [answer["request"][-2:] for answer in answers(frames)] == [f"#{n}" for n in range(7)]


def test_a_parked_request_of_a_pack_is_answered_in_a_pack_in_a_later_call() -> None:
    log = Log()
    patient = replace(
        OPERATOR, epochs=(ConfigEpoch(0, replace(CONFIG, group_initial_rebalance_delay_ms=3_000)),)
    )
    state = spark_state()
    assert not answers(call([packed(log, T0, join("g"))], state, operator=patient))
    later = spark_state(tuple(state.get), watermark_ms=T0 + 3_001, timed_out=True)
    ((_, value),) = answer_records(call([], later, operator=patient))
    assert is_pack(value)


def test_a_malformed_request_of_a_pack_is_refused_alone() -> None:
    log = Log()
    beat = heartbeat("g", "m")
    record = packed(log, T0, beat, b"garbage", encode(beat)[:-1] + b',"version":"x"}', beat)
    frames = call([record], spark_state())
    assert [(answer["request"][-2:], answer["error_code"]) for answer in answers(frames)] == [
        ("#0", ErrorCode.UNKNOWN_MEMBER_ID),
        ("#2", ErrorCode.INVALID_REQUEST),
        ("#3", ErrorCode.UNKNOWN_MEMBER_ID),
    ]
    letters = contents(frames, LAYOUT.dead_letters_topic)
    assert [(letter["request"], letter["answered"]) for letter in letters] == [
        (f"{record.id}#1", False),
        (f"{record.id}#2", True),
    ]


def test_a_pack_without_requests_is_a_dead_letter() -> None:
    frames = call([Log().append(T0, pack_key(slot_of("g")), PACK_PREFIX, PARTITION)], spark_state())
    assert [letter["reason"] for letter in contents(frames, LAYOUT.dead_letters_topic)] == ["INVALID_REQUEST"]


@pytest.mark.parametrize("key", [b"", b"x", b"g", b"\xff", pack_key(slot_of("g") + 1), b" %d" % slot_of("g")])
def test_requests_under_the_key_of_another_slot_are_refused(key: bytes) -> None:
    frames = call([packed(Log(), T0, join("g"), join("g"), key=key)], spark_state())
    assert [answer["error_code"] for answer in answers(frames)] == [ErrorCode.INVALID_REQUEST] * 2
    assert {letter["reason"] for letter in contents(frames, LAYOUT.dead_letters_topic)} == {"KEY_MISMATCH"}


def test_a_request_of_another_partition_is_refused_alone() -> None:
    stranger = next(
        name
        for name in (f"stranger-{n}" for n in range(10_000))
        if slot_of(name) == slot_of("g") and partition_of(name, LAYOUT.request_partitions) != PARTITION
    )
    frames = call([packed(Log(), T0, join("g"), join(stranger))], spark_state())
    assert [answer["error_code"] for answer in answers(frames)] == [0, ErrorCode.INVALID_REQUEST]
    assert [letter["reason"] for letter in contents(frames, LAYOUT.dead_letters_topic)] == ["WRONG_PARTITION"]


def test_one_request_of_a_pack_can_be_skipped_or_the_whole_record() -> None:
    record = packed(Log(), T0, heartbeat("g", "m"), heartbeat("g", "m"))
    for skip, answered, skipped in ((f"{record.id}#0", 1, f"{record.id}#0"), (record.id, 0, record.id)):
        operator = replace(OPERATOR, epochs=(ConfigEpoch(0, CONFIG, frozenset({skip})),))
        frames = call([record], spark_state(), operator=operator)
        assert len(answers(frames)) == answered
        (letter,) = contents(frames, LAYOUT.dead_letters_topic)
        assert (letter["reason"], letter["request"]) == ("SKIPPED", skipped)


def test_a_pack_too_large_is_one_dead_letter() -> None:
    operator = replace(OPERATOR, layout=replace(LAYOUT, request_max_bytes=500))
    frames = call([packed(Log(), T0, *[heartbeat("g", "m")] * 5)], spark_state(), operator=operator)
    assert not answers(frames)
    assert [letter["reason"] for letter in contents(frames, LAYOUT.dead_letters_topic)] == [
        "REQUEST_TOO_LARGE"
    ]


def test_a_state_for_each_group_takes_no_packs() -> None:
    """The requests of a pack would belong to several states."""
    operator = replace(OPERATOR, shards=MAX_SHARDS)
    frames = call([packed(Log(), T0, heartbeat("g", "m"))], spark_state(), operator=operator)
    (answer,) = answers(frames)
    assert answer["error_code"] == ErrorCode.INVALID_REQUEST
    assert "reads no packs" in answer["error_message"]


def test_groups_of_one_pack_are_each_a_group_of_their_own() -> None:
    names = ["g", *neighbours(2)]
    log, state = Log(), spark_state()
    record = packed(log, T0, *map(join, names))
    frames = call([record], state)
    assert [answer["group_id"] for answer in answers(frames)] == names
    assert len({answer["member_id"] for answer in answers(frames)}) == 3
    assert {view["group_id"] for view in contents(frames, LAYOUT.groups_topic)} == set(names)
