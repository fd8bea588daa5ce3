"""Patterns of clients that may not DESCRIBE all topics (rows RA1 to RA5): the gateway's messages to the
coordinator, and the client's partitions.
"""

from threading import Event
from typing import Any
from unittest.mock import patch

import pytest
from kafka.protocol.api_key import ApiKey
from msgspec import UNSET

from gateway.apis import topics
from gateway.apis.context import ConnectionCaches
from gateway.authorization.acls import Operation, ResourceType
from gateway.authorization.authorizer import Authorizer
from gateway.metrics.numbers import GatewayCounts
from gateway.running import watch_loop
from gateway.wire import codec
from kafka_why.contract.codec import encode
from kafka_why.contract.kafka.requests import (
    ConsumerGroupHeartbeat,
    JoinGroup,
    RegexResolution,
    RegexResolved,
)
from kafka_why.contract.kafka.share_requests import TopicImage
from kafka_why.contract.protocols.subscriptions import Subscription, TopicPartition, encode_subscription
from records.topic_patterns import digest
from state.kafka.consumer.regex import CHECK_MIN_INTERVAL_MS
from tests.harness.gateway import (
    JOIN,
    LAYOUT,
    PATIENCE_S,
    TOPICS,
    GatewayFixture,
    RawClient,
    Right,
    acls,
    join_fields,
    played,
    topic_id,
)
from tests.unit.gateway.test_gateway_numbers import use_processor

LOOKS_ANEW = patch.object(topics, "NAMED_AGE_MAX_S", -1.0)
"""A test does not wait for a second until topics may be read again."""


OF_ORDERS: list[Right] = [
    (Operation.READ, ResourceType.GROUP, "g"),
    (Operation.READ, ResourceType.TOPIC, "orders*"),
]
"""The client may READ, and so DESCRIBE, the topics that begin with `orders`."""


async def beat(client: RawClient, epoch: int, member_id: str = "m") -> Any:
    answer = await client.ask(HEARTBEAT, 1, group_id="g", member_id=member_id, member_epoch=epoch)
    assert answer.error_code == 0
    return answer


def watcher_saw(world: GatewayFixture, *names: str) -> RegexResolved:
    """Return the message of a watcher that knows neither the ACLs nor that gateways check the pattern."""
    topics = {name: TopicImage(topic_id(name), 1) for name in names}
    found = RegexResolution(topics, 1, seen=digest(sorted(names)))
    return RegexResolved(group_id="g", patterns={".*": found})


async def asked_to_look(world: GatewayFixture, client: RawClient, epoch: int, *topics: str) -> None:
    """Create the topics, let the watcher report them, and read the heartbeat answer that requests a check."""
    world.broker.topics |= dict.fromkeys(topics, 1)
    world.core.apply(watcher_saw(world, *world.broker.topics))
    world.core.advance(CHECK_MIN_INTERVAL_MS)
    await beat(client, epoch)
    assert last_asked(world).looked is UNSET


@played(rights=OF_ORDERS)
async def test_pattern_matches_only_topics_the_client_may_describe(world: GatewayFixture) -> None:
    answer = await world.ask(HEARTBEAT, 1, **by_pattern(".*"))
    assert assigned(answer) == ORDERS
    asked = last_asked(world)
    assert asked.checks_topics is True
    assert asked.regex is not None
    assert (asked.regex.topics, asked.regex.seen) == ({"orders": image("orders")}, digest(sorted(TOPICS)))
    assert b"prices" not in encode(asked)
    assert str(topic_id("prices")).encode() not in encode(asked)


@LOOKS_ANEW
@played(rights=OF_ORDERS)
async def test_next_heartbeat_checks_a_new_topic_against_the_pattern(world: GatewayFixture) -> None:
    client = await world.client()
    epoch = (await client.ask(HEARTBEAT, 1, **by_pattern(".*"))).member_epoch
    before = world.broker.metadata_requests
    await asked_to_look(world, client, epoch, "orders-2", "prices-2")
    assert world.broker.metadata_requests == before
    answer = await beat(client, epoch)
    assert assigned(answer) == ORDERS | {topic_id("orders-2"): [0]}
    assert world.broker.metadata_requests == before + 1
    looked = last_asked(world).looked
    assert looked is not UNSET
    assert list(looked[".*"].topics) == ["orders", "orders-2"]
    assert looked[".*"].seen == digest(sorted(world.broker.topics))
    await beat(client, answer.member_epoch)
    assert last_asked(world).looked is UNSET
    (group,) = (await client.ask(DESCRIBE, 1, group_ids=["g"])).groups
    assert (group.error_code, "prices" in str(group)) == (0, False)


@LOOKS_ANEW
@played(rights=OF_ORDERS)
async def test_pattern_result_is_sent_only_by_the_member_asked_for_it(world: GatewayFixture) -> None:
    """Neither another member of the connection sends it, nor a member that sends its subscription anyway."""
    client = await world.client()
    epoch = (await client.ask(HEARTBEAT, 1, **by_pattern(".*"))).member_epoch
    other = (await client.ask(HEARTBEAT, 1, **by_pattern("orders", member_id="n"))).member_epoch
    await asked_to_look(world, client, epoch, "orders-2")
    await beat(client, other, "n")
    assert last_asked(world).looked is UNSET
    await client.ask(HEARTBEAT, 1, **by_pattern(".*", member_epoch=epoch, topic_partitions=None))
    regex = last_asked(world).regex
    assert last_asked(world).looked is UNSET
    assert regex is not None
    assert "orders" in regex.topics
    await beat(client, epoch)
    assert last_asked(world).looked is UNSET


@LOOKS_ANEW
@played(rights=OF_ORDERS)
async def test_oversized_pattern_check_leaves_the_topics_unchanged(world: GatewayFixture) -> None:
    client = await world.client()
    epoch = (await client.ask(HEARTBEAT, 1, **by_pattern(".*"))).member_epoch
    await asked_to_look(world, client, epoch, *(f"orders-{number:0200}" for number in range(4_000)))
    answer = await beat(client, epoch)
    assert last_asked(world).looked is UNSET
    assert (answer.member_epoch, assigned(answer)) == (epoch, None)


@played(rights=OF_ORDERS)
async def test_while_brokers_are_unavailable_pattern_resolves_to_no_topics(world: GatewayFixture) -> None:
    client = await world.client()
    await world.stop_broker()
    epoch = (await client.ask(HEARTBEAT, 1, **by_pattern(".*"))).member_epoch
    world.core.apply(watcher_saw(world, *TOPICS))
    assert (last_asked(world).checks_topics, last_asked(world).regex) == (True, None)
    assert assigned(await beat(client, epoch)) is None
    assert last_asked(world).looked is UNSET


class Changing(Authorizer):
    """Its ACLs change while the first pattern is decided."""

    def may(self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str) -> bool:
        if kind is ResourceType.TOPIC and len(self) == len(OF_ORDERS):
            self.replace(acls(OF_ORDERS[:1]))
        return super().may(principal, host, operation, kind, name)


@patch.object(topics, "_CHECK_SLICE_S", 0.0)
@played(authorizer=lambda: Changing())
async def test_acl_change_during_a_pattern_check_leaves_no_partial_result(world: GatewayFixture) -> None:
    world.allow(*OF_ORDERS)
    await world.ask(HEARTBEAT, 1, **by_pattern(".*"))
    assert (last_asked(world).checks_topics, last_asked(world).regex) == (True, None)


class Slow(Authorizer):
    """Each decision about a topic takes 1 ms."""

    def may(self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str) -> bool:
        if kind is ResourceType.TOPIC:
            use_processor(0.001)
        return super().may(principal, host, operation, kind, name)


@played(authorizer=lambda: Slow(), topics_look_up_s=PATIENCE_S)
async def test_checking_rights_on_many_topics_does_not_block_the_event_loop(world: GatewayFixture) -> None:
    world.allow(*OF_ORDERS)
    world.broker.topics |= {f"x{number}": 1 for number in range(500)}
    # The metadata are read now: in this test the broker is of the same event loop.
    await world.ask(HEARTBEAT, 1, **by_pattern("orders"))
    with watch_loop(counts := GatewayCounts()):
        await world.ask(HEARTBEAT, 1, **by_pattern(".*", member_id="n"))
        held_s = counts.long_steps_s
    regex = last_asked(world).regex
    assert regex is not None
    assert list(regex.topics) == ["orders"]
    assert held_s == 0


@played(authorizer=lambda: Slow(), topics_look_up_s=0.2)
async def test_authorization_over_the_time_limit_yields_no_result(world: GatewayFixture) -> None:
    world.allow(*OF_ORDERS)
    world.broker.topics |= {f"x{number}": 1 for number in range(1_000)}
    assert (await world.ask(HEARTBEAT, 1, **by_pattern(".*"))).error_code == 0
    assert (last_asked(world).checks_topics, last_asked(world).regex) == (True, None)


def test_pending_pattern_checks_of_a_connection_are_bounded() -> None:
    looks = ConnectionCaches().requested_patterns
    for number in range(100):
        looks.add("g", f"m{number}", "p" * 10_000)
    assert len(looks) == 6
    assert looks.pop("g", "m93") is None
    assert looks.pop("g", "m99") == "p" * 10_000
    assert looks.get("g", "m99") is None
    for _ in range(100):
        looks.add("g", "m98", "q")
    assert (len(looks), looks.pop("g", "m98")) == (5, "q")
    looks.add("g", "m", "p" * 65_536)
    assert len(looks) == 0


GROUP, TOPIC = ResourceType.GROUP, ResourceType.TOPIC
HEARTBEAT, DESCRIBE = 68, 69
ORDERS = {topic_id("orders"): [0, 1, 2]}


def joining(**more: Any) -> dict[str, Any]:
    """Return the fields of a ConsumerGroupHeartbeat that joins group g as member m."""
    fields: dict[str, Any] = {"group_id": "g", "member_id": "m", "member_epoch": 0}
    fields |= {"rebalance_timeout_ms": 60_000, "topic_partitions": []}
    return fields | {"subscribed_topic_names": ["orders"]} | more


def by_pattern(pattern: str, **more: Any) -> dict[str, Any]:
    return joining(subscribed_topic_names=None, subscribed_topic_regex=pattern, **more)


def assigned(answer: Any) -> dict[Any, list[int]] | None:
    if answer.assignment is None:
        return None
    return {topic.topic_id: sorted(topic.partitions) for topic in answer.assignment.topic_partitions}


def last_asked(world: GatewayFixture) -> ConsumerGroupHeartbeat:
    asked = world.core.asked[-1]
    assert isinstance(asked, ConsumerGroupHeartbeat)
    return asked


def image(topic: str) -> TopicImage:
    return TopicImage(topic_id(topic), TOPICS[topic])


@played
async def test_mi1_heartbeat_with_topic_names_carries_broker_metadata(world: GatewayFixture) -> None:
    """A topic without a leader has an error, and is not called absent. The topic watcher reports it later."""
    world.broker.topic_errors["prices"] = 5
    names = ["orders", "absent", "prices"]
    answer = await world.ask(HEARTBEAT, 1, **joining(subscribed_topic_names=names))
    assert last_asked(world).topics == {"orders": image("orders"), "absent": None}
    assert last_asked(world).regex is None
    assert assigned(answer) == ORDERS
    before = world.broker.metadata_requests
    await world.ask(HEARTBEAT, 1, group_id="g", member_id="m", member_epoch=answer.member_epoch)
    assert (last_asked(world).topics, last_asked(world).regex) == (None, None)
    await world.ask(HEARTBEAT, 1, **joining(member_epoch=-1))
    assert last_asked(world).topics is None
    assert world.broker.metadata_requests == before


@played(topics_look_up_s=0.05)
async def test_mi1_mi2_heartbeat_without_brokers_carries_no_topic_metadata(world: GatewayFixture) -> None:
    world.broker.silent = True
    await world.ask(HEARTBEAT, 1, **joining())
    assert last_asked(world).topics is None
    await world.stop_broker()
    await world.ask(HEARTBEAT, 1, **joining(subscribed_topic_regex="o.*"))
    assert (last_asked(world).topics, last_asked(world).regex) == (None, None)
    protocols = [{"name": "range", "metadata": encode_subscription(Subscription(("orders",)))}]
    assert (await world.ask(JOIN, 9, **join_fields(group_id="h", protocols=protocols))).error_code == 79
    asked = world.core.asked[-1]
    assert isinstance(asked, JoinGroup) and asked.topics is None


@pytest.mark.parametrize("exposed", [False, True])
@played(expose_internal_topics=lambda exposed: exposed)
async def test_rx1_and_rx7_a_pattern_is_resolved_without_internal_topics(
    world: GatewayFixture, exposed: bool
) -> None:
    """Without the coordinator's own ones also where clients see them, as for the topic watcher."""
    world.broker.topics |= {"__consumer_offsets": 50, LAYOUT.requests_topic: 1, "marked": 1}
    world.broker.internal.add("marked")
    answer = await world.ask(HEARTBEAT, 1, **by_pattern(".*"))
    regex = last_asked(world).regex
    assert regex is not None
    assert regex.topics == {"orders": image("orders"), "prices": image("prices")}
    assert regex.at_ms > 0
    assert assigned(answer) == ORDERS | {topic_id("prices"): [0]}
    await world.ask(HEARTBEAT, 1, **by_pattern("order", member_id="n"))
    regex = last_asked(world).regex
    assert regex is not None
    assert regex.topics == {}  # the whole name has to match


@played(topics_look_up_s=0.05)
async def test_rx4_slow_pattern_blocks_neither_heartbeat_nor_gateway(world: GatewayFixture) -> None:
    released, client, other = Event(), await world.client(), await world.client()

    def hanging(*_: object) -> RegexResolution:
        released.wait(PATIENCE_S)
        return RegexResolution(at_ms=1, error="late")

    with patch.object(topics, "resolve", hanging):
        try:
            assert (await client.ask(HEARTBEAT, 1, **by_pattern("o.*"))).error_code == 0
            assert last_asked(world).regex is None
            assert (await other.ask(HEARTBEAT, 1, **by_pattern("p.*", member_id="n"))).error_code == 0
            assert last_asked(world).regex is None
        finally:
            released.set()


@played(topics_look_up_s=PATIENCE_S)
async def test_heartbeat_with_too_many_topics_is_refused(world: GatewayFixture) -> None:
    """The coordinator would never get the request, and the client would send it again without end."""
    names = [f"{number:0200}" for number in range(4_000)]
    world.broker.topics |= dict.fromkeys(names, 1)
    refused = await world.ask(HEARTBEAT, 1, **by_pattern("0.*"))
    assert (refused.error_code, bool(refused.error_message)) == (42, True)
    assert (await world.ask(HEARTBEAT, 1, **by_pattern("0*1.*"))).error_code == 0
    before = world.broker.metadata_requests
    assert (await world.ask(HEARTBEAT, 1, **joining(subscribed_topic_names=names))).error_code == 42
    assert world.broker.metadata_requests == before
    assert len(world.core.asked) == 1


@played(consumer_protocol=False, streams_protocol=False)
async def test_hb1_disabled_consumer_protocol_is_not_offered_and_is_refused(world: GatewayFixture) -> None:
    world.broker.answers[ApiKey.ApiVersions] = {
        "api_keys": [
            {"api_key": key, "min_version": 0, "max_version": 1} for key in (3, HEARTBEAT, DESCRIBE)
        ],
        "supported_features": [{"name": "group.version", "min_version": 0, "max_version": 1}],
    }
    offered = await world.ask(ApiKey.ApiVersions, 4)
    assert not {api.api_key for api in offered.api_keys} & {HEARTBEAT, DESCRIBE}
    assert (offered.supported_features, offered.finalized_features) == ([], [])
    for version in codec.versions(HEARTBEAT):
        assert (await world.ask(HEARTBEAT, version, **joining())).error_code == 35
        (group,) = (await world.ask(DESCRIBE, version, group_ids=["g"])).groups
        assert (group.group_id, group.error_code) == ("g", 35)
    assert world.core.asked == []


@played
async def test_mi2_join_carries_metadata_of_subscribed_and_owned_topics(world: GatewayFixture) -> None:
    """The topics that the member subscribes to, and those it owns partitions of, in any of its protocols."""
    owned = Subscription(("absent",), owned_partitions=(TopicPartition("prices", 0),))
    protocols = [
        {"name": "range", "metadata": encode_subscription(Subscription(("orders",)))},
        {"name": "cooperative-sticky", "metadata": encode_subscription(owned)},
        {"name": "own", "metadata": b"not of this protocol"},
    ]
    await world.ask(JOIN, 9, **join_fields(protocols=protocols))
    asked = world.core.asked[-1]
    assert isinstance(asked, JoinGroup)
    images = {name: TopicImage(topic_id(name), partitions) for name, partitions in TOPICS.items()}
    assert asked.topics == {**images, "absent": None}
    assert asked.partitions_per_topic == {}


@played(rights=[(Operation.READ, GROUP, "g"), (Operation.DESCRIBE, TOPIC, "orders")])
async def test_hb2_hb3_ad1_ad6_group_access_needs_rights_on_group_and_topics(world: GatewayFixture) -> None:
    refused = await world.ask(HEARTBEAT, 1, **joining(group_id="other"))
    assert (refused.error_code, refused.member_id, refused.assignment) == (30, None, None)
    (group,) = (await world.ask(DESCRIBE, 1, group_ids=["other"])).groups
    assert (group.group_id, group.error_code, group.members) == ("other", 30, [])
    both = joining(subscribed_topic_names=["orders", "prices"])
    assert (await world.ask(HEARTBEAT, 1, **both)).error_code == 29
    assert world.core.asked == []
    assert (await world.ask(HEARTBEAT, 1, **joining())).error_code == 0
    (group,) = (await world.ask(DESCRIBE, 1, group_ids=["g"])).groups
    assert (group.error_code, len(group.members)) == (0, 1)
    world.allow((Operation.DESCRIBE, GROUP, "g"))
    (group,) = (await world.ask(DESCRIBE, 1, group_ids=["g"])).groups
    assert (group.error_code, group.group_id, group.group_state, group.members) == (29, "g", "", [])
    assert group.error_message
