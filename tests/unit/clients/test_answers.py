"""A client's way through its reply partition: only what it waits for is decoded, and that changes nothing."""

from collections.abc import Sequence
from itertools import chain
from random import Random
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from structlog.testing import capture_logs

from clients import barrier
from clients.barrier import barrier_rounds, wait_for_views
from clients.coordinator_client import CoordinatorClient, Header, decode_response, settle
from clients.pending import PendingRequest, PendingRequests, SettledRequest
from kafka_why.contract.codec import NO_PACKS, encode, pack, unpack
from kafka_why.contract.kafka import requests as kafka
from kafka_why.contract.kafka.responses import DescribeGroupResponse, HeartbeatResponse, JoinGroupResponse
from kafka_why.contract.messages import ErrorCode, ErrorResponse, Request
from kafka_why.contract.rocketmq import requests as rocketmq
from kafka_why.contract.rocketmq.requests import (
    AnyToConnection,
    CloseConnection,
    NotifyConsumerIdsChanged,
    RegisterResponse,
    ToConnection,
)
from kafka_why.partitioner import partition_of
from tests.spark.log import heartbeat

MINE = "0b7d7a8e-3f0c-4b52-8f4e-3d7b6d1c9a42-"
ASKED = 6
# What a name may hold to look like the field that is searched.
FALSE_KEY = f'","correlation_id":"{MINE}1","'

Told = list[tuple[str, Any]]


def asked(pending: PendingRequests, told: Told) -> None:
    """Ask, and note each outcome."""

    def receive(outcomes: Sequence[SettledRequest]) -> None:
        told.extend((request.correlation_id, str(outcome)) for request, outcome in outcomes)

    requests = (replace(heartbeat("g", "m"), correlation_id=f"{MINE}{number}") for number in range(ASKED))
    pending.add(PendingRequest(request, 0.0, 1_000, receive) for request in requests)


def decoding_everything(polls: Sequence[Sequence[bytes]]) -> Told:
    """Return the answers that a client gets if it decodes every message."""
    told: Told = []
    pending = PendingRequests(MINE)
    asked(pending, told)
    for poll in polls:
        refused: list[str] = []
        for message in chain.from_iterable(map(unpack, poll)):
            try:
                decoded = decode_response(message)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue
            if isinstance(decoded, ToConnection):
                told.append(("push", decoded))
            elif isinstance(decoded, ErrorResponse) and decoded.error_message.startswith(NO_PACKS):
                refused.append(decoded.correlation_id)
            else:
                pending.settle([decoded])
        told += again(pending, refused)
    return told


def again(pending: PendingRequests, refused: list[str]) -> Told:
    return [("again", one.correlation_id) for one in pending.mark_rewritten(refused)]


names = st.sampled_from(["g", FALSE_KEY, "correlation_id", '"correlation_id":"', "\\", "ü\n"])
ids = st.one_of(
    st.integers(0, ASKED).map(lambda number: f"{MINE}{number}"), st.sampled_from(["theirs-1", "", '"', "\\"])
)
common = {
    "group_id": names,
    "correlation_id": ids,
    "request": st.sampled_from(["requests-0-1", "requests-0-2#3"]),
}
codes = st.sampled_from([ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID])
pushes = {"group_id": names, "connection": names, "client_id": names, "request": names}
messages = st.one_of(
    st.builds(HeartbeatResponse, error_code=codes, **common),
    st.builds(JoinGroupResponse, error_code=codes, leader=names, member_id=names, **common),
    st.builds(
        DescribeGroupResponse,
        error_code=codes,
        pending_offsets=st.dictionaries(names, st.just({0: 1}), max_size=2),
        **common,
    ),
    st.builds(RegisterResponse, remark=names, **common),
    st.builds(
        ErrorResponse,
        error_code=codes,
        error_message=st.sampled_from([NO_PACKS, f"{NO_PACKS}: more shards than slots", "other"]),
        **common,
    ),
    st.builds(NotifyConsumerIdsChanged, **pushes),
    st.builds(CloseConnection, reason=names, **pushes),
).map(encode)
damaged = st.one_of(
    st.tuples(messages, st.integers(0, 200)).map(lambda cut: cut[0][: cut[1]]),
    messages.map(lambda message: message.replace(b'":"', b'": "')),
    st.sampled_from([b"", b"\xff not JSON", b'{"type":"Surprise"}', b'"correlation_id":"']),
).filter(lambda message: b"\n" not in message)
values = st.one_of(messages, damaged, st.lists(messages | damaged, min_size=1, max_size=5).map(pack))


@given(st.lists(st.lists(values, max_size=4), max_size=6))
def test_selective_decoding_delivers_the_same_answers_as_full_decoding(polls: list[list[bytes]]) -> None:
    told: Told = []
    pending = PendingRequests(MINE)
    asked(pending, told)

    def listen(message: AnyToConnection) -> None:
        told.append(("push", message))

    for poll in polls:
        refused = settle(poll, pending, listen)
        told += again(pending, refused)
    assert told == decoding_everything(polls)
    outcomes = [name for name, _ in told if name.startswith(MINE)]
    assert len(outcomes) == len(set(outcomes))


def test_only_awaited_messages_are_decoded() -> None:
    """These could not be: each is cut off behind its correlation id."""
    pending = PendingRequests(MINE)
    told: Told = []
    asked(pending, told)
    answer = HeartbeatResponse(
        group_id="g", correlation_id=f"{MINE}1", request="requests-0-1", error_code=ErrorCode.NONE
    )
    cut = encode(answer).partition(b',"request"')[0]
    settle([encode(answer)], pending, None)
    assert told == [(f"{MINE}1", str(answer))]
    with capture_logs() as unreadable:
        settle([cut, pack([cut.replace(MINE.encode(), b"theirs-"), cut])], pending, None)
        assert unreadable == []
        settle([cut[:-2] + b'2"'], pending, None)
    assert len(unreadable) == 1, "it is awaited"


@pytest.mark.parametrize(
    "kind", (*kafka.ANSWERS, *rocketmq.ANSWERS, ErrorResponse), ids=lambda kind: kind.__name__
)
def test_correlation_id_of_every_response_is_found_without_decoding(kind: type[msgspec.Struct]) -> None:
    """It is in front of every field that a client or an operator gives content, but the group's id."""
    first, second, *_ = kind.__struct_encode_fields__
    assert (first, second) == ("group_id", "correlation_id")
    fields = {"group_id": FALSE_KEY, "correlation_id": f"{MINE}1", "request": "requests-0-1"}
    wanted = {"error_code": ErrorCode.NONE, "error_message": FALSE_KEY}
    response = encode(kind(**fields, **{name: wanted[name] for name in wanted if name in required(kind)}))
    pending = PendingRequests(MINE)
    assert not pending.awaits(response)
    asked(pending, [])
    assert pending.awaits(response)


def required(kind: type[msgspec.Struct]) -> list[str]:
    return [field.name for field in msgspec.structs.fields(kind) if field.required]


class Query(CoordinatorClient):
    """A log with early answers, and a query that goes on by random steps whenever an answer is waited for.

    It plans a batch partition by partition, as offsets are listed, writes the outputs of the batch in any
    order, and plans the next one when all are written. `request_partitions` are those of the log.
    """

    def __init__(self, partitions: int, random: Random) -> None:
        self._log: list[list[str]] = [[] for _ in range(partitions)]
        self._random = random
        self._planned_to = [0] * partitions
        self._to_plan: list[int] = []
        self._planned: list[str] = []
        self._to_write: list[str] = []
        self._names = 0
        self.written: set[str] = set()

    @property
    def request_partitions(self) -> int:
        return len(self._log)

    def header(self, group_id: str, api_version: int = 0) -> Header:
        self._names += 1
        return Header(
            group_id=group_id,
            correlation_id=f"barrier-{self._names}",
            reply_partition=0,
            api_version=api_version,
            client_id="",
            client_host="",
        )

    def send(self, request: Any, *, timeout_ms: int | None = None) -> Any:
        assert isinstance(request, Request)
        assert request.waits_for_views is True
        self.append(partition_of(request.group_id, len(self._log)), request.correlation_id)
        return _Answer(self, request.correlation_id)

    def append(self, partition: int, name: str) -> None:
        self._log[partition].append(name)

    def go_on(self) -> None:
        """Take one step of the query."""
        if self._to_write:
            self.written.add(self._to_write.pop(self._random.randrange(len(self._to_write))))
            if not self._to_write and not self._to_plan:
                return
        elif not self._to_plan:
            self._to_plan = list(range(len(self._log)))
            self._random.shuffle(self._to_plan)
            self._planned = []
        if self._to_plan:
            partition = self._to_plan.pop()
            self._planned += self._log[partition][self._planned_to[partition] :]
            self._planned_to[partition] = len(self._log[partition])
            if not self._to_plan:
                self._to_write = self._planned


class _Answer:
    def __init__(self, query: Query, name: str) -> None:
        self._query, self._name = query, name

    def result(self) -> None:
        while self._name not in self._query.written:
            self._query.go_on()


def lost(partitions: int, seed: int) -> set[str]:
    """Return the requests that were answered early before the barrier, and whose views are not written after
    it.
    """
    random = Random(seed)
    query = Query(partitions, random)
    answered = set()
    for n in range(random.randrange(12)):
        query.append(random.randrange(partitions), f"r-{n}")
        answered.add(f"r-{n}")
        for _ in range(random.randrange(6)):
            query.go_on()
    wait_for_views(query)
    return answered - query.written


@given(st.integers(1, 4), st.integers(0, 2**32))
def test_topics_read_after_a_barrier_request_have_every_answered_change(partitions: int, seed: int) -> None:
    assert not lost(partitions, seed)


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(lambda groups: [groups], id="one round"),
        pytest.param(lambda groups: [groups[:1], groups[:1]], id="one partition"),
    ],
)
def test_barrier_requests_with_fewer_rounds_or_partitions_lose_changes(
    rounds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fewer(partitions: int) -> Sequence[Sequence[str]]:
        found: Sequence[Sequence[str]] = rounds(barrier_rounds(partitions)[0])
        return found

    monkeypatch.setattr(barrier, "barrier_rounds", fewer)
    assert any(lost(3, seed) for seed in range(500))


@given(st.integers(1, 64))
def test_first_barrier_round_has_a_group_in_each_partition(partitions: int) -> None:
    first, second, third = barrier_rounds(partitions)
    assert [partition_of(group_id, partitions) for group_id in first] == list(range(partitions))
    assert len(second) == len(third) == 1
