"""A protocol is an object, which is found by the type of a group."""

import ast
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import pytest

from kafka_why.contract.kafka import requests as kafka
from kafka_why.contract.kafka.requests import (
    AnyAnsweredRequest,
    AnyRequest,
    ConsumerGroupDescribe,
    ConsumerGroupHeartbeat,
)
from kafka_why.contract.kafka.share_requests import (
    AlterShareGroupOffsets,
    DeleteShareGroupOffsets,
    DescribeShareGroupOffsets,
    ShareGroupDescribe,
    ShareGroupHeartbeat,
)
from kafka_why.contract.messages import (
    ErrorCode,
    ErrorResponse,
    GroupType,
    ReleaseGroupResponse,
    Request,
    Response,
)
from kafka_why.contract.rocketmq import requests as rocketmq
from kafka_why.contract.rocketmq.requests import AnyRequest as RocketMqRequest
from kafka_why.contract.rocketmq.requests import GetConsumerListByGroup
from state.config import CoordinatorConfig
from state.dispatch import AnyGroup, kind_of, step
from state.kafka.context import KafkaGroup
from state.kafka.group import ConfigsOnly
from state.kafka.protocols import HANDLERS
from state.protocol import Outage, Received
from state.rocketmq.group import RocketMqGroup
from state.rocketmq.protocol import HANDLERS as ROCKETMQ_HANDLERS
from state.timeline import Timeline
from tests.harness import batches

STATE = Path(__file__).parents[3] / "state"
CONFIG = CoordinatorConfig()
GROUP_TYPES = {"ClassicGroup", "ConsumerGroup", "ShareGroup", "ConfigsOnly", "KafkaGroup", "RocketMqGroup"}
MAY_ASK = {
    "kafka/protocols.py": "what is stored may be settings without a group",
    "kafka/modern.py": "a classic group is converted, others are not",
    "kafka/share/heartbeat.py": "a group is created, others are not converted",
}


def stored(kind: type[Any]) -> Any:
    if kind is ConfigsOnly:
        return ConfigsOnly("g", "requests-0-0", 0, {})
    return kind("g", "requests-0-0")


@pytest.mark.parametrize("kind", get_args(AnyGroup))
def test_every_stored_group_type_has_deadlines_and_a_view(kind: type[Any]) -> None:
    group, queries = stored(kind), kind_of(stored(kind))
    assert queries.group_type is (GroupType.ROCKETMQ if kind is RocketMqGroup else GroupType.KAFKA)
    assert queries.next_deadline_ms(group, CONFIG) is None
    assert not queries.due_deadlines(group, 2**63 - 1, CONFIG)
    assert queries.view(group).group_id == "g"


@pytest.mark.parametrize("kind", [NoneType, *get_args(KafkaGroup)])
def test_every_request_has_a_handler_for_every_group_type(kind: type[Any]) -> None:
    assert HANDLERS.keys() == {NoneType, *get_args(KafkaGroup)}
    assert HANDLERS[kind].keys() == set(get_args(AnyAnsweredRequest))


def test_each_request_of_rocketmq_has_a_handler() -> None:
    assert ROCKETMQ_HANDLERS.keys() == set(get_args(RocketMqRequest))


def test_only_group_creating_code_depends_on_the_group_type() -> None:
    asking = {
        str(path.relative_to(STATE))
        for path in STATE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "isinstance"
        and GROUP_TYPES.intersection(name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name))
    }
    assert asking == set(MAY_ASK)


@pytest.mark.parametrize(
    ("base", "decoded"),
    [(Request, kafka.AnyAnsweredRequest), (rocketmq.Request, rocketmq.AnyAnsweredRequest)],
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


TO: dict[str, Any] = {"group_id": "g", "correlation_id": "c", "reply_partition": 0}
V1 = TO | {"api_version": 1}


@pytest.mark.parametrize(
    ("request_", "row"),
    [
        (ConsumerGroupHeartbeat(**V1, member_id="A", member_epoch=1), "HB19"),
        (ConsumerGroupHeartbeat(**V1, member_id="A", member_epoch=-1), "HB19"),
        (ConsumerGroupHeartbeat(**V1, member_id="", member_epoch=1), "HB5"),
        (ConsumerGroupDescribe(**V1), "AD2"),
        (ShareGroupHeartbeat(**V1, member_id="m", member_epoch=0, subscribed_topic_names=["t"]), "SD11"),
        (ShareGroupHeartbeat(**V1, member_id=" ", member_epoch=0, subscribed_topic_names=["t"]), "SH6"),
        (ShareGroupDescribe(**V1), "SD2"),
        (AlterShareGroupOffsets(**V1, topics=[]), "SD11"),
        (DeleteShareGroupOffsets(**V1, topics=[]), "SD11"),
        (DescribeShareGroupOffsets(**V1), "SD11"),
    ],
)
def test_rocketmq_group_refuses_requests_of_kafkas_newer_protocols(request_: AnyRequest, row: str) -> None:
    group = RocketMqGroup("g", "requests-0-0")
    effects = step(group, "g", Received("requests-0-1", request_), 0, CONFIG)
    (reply,) = effects.replies
    error = ErrorCode.INVALID_REQUEST if row in ("HB5", "SH6") else ErrorCode.GROUP_ID_NOT_FOUND
    assert isinstance(reply.response, ErrorResponse)
    assert (reply.response.rule, reply.response.error_code) == (row, error)
    assert effects.group is group


def test_settings_without_a_group_survive_outages_and_reserve_the_id() -> None:
    kept = ConfigsOnly("g", "requests-0-0", 1, {"consumer.assignment.interval.ms": 0})
    assert step(kept, "g", Outage(1, 2), 1, CONFIG).group is kept
    query = GetConsumerListByGroup(**TO, connection="c", client_id="i")
    refused = step(kept, "g", Received("requests-0-9", query), 1, CONFIG)
    assert isinstance(refused.replies[0].response, ErrorResponse)
    assert refused.group is kept
    fails = batches.failing_step(lambda event: isinstance(event, Outage))
    timeline = Timeline("g", kept, CONFIG, step=fails, outages=[Outage(1_000, 2_000)])
    timeline.fire_until(3_000)
    assert len(timeline.faults) == 1
    assert isinstance(timeline.group, ConfigsOnly) and timeline.group.configs == kept.configs
