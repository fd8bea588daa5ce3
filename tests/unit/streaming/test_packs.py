"""Packs in the operator: each request is one of its own (`test_shards.py` has random packs)."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from kafka_why.contract.codec import PACK_PREFIX, AnyRequest, encode, is_pack, pack, pack_key, slot_of, unpack
from kafka_why.contract.messages import ErrorCode
from kafka_why.partitioner import partition_of
from streaming.query import output as output_module
from streaming.query.admission import MAX_SHARDS
from streaming.query.operator import ConfigEpoch, Operator
from tests.harness.operator_call import CONFIG, OPERATOR, call, contents, spark_state
from tests.spark.log import LAYOUT, T0, Log, Record, heartbeat, join

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
    """All answers, packed or not, in their order."""
    return [json.loads(answer) for value in answer_records(frames) for answer in unpack(value)]


def test_packed_requests_get_packed_answers_and_single_ones_single_answers() -> None:
    log = Log()
    beats = [heartbeat("g", f"m{n}") for n in range(3)]
    packs = [packed(log, *beats), packed(log, *beats)]
    single = log.request(T0, heartbeat("g", "m3"))
    records = answer_records(call([*packs, single, packed(log, *beats)], spark_state()))
    assert [(is_pack(value), len(unpack(value))) for value in records] == [(True, 6), (False, 1), (True, 3)]
    assert json.loads(records[1])["request"] == single.id


def test_a_full_pack_of_answers_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_request_of_a_pack_is_refused_alone_unless_the_pack_cannot_be_read(
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
def test_requests_under_the_key_of_another_slot_are_refused(key: bytes) -> None:
    frames = call([packed(Log(), join("g"), join("g"), key=key)], spark_state())
    assert [answer["error_code"] for answer in answers(frames)] == [REFUSED] * 2
    assert {letter["reason"] for letter in contents(frames, LAYOUT.dead_letters_topic)} == {"KEY_MISMATCH"}
