"""A protocol is an object, which is found by the type of a group."""

import ast
from pathlib import Path
from types import NoneType
from typing import Any, get_args

import pytest

from kafka_why.contract.kafka.requests import AnyAnswered
from kafka_why.contract.messages import GroupType
from kafka_why.contract.rocketmq.requests import AnyRequest as RocketMqRequest
from state.config import CoordinatorConfig
from state.dispatch import AnyGroup, due_deadlines, group_type_of, next_deadline_ms, view_of
from state.kafka.context import KafkaGroup
from state.kafka.group import ConfigsOnly
from state.kafka.protocols import HANDLERS
from state.rocketmq.group import RocketMqGroup
from state.rocketmq.protocol import HANDLERS as ROCKETMQ_HANDLERS

STATE = Path(__file__).parents[3] / "state"
CONFIG = CoordinatorConfig()
GROUP_TYPES = {"ClassicGroup", "ConsumerGroup", "ShareGroup", "ConfigsOnly", "KafkaGroup", "RocketMqGroup"}
MAY_ASK = {
    "kafka/protocols.py": "what is stored may be settings without a group",
    "kafka/consumer/heartbeat.py": "a classic group is converted, others are not",
    "kafka/share/heartbeat.py": "a group is created, others are not converted",
    "kafka/streams/heartbeat.py": "an Empty classic group is converted, others are not",
}


def stored(kind: type[Any]) -> Any:
    if kind is ConfigsOnly:
        return ConfigsOnly("g", "requests-0-0", 0, {})
    return kind("g", "requests-0-0")


@pytest.mark.parametrize("kind", get_args(AnyGroup))
def test_each_type_that_is_stored_has_deadlines_and_a_view(kind: type[Any]) -> None:
    group = stored(kind)
    assert group_type_of(group) is (GroupType.ROCKETMQ if kind is RocketMqGroup else GroupType.KAFKA)
    assert next_deadline_ms(group, CONFIG) is None
    assert not due_deadlines(group, 2**63 - 1, CONFIG)
    assert view_of(group).group_id == "g"


@pytest.mark.parametrize("kind", [NoneType, *get_args(KafkaGroup)])
def test_every_request_has_a_handler_for_every_group_type(kind: type[Any]) -> None:
    assert HANDLERS.keys() == {NoneType, *get_args(KafkaGroup)}
    assert HANDLERS[kind].keys() == set(get_args(AnyAnswered))


def test_each_request_of_rocketmq_has_a_handler() -> None:
    assert ROCKETMQ_HANDLERS.keys() == set(get_args(RocketMqRequest))


def test_only_heartbeats_that_create_groups_ask_for_their_type() -> None:
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
