"""Settings of groups at the gateway: the coordinator answers for groups, the broker for other resources."""

from typing import Any

from gateway.authorization.acls import Operation, ResourceType
from gateway.wire import codec
from state.kafka.consumer.target import SETTINGS
from state.kafka.protocols import GROUP_CONFIG_NAMES
from tests.harness.gateway import GatewayFixture, played

ASSIGNMENT_INTERVAL, HEARTBEAT_INTERVAL, SESSION_TIMEOUT = (setting.name for setting in SETTINGS.settings)
DESCRIBE, ALTER, INCREMENTAL, LIST = 32, 33, 44, 74
HEARTBEAT = 68
TOPIC, GROUP = 2, 32  # ConfigResource.Type
SET = 0
GROUP_REFUSED, INVALID_CONFIG = 30, 40
OF_GROUP, OF_BROKER = 8, 5  # DescribeConfigsResponse.ConfigSource
RETENTION = {"name": "retention.ms", "value": "7", "config_source": 1}
DEFAULTS = {
    SESSION_TIMEOUT: ("45000", OF_BROKER),
    HEARTBEAT_INTERVAL: ("5000", OF_BROKER),
    ASSIGNMENT_INTERVAL: ("1000", OF_BROKER),
}


def resource(name: str, kind: int = GROUP, **more: Any) -> dict[str, Any]:
    return {"resource_type": kind, "resource_name": name, **more}


def change(name: str, value: str | None, operation: int = SET) -> dict[str, Any]:
    return {"name": name, "config_operation": operation, "value": value}


def errors_of(answer: Any) -> dict[tuple[int, str], int]:
    entries = getattr(answer, "results", None) or answer.responses
    return {(entry.resource_type, entry.resource_name): entry.error_code for entry in entries}


async def described(world: GatewayFixture, group_id: str = "g", version: int = 4, **more: Any) -> Any:
    """Return the settings of a group: value and source by name."""
    answer = await world.ask(DESCRIBE, version, resources=[resource(group_id)], **more)
    (found,) = answer.results
    assert (found.error_code, found.resource_type, found.resource_name) == (0, GROUP, group_id)
    assert {config.name for config in found.configs} == set(GROUP_CONFIG_NAMES)
    return {c.name: (c.value, c.config_source) for c in found.configs if c.name in DEFAULTS}


async def altered(world: GatewayFixture, *changes: dict[str, Any], group_id: str = "g", **more: Any) -> int:
    """Alter settings of a group incrementally, and return the error."""
    resources = [resource(group_id, configs=list(changes))]
    (answer,) = (await world.ask(INCREMENTAL, 1, resources=resources, **more)).responses
    assert (answer.resource_type, answer.resource_name) == (GROUP, group_id)
    assert bool(answer.error_message) == bool(answer.error_code)
    return int(answer.error_code)


@played
async def test_alter_configs_resets_settings_it_does_not_name(world: GatewayFixture) -> None:
    for version in codec.versions(ALTER):
        await altered(world, change(HEARTBEAT_INTERVAL, "6000"))
        configs = [{"name": SESSION_TIMEOUT, "value": "50000"}]
        answer = await world.ask(ALTER, version, resources=[resource("g", configs=configs)])
        assert errors_of(answer) == {(GROUP, "g"): 0}
        assert await described(world) == DEFAULTS | {SESSION_TIMEOUT: ("50000", OF_GROUP)}


@played
async def test_settings_of_groups_and_topics_are_requested_separately(world: GatewayFixture) -> None:
    of_topic = resource("orders", TOPIC)
    world.broker.answers[DESCRIBE] = {"results": [{**of_topic, "error_code": 0, "configs": [RETENTION]}]}
    both = [resource("g"), of_topic]
    answer = await world.ask(DESCRIBE, 4, resources=both)
    assert errors_of(answer) == {(TOPIC, "orders"): 0, (GROUP, "g"): 0}
    by_type = {found.resource_type: found.configs for found in answer.results}
    assert [config.value for config in by_type[TOPIC]] == ["7"]
    assert {config.name for config in by_type[GROUP]} == set(GROUP_CONFIG_NAMES)
    assert [r.resource_name for r in world.broker.requests()[-1].resources] == ["orders"]
    for api, version, refused in ((ALTER, 2, "x"), (INCREMENTAL, 1, "unknown")):
        world.broker.answers[api] = {"responses": [{**of_topic, "error_code": INVALID_CONFIG}]}
        configs = [{"name": refused, "value": "1"}]
        entries = [{**of_topic, "configs": configs}, resource("g", configs=configs)]
        answer = await world.ask(api, version, resources=entries)
        assert errors_of(answer) == {(TOPIC, "orders"): INVALID_CONFIG, (GROUP, "g"): INVALID_CONFIG}
        assert [r.resource_name for r in world.broker.requests()[-1].resources] == ["orders"]


@played(
    rights=[
        (Operation.DESCRIBE_CONFIGS, ResourceType.GROUP, "seen"),
        (Operation.ALTER_CONFIGS, ResourceType.GROUP, "mine"),
    ]
)
async def test_settings_need_describe_configs_and_alter_configs_on_the_group(world: GatewayFixture) -> None:
    groups = ("seen", "mine", "other")
    answer = await world.ask(DESCRIBE, 4, resources=[resource(group) for group in groups])
    assert errors_of(answer) == {(GROUP, "seen"): 0, (GROUP, "mine"): 0, (GROUP, "other"): GROUP_REFUSED}
    for api, version in ((ALTER, 2), (INCREMENTAL, 1)):
        configs = [{"name": SESSION_TIMEOUT, "value": "50000"}]
        changed = [resource(group, configs=configs) for group in groups]
        assert errors_of(await world.ask(api, version, resources=changed)) == {
            (GROUP, "seen"): GROUP_REFUSED,
            (GROUP, "mine"): 0,
            (GROUP, "other"): GROUP_REFUSED,
        }
    refused = await world.ask(LIST, 1, resource_types=[GROUP])
    assert (refused.error_code, refused.config_resources) == (31, [])


@played
async def test_config_resource_list_shows_groups_with_coordinator_settings(world: GatewayFixture) -> None:
    theirs = [("quiet", 16), ("theirs", GROUP), ("orders", TOPIC)]
    world.broker.scripts[LIST] = lambda request: {
        "error_code": 0,
        "config_resources": [
            {"resource_name": name, "resource_type": kind}
            for name, kind in theirs
            if not request.resource_types or kind in request.resource_types
        ],
    }
    fields = {"rebalance_timeout_ms": 60_000, "subscribed_topic_names": ["orders"], "topic_partitions": []}
    await world.ask(HEARTBEAT, 1, group_id="plain", member_id="m", member_epoch=0, **fields)
    await altered(world, change(SESSION_TIMEOUT, "50000"))

    async def listed(*types: int) -> list[tuple[str, int]]:
        answer = await world.ask(LIST, 1, resource_types=list(types))
        return [(found.resource_name, found.resource_type) for found in answer.config_resources]

    assert await listed() == [("quiet", 16), ("orders", TOPIC), ("g", GROUP)]
    assert await listed(GROUP) == [("g", GROUP)]
    assert await listed(TOPIC) == [("orders", TOPIC)]
    assert await world.ask(LIST, 0)  # names settings of client metrics only
    world.core.unread = True
    assert (await world.ask(LIST, 1, resource_types=[GROUP])).error_code == 14


@played
async def test_ksq9_settings_of_streams_groups_are_checked_and_kafkas_internal_ones_hidden(
    world: GatewayFixture,
) -> None:
    """A group that does not exist can have them, too."""
    lag, standbys = "streams.acceptable.recovery.lag", "streams.num.standby.replicas"
    assert await altered(world, change(lag, "7"), change(standbys, "1")) == 0
    for name, value in (
        (standbys, "3"),
        ("streams.session.timeout.ms", "1"),
        ("streams.assignor.name", "none"),
    ):
        assert await altered(world, change(name, value)) == INVALID_CONFIG
    answer = await world.ask(DESCRIBE, 4, resources=[resource("g")], include_documentation=True)
    shown = {config.name: config for config in answer.results[0].configs}
    assert lag not in shown
    assert (shown[standbys].value, shown[standbys].config_source) == ("1", OF_GROUP)
    assert all("no effect" not in shown[name].documentation for name in shown if name.startswith("streams."))


@played(consumer_protocol=False, streams_protocol=False)
async def test_group_settings_are_forwarded_to_brokers_while_epoch_protocols_are_off(
    world: GatewayFixture,
) -> None:
    world.broker.answers[DESCRIBE] = {"results": [{**resource("g"), "error_code": 7, "configs": []}]}
    assert errors_of(await world.ask(DESCRIBE, 4, resources=[resource("g")])) == {(GROUP, "g"): 7}
    assert world.core.asked == []
