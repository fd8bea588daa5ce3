"""The coordinator's settings among those of brokers, at the gateway."""

from typing import Any

import pytest

from gateway.wire import codec
from gateway.wire.framing import request_header
from tests.harness.gateway import GatewayFixture, played

DESCRIBE, ALTER, INCREMENTAL = 32, 33, 44
TOPIC, BROKER = 2, 4  # ConfigResource.Type
INVALID_CONFIG = 40
DYNAMIC, OF_FILE, DEFAULT = 2, 4, 5  # DescribeConfigsResponse.ConfigSource


def config(name: str, value: str) -> dict[str, Any]:
    synonym = {"name": name, "value": value, "source": DYNAMIC}
    return {
        "name": name,
        "value": value,
        "read_only": False,
        "config_source": DYNAMIC,
        "is_sensitive": False,
        "synonyms": [synonym],
    }


def resource(name: str = "1", kind: int = BROKER, **more: Any) -> dict[str, Any]:
    return {"resource_type": kind, "resource_name": name, **more}


BROKERS = [
    config("group.max.size", "7"),
    config("group.initial.rebalance.delay.ms", "0"),
    config("group.streams.max.size", "200"),
    config("group.consumer.assignors", "range"),
    config("offsets.retention.minutes", "1"),
    config("offsets.topic.num.partitions", "4"),
    config("offset.metadata.max.bytes", "1"),
    config("num.io.threads", "4"),
]


async def described(world: GatewayFixture, version: int = 4) -> dict[str, tuple[str, bool, int]]:
    """The settings of a broker: value, whether it is read-only, and source, by name."""
    found = [{**resource(), "error_code": 0, "configs": BROKERS}]
    world.broker.answers[DESCRIBE] = {"results": found}
    (answer,) = (await (await world.client()).ask(DESCRIBE, version, resources=[resource()])).results
    for shown in answer.configs:
        synonyms = [(s.name, s.value, s.source) for s in shown.synonyms]
        assert synonyms[0] == (shown.name, shown.value, shown.config_source)
        assert synonyms[1:] == ([("group.max.size", "2147483647", DEFAULT)] if shown.value == "3" else [])
    return {c.name: (c.value, c.read_only, c.config_source) for c in answer.configs}


@played
async def test_a_broker_shows_the_values_with_which_the_coordinator_works(world: GatewayFixture) -> None:
    world.core.config = world.core.config.with_settings({"group.max.size": "3"})
    for version in range(1, 5):
        assert await described(world, version) == {
            "group.max.size": ("3", True, OF_FILE),
            "group.initial.rebalance.delay.ms": ("3000", True, DEFAULT),
            "group.consumer.assignors": ("uniform,range", True, DEFAULT),
            "offsets.retention.minutes": ("10080", True, DEFAULT),
            "offset.metadata.max.bytes": ("4096", True, DEFAULT),
            "num.io.threads": ("4", False, DYNAMIC),
        }


@played
async def test_without_a_coordinator_its_settings_are_left_out(world: GatewayFixture) -> None:
    world.core.away = True
    assert await described(world) == {"num.io.threads": ("4", False, DYNAMIC)}


@played
async def test_what_names_no_broker_asks_no_coordinator(world: GatewayFixture) -> None:
    named = {**resource("orders", TOPIC), "error_code": 0, "configs": [config("group.max.size", "7")]}
    world.broker.answers[DESCRIBE] = {"results": [named]}
    (answer,) = (await world.ask(DESCRIBE, 4, resources=[resource("orders", TOPIC)])).results
    assert [c.value for c in answer.configs] == ["7"]
    assert world.core.asked == []


@pytest.mark.parametrize(("api", "version"), [(ALTER, 2), (INCREMENTAL, 1)])
@played
async def test_what_is_given_at_the_start_is_not_changed_by_request(
    world: GatewayFixture, api: int, version: int
) -> None:
    configs = [{"name": "num.io.threads", "value": "4"}]
    refused = [*configs, {"name": "group.max.size", "value": "4"}]
    others = resource("2", configs=configs), resource("orders", TOPIC, configs=refused)
    world.broker.answers[api] = {
        "responses": [{**resource("2"), "error_code": 0}, {**resource("orders", TOPIC), "error_code": 0}]
    }
    answer = await world.ask(api, version, resources=[resource(configs=refused), *others])
    errors = {r.resource_name: (r.error_code, r.error_message) for r in answer.responses}
    why = "group.max.size is a setting of the group coordinator, given where that starts."
    assert errors.pop("1") == (INVALID_CONFIG, why)
    assert {code for code, _ in errors.values()} == {0}
    message = world.broker.messages[-1]
    passed = codec.decode_request(request_header(message), message)
    assert [r.resource_name for r in passed.resources] == ["2", "orders"]
    world.broker.passed.clear()
    for name in ("offsets.retention.minutes", "offset.metadata.max.bytes", "group.streams.max.size"):
        only = [resource(configs=[{"name": name, "value": "1"}])]
        (entry,) = (await world.ask(api, version, resources=only)).responses
        assert (entry.error_code, entry.error_message.split()[0]) == (INVALID_CONFIG, name)
    assert world.broker.passed == []
