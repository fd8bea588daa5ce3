"""Connections of RocketMQ gateways that start again, and of those that die."""

from kafka_why.contract.kafka.requests import Heartbeat
from kafka_why.contract.rocketmq.requests import GatewayStarted
from tests.harness.coroutines import asynchronous
from tests.harness.rocketmq_gateway import rocketmq, started
from tests.harness.waiting import until


@asynchronous
async def test_started_gateway_removes_its_old_connections_and_waits_for_clients_to_come_back() -> None:
    async with rocketmq() as broker, started(broker) as old:
        for name in ("c1", "c2"):
            await old.client(name).heartbeat("g")
        async with started(broker, start="2", core=old.core) as gateway:
            (record,) = old.core.of(GatewayStarted)
            assert (record.group_id, record.gateway, record.gateway_start) == ("g", "gw", "2")
            first, second = gateway.client("c1"), gateway.client("c2")
            await first.heartbeat("g", "new")
            assert (await first.consumer_list()).code == 1, "c2 has not come back yet"
            assert (await first.consumer_list("new")).content == {"consumerIdList": ["c1"]}
            await second.heartbeat("g")
            first.received.clear()
            await until(lambda: first.received, 4.0)
            assert (first.notified, second.notified) == (["g"], ["g"])
            assert (await first.consumer_list()).content == {"consumerIdList": ["c1", "c2"]}


@asynchronous
async def test_connections_of_a_gateway_that_dies_are_removed_by_another_one() -> None:
    async with rocketmq() as broker, started(broker, name="dead") as dead:
        core = dead.core
        async with started(broker, name="alive", start="2", core=core) as alive:
            stale, client = dead.client("c1"), alive.client("c1")
            await stale.heartbeat("g", producers=["p"])
            await client.heartbeat("g")
            core.advance(6_000)  # twice group.initial.rebalance.delay.ms
            await until(lambda: [type(it) for it in core.of_kafka[-2:]] == [Heartbeat, Heartbeat])
            await dead.requests.close()
            client.received.clear()
            while not core.of(GatewayStarted):
                sent = len(core.of_kafka)
                core.advance(2_000)
                await until(lambda sent=sent: len(core.of_kafka) > sent)  # type: ignore[misc]
            await until(lambda: client.notified)
            gone = {(it.group_id, it.gateway, it.gateway_start) for it in core.of(GatewayStarted)}
            assert gone == {("g", "dead", ""), ("p", "dead", "")}
            assert (await client.consumer_list()).content == {"consumerIdList": ["c1"]}
            assert stale.closed_by_gateway[0] == "gateway dead is gone", "it may only have been slow"
            assert not client.closed_by_gateway
