"""A client's requests in flight: matching of answers, duplicates, and requests that fail."""

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, ClassVar

import pytest
from msgspec.structs import replace

from clients.pending import (
    ClientClosed,
    CoordinatorError,
    FutureRequest,
    PendingRequest,
    PendingRequests,
    RequestNotSent,
    RequestTimedOut,
    SettledRequest,
    resolve_futures,
)
from kafka_why.contract.kafka.requests import Heartbeat
from kafka_why.contract.kafka.responses import AnyResponse, HeartbeatResponse, LeaveGroupResponse
from kafka_why.contract.messages import ErrorCode, ErrorResponse
from kafka_why.contract.rocketmq.requests import ConnectionClosed
from tests.spark import log


def beat(correlation_id: str) -> Heartbeat:
    return replace(log.heartbeat("g", "m"), correlation_id=correlation_id)


def asked(correlation_id: str, *, at_s: float = 0.0, timeout_ms: int = 1_000) -> FutureRequest:
    request = beat(correlation_id)
    return FutureRequest(request, at_s, timeout_ms, resolve_futures, future=Future())


def ask(pending: PendingRequests, correlation_id: str, **fields: Any) -> Future[Any]:
    request = asked(correlation_id, **fields)
    pending.add([request])
    return request.future


def heartbeat(correlation_id: str, request: str = "requests-0-7") -> HeartbeatResponse:
    return HeartbeatResponse(
        group_id="g", correlation_id=correlation_id, request=request, error_code=ErrorCode.NONE
    )


def test_request_without_an_answer_is_complete_when_it_is_written() -> None:
    pending, outcomes = PendingRequests(""), list[SettledRequest]()
    closed = ConnectionClosed(group_id="g", connection="c")
    first, second = (PendingRequest(closed, 0.0, 1_000, outcomes.extend, name) for name in ("1", "2"))
    ask(pending, "3")
    other = asked("4")
    pending.add([first, second, other])
    pending.settle_written([first, other])
    assert outcomes == [(first, None)]
    pending.fail([first, second], RequestNotSent("no broker"))
    assert [(it.record_id, str(outcome)) for it, outcome in outcomes[1:]] == [("2", "no broker")]
    assert len(pending) == 2, "what has an answer waits for it"


def test_a_refused_request_is_written_again_once() -> None:
    """A refusal is on the topic twice, as every answer."""
    pending = PendingRequests("")
    ask(pending, "a")
    ask(pending, "b")
    assert [one.correlation_id for one in pending.mark_rewritten(["a", "a", "gone"])] == ["a"]
    assert [one.correlation_id for one in pending.mark_rewritten(["b", "a"])] == ["b"]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            ErrorResponse(
                group_id="g",
                correlation_id="a",
                request="requests-0-7",
                error_code=ErrorCode.INVALID_REQUEST,
                error_message="not JSON",
            ),
            "Heartbeat for group 'g' was refused with INVALID_REQUEST: not JSON",
        ),
        (
            LeaveGroupResponse(
                group_id="g", correlation_id="a", request="requests-0-7", error_code=ErrorCode.NONE
            ),
            "the answer is a LeaveGroupResponse, not a HeartbeatResponse",
        ),
    ],
)
def test_error_or_response_of_another_type_fails_the_request(answer: AnyResponse, message: str) -> None:
    pending = PendingRequests("")
    future = ask(pending, "a")
    pending.settle([answer])
    with pytest.raises(CoordinatorError, match=message) as refused:
        future.result(0)
    assert refused.value.error_code is answer.error_code


def test_a_request_expires_at_its_own_deadline() -> None:
    pending = PendingRequests("")
    short, long = ask(pending, "a", timeout_ms=1_000), ask(pending, "b", timeout_ms=2_000)
    pending.expire(0.999)
    assert not short.done()
    pending.expire(1.0)
    with pytest.raises(RequestTimedOut, match="Heartbeat for group 'g' had no answer within 1000 ms"):
        short.result(0)
    assert not long.done()
    pending.settle([heartbeat("a")])
    assert not long.done(), "an answer that comes too late belongs to no request"


def test_expiry_stops_at_the_first_request_in_time() -> None:
    """Whatever number of requests is in flight, answered, or parked for long."""

    class Watched(FutureRequest):
        looked_at: ClassVar[int] = 0

        @property
        def deadline_s(self) -> float:
            Watched.looked_at += 1
            return super().deadline_s

    pending = PendingRequests("")
    for number in range(1_000):
        request = beat(str(number))
        timeout_ms = 600_000 if number % 2 else 25_000
        pending.add([Watched(request, number, timeout_ms, resolve_futures, future=Future())])
    pending.settle([heartbeat(str(number)) for number in range(500)])
    pending.expire(500.0 + 25.0)
    assert len(pending) == 499
    assert Watched.looked_at <= 3, "one that expires, and the next of each timeout"


def test_unsent_request_fails_with_the_cause() -> None:
    pending = PendingRequests("")
    requests = [asked("a"), asked("b")]
    pending.add(requests)
    pending.settle([heartbeat("b")])
    cause = OSError("the broker is gone")
    pending.fail(requests, cause)
    pending.fail(requests, cause)
    with pytest.raises(RequestNotSent, match="the broker is gone") as failed:
        requests[0].future.result(0)
    assert failed.value.__cause__ is cause
    assert requests[1].future.result(0) == heartbeat("b"), "it was written and answered all the same"


def test_receiver_gets_simultaneous_outcomes_in_one_call() -> None:
    pending = PendingRequests("")
    received: list[list[str]] = []
    others: list[SettledRequest] = []

    def receive(outcomes: Sequence[SettledRequest]) -> None:
        received.append([request.correlation_id for request, _ in outcomes])

    pending.add([PendingRequest(beat(name), 0.0, 1_000, receive) for name in "abcd"])
    pending.add([PendingRequest(beat("e"), 0.0, 1_000, others.extend)])
    pending.settle([heartbeat(name) for name in "bea"])
    pending.expire(1.0)
    assert received == [["b", "a"], ["c", "d"]]
    assert [(request.correlation_id, outcome) for request, outcome in others] == [("e", heartbeat("e"))]


def test_closing_fails_pending_and_later_requests() -> None:
    pending = PendingRequests("")
    future = ask(pending, "a")
    pending.close("the client was closed")
    pending.close("the reader ended")
    with pytest.raises(ClientClosed, match="Heartbeat for group 'g' was not answered: the client was closed"):
        future.result(0)
    with pytest.raises(ClientClosed, match="the client was closed"):
        ask(pending, "b")
