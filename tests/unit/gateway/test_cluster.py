"""The gateway's own requests to brokers, for many callers at once, and while brokers hang."""

import asyncio
from statistics import median

import pytest
from kafka.protocol.api_key import ApiKey

from gateway.limits import Limits
from gateway.upstream.cluster import Cluster
from gateway.upstream.connections import CLIENT_ID, Address, Upstream, UpstreamLost
from gateway.wire import codec
from state.kafka.requests import ConsumerGroupHeartbeat
from tests.harness.gateway import GatewayFixture, played, topic_id
from tests.harness.waiting import until

HEARTBEAT = 68
CALLERS = 1_000


@played
async def test_callers_at_once_share_a_request_although_their_topics_differ(world: GatewayFixture) -> None:
    names = [f"topic-{number}" for number in range(CALLERS)]
    world.broker.topics |= dict.fromkeys(names, 1)
    before = world.broker.metadata_asked
    found = await asyncio.gather(*(world.cluster.described([name], 1.0) for name in names))
    assert [[*topics] for topics in found] == [[name] for name in names]
    by_id = await asyncio.gather(*(world.cluster.topics_by_id([topic_id(name)], 0.0) for name in names))
    assert [[topic.name for topic in topics.values()] for topics in by_id] == [[name] for name in names]
    assert world.broker.metadata_asked - before <= 4


@played
async def test_callers_that_share_a_request_learn_only_of_their_own_topics(world: GatewayFixture) -> None:
    world.broker.topic_errors["unsure"] = 5
    asked = [["orders"], ["absent", "orders"], ["unsure"]]
    found = await asyncio.gather(*(world.cluster.described(names, 1.0) for names in asked))
    assert [{name: topic is not None for name, topic in topics.items()} for topics in found] == [
        {"orders": True},
        {"absent": False, "orders": True},
        {},
    ]


@played(upstream_timeout_s=0.5)
async def test_callers_share_a_failure_so_that_brokers_that_hang_keep_none_for_long(
    world: GatewayFixture,
) -> None:
    world.broker.silent = True
    connected = len(world.broker.writers)
    looks = (world.cluster.described([f"topic-{number}"], 1.0) for number in range(CALLERS))
    outcomes = await asyncio.gather(*looks, return_exceptions=True)
    assert {type(outcome) for outcome in outcomes} == {UpstreamLost}
    # A request is sent to each address in turn: the broker's, and that of the start.
    assert len(world.broker.writers) - connected <= 4
    world.broker.silent = False
    assert await world.cluster.described(["orders"], 1.0)


@played(topics_look_up_s=0.5)
async def test_brokers_that_hang_hold_the_first_full_heartbeat_and_not_the_next_ones(
    world: GatewayFixture,
) -> None:
    world.broker.silent = True
    now_s = asyncio.get_running_loop().time

    async def full_heartbeat(topic: str) -> float:
        began_s = now_s()
        fields = {"group_id": "g", "member_id": "m", "member_epoch": 0, "rebalance_timeout_ms": 60_000}
        await world.ask(HEARTBEAT, 1, **fields, topic_partitions=[], subscribed_topic_names=[topic])
        asked = world.core.asked[-1]
        assert isinstance(asked, ConsumerGroupHeartbeat)
        assert asked.topics is None
        return now_s() - began_s

    first_s = await full_heartbeat("orders")
    assert first_s >= 0.5
    assert median([await full_heartbeat(f"topic-{number}") for number in range(5)]) < first_s


@played
async def test_many_names_are_looked_up_in_parts(world: GatewayFixture) -> None:
    """Others have their turn between two, and wait for one of them at most."""
    names = [f"absent-{number}" for number in range(1_600)]
    before = world.broker.metadata_asked
    many = asyncio.create_task(world.cluster.topics([*names, "orders"]))
    await asyncio.sleep(0)
    assert await world.cluster.topics(["prices"])
    assert not many.done()
    assert list(await many) == ["orders"]
    assert world.broker.metadata_asked - before == 5


@played
async def test_names_without_a_topic_are_remembered_up_to_a_bound(world: GatewayFixture) -> None:
    """Clients choose the names, and the oldest are forgotten first."""
    for first in range(0, 50_000, 10_000):
        names = [f"absent-{number}" for number in range(first, first + 10_000)]
        assert await world.cluster.topics(names) == {}
    assert world.cached_topics() <= 10_000
    assert world.cluster.cached_topics(["absent-49999"], 30.0) == {}
    for first in range(0, 50_000, 10_000):
        ids = [topic_id(f"absent-{number}") for number in range(first, first + 10_000)]
        assert await world.cluster.topics_by_id(ids, 30.0) == {}
    assert world.cached_topics() <= 20_000
    assert await world.cluster.topics(["orders"])


def test_first_contacts_spread_over_the_live_brokers() -> None:
    """Else all would wait for the first broker where it hangs."""
    bootstrap = Address("bootstrap", 9092)
    cluster = Cluster([bootstrap], Limits())
    cluster.learn({node: Address(f"broker-{node}", 9092) for node in range(3)}, all_of_them=True)
    cluster.learn({7: Address("gone", 9092)})
    drawn = [cluster.addresses() for _ in range(200)]
    assert {addresses[0].host for addresses in drawn} == {"broker-0", "broker-1", "broker-2"}
    assert all(len(set(addresses)) == 4 and addresses[-1] == bootstrap for addresses in drawn)


BODY = {"topics": [], "allow_auto_topic_creation": False}
REQUEST = codec.encode_request(ApiKey.Metadata, 12, 1, CLIENT_ID, BODY)


@played
async def test_a_request_without_an_answer_in_time_closes_its_connection(world: GatewayFixture) -> None:
    """Also a cancelled one: its late response would be taken for that to the next request."""
    upstream = await Upstream.open(world.broker.address, Limits(upstream_timeout_s=0.05))
    other = await Upstream.open(world.broker.address, Limits())
    for _ in range(2):
        assert codec.decode_response(ApiKey.Metadata, 12, await other.request(REQUEST)).brokers
    world.broker.silent = True
    with pytest.raises(UpstreamLost, match=r"the broker at .* is lost: no answer within 0\.05 s"):
        await upstream.request(REQUEST)
    request = asyncio.create_task(other.request(REQUEST))
    await asyncio.sleep(0)
    assert not other.ended
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    await until(lambda: upstream.ended and other.ended)
