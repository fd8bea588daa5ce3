"""The lag of each queue of the coordinator's groups in the gateway's metrics, polled from a stub broker."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.rocketmq import metadata as metadata_module
from gateway.rocketmq.brokers import BrokerAddress
from gateway.rocketmq.metadata import QueueLags, RocketMqMetadata
from gateway.rocketmq.metrics import REQUEST_CODES, RocketmqCounts, rocketmq_numbers
from kafka_why.connections.rocketmq import RocketMqServers
from kafka_why.contract.rocketmq.requests import GatewayStarted, ResponseCode
from kafka_why.remoting.codes import RequestCode
from kafka_why.why.rocketmq.polled import server
from tests.harness.rocketmq_gateway import QUEUES, PlayedGateway, heartbeat_body, rocketmq, started
from tests.harness.waiting import as_test, asynchronous, until

STORED, END = RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.GET_MAX_OFFSET
ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC
Poll = Callable[..., Awaitable[RocketmqCounts]]


@asynccontextmanager
async def polled(
    gateway: PlayedGateway, max_queues: int = 100
) -> AsyncIterator[tuple[QueueLags, RocketmqCounts]]:
    address = gateway.broker.address
    counts, metadata = RocketmqCounts(), RocketMqMetadata([address])
    lags = QueueLags(RocketMqServers((address,)), gateway.core, metadata, counts, max_queues)
    yield lags, counts
    await lags.close()
    await metadata.close()


def polling(test: Callable[..., Awaitable[None]]) -> Callable[..., Any]:
    """Make a test of a coroutine that gets a gateway and a poll. The only client of group g has stored the
    offset 5 of 12.
    """

    async def play(arguments: dict[str, Any]) -> None:
        async with rocketmq() as broker, started(broker) as gateway:
            broker.answers[STORED] = (0, {"offset": "5"}, b"")
            broker.answers[END] = (0, {"offset": "12"}, b"")
            await gateway.client("c1").heartbeat("g")

            async def poll(max_queues: int = 100, address: str = broker.address) -> RocketmqCounts:
                async with polled(gateway, max_queues) as (lags, counts):
                    await lags.poll([BrokerAddress("b", 1, "x:1"), BrokerAddress("b", 0, address)])
                return counts

            await test(gateway, poll, **arguments)

    return as_test(test, lambda arguments: asyncio.run(play(arguments)), skipped=2)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "REQUESTS_PER_S", 10_000)


@polling
async def test_lag_of_each_queue_is_a_series(gateway: PlayedGateway, poll: Poll) -> None:
    series = rocketmq_numbers(await poll())["consumer_lag_messages"]
    assert series == {("g", "T", "b", str(number)): [7] for number in range(QUEUES)}
    asked = [it.ext_fields for it in gateway.broker.asked if it.code == STORED]
    assert {it["queueId"] for it in asked} == {str(number) for number in range(QUEUES)}
    assert asked[0]["consumerGroup"] == "g" and asked[0]["setZeroIfNotFound"] == "false"
    gateway.broker.answers[END] = (0, {"offset": "4"}, b"")
    assert set((await poll()).lags.values()) == {0}
    gateway.broker.answers[STORED] = (ResponseCode.QUERY_NOT_FOUND, {}, b"")
    assert (await poll()).lags == {}


@polling
async def test_number_of_polled_queues_is_bounded(gateway: PlayedGateway, poll: Poll) -> None:
    await gateway.client("c2").heartbeat("h")
    found = {most: await poll(most) for most in (QUEUES - 1, QUEUES, 2 * QUEUES)}
    assert {most: len(it.lags) for most, it in found.items()} == {most: most for most in found}
    assert [it.lag_groups_left_out for it in found.values()] == [2, 1, 0]


@polling
async def test_broadcasting_rocketmq_group_has_no_lag(gateway: PlayedGateway, poll: Poll) -> None:
    body = heartbeat_body("c2", "h")
    body["consumerDataSet"][0]["messageModel"] = "BROADCASTING"
    await gateway.client("c2").ask(RequestCode.HEART_BEAT, body)
    assert {group_id for group_id, _ in (await poll()).lags} == {"g"}


@pytest.mark.parametrize(("is_away", "asked"), [(False, QUEUES), (True, 0)])
@polling
async def test_queues_without_a_broker_offset_have_no_lag(
    gateway: PlayedGateway, poll: Poll, is_away: bool, asked: int
) -> None:
    gateway.broker.answers[END] = (ResponseCode.NO_PERMISSION, {}, b"")
    with capture_logs() as logs:
        found = await poll(address="127.0.0.1:1") if is_away else await poll()
    assert found.lags == {}
    assert logs[0]["event"] == "the lags at a broker are not known"
    assert gateway.broker.codes().count(END) == asked


@polling
async def test_topic_lookups_for_lags_are_bounded(gateway: PlayedGateway, poll: Poll) -> None:
    await gateway.client("c2").heartbeat("h")
    gateway.broker.asked.clear()
    await poll()
    assert gateway.broker.codes().count(ROUTE) == 1  # of the topic of both groups
    unknown = [f"unknown-{number}" for number in range(50)]
    await gateway.client("c3").ask(RequestCode.HEART_BEAT, heartbeat_body("c3", "i", topics=unknown))
    await until(lambda: gateway.core.get("i"))
    gateway.broker.asked.clear()
    gateway.broker.answers[ROUTE] = (ResponseCode.TOPIC_NOT_EXIST, {}, b"")
    assert (await poll(10)).lag_groups_left_out == 1
    assert gateway.broker.codes().count(ROUTE) == 10


@pytest.mark.parametrize(("stuck", "left_out", "interval_s"), [(ROUTE, 1, 0.2), (END, 0, 2.0)])
@polling
async def test_lag_poll_does_not_wait_long_for_a_hanging_server(
    gateway: PlayedGateway,
    poll: Poll,
    monkeypatch: pytest.MonkeyPatch,
    stuck: RequestCode,
    left_out: int,
    interval_s: float,
) -> None:
    monkeypatch.setattr(metadata_module, "INTERVAL_S", interval_s)
    monkeypatch.setattr(metadata_module, "REQUESTS_PER_S", 10_000)
    gateway.broker.stuck.add(stuck)
    with capture_logs() as logs:
        found = await poll()
    assert (found.lags, found.lag_groups_left_out) == ({}, left_out)
    assert [entry["error"] for entry in logs] == ["it answers too slowly"] * (1 - left_out)
    gateway.broker.open.set()


@polling
async def test_lag_polls_continue_without_old_lags_after_an_error(
    gateway: PlayedGateway, poll: Poll, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_module, "INTERVAL_S", 0.5)
    before: list[int] = []

    def brokers() -> Iterable[BrokerAddress]:
        before.append(len(counts.lags))
        if len(before) == 1:
            raise RuntimeError("no brokers")
        return [BrokerAddress("b", 0, gateway.broker.address)]

    async with polled(gateway) as (lags, counts):
        counts.lags = (await poll()).lags
        with capture_logs() as logs:
            following = asyncio.create_task(lags.follow(brokers))
            await until(lambda: len(before) > 1 and counts.lags)
        following.cancel()
    assert before[:2] == [QUEUES, 0]
    assert logs[0]["event"] == "the lags of groups are not known"


@polling
async def test_connection_to_a_broker_that_is_gone_is_closed(gateway: PlayedGateway, _: Poll) -> None:
    def closed() -> int:
        return sum(writer.is_closing() for writer in gateway.broker.writers)

    async with polled(gateway) as (lags, counts):
        await lags.poll([BrokerAddress("b", 0, gateway.broker.address)])
        assert len(counts.lags) == QUEUES and closed() == 0
        await lags.poll([])
        await until(lambda: closed() == 1)


def test_request_names_in_metrics_are_those_of_the_protocol_codes() -> None:
    assert {code.name: code.value for code in RequestCode}.items() <= REQUEST_CODES.items()


@asynchronous
async def test_restarted_gateway_removes_its_old_connections_and_awaits_returning_clients() -> None:
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
