"""A client's requests in flight: matching of answers, duplicates, and requests that fail."""

from concurrent.futures import Future
from typing import Any

import pytest

from clients.pending import (
    ClientClosed,
    CoordinatorError,
    Counts,
    Pending,
    PendingRequest,
    RequestNotSent,
    RequestTimedOut,
)
from state.errors import ErrorCode
from state.kafka.responses import AnyResponse, HeartbeatResponse, LeaveGroupResponse
from state.messages import ErrorResponse, Response


def ask(
    pending: Pending,
    correlation_id: str,
    *,
    answer: type[Response] = HeartbeatResponse,
    at_s: float = 0.0,
    timeout_ms: int = 1_000,
) -> Future[Any]:
    future: Future[Any] = Future()
    pending.add(correlation_id, PendingRequest("Heartbeat", "g", answer, at_s, timeout_ms, future))
    return future


def heartbeat(correlation_id: str, request: str = "requests-0-7") -> HeartbeatResponse:
    return HeartbeatResponse(
        group_id="g", correlation_id=correlation_id, request=request, error_code=ErrorCode.NONE
    )


def test_an_answer_resolves_the_future_it_names() -> None:
    pending = Pending()
    first, second = ask(pending, "a"), ask(pending, "b")
    answer = heartbeat("b")
    pending.settle(answer)
    assert second.result(0) is answer
    assert not first.done()
    assert len(pending) == 1


def test_a_repeated_answer_is_a_duplicate_and_a_foreign_one_unknown() -> None:
    pending = Pending()
    ask(pending, "a")
    for answer in (heartbeat("a"), heartbeat("a"), heartbeat("somebody-elses", "requests-0-8")):
        pending.settle(answer)
    assert pending.counts == Counts(answered=1, duplicates=1, unknown=1)


def test_the_memory_of_answered_requests_is_bounded() -> None:
    pending = Pending(answered_max=2)
    for number in range(3):
        ask(pending, str(number))
        pending.settle(heartbeat(str(number), f"requests-0-{number}"))
    pending.settle(heartbeat("0", "requests-0-0"))
    pending.settle(heartbeat("2", "requests-0-2"))
    assert pending.counts == Counts(answered=3, duplicates=1, unknown=1)


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
def test_an_answer_of_another_kind_is_an_error(answer: AnyResponse, message: str) -> None:
    pending = Pending()
    future = ask(pending, "a")
    pending.settle(answer)
    with pytest.raises(CoordinatorError, match=message) as refused:
        future.result(0)
    assert refused.value.error_code is answer.error_code


def test_a_request_expires_at_its_own_deadline() -> None:
    pending = Pending()
    short, long = ask(pending, "a", timeout_ms=1_000), ask(pending, "b", timeout_ms=2_000)
    pending.expire(0.999)
    assert not short.done()
    pending.expire(1.0)
    with pytest.raises(RequestTimedOut, match="Heartbeat for group 'g' had no answer within 1000 ms"):
        short.result(0)
    assert not long.done()
    pending.settle(heartbeat("a"))
    assert pending.counts == Counts(unknown=1), "an answer that comes too late belongs to no request"


def test_what_could_not_be_sent_fails_with_the_cause() -> None:
    pending = Pending()
    future = ask(pending, "a")
    cause = OSError("the broker is gone")
    pending.fail("a", cause)
    pending.fail("a", cause)
    with pytest.raises(RequestNotSent, match="the broker is gone") as failed:
        future.result(0)
    assert failed.value.__cause__ is cause


def test_closing_fails_what_waits_and_what_comes_later() -> None:
    pending = Pending()
    future = ask(pending, "a")
    pending.close("the client was closed")
    pending.close("the reader ended")
    with pytest.raises(ClientClosed, match="Heartbeat for group 'g' was not answered: the client was closed"):
        future.result(0)
    with pytest.raises(ClientClosed, match="the client was closed"):
        ask(pending, "b")


def test_a_request_under_way_cannot_be_cancelled() -> None:
    pending = Pending()
    future = ask(pending, "a")
    assert not future.cancel()
    pending.settle(heartbeat("a"))
    assert future.done()
