"""Polls of a RocketMQ cluster, and the page's follower, at a server that is name server and broker."""

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from kafka_why.connections.rocketmq import RocketMqServers
from kafka_why.contract.rocketmq.history import GroupSnapshot
from kafka_why.contract.rocketmq.requests import MessageQueue, ResponseCode
from kafka_why.page.fleet import Fleet
from kafka_why.page.rocketmq_cluster import ClusterFollower
from kafka_why.remoting.codes import RequestCode
from kafka_why.remoting.frames import Header, encode_frame, response_to
from kafka_why.rocketmq_group import RocketMqGroupState, group_state
from kafka_why.why.history import HistoryUnavailable
from kafka_why.why.rocketmq.polled.cluster import ClusterPoller, ClusterUnavailable
from kafka_why.why.rocketmq.polled.model import QueueOffsets
from tests.harness.waiting import until
from tests.unit.kafka_why.remoting_server import at_server

ONE = [{"clientId": "A", "clientAddr": "10.0.0.1:1", "language": "JAVA", "version": 513}]
ROUTE = {"queueDatas": [{"brokerName": "a", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}]}


class Cluster:
    """The answers: a body, a code and remark, or a function of the request's fields that returns either."""

    def __init__(self, **brokers: str) -> None:
        self.brokers = brokers
        self.answers: dict[RequestCode, Any] = {
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: {"topicList": ["T", "%RETRY%g"]},
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.connections,
            RequestCode.GET_CONSUMER_RUNNING_INFO: {"properties": {}},
            RequestCode.GET_ROUTEINFO_BY_TOPIC: ROUTE,
            RequestCode.QUERY_CONSUMER_OFFSET: (ResponseCode.QUERY_NOT_FOUND, "Not found"),
            RequestCode.GET_MAX_OFFSET: (ResponseCode.SUCCESS, "", {"offset": "7"}),
            RequestCode.QUERY_TOPICS_BY_CONSUMER: {"topicList": []},
        }
        self.view: Any = {
            "connectionSet": ONE,
            "messageModel": "CLUSTERING",
            "subscriptionTable": {"T": {"topic": "T", "subString": "B||A", "tagsSet": ["B", "A"]}},
        }

    def connections(self, fields: dict[str, str]) -> Any:
        offline = (ResponseCode.CONSUMER_NOT_ONLINE, "offline")
        return self.view if fields["consumerGroup"] == "g" else offline

    def answer(self, request: Header, _: bytes) -> bytes:
        found = self.answers[RequestCode(request.code)]
        if callable(found):
            found = found(request.ext_fields)
        if isinstance(found, tuple):
            return encode_frame(response_to(request, *found))
        return encode_frame(response_to(request, 0), msgspec.json.encode(found))

    def use(self, use: Callable[[RocketMqServers], Awaitable[None]]) -> None:
        async def used(address: str) -> None:
            brokers = {"a": address, **self.brokers}
            self.answers[RequestCode.GET_BROKER_CLUSTER_INFO] = {
                "brokerAddrTable": {n: {"brokerName": n, "brokerAddrs": {"0": a}} for n, a in brokers.items()}
            }
            await use(RocketMqServers((address,)))

        asyncio.run(at_server(self.answer, used))


def test_broker_that_cannot_be_reached_is_asked_again_only_after_a_while() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        cluster = Cluster(b=f"127.0.0.1:{listening.getsockname()[1]}", c="a..b:1")

        async def use(servers: RocketMqServers) -> None:
            async with ClusterPoller(servers) as poller:
                _, refused, unnamed = await poller.views("g")
                assert refused.error is not None
                assert "does not answer" in refused.error
                assert "'a..b:1' is not an address" in (unnamed.error or "")
                listening.listen()
                assert (await poller.views("g"))[1] == refused
                listening.setblocking(False)
                with pytest.raises(BlockingIOError):
                    listening.accept()

        cluster.use(use)


def test_unreadable_answer_is_reported_and_the_connection_stays() -> None:
    cluster = Cluster()
    cluster.view = []

    async def use(servers: RocketMqServers) -> None:
        async with ClusterPoller(servers) as poller:
            with pytest.raises(ClusterUnavailable, match="broker a/0 gives an answer that cannot be read"):
                await poller.views("g")
            cluster.answers[RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER] = (1, "disable")
            with pytest.raises(ClusterUnavailable, match=f"name server {servers} answers 1: disable"):
                await poller.group_ids()

    cluster.use(use)


def test_absent_offset_is_none_and_a_refused_one_is_a_note() -> None:
    cluster, reported = Cluster(), list[tuple[int, int]]()

    async def use(servers: RocketMqServers) -> None:
        async with ClusterPoller(servers) as poller:
            poll = await poller.poll("g", lambda read, of: reported.append((read, of)))
            assert (poll.topics, poll.notes) == ({"T": ["A || B"]}, [])
            assert poll.offsets == [QueueOffsets(MessageQueue("T", "a", n), None, 7) for n in range(2)]
            assert reported == [(1, 1), (1, 2), (2, 2)]
            cluster.answers[RequestCode.QUERY_CONSUMER_OFFSET] = (ResponseCode.NO_PERMISSION, "no")
            poll = await poller.poll("g")
            assert poll.offsets == []
            assert [note.partition(" (")[0] for note in poll.notes] == [
                "for offsets of topic T broker a refuses access: no"
            ]
            with pytest.raises(
                HistoryUnavailable, match="no broker has a consumer or an offset of group gg; "
            ):
                await poller.poll("gg")

    cluster.use(use)


def test_page_survives_what_a_cluster_answers() -> None:
    cluster, fleet = Cluster(), Fleet()
    topics = cluster.answers[RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER]["topicList"]
    topics += ["%RETRY%g_T", "%RETRY%g+T"]  # of a group that pops
    cluster.view |= {"messageModel": "LITE_SELECTIVE", "consumeType": "CONSUME_LITE"}

    async def use(servers: RocketMqServers) -> None:
        with ClusterFollower(servers, fleet) as follower:
            await until(lambda: fleet.is_complete)
            assert fleet.group_ids() == ["g"]
            view = fleet.view("g")
            assert isinstance(view, GroupSnapshot)
            assert group_state(view) is RocketMqGroupState.ONLINE
            cluster.answers[RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER] = (1, "disable")
            page = await asyncio.to_thread(follower.page, "g")
            assert page.report.poll.client_ids == ["A"]
            with pytest.raises(HistoryUnavailable):
                await asyncio.to_thread(follower.page, "gg")
            cluster.answers[RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER] = {"topicList": []}
            await until(lambda: fleet.view("g") is None)
        with pytest.raises(ClusterUnavailable):
            follower.page("g")

    cluster.use(use)
