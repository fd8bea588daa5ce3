"""Settings of share groups at the gateway, where this project's coordinator has them: rows SN1 to SN24."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from msgspec import structs

from gateway.upstream.share_groups import Coordinators
from gateway.wire.codec import Fields
from kafka_why.contract.kafka.requests import AlterGroupConfigs
from tests.harness.gateway import GatewayFixture, RawClient
from tests.harness.gateway import played as any_played
from tests.harness.share_frames import finds_share_groups
from tests.unit.gateway.test_apis import config as of_broker

played = partial(any_played, share_groups=Coordinators.OURS)

DESCRIBE, ALTER, INCREMENTAL, LIST = 32, 33, 44, 74
GROUP, BROKER = 32, 4  # ConfigResource.Type
REFUSED, NOT_AVAILABLE = 40, 15
LOCKS, DEAD_LETTERS = "share.record.lock.duration.ms", "errors.deadletterqueue.topic.name"
SESSION, CONSUMERS = "share.session.timeout.ms", "consumer.session.timeout.ms"
OF_GROUP = {"resource_type": GROUP, "resource_name": "g"}
NO_ERROR: Fields = {"error_code": 0, "error_message": None}
TAKEN: Fields = {"responses": [{**OF_GROUP, **NO_ERROR}]}
ONLY_BROKERS = "The brokers have these settings, the coordinator does not"


async def ready(
    world: GatewayFixture, answer: Fields = TAKEN, before: Callable[[], object] = lambda: None
) -> RawClient:
    """Return a client of a gateway whose broker gives this answer to changes. It calls `before` first."""
    client = await finds_share_groups(world)

    def take(_: Any) -> Fields:
        before()
        return answer

    world.broker.scripts |= {ALTER: take, INCREMENTAL: take}
    return client


def changes(**values: str) -> list[dict[str, Any]]:
    names = {"locks": LOCKS, "dead_letters": DEAD_LETTERS, "session": SESSION, "consumers": CONSUMERS}
    return [{"name": names[name], "config_operation": 0, "value": value} for name, value in values.items()]


async def altered(client: RawClient, api: int = INCREMENTAL, **values: str) -> tuple[int, str | None]:
    configs = changes(**values)
    if api == ALTER:
        configs = [{"name": one["name"], "value": one["value"]} for one in configs]
    (answer,) = (await client.ask(api, 1, resources=[{**OF_GROUP, "configs": configs}])).responses
    assert (answer.resource_type, answer.resource_name) == (GROUP, "g")
    return answer.error_code, answer.error_message


def reached(world: GatewayFixture) -> list[tuple[int, list[str]]]:
    """Return the changes that reached the broker: their API, and the names of the settings."""
    return [
        (request.API_KEY, [config.name for config in resource.configs])
        for request in world.broker.requests(ALTER, INCREMENTAL)
        for resource in request.resources
    ]


def asked(world: GatewayFixture) -> list[tuple[bool, dict[str, str | None]]]:
    """Return what the coordinator was asked to check (True) or to keep."""
    requests = [request for request in world.core.asked if isinstance(request, AlterGroupConfigs)]
    return [
        (request.validate_only, {name: value for name, value in request.configs.items() if value is not None})
        for request in requests
    ]


@played()
async def test_sn24_settings_are_validated_and_stored_at_brokers_first(world: GatewayFixture) -> None:
    asked_before: list[Any] = []
    client = await ready(world, before=lambda: asked_before.extend(asked(world)))
    assert await altered(client, locks="20000", dead_letters="x", session="50000", consumers="51000") == (
        0,
        None,
    )
    own = {SESSION: "50000", CONSUMERS: "51000"}
    assert asked_before == [(True, own)]
    assert asked(world) == [(True, own), (False, own)]
    assert reached(world) == [(INCREMENTAL, [LOCKS, DEAD_LETTERS, SESSION])]


@played()
async def test_sn24_settings_read_only_by_leaders_are_stored_only_at_brokers(world: GatewayFixture) -> None:
    client = await ready(world)
    assert await altered(client, locks="20000") == (0, None)
    assert asked(world) == []
    assert reached(world) == [(INCREMENTAL, [LOCKS])]
    assert await altered(client, consumers="51000") == (0, None)
    assert (asked(world), len(reached(world))) == ([(False, {CONSUMERS: "51000"})], 1)


@played()
async def test_sn24_settings_refused_by_the_coordinator_reach_no_broker(world: GatewayFixture) -> None:
    client = await ready(world)
    error, message = await altered(client, locks="20000", session="1")
    assert (error, reached(world)) == (REFUSED, [])
    assert message is not None and SESSION in message


@played()
async def test_sn24_settings_refused_by_brokers_are_not_stored(world: GatewayFixture) -> None:
    refused = {**OF_GROUP, "error_code": REFUSED, "error_message": "of the broker"}
    client = await ready(world, {"responses": [refused]})
    assert await altered(client, locks="1", session="50000") == (REFUSED, "of the broker")
    assert asked(world) == [(True, {SESSION: "50000"})]


@played()
async def test_sn24_error_reports_that_only_the_brokers_stored_the_settings(world: GatewayFixture) -> None:
    client = await ready(world, before=lambda: setattr(world.core, "away", True))
    error, message = await altered(client, session="50000")
    assert error == NOT_AVAILABLE
    assert message is not None and message.startswith(ONLY_BROKERS)
    world.core.away = False
    world.broker.scripts[INCREMENTAL] = lambda _: TAKEN
    assert await altered(client, session="50000") == (0, None)
    assert asked(world)[-1] == (False, {SESSION: "50000"})


@played()
async def test_sn24_validate_only_request_stores_nothing(world: GatewayFixture) -> None:
    client = await ready(world)
    entries = [{**OF_GROUP, "configs": changes(locks="20000", session="50000")}]
    (answer,) = (await client.ask(INCREMENTAL, 1, resources=entries, validate_only=True)).responses
    assert answer.error_code == 0
    assert asked(world) == [(True, {SESSION: "50000"})]
    assert world.broker.requests()[-1].validate_only


@played()
async def test_sn24_unnamed_settings_are_reset_at_brokers_and_coordinator(world: GatewayFixture) -> None:
    client = await ready(world)
    assert await altered(client, ALTER, consumers="51000") == (0, None)
    assert reached(world) == [(ALTER, [])]
    assert await altered(client, ALTER, locks="20000") == (0, None)
    assert reached(world)[1:] == [(ALTER, [LOCKS])]
    assert asked(world)[2:] == [(True, {}), (False, {})]
    assert SESSION in structs.asdict(world.core.asked[-1])["configs"]


@pytest.mark.parametrize("keys", [None, [LOCKS, SESSION, CONSUMERS]])
@played()
async def test_sn24_leader_settings_come_from_brokers(world: GatewayFixture, keys: list[str] | None) -> None:
    client = await ready(world)
    assert await altered(client, session="50000") == (0, None)
    configs = [of_broker(name, "1") for name in (LOCKS, SESSION, DEAD_LETTERS)]
    world.broker.answers[DESCRIBE] = {"results": [{**OF_GROUP, "error_code": 0, "configs": configs}]}
    entry = {**OF_GROUP, "configuration_keys": keys}
    (found,) = (await client.ask(DESCRIBE, 4, resources=[entry])).results
    shown = {config.name: config.value for config in found.configs}
    assert (shown[LOCKS], shown[SESSION], shown[CONSUMERS]) == ("1", "50000", "45000")
    assert len(shown) == len(found.configs)
    (passed,) = world.broker.requests()[-1].resources
    assert passed.configuration_keys == (keys and [LOCKS])


@played()
async def test_sn24_list_includes_groups_with_settings_at_the_brokers(world: GatewayFixture) -> None:
    client = await ready(world)
    listed = [{"resource_name": name, "resource_type": GROUP} for name in ("g", "of-brokers")]
    world.broker.answers[LIST] = {"error_code": 0, "config_resources": listed}
    assert await altered(client, session="50000") == (0, None)
    answer = await client.ask(LIST, 1, resource_types=[GROUP])
    assert sorted(one.resource_name for one in answer.config_resources) == ["g", "of-brokers"]


@played()
async def test_sn1_sn5_broker_settings_show_the_coordinators_values(world: GatewayFixture) -> None:
    """What it does not read is the broker's, and can be changed by request."""
    names = "group.share.max.size", "group.share.record.lock.duration.ms"
    entry = {"resource_type": BROKER, "resource_name": "1"}
    client = await ready(world, {"responses": [{**entry, **NO_ERROR}]})
    world.core.config = world.core.config.with_settings({names[0]: "3"})
    configs = [of_broker(name, "7") for name in names]
    world.broker.answers[DESCRIBE] = {"results": [{**entry, "error_code": 0, "configs": configs}]}
    (found,) = (await client.ask(DESCRIBE, 4, resources=[entry])).results
    shown = {config.name: (config.value, config.read_only) for config in found.configs}
    assert shown == {names[0]: ("3", True), names[1]: ("7", False)}
    for name, error in zip(names, (REFUSED, 0), strict=True):
        change = {"name": name, "config_operation": 0, "value": "9"}
        (answer,) = (await client.ask(INCREMENTAL, 1, resources=[{**entry, "configs": [change]}])).responses
        assert answer.error_code == error
