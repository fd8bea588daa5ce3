"""The audit of early answers, in whatever order they and the query's are read."""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID

import msgspec
import pytest

from kafka_why.contract.codec import encode
from kafka_why.contract.kafka import requests as kafka
from kafka_why.contract.messages import ErrorCode, ErrorResponse, ReleaseGroupResponse
from kafka_why.contract.rocketmq import requests as rocketmq
from kafka_why.contract.rocketmq.requests import AnyToConnection
from streaming.replica import audit as audit_of_answers
from streaming.replica.audit import (
    OVERDUE_AFTER_S,
    QUERY_ANSWERS_MAX,
    AnswerDifference,
    Audit,
    ReplicaPosition,
    request_of,
)

HERE = ReplicaPosition({0: 5, 1: 5}, 1_000)


def answer(request: str, said: str = "x") -> bytes:
    error = ErrorCode.NONE
    return encode(ReleaseGroupResponse(group_id=said, correlation_id="c", request=request, error_code=error))


def early(
    audit: Audit, request: str, said: str = "x", place: ReplicaPosition = HERE
) -> AnswerDifference | None:
    return audit.early({request: answer(request, said)}, place)


def query(audit: Audit, request: str, said: str = "x") -> AnswerDifference | None:
    return audit.query([answer(request, said)])


@pytest.mark.parametrize("order", [(early, query), (query, early)], ids=["early first", "query first"])
def test_differing_answers_are_a_difference_in_either_order(
    order: Sequence[Callable[[Audit, str, str], AnswerDifference | None]],
) -> None:
    """A batch that runs again says nothing new."""
    audit = Audit()
    assert [take(audit, "same", "x") for take in (*order, query, query)] == [None] * 4
    assert [take(audit, "r", "one" if take is early else "two") for take in order] == [
        None,
        AnswerDifference("r", answer("r", "one"), answer("r", "two")),
    ]
    assert (audit.compared, audit.size_bytes) == (2, 0)
    audit.early({f"r{n}": answer(f"r{n}") for n in range(5)}, HERE)
    assert audit.size_bytes == 5 * len(answer("r0"))
    found = audit.query([answer("r0"), answer("r1"), answer("r2", "other"), answer("r3"), answer("r4")])
    assert found is not None and found.request == "r2"


def test_unmatched_answers_of_the_query_are_bounded_in_number() -> None:
    audit = Audit()
    audit.query(answer(f"r{n}") for n in range(QUERY_ANSWERS_MAX + 1))
    assert early(audit, "r0", "other") is None, "forgotten"
    assert early(audit, "r1", "other") is not None


def test_unmatched_answers_of_the_query_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_of_answers, "QUERY_ANSWERS_MAX_BYTES", 2 * len(answer("r0")))
    audit = Audit()
    audit.query(answer(name) for name in ("r0", "r0", "r1", "r2"))
    assert early(audit, "r0", "other") is None, "forgotten"
    assert early(audit, "r1", "other") is not None
    audit.query([answer("r3")])
    assert early(audit, "r2", "other") is not None, "what was compared takes no room"


@pytest.mark.parametrize(
    ("read", "said", "is_missing"),
    [
        (ReplicaPosition({0: 5, 1: 6}, 1_000), (early,), True),
        (ReplicaPosition({0: 9, 1: 9}, 9_000), (early, query), False),
        (ReplicaPosition({0: 4, 1: 9}, 9_000), (early,), False),
        (ReplicaPosition({0: 9}, 9_000), (early,), False),
        (ReplicaPosition({0: 9, 1: 9}, 999), (early,), False),
        (None, (early,), False),
    ],
    ids=["never", "it came", "a record before", "a partition unread", "no deadline has fired", "no batch"],
)
def test_early_answer_missing_from_the_query_is_a_difference_after_its_batch(
    read: ReplicaPosition | None, said: Sequence[Callable[[Audit, str], object]], is_missing: bool
) -> None:
    audit = Audit()
    for take in said:
        take(audit, "r")
    if read is not None:
        audit.committed(read, 100.0)
    assert audit.overdue(100.0 + OVERDUE_AFTER_S - 0.1) is None, "the answers may be on their way"
    expected = AnswerDifference("r", answer("r"), None) if is_missing else None
    assert audit.overdue(100.0 + OVERDUE_AFTER_S) == expected


HOSTILE = (
    '","request":"other","x":"',
    '"correlation_id":"',
    '","correlation_id":"x","request":"y',
    '\\","correlation_id":"x","request":"y',
    "\\",
    "\n\u2028é\0",
)
RESPONSES = (*kafka.ANSWERS, *rocketmq.ANSWERS, ErrorResponse)


def filled(kind: Any, text: str) -> Any:
    """Return a value of this type that has the text in all of its strings."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return filled(arguments[0], text)
    if origin in (Union, UnionType):
        return filled(next(other for other in arguments if other is not NoneType), text)
    if origin in (list, tuple, Sequence):
        return (origin if origin is not Sequence else list)([filled(arguments[0], text)])
    if origin in (dict, Mapping):
        return {filled(arguments[0], text): filled(arguments[1], text)}
    if issubclass(kind, msgspec.Struct):
        hints = get_type_hints(kind, include_extras=True)
        return kind(**{name: filled(hints[name], text) for name in kind.__struct_fields__})
    if issubclass(kind, tuple):
        return kind(**{name: filled(hint, text) for name, hint in get_type_hints(kind).items()})
    if issubclass(kind, Enum):
        return next(iter(kind))
    if issubclass(kind, UUID):
        return UUID(int=7)
    return text if issubclass(kind, str) else text.encode() if issubclass(kind, bytes) else kind()


@pytest.mark.parametrize("text", HOSTILE, ids=repr)
@pytest.mark.parametrize(
    "kind", dict.fromkeys(RESPONSES), ids=lambda kind: f"{kind.__module__}.{kind.__name__}"
)
def test_the_request_is_found_in_every_response(kind: type[msgspec.Struct], text: str) -> None:
    """However hostile its strings are, because JSON escapes quotes."""
    response = msgspec.structs.replace(filled(kind, text), request="eu-requests-0-17#4")
    assert text in msgspec.json.decode(encode(response)).values()
    assert request_of(encode(response)) == "eu-requests-0-17#4"


@pytest.mark.parametrize(
    "answer",
    [
        *(encode(filled(kind, text)) for kind in get_args(AnyToConnection) for text in HOSTILE),
        *(b"", b"{}", b'{"type":"Clock"}', b'{"request":"r"}'),
    ],
    ids=repr,
)
def test_messages_to_connections_and_other_records_answer_no_request(answer: bytes) -> None:
    assert request_of(answer) is None
