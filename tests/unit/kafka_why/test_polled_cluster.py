"""Polls of a RocketMQ cluster, and the page's follower, at a server that is name server and broker."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from struct import unpack
from typing import Any

import msgspec
import pytest

from kafka_why.connections.rocketmq import RocketMqServers
from kafka_why.contract.rocketmq.history import GroupSnapshot
from kafka_why.contract.rocketmq.requests import MessageQueue, ResponseCode
from kafka_why.page.fleet import Fleet
from kafka_why.page.rocketmq_cluster import ClusterFollower
from kafka_why.remoting.client import AclCredentials, RemotingClient, sign_fields
from kafka_why.remoting.codes import RequestCode
from kafka_why.remoting.frames import Header, decode_header, encode_frame, header_length, response_to
from kafka_why.remoting.strict_json import MalformedFrame
from kafka_why.rocketmq_group import RocketMqGroupState, group_state
from kafka_why.why.history import HistoryUnavailable
from kafka_why.why.rocketmq.polled.cluster import ClusterPoller, ClusterUnavailable
from kafka_why.why.rocketmq.polled.model import QueueOffsets
from tests.harness.waiting import asynchronous, until

ONE = [{"clientId": "A", "clientAddr": "10.0.0.1:1", "language": "JAVA", "version": 513}]
ROUTE = {"queueDatas": [{"brokerName": "a", "readQueueNums": 2, "writeQueueNums": 2, "perm": 6}]}


@asynccontextmanager
async def at_server(answer: Callable[[Header, bytes], bytes]) -> AsyncIterator[str]:
    """Serve each request by `answer`, and close the connection after an empty one. Yield the address."""

    served: list[asyncio.Task[None] | None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.current_task())
        try:
            while True:
                length, word = unpack(">ii", await reader.readexactly(8))
                header = decode_header(word, await reader.readexactly(header_length(length, word)))
                body = await reader.readexactly(length - 4 - (word & 0xFFFFFF))
                if not (answered := answer(header, body)):
                    break
                writer.write(answered)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    await asyncio.gather(*filter(None, served))


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

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[RocketMqServers]:
        async with at_server(self.answer) as address:
            brokers = {"a": address, **self.brokers}
            self.answers[RequestCode.GET_BROKER_CLUSTER_INFO] = {
                "brokerAddrTable": {n: {"brokerName": n, "brokerAddrs": {"0": a}} for n, a in brokers.items()}
            }
            yield RocketMqServers((address,))


@asynchronous
async def test_unreachable_broker_is_polled_again_only_after_a_pause() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        cluster = Cluster(b=f"127.0.0.1:{listening.getsockname()[1]}", c="a..b:1")
        async with cluster.serving() as servers, ClusterPoller(servers) as poller:
            _, refused, unnamed = await poller.views("g")
            assert "does not answer" in (refused.error or "")
            assert "'a..b:1' is not an address" in (unnamed.error or "")
            listening.listen()
            assert (await poller.views("g"))[1] == refused
            listening.setblocking(False)
            with pytest.raises(BlockingIOError):
                listening.accept()


@asynchronous
async def test_unreadable_answer_is_reported_and_the_connection_stays() -> None:
    cluster = Cluster()
    cluster.view = []
    async with cluster.serving() as servers, ClusterPoller(servers) as poller:
        with pytest.raises(ClusterUnavailable, match="broker a/0 gives an answer that cannot be read"):
            await poller.views("g")
        cluster.answers[RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER] = (1, "disable")
        with pytest.raises(ClusterUnavailable, match=f"name server {servers} answers 1: disable"):
            await poller.group_ids()


@asynchronous
async def test_absent_rocketmq_offset_is_none_and_a_refused_one_is_a_note() -> None:
    cluster, reported = Cluster(), list[tuple[int, int]]()
    async with cluster.serving() as servers, ClusterPoller(servers) as poller:
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
        with pytest.raises(HistoryUnavailable, match="no broker has a consumer or an offset of group gg; "):
            await poller.poll("gg")


@asynchronous
async def test_rocketmq_page_survives_unknown_values_and_refused_topic_lists() -> None:
    cluster, fleet = Cluster(), Fleet()
    topics = cluster.answers[RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER]["topicList"]
    topics += ["%RETRY%g_T", "%RETRY%g+T"]  # of a group that pops
    cluster.view |= {"messageModel": "LITE_SELECTIVE", "consumeType": "CONSUME_LITE"}
    async with cluster.serving() as servers:
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


@pytest.mark.parametrize(
    ("token", "signature"), [(None, "ONfrj2eFl3yuFbWJRaYrP4J5Wts="), ("tok", "lIFq3iho5K9FctQV5QLHiJENsn4=")]
)
def test_request_signature_equals_that_of_rocketmqs_java_client(token: str | None, signature: str) -> None:
    fields = sign_fields({"consumerGroup": "grün", "a": "1"}, b"body", AclCredentials("ak", "secret", token))
    assert fields.pop("Signature") == signature
    assert fields.get("SecurityToken") == token


@asynchronous
async def test_responses_in_another_order_reach_their_requests() -> None:
    held: list[Header] = []

    def answer(request: Header, body: bytes) -> bytes:
        held.append(request)
        if len(held) < 2:
            return encode_frame(Header(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, request.opaque, flag=2))
        return b"".join(
            encode_frame(response_to(one, one.code, "no", one.ext_fields), str(one.code).encode())
            for one in reversed(held)
        )

    async with at_server(answer) as address:
        client = await RemotingClient.open(address, credentials=("ak", "secret"))
        (first, one), (second, other) = await asyncio.gather(
            client.invoke(RequestCode.GET_MAX_OFFSET, {"topic": "a"}),
            client.invoke(RequestCode.GET_MIN_OFFSET, {"topic": "b"}),
        )
        await client.close()
        assert (first.code, first.ext_fields["topic"], one) == (30, "a", b"30")
        assert (second.code, second.ext_fields["topic"], other) == (31, "b", b"31")
        assert {header.ext_fields["AccessKey"] for header in (first, second)} == {"ak"}
        with pytest.raises(ConnectionError):
            await client.invoke(RequestCode.GET_MAX_OFFSET)


@pytest.mark.parametrize(
    ("answered", "error"), [(b"", ConnectionError), (b"HTTP/1.1 400 Bad Request", MalformedFrame)]
)
@asynchronous
async def test_connection_that_fails_is_reported(answered: bytes, error: type[Exception]) -> None:
    async with at_server(lambda _header, _body: answered) as address:
        client = await RemotingClient.open(address)
        with pytest.raises(error):
            await client.invoke(RequestCode.GET_MAX_OFFSET)
        with pytest.raises(ConnectionError):
            await client.invoke(RequestCode.GET_MAX_OFFSET)
        await client.close()


@asynchronous
async def test_late_response_leaves_the_connection_usable() -> None:
    held: list[Header] = []

    def answer(request: Header, body: bytes) -> bytes:
        held.append(request)
        answered = held if len(held) == 2 else []
        frames = b"".join(encode_frame(response_to(one, 0, ext_fields=one.ext_fields)) for one in answered)
        return frames or encode_frame(response_to(Header(0, -1), 0))

    async with at_server(answer) as address:
        client = await RemotingClient.open(address)
        with pytest.raises(TimeoutError):
            await client.invoke(RequestCode.GET_MAX_OFFSET, {"topic": "a"}, timeout_s=0.01)
        header, _ = await client.invoke(RequestCode.GET_MAX_OFFSET, {"topic": "b"})
        await client.close()
        assert header.ext_fields == {"topic": "b"}
