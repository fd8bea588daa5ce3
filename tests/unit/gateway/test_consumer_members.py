"""Members on the consumer protocol (KIP-848) over the coordinator's core: heartbeats and what they tell of
topics, offsets by member epoch, descriptions.
"""

from threading import Event
from typing import Any
from unittest.mock import patch

from gateway.apis import topic_facts
from state.kafka.requests import ConsumerGroupHeartbeat, RegexResolution
from state.kafka.topic_images import TopicImage
from tests.harness.gateway import LAYOUT, PATIENCE_S, TOPICS, GatewayFixture, RawClient, played, topic_id

HEARTBEAT, DESCRIBE, DESCRIBE_CLASSIC = 68, 69, 15
ORDERS = {topic_id("orders"): [0, 1, 2]}
STALE, UNKNOWN_MEMBER, UNKNOWN_ID, BAD_PATTERN = 113, 25, 100, 128


def joining(**more: Any) -> dict[str, Any]:
    """The fields of a ConsumerGroupHeartbeat that joins group g as member m."""
    fields: dict[str, Any] = {"group_id": "g", "member_id": "m", "member_epoch": 0}
    fields |= {"rebalance_timeout_ms": 60_000, "topic_partitions": []}
    return fields | {"subscribed_topic_names": ["orders"]} | more


def by_pattern(pattern: str, **more: Any) -> dict[str, Any]:
    return joining(subscribed_topic_names=None, subscribed_topic_regex=pattern, **more)


def assigned(answer: Any) -> dict[Any, list[int]] | None:
    if answer.assignment is None:
        return None
    return {topic.topic_id: sorted(topic.partitions) for topic in answer.assignment.topic_partitions}


async def joined(client: RawClient, **more: Any) -> int:
    """Join, and return the member's epoch."""
    answer = await client.ask(HEARTBEAT, 1, **joining(**more))
    assert (answer.error_code, answer.error_message, assigned(answer)) == (0, None, ORDERS)
    return int(answer.member_epoch)


def last_asked(world: GatewayFixture) -> ConsumerGroupHeartbeat:
    asked = world.core.asked[-1]
    assert isinstance(asked, ConsumerGroupHeartbeat)
    return asked


def image(topic: str) -> TopicImage:
    return TopicImage(topic_id(topic), TOPICS[topic])


@played
async def test_mi1_a_heartbeat_with_names_says_what_the_brokers_know_of_them(world: GatewayFixture) -> None:
    client = await world.client()
    await client.ask(HEARTBEAT, 1, **joining(subscribed_topic_names=["orders", "absent", "unsure"]))
    assert last_asked(world).topics == {"orders": image("orders"), "absent": None, "unsure": None}
    assert last_asked(world).regex is None


@played
async def test_mi1_keep_alives_and_leaves_ask_no_broker(world: GatewayFixture) -> None:
    client = await world.client()
    epoch = await joined(client)
    before = world.broker.metadata_asked
    await client.ask(HEARTBEAT, 1, group_id="g", member_id="m", member_epoch=epoch)
    assert (last_asked(world).topics, last_asked(world).regex) == (None, None)
    await client.ask(HEARTBEAT, 1, **joining(member_epoch=-1))
    assert last_asked(world).topics is None
    assert world.broker.metadata_asked == before


@played
async def test_mi1_members_that_join_together_share_a_look_at_the_topics(world: GatewayFixture) -> None:
    client = await world.client()
    before = world.broker.metadata_asked
    for number in range(5):
        await client.ask(HEARTBEAT, 1, **joining(member_id=f"m{number}"))
        assert last_asked(world).topics == {"orders": image("orders")}
    assert world.broker.metadata_asked == before + 1


@played
async def test_mi1_a_topic_with_another_error_is_not_called_absent(world: GatewayFixture) -> None:
    """A topic without a leader has such an error. The topic watcher reports it when the brokers know it."""
    world.broker.topic_errors["prices"] = 5
    client = await world.client()
    await client.ask(HEARTBEAT, 1, **joining(subscribed_topic_names=["orders", "prices"]))
    assert last_asked(world).topics == {"orders": image("orders")}


@played
async def test_mi1_without_brokers_a_heartbeat_goes_on_and_nothing_is_known(world: GatewayFixture) -> None:
    client = await world.client()
    await world.stop_broker()
    for writer in world.broker.writers:
        writer.close()
    await client.ask(HEARTBEAT, 1, **joining(subscribed_topic_regex="o.*"))
    assert (last_asked(world).topics, last_asked(world).regex) == (None, None)


@played(topics_look_up_s=0.05)
async def test_mi1_brokers_that_hang_do_not_hold_a_heartbeat(world: GatewayFixture) -> None:
    client = await world.client()
    world.broker.silent = True
    await client.ask(HEARTBEAT, 1, **joining())
    assert last_asked(world).topics is None


@played(expose_internal_topics=False)
async def test_rx1_and_rx7_a_pattern_is_resolved_without_internal_topics(world: GatewayFixture) -> None:
    world.broker.topics |= {"__consumer_offsets": 50, LAYOUT.requests_topic: 1, "marked": 1}
    world.broker.internal.add("marked")
    client = await world.client()
    answer = await client.ask(HEARTBEAT, 1, **by_pattern(".*"))
    regex = last_asked(world).regex
    assert regex is not None
    assert regex.topics == {"orders": image("orders"), "prices": image("prices")}
    assert regex.at_ms > 0
    assert assigned(answer) == ORDERS | {topic_id("prices"): [0]}
    await client.ask(HEARTBEAT, 1, **by_pattern("order", member_id="n"))
    regex = last_asked(world).regex
    assert regex is not None
    assert regex.topics == {}  # the whole name has to match


@played
async def test_rx1_patterns_share_a_look_at_all_topics(world: GatewayFixture) -> None:
    client = await world.client()
    before = world.broker.metadata_asked
    for number, pattern in enumerate((".*", "o.*", ".*s")):
        await client.ask(HEARTBEAT, 1, **by_pattern(pattern, member_id=f"m{number}"))
    assert world.broker.metadata_asked == before + 1


@played(topics_look_up_s=0.05)
async def test_rx4_a_pattern_that_takes_long_holds_neither_heartbeat_nor_gateway(
    world: GatewayFixture,
) -> None:
    released, client, other = Event(), await world.client(), await world.client()

    def hanging(*_: object) -> RegexResolution:
        released.wait(PATIENCE_S)
        return RegexResolution(at_ms=1, error="late")

    with patch.object(topic_facts, "resolve", hanging):
        try:
            assert (await client.ask(HEARTBEAT, 1, **by_pattern("o.*"))).error_code == 0
            assert last_asked(world).regex is None
            assert (await other.ask(HEARTBEAT, 1, **by_pattern("p.*", member_id="n"))).error_code == 0
            assert last_asked(world).regex is None
        finally:
            released.set()


@played(topics_look_up_s=PATIENCE_S)
async def test_more_topics_than_a_request_can_carry_are_refused(world: GatewayFixture) -> None:
    """The coordinator would never get the request, and the client would send it again without end."""
    world.broker.topics |= {f"{number:0200}": 1 for number in range(4_000)}
    client = await world.client()
    refused = await client.ask(HEARTBEAT, 1, **by_pattern("0.*"))
    assert (refused.error_code, bool(refused.error_message)) == (42, True)
    assert (await client.ask(HEARTBEAT, 1, **by_pattern("0*1.*"))).error_code == 0
    assert len(world.core.asked) == 1
    before = world.broker.metadata_asked
    names = [f"{number:0200}" for number in range(4_000)]
    assert (await client.ask(HEARTBEAT, 1, **joining(subscribed_topic_names=names))).error_code == 42
    assert world.broker.metadata_asked == before
    assert len(world.core.asked) == 1
