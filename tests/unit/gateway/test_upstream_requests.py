"""A request of the gateway's own to a broker: its time limit, and the connection after it."""

import asyncio

import pytest
from kafka.protocol.api_key import ApiKey

from gateway.limits import Limits
from gateway.upstream.connections import CLIENT_ID, Upstream, UpstreamLost
from gateway.wire import codec
from tests.harness.gateway import GatewayFixture, played
from tests.harness.waiting import until

BODY = {"topics": [], "allow_auto_topic_creation": False}
REQUEST = codec.encode_request(ApiKey.Metadata, 12, 1, CLIENT_ID, BODY)


@played
async def test_a_connection_takes_one_request_after_the_other(world: GatewayFixture) -> None:
    upstream = await Upstream.open(world.broker.address, Limits())
    for _ in range(2):
        assert codec.decode_response(ApiKey.Metadata, 12, await upstream.request(REQUEST)).brokers
    assert not upstream.ended
    upstream.close()


@played
async def test_a_request_without_an_answer_in_time_closes_its_connection(world: GatewayFixture) -> None:
    upstream = await Upstream.open(world.broker.address, Limits(upstream_timeout_s=0.05))
    world.broker.silent = True
    with pytest.raises(UpstreamLost, match=r"the broker at .* is lost: no answer within 0\.05 s"):
        await upstream.request(REQUEST)
    await until(lambda: upstream.ended)


@played
async def test_a_cancelled_request_closes_its_connection(world: GatewayFixture) -> None:
    """A late response would be taken for that to the next request."""
    upstream = await Upstream.open(world.broker.address, Limits())
    world.broker.silent = True
    request = asyncio.create_task(upstream.request(REQUEST))
    await asyncio.sleep(0)
    request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await request
    await until(lambda: upstream.ended)
