"""The coordinator's settings among those of brokers, at the gateway."""

from typing import Any

import pytest

from tests.harness.gateway import GatewayFixture, played

ALTER, INCREMENTAL = 33, 44
TOPIC, BROKER = 2, 4  # ConfigResource.Type
INVALID_CONFIG = 40
DYNAMIC = 2  # DescribeConfigsResponse.ConfigSource


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


@pytest.mark.parametrize(("api", "version"), [(ALTER, 2), (INCREMENTAL, 1)])
@played
async def test_startup_settings_of_the_coordinator_cannot_be_altered_by_request(
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
    passed = world.broker.requests()[-1]
    assert [r.resource_name for r in passed.resources] == ["2", "orders"]
    world.broker.passed.clear()
    for name in ("offsets.retention.minutes", "offset.metadata.max.bytes", "group.streams.max.size"):
        only = [resource(configs=[{"name": name, "value": "1"}])]
        (entry,) = (await world.ask(api, version, resources=only)).responses
        assert (entry.error_code, entry.error_message.split()[0]) == (INVALID_CONFIG, name)
    assert world.broker.passed == []
