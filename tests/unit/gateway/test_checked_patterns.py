"""Patterns of clients that may not DESCRIBE all topics (rows RA1 to RA5): what the gateway tells the
coordinator, and what the client gets.
"""

from typing import Any
from unittest.mock import patch

from msgspec import UNSET

from gateway.apis import topics
from gateway.apis.context import ConnectionCaches
from gateway.authorization.acls import Operation, ResourceType
from gateway.authorization.authorizer import Authorizer
from gateway.metrics.numbers import GatewayCounts
from gateway.running import loop_watched
from kafka_why.contract.codec import encode
from kafka_why.contract.kafka.requests import RegexResolution, RegexResolved
from kafka_why.contract.kafka.share_requests import TopicImage
from records.topic_patterns import digest
from state.kafka.consumer.regex import CHECK_MIN_INTERVAL_MS
from tests.harness.gateway import PATIENCE_S, TOPICS, GatewayFixture, RawClient, Right, acls, played, topic_id
from tests.unit.gateway.test_consumer_members import (
    DESCRIBE,
    HEARTBEAT,
    ORDERS,
    assigned,
    by_pattern,
    image,
    last_asked,
)
from tests.unit.gateway.test_loop_watch import use_processor

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
    """Return what a watcher sends that does not know of the ACLs, nor that the pattern is a checked one."""
    topics = {name: TopicImage(topic_id(name), 1) for name in names}
    found = RegexResolution(topics, 1, seen=digest(sorted(names)))
    return RegexResolved(group_id="g", patterns={".*": found})


async def asked_to_look(world: GatewayFixture, client: RawClient, epoch: int, *topics: str) -> None:
    """The topics come, the watcher tells, and the answer to a heartbeat asks for a look."""
    world.broker.topics |= dict.fromkeys(topics, 1)
    world.core.tell(watcher_saw(world, *world.broker.topics))
    world.core.advance(CHECK_MIN_INTERVAL_MS)
    await beat(client, epoch)
    assert last_asked(world).looked is UNSET


@played(rights=OF_ORDERS)
async def test_a_pattern_matches_what_the_client_may_describe(world: GatewayFixture) -> None:
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
    before = world.broker.metadata_asked
    await asked_to_look(world, client, epoch, "orders-2", "prices-2")
    assert world.broker.metadata_asked == before
    answer = await beat(client, epoch)
    assert assigned(answer) == ORDERS | {topic_id("orders-2"): [0]}
    assert world.broker.metadata_asked == before + 1
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
async def test_pattern_check_is_sent_only_by_the_member_that_was_asked(world: GatewayFixture) -> None:
    """Not by another member of the connection, and not by a member that says what it subscribes to anyway."""
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
    for writer in world.broker.writers:
        writer.close()
    epoch = (await client.ask(HEARTBEAT, 1, **by_pattern(".*"))).member_epoch
    world.core.tell(watcher_saw(world, *TOPICS))
    assert (last_asked(world).checks_topics, last_asked(world).regex) == (True, None)
    assert assigned(await beat(client, epoch)) is None
    assert last_asked(world).looked is UNSET


class Changing(Authorizer):
    """Its ACLs change while the first pattern is decided."""

    def may(self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str) -> bool:
        if kind is ResourceType.TOPIC and len(self) == len(OF_ORDERS):
            self.replace(acls(OF_ORDERS[:1]))
        return super().may(principal, host, operation, kind, name)


@patch.object(topics, "_DECIDING_S", 0.0)
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
    with loop_watched(counts := GatewayCounts()):
        await world.ask(HEARTBEAT, 1, **by_pattern(".*", member_id="n"))
        held_s = counts.held_s
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
    assert not looks.is_requested("g", "m99")
    for _ in range(100):
        looks.add("g", "m98", "q")
    assert (len(looks), looks.pop("g", "m98")) == (5, "q")
    looks.add("g", "m", "p" * 65_536)
    assert len(looks) == 0
