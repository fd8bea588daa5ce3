"""The gateway's own requests to brokers, for many callers at once, and while brokers hang."""

import asyncio

import pytest
from kafka.protocol.api_key import ApiKey

from gateway.limits import Limits
from gateway.upstream.connections import CLIENT_ID, Upstream, UpstreamLost
from gateway.wire import codec
from tests.harness.gateway import GatewayFixture, played, topic_id
from tests.harness.waiting import until

CALLERS = 1_000


@played
async def test_concurrent_callers_share_a_metadata_request(world: GatewayFixture) -> None:
    names = [f"topic-{number}" for number in range(CALLERS)]
    world.broker.topics |= dict.fromkeys(names, 1)
    before = world.broker.metadata_asked
    found = await asyncio.gather(*(world.cluster.described([name], 1.0) for name in names))
    assert [[*topics] for topics in found] == [[name] for name in names]
    by_id = await asyncio.gather(*(world.cluster.topics_by_id([topic_id(name)], 0.0) for name in names))
    assert [[topic.name for topic in topics.values()] for topics in by_id] == [[name] for name in names]
    assert world.broker.metadata_asked - before <= 4


@played
async def test_callers_sharing_a_metadata_request_get_only_their_own_topics(world: GatewayFixture) -> None:
    world.broker.topic_errors["unsure"] = 5
    asked = [["orders"], ["absent", "orders"], ["unsure"]]
    found = await asyncio.gather(*(world.cluster.described(names, 1.0) for names in asked))
    assert [{name: topic is not None for name, topic in topics.items()} for topics in found] == [
        {"orders": True},
        {"absent": False, "orders": True},
        {},
    ]


@played
async def test_many_topic_names_are_looked_up_in_batches(world: GatewayFixture) -> None:
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
async def test_cache_of_absent_topic_names_is_bounded(world: GatewayFixture) -> None:
    """Clients choose the names, and the oldest are forgotten first."""
    for first in range(0, 12_000, 6_000):
        names = [f"absent-{number}" for number in range(first, first + 6_000)]
        assert await world.cluster.topics(names) == {}
    assert world.cached_topics() <= 10_000
    assert world.cluster.cached_topics(["absent-11999"], 30.0) == {}
    for first in range(0, 12_000, 6_000):
        ids = [topic_id(f"absent-{number}") for number in range(first, first + 6_000)]
        assert await world.cluster.topics_by_id(ids, 30.0) == {}
    assert world.cached_topics() <= 20_000
    assert await world.cluster.topics(["orders"])


BODY = {"topics": [], "allow_auto_topic_creation": False}
REQUEST = codec.encode_request(ApiKey.Metadata, 12, 1, CLIENT_ID, BODY)


@played
async def test_broker_request_timeout_closes_its_connection(world: GatewayFixture) -> None:
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
