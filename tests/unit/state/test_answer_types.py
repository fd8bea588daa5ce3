"""The class of a request names the class of its answer."""

from typing import Any, get_args

import pytest

from kafka_why.contract.kafka import requests as kafka
from kafka_why.contract.messages import ErrorResponse, ReleaseGroupResponse, Request, Response
from kafka_why.contract.rocketmq import requests as rocketmq


@pytest.mark.parametrize(
    ("base", "decoded"),
    [(Request, kafka.AnyAnswered), (rocketmq.Request, rocketmq.AnyAnswered)],
    ids=["Kafka", "RocketMQ"],
)
def test_every_request_with_an_answer_is_decoded(base: type[Any], decoded: Any) -> None:
    assert set(base.__subclasses__()) == set(get_args(decoded))


def test_every_response_answers_a_request() -> None:
    answered = _tagged(Response) - {ErrorResponse}
    assert answered == set(kafka.ANSWERS)
    assert ReleaseGroupResponse in answered
    assert {*rocketmq.Response.__subclasses__()} == set(rocketmq.ANSWERS)


def _tagged(base: type[Any]) -> set[type[Any]]:
    """Return the classes of messages below a class. Those that only share fields have no tag."""
    below = {*base.__subclasses__()}
    sharing = {shared for shared in below if shared.__subclasses__()}
    return (below - sharing).union(*map(_tagged, sharing))
