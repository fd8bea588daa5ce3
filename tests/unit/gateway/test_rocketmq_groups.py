"""RocketMQ's requests about groups, answered by the real core. `tests/e2e` has whole clients."""

import asyncio
import time
from typing import Any

from msgspec import json

from gateway.rocketmq.backend import ANSWER_WAIT_S
from gateway.rocketmq.session import LOCK_WAIT_S
from kafka_why.contract.kafka.requests import Heartbeat
from kafka_why.contract.rocketmq.requests import (
    ConnectionClosed,
    GatewayStarted,
    GetConsumerListByGroup,
    LockBatchMq,
    RegisterConsumer,
    RegisterProducer,
    SetMessageRequestMode,
    UnlockBatchMq,
    UnregisterConsumer,
)
from kafka_why.remoting.codes import RequestCode
from tests.harness.rocketmq_gateway import (
    Client,
    PlayedGateway,
    heartbeat_body,
    lock_body,
    played,
    rocketmq,
    started,
)
from tests.harness.waiting import asynchronous, until

V2 = {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "false"}


def assignment(client: Client, topic: str = "T") -> dict[str, Any]:
    return {
        "clientId": client.client_id,
        "consumerGroup": "g",
        "messageModel": "CLUSTERING",
        "strategyName": "AVG",
        "topic": topic,
    }


async def took_s(answer: Any) -> float:
    began_s = time.monotonic()
    await answer
    return time.monotonic() - began_s


@played
async def test_s13_accepted_heartbeat_becomes_one_record_per_group(gateway: PlayedGateway) -> None:
    client = gateway.client("c1", number=1)
    gateway.broker.stuck.add(RequestCode.HEART_BEAT)
    beat = asyncio.ensure_future(client.heartbeat("g", "h", producers=["p", "CLIENT_INNER_PRODUCER"]))
    await until(lambda: RequestCode.HEART_BEAT in gateway.broker.codes())
    assert not gateway.core.of(RegisterConsumer)
    gateway.broker.answers[RequestCode.HEART_BEAT] = (0, V2 | {"IS_SUB_CHANGE": "true"}, b"")
    gateway.broker.open.set()
    answer = await beat
    assert (answer.code, answer.header.ext_fields["IS_SUB_CHANGE"]) == (0, "true")
    consumers = gateway.core.of(RegisterConsumer)
    assert [record.group_id for record in consumers] == ["g", "h"]
    assert {
        (it.broker, it.client_address, it.gateway, it.gateway_start, it.client_version) for it in consumers
    } == {("b/1", "10.0.0.1:0", "gw", "1", 513)}
    assert consumers[0].subscription_data_set[0].topic == "T"
    assert [record.group_id for record in gateway.core.of(RegisterProducer)] == ["p"]
    assert client.notified == ["g", "h"]


@played
async def test_heartbeat_refused_by_the_broker_leaves_no_record(gateway: PlayedGateway) -> None:
    gateway.broker.answers[RequestCode.HEART_BEAT] = (16, {}, b"")
    gateway.broker.remark = "no access"
    answer = await gateway.client("c1").heartbeat("g")
    assert (answer.code, answer.header.remark) == (16, "no access")
    assert not gateway.core.records


@played
async def test_malformed_group_request_gets_an_error_and_is_not_forwarded(gateway: PlayedGateway) -> None:
    client = gateway.client("c1")
    for code in (34, 41, 42, 400, 401):
        assert (await client.ask(code, b'{"consumerGroup":1,')).code == 1
    assert (await client.ask(38)).header.remark == "the custom field <consumerGroup> is null"
    assert not gateway.core.records and not gateway.broker.asked


@played
async def test_group_unknown_to_the_broker_is_not_registered(gateway: PlayedGateway) -> None:
    gateway.broker.answers[RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG] = (26, {}, b"")
    client = gateway.client("c1")
    await client.heartbeat("g")
    assert gateway.core.of(RegisterConsumer)[0].group_config is None
    assert (await client.consumer_list()).code == 1


@played
async def test_short_heartbeat_needs_a_full_one_at_broker_and_coordinator(gateway: PlayedGateway) -> None:
    gateway.broker.answers[RequestCode.HEART_BEAT] = (0, V2, b"")
    first, second = gateway.client("c1"), gateway.client("c2")
    answers = [
        await client.heartbeat("g", heartbeatFingerprint=fingerprint, withoutSub=is_short)
        for client, fingerprint, is_short in (
            *((first, 5, False), (first, 5, False), (second, 6, False), (second, 6, False)),
            *((second, 6, True), (first, 5, True), (first, 5, True)),
        )
    ]
    assert [answer.header.ext_fields["IS_SUB_CHANGE"] for answer in answers] == [
        *("true", "false", "true", "true", "false", "false", "true")
    ]


# Clients of a group


@played
async def test_clients_are_notified_and_listed_at_each_broker_address(gateway: PlayedGateway) -> None:
    first, second = gateway.client("c1"), gateway.client("c2")
    slave = gateway.client("c1", number=1)
    nobody = await first.consumer_list()
    assert (nobody.code, nobody.header.remark) == (1, "no consumer for this group, g")
    await first.heartbeat("g")
    await slave.heartbeat("g")
    await second.heartbeat("g")
    assert (first.notified, second.notified, slave.notified) == (["g", "g"], ["g"], ["g"])
    assert (await second.consumer_list()).content == {"consumerIdList": ["c1", "c2"]}
    assert (await slave.consumer_list()).content == {"consumerIdList": ["c1"]}


@played
async def test_unregistered_and_closed_connections_leave_their_groups(gateway: PlayedGateway) -> None:
    first, second, third = (gateway.client(name) for name in ("c1", "c2", "c3"))
    for client in (first, second, third):
        await client.heartbeat("g", "h", producers=["p"])
    await second.ask(RequestCode.UNREGISTER_CLIENT, clientID="c2", consumerGroup="g", producerGroup="p")
    assert (gateway.broker.codes()[-1], len(gateway.core.of(UnregisterConsumer))) == (35, 1)
    first.received.clear()
    await second.session.end("the broker ended it")
    await third.session.end("the client ended it")
    await until(lambda: len(gateway.core.of(ConnectionClosed)) == 4)
    closed = [(record.group_id, record.reason) for record in gateway.core.of(ConnectionClosed)]
    assert closed == [
        ("h", "the broker ended it"),
        *((group, "the client ended it") for group in ("g", "h", "p")),
    ]
    assert sorted(first.notified) == ["g", "h", "h"]
    assert (await first.consumer_list()).content == {"consumerIdList": ["c1"]}


@played
async def test_connections_that_end_together_are_in_one_record(gateway: PlayedGateway) -> None:
    first, *others = (gateway.client(name) for name in ("c1", "c2", "c3"))
    for client in (first, *others):
        await client.heartbeat("g")
    first.received.clear()
    await asyncio.gather(*(it.session.end("the broker ended it") for it in others))
    await until(lambda: first.notified)
    (record,) = gateway.core.of(ConnectionClosed)
    assert [record.connection, *record.others] == [it.connection for it in others]
    assert first.notified == ["g"]


@played
async def test_connection_that_ended_sends_no_more_records(gateway: PlayedGateway) -> None:
    client = gateway.client("c1")
    gateway.broker.stuck.add(RequestCode.HEART_BEAT)
    asked = [asyncio.ensure_future(one) for one in (client.heartbeat("g"), client.lock(0))]
    await until(lambda: RequestCode.HEART_BEAT in gateway.broker.codes())
    await client.session.end("the client ended it")
    gateway.broker.open.set()
    outcomes = await asyncio.gather(*asked, return_exceptions=True)
    assert [type(it) for it in outcomes] == [ConnectionResetError] * 2
    assert not gateway.core.records


@played
async def test_hanging_broker_blocks_a_group_no_longer_than_the_client_timeout(
    gateway: PlayedGateway,
) -> None:
    client = gateway.client("c1")
    gateway.broker.stuck.add(RequestCode.HEART_BEAT)
    beat, listed = await asyncio.gather(client.heartbeat("g"), client.consumer_list())
    assert (beat.code, listed.code) == (1, 1)
    assert await took_s(client.consumer_list()) < ANSWER_WAIT_S
    assert not gateway.core.of(RegisterConsumer)


@played
async def test_requests_of_a_group_keep_order_and_hold_up_no_other(gateway: PlayedGateway) -> None:
    client = gateway.client("c1")
    await client.heartbeat("other")
    gateway.broker.stuck.add(RequestCode.HEART_BEAT)
    beat = asyncio.ensure_future(client.heartbeat("g"))
    listed = asyncio.ensure_future(client.consumer_list("g"))
    assert (await client.consumer_list("other")).content == {"consumerIdList": ["c1"]}
    assert not listed.done()
    gateway.broker.open.set()
    assert (await listed).content == {"consumerIdList": ["c1"]}
    await beat
    kinds = [type(record) for record in gateway.core.records if record.group_id == "g"]
    assert kinds == [RegisterConsumer, GetConsumerListByGroup]


# A late coordinator


@played
async def test_gateway_awaits_a_late_coordinator_within_the_client_timeout(gateway: PlayedGateway) -> None:
    client = gateway.client("c1")
    gateway.core.is_away = True
    await client.heartbeat("g")
    listed, assigned, left = (
        asyncio.ensure_future(one)
        for one in (
            client.consumer_list(),
            client.ask(RequestCode.QUERY_ASSIGNMENT, assignment(client)),
            client.ask(RequestCode.UNREGISTER_CLIENT, clientID="c1", consumerGroup="g"),
        )
    )
    assert await took_s(asyncio.wait([listed, assigned, left])) > ANSWER_WAIT_S - 0.1
    assert listed.result().code == 1
    assert (assigned.result().code, assigned.result().content.get("messageQueueAssignments")) == (0, None)
    assert left.result().code == 0
    assert isinstance(gateway.core.records[-1], UnregisterConsumer)


# Locks


@played
async def test_queue_is_locked_by_one_client_until_it_unlocks_it(gateway: PlayedGateway) -> None:
    first, second = gateway.client("c1"), gateway.client("c2")
    assert await first.lock(0, 1, 1) == [0, 1]
    assert await second.lock(1, 2) == [2]
    unlock = lock_body("c1", [1])
    assert await first.send(RequestCode.UNLOCK_BATCH_MQ, unlock, one_way=True) is None
    assert await second.lock(1) == [1]
    assert (await second.ask(RequestCode.UNLOCK_BATCH_MQ, lock_body("c2", [1]))).code == 0
    assert await first.lock(1) == [1]


@played
async def test_late_queue_lock_answers_the_next_lock_request_at_once(gateway: PlayedGateway) -> None:
    client = gateway.client("c1")
    gateway.core.is_away = True
    assert LOCK_WAIT_S - 0.05 < await took_s(client.lock(0, 1)) < ANSWER_WAIT_S - 0.1
    gateway.core.is_away = False
    await until(lambda: client.session._grants._requested_at_s)
    gateway.core.is_away = True
    assert await took_s(client.lock(0, 1)) < LOCK_WAIT_S
    await until(lambda: len(gateway.core.of(LockBatchMq)) == 2)  # it renews the lock
    assert await client.lock(1, 2) == [1], "no first grant comes before the coordinator's answer"
    for _ in range(14):
        await client.lock(0)
    assert await took_s(client.lock(0)) > LOCK_WAIT_S - 0.05, "it renews too many"


# Assignment by the broker


@played
async def test_assignment_is_the_coordinators_choice_among_readable_queues(gateway: PlayedGateway) -> None:
    clients = [gateway.client(name) for name in ("c1", "c2")]
    for client in clients:
        await client.heartbeat("g")
    shares = [(await it.ask(RequestCode.QUERY_ASSIGNMENT, assignment(it))).content for it in clients]
    numbers = [[it["messageQueue"]["queueId"] for it in share["messageQueueAssignments"]] for share in shares]
    assert [sorted(share) for share in numbers] == [[0, 1, 2, 3], [4, 5, 6]]
    gateway.broker.answers[RequestCode.GET_ROUTEINFO_BY_TOPIC] = (17, {}, b"")
    unknown = await clients[0].ask(RequestCode.QUERY_ASSIGNMENT, assignment(clients[0], "other"))
    assert (unknown.code, unknown.content.get("messageQueueAssignments")) == (0, None)


@played
async def test_request_mode_accepted_by_the_broker_applies_at_the_coordinator(gateway: PlayedGateway) -> None:
    client = gateway.client("c1")
    await client.heartbeat("g")
    mode = {"topic": "T", "consumerGroup": "g", "mode": "POP", "popShareQueueNum": 0}
    gateway.broker.answers[RequestCode.SET_MESSAGE_REQUEST_MODE] = (26, {}, b"")
    assert (await client.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, mode)).code == 26
    assert not gateway.core.of(SetMessageRequestMode)
    del gateway.broker.answers[RequestCode.SET_MESSAGE_REQUEST_MODE]
    assert (await client.ask(RequestCode.SET_MESSAGE_REQUEST_MODE, mode)).code == 0
    (share,) = (await client.ask(RequestCode.QUERY_ASSIGNMENT, assignment(client))).content[
        "messageQueueAssignments"
    ]
    assert (share["messageQueue"]["queueId"], share["mode"]) == (-1, "POP")


@played
async def test_broker_settings_are_queried_once_until_they_change(gateway: PlayedGateway) -> None:
    client = gateway.client("c1")
    facts = (RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, RequestCode.GET_ROUTEINFO_BY_TOPIC)

    async def asked() -> list[int]:
        gateway.broker.asked.clear()
        await client.heartbeat("g")
        await client.ask(RequestCode.QUERY_ASSIGNMENT, assignment(client))
        return [code for code in gateway.broker.codes() if code in facts]

    assert await asked() == [*facts]
    assert await asked() == []
    await client.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP)
    await gateway.broker.close_all()
    assert await asked() == [facts[0]], "on a new connection"
    await client.ask(RequestCode.DELETE_TOPIC_IN_BROKER)
    assert await asked() == [facts[1]]


@asynchronous
async def test_message_request_modes_stored_at_a_broker_are_taken_over() -> None:
    async with rocketmq() as broker:
        mode = {"mode": "POP", "popShareQueueNum": 2}
        modes = json.encode({"messageRequestModeMap": {"T": {"g": mode, "h": mode}}})
        broker.answers[RequestCode.GET_ALL_MESSAGE_REQUEST_MODE] = (0, {}, modes)
        async with started(broker) as first:
            await until(lambda: len(first.core.of(SetMessageRequestMode)) == 2)
            async with started(broker, start="2", core=first.core) as second:
                assert second.core.groups()[0].request_modes["T"].mode == "POP"
                assert len(second.core.of(SetMessageRequestMode)) == 2, "the coordinator's mode counts"


@asynchronous
async def test_request_denied_by_the_brokers_acls_never_reaches_the_coordinator() -> None:
    async with rocketmq() as broker, started(broker) as gateway:
        broker.answers[RequestCode.GET_BROKER_CONFIG] = (0, {}, b"brokerName=b\nauthenticationEnabled=true\n")
        client = gateway.client("c1")
        await client.heartbeat("g")
        broker.remark = "no consumer for this group, g"
        broker.answers[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = (1, {}, b"")
        assert (await client.consumer_list()).content == {"consumerIdList": ["c1"]}
        broker.remark = "Authorization failed"
        for code in (38, 41, 42, 400):
            broker.answers[RequestCode(code)] = (16 if code != 38 else 1, {}, b"")
        known = len(gateway.core.records)
        requests = {38: None, 41: lock_body("c1", [0]), 42: lock_body("c1", [0]), 400: assignment(client)}
        refused = [await client.ask(it, body, consumerGroup="g") for it, body in requests.items()]
        assert [(it.code, it.header.remark) for it in refused] == [
            (1 if code == 38 else 16, "Authorization failed") for code in requests
        ]
        assert len(gateway.core.records) == known, "the coordinator is not asked"


@asynchronous
async def test_one_way_request_of_an_unverified_client_affects_no_other_client() -> None:
    async with rocketmq() as broker, started(broker) as gateway:
        broker.answers[RequestCode.GET_BROKER_CONFIG] = (16, {}, b"")
        client, stranger = gateway.client("c1"), gateway.client("c1")
        await client.heartbeat("g")
        for one in (stranger, client):
            await one.send(RequestCode.UNLOCK_BATCH_MQ, lock_body("c1", [0]), one_way=True)
        await stranger.send(RequestCode.HEART_BEAT, heartbeat_body("c1", "g"), one_way=True)
        assert [record.connection for record in gateway.core.of(UnlockBatchMq)] == [client.connection]
        assert len(gateway.core.of(RegisterConsumer)) == 1
        assert broker.codes().count(RequestCode.HEART_BEAT) == 2


@asynchronous
async def test_another_gateway_removes_the_connections_of_a_dead_gateway() -> None:
    async with rocketmq() as broker, started(broker, name="dead") as dead:
        core = dead.core
        async with started(broker, name="alive", start="2", core=core) as alive:
            stale, client = dead.client("c1"), alive.client("c1")
            await stale.heartbeat("g", producers=["p"])
            await client.heartbeat("g")
            core.advance(6_000)  # twice group.initial.rebalance.delay.ms
            await until(lambda: [type(it) for it in core.kafka_requests[-2:]] == [Heartbeat, Heartbeat])
            await dead.requests.close()
            client.received.clear()
            while not core.of(GatewayStarted):
                sent = len(core.kafka_requests)
                core.advance(2_000)
                await until(lambda sent=sent: len(core.kafka_requests) > sent)  # type: ignore[misc]
            await until(lambda: client.notified)
            gone = {(it.group_id, it.gateway, it.gateway_start) for it in core.of(GatewayStarted)}
            assert gone == {("g", "dead", ""), ("p", "dead", "")}
            assert (await client.consumer_list()).content == {"consumerIdList": ["c1"]}
            assert stale.closed_by_gateway[0] == "gateway dead is gone", "it may only have been slow"
            assert not client.closed_by_gateway
