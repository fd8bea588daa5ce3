"""`why --namesrv` and the page at a real RocketMQ cluster: each fault is caused, and then reported."""

import asyncio
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import urlopen

import pytest

from cli import main
from embedded.broker import EmbeddedBroker
from kafka_why.cli import rocketmq_cluster
from kafka_why.connections.rocketmq import RocketMqServers
from kafka_why.contract.layout import TopicLayout
from kafka_why.page.server import Page
from kafka_why.web import listening_at, url_of
from kafka_why.why.rocketmq.polled.cluster import ClusterPoller
from tests.harness.commands import invoke
from tests.harness.rocketmq_clients import (
    QUEUES,
    JavaClient,
    JavaClients,
    RocketMqCluster,
    new_group,
)
from tests.harness.run_command import Followed, follow, hold
from tests.harness.shared import PREFIX
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]


@pytest.fixture(scope="module")
def others(rocketmq: RocketMqCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JavaClients]:
    """Yield clients in their own process, whose ids may equal those of the other clients."""
    with JavaClients(rocketmq.name_server, tmp_path_factory.mktemp("others")) as clients:
        yield clients
        clients.kill()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the pause between the two polls, which only shows that offsets do not move."""
    monkeypatch.setattr(rocketmq_cluster, "STANDS_MS", 0)


def why(rocketmq: RocketMqCluster, group: str) -> dict[str, Any]:
    result = invoke(main, ["why", group, "--namesrv", rocketmq.name_server, "-o", "json"])
    assert result.exit_code == 0, result.output
    report: dict[str, Any] = json.loads(result.stdout)
    return report


def symptoms(report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["kind"]: one for one in report["symptoms"]}


def places(queues: Iterable[list[Any]]) -> set[str]:
    """Return queues as the Java clients name those that they hold."""
    return {f"{broker}:{number}" for _, broker, number in queues}


def holders(report: dict[str, Any], topic: str) -> dict[str, set[str]]:
    """Return the queues that each client holds, by the name of its instance."""
    return {
        client["client_id"].partition("@")[2]: places(
            one["queue"] for one in client["held"] if one["queue"][0] == topic
        )
        for client in report["poll"]["clients"]
    }


async def has_stored_all(rocketmq: RocketMqCluster, group: str, topic: str) -> bool:
    async with ClusterPoller(RocketMqServers((rocketmq.name_server,))) as cluster:
        poll = await cluster.poll(group)
    return all(one.stored == one.end for one in poll.offsets if one.queue.topic == topic)


@contextmanager
def page(rocketmq: RocketMqCluster) -> Iterator[str]:
    servers = RocketMqServers((rocketmq.name_server,))
    with listening_at("127.0.0.1", 0) as listening, Page(None, servers, listening, connect_to=str(servers)):
        yield url_of(listening)


def get(url: str) -> Any:
    with urlopen(url, timeout=30) as response:
        return json.load(response)


@pytest.mark.usefixtures("at_once")
def test_why_shows_the_clients_own_queues_and_their_unconsumed_messages(rocketmq: RocketMqCluster) -> None:
    topic, group = rocketmq.create_topic(), new_group()
    first, second = (rocketmq.clients.push(group, topic) for _ in range(2))
    wait_until(lambda: {len(first.held), len(second.held)} == {3, 4}, "two consumers share the queues")
    rocketmq.clients.producer().send(topic, [str(number) for number in range(20)])
    wait_until(lambda: len({*first.bodies, *second.bodies}) == 20, "all messages are received")
    report = why(rocketmq, group)
    assert report["symptoms"] == []
    assert holders(report, topic) == {one.name: set(one.held) for one in (first, second)}
    computed = {client_id.partition("@")[2]: places(share) for client_id, share in report["shares"].items()}
    assert computed == holders(report, topic)
    for client in (first, second):
        client.stop()
    rocketmq.clients.producer().send(topic, ["more"] * 5)
    (offline,) = why(rocketmq, group)["symptoms"]
    assert offline["kind"] == "no consumers"
    assert "5 messages wait for it" in offline["reason"]
    unknown = invoke(main, ["why", group[:-1], "--namesrv", rocketmq.name_server])
    assert unknown.exit_code == 1
    assert f"an offset of group {group[:-1]}; did you mean {group}" in unknown.output


@pytest.mark.usefixtures("at_once")
def test_duplicate_client_and_unread_queues_are_named(rocketmq: RocketMqCluster, others: JavaClients) -> None:
    topic, group = rocketmq.create_topic(), new_group()
    first = rocketmq.clients.push(group, topic, name="twin")
    second = others.push(group, topic, name="twin")
    wait_until(lambda: len(first.held) == len(second.held) == 4, "both take the first share")
    report = why(rocketmq, group)
    found = symptoms(report)
    assert next(iter(found)) == "DUPLICATE CLIENT ID"
    (broker,) = report["poll"]["views"]
    for address in {connection["address"] for connection in broker["connections"]}:
        assert address in found["DUPLICATE CLIENT ID"]["reason"]
    unread = places(found["queues without a reader"]["queues"])
    assert len(unread) == 3
    assert unread.isdisjoint(first.held | second.held)
    with page(rocketmq) as url:
        wait_until(lambda: group in {one["group_id"] for one in get(f"{url}api/groups")["groups"]}, group)
        shown = get(f"{url}api/group?id={group}")
        assert "DUPLICATE CLIENT ID" in {one["kind"] for one in shown["report"]["symptoms"]}
        with urlopen(f"{url}group?id={group}", timeout=30) as response:
            assert "DUPLICATE CLIENT ID" in response.read().decode()


@pytest.mark.usefixtures("at_once")
def test_different_subscriptions_are_reported_for_each_client(rocketmq: RocketMqCluster) -> None:
    topic, group = rocketmq.create_topic(), new_group()
    all_tags = rocketmq.clients.push(group, topic)
    one_tag = rocketmq.clients.push(group, topic, tags="TagA", circle=True)
    wait_until(lambda: {len(all_tags.held), len(one_tag.held)} == {3, 4}, "two consumers share the queues")
    found = symptoms(why(rocketmq, group))
    reason = found["different subscriptions"]["reason"]
    for client, text in ((all_tags, f"{topic}: "), (one_tag, f"{topic} (TagA): ")):
        assert any(client.name in part and text in part for part in reason.split("; "))
    assert "AllocateMessageQueueAveragelyByCircle" in found["different strategies"]["reason"]


def test_suspended_client_is_reported_with_its_stalled_queues(
    rocketmq: RocketMqCluster, others: JavaClients
) -> None:
    topic, group = rocketmq.create_topic(), new_group()
    awake = rocketmq.clients.push(group, topic)
    asleep = others.push(group, topic)
    wait_until(lambda: {len(awake.held), len(asleep.held)} == {3, 4}, "two consumers share the queues")
    producer = rocketmq.clients.producer()
    producer.send(topic, [str(number) for number in range(QUEUES * 2)])
    wait_until(lambda: len({*awake.bodies, *asleep.bodies}) == QUEUES * 2, "all messages are received")
    wait_until(lambda: asyncio.run(has_stored_all(rocketmq, group, topic)), "the offsets are stored")
    with hold(others.pid):
        producer.send(topic, ["late"] * QUEUES)
        report = why(rocketmq, group)
    found = symptoms(report)
    assert asleep.name in found["clients that do not answer"]["reason"]
    assert places(found["clients that do not answer"]["queues"]) == set(asleep.held)
    assert places(found["offsets that stand still"]["queues"]) >= set(asleep.held)


def test_follow_reports_joins_leaves_and_moved_queues(rocketmq: RocketMqCluster) -> None:
    topic, group = rocketmq.create_topic(), new_group()
    first = rocketmq.clients.push(group, topic)
    wait_until(lambda: len(first.held) == QUEUES, "one consumer holds all queues")
    with follow(group, "--namesrv", rocketmq.name_server) as followed:
        wait_until(lambda: bool(followed.of("report")), "the report")
        second = rocketmq.clients.push(group, topic)
        wait_until(lambda: {"ClientConnected", "QueuesMoved"} <= types(followed, second), "it came")
        second.stop()
        wait_until(lambda: "ClientGone" in types(followed, second), "it went")


@pytest.mark.usefixtures("at_once", "layout")
def test_why_shows_polled_queue_holders_with_the_gateways_history(
    rocketmq: RocketMqCluster, rocketmq_gateway: str, broker: EmbeddedBroker
) -> None:
    """Polls reach the clients through the gateway, too."""
    topic, group = rocketmq.create_topic(), new_group()
    consumer = rocketmq.clients.push(group, topic, name_server=rocketmq_gateway)
    wait_until(lambda: len(consumer.held) == QUEUES, "one consumer holds all queues")
    command = ["why", group, "--bootstrap-servers", broker.bootstrap_servers, "--prefix", PREFIX]
    command += ["--namesrv", rocketmq_gateway]

    def report() -> dict[str, Any]:
        result = invoke(main, [*command, "-o", "json"])
        return json.loads(result.stdout) if result.exit_code == 0 else {}  # the history may be behind

    wait_until(lambda: bool(report()), "the group's history")
    found = report()
    assert [one["kind"] for one in found["changes"]] == ["client connected"]
    assert holders(found["polled"], topic) == {consumer.name: set(consumer.held)}
    text = invoke(main, command).stdout
    assert "what it holds is below, by polls" in text
    assert f"{topic} 0-{QUEUES - 1} of broker-a" in text.partition("The cluster now")[2]
    servers, layout = RocketMqServers((rocketmq_gateway,)), TopicLayout.named(PREFIX)
    with (
        listening_at("127.0.0.1", 0) as listening,
        Page(broker.client_config, layout, listening, connect_to="", rocketmq=servers),
    ):

        def polled() -> Any:
            return get(f"{url_of(listening)}api/group?id={group}")["polled"]

        wait_until(lambda: not isinstance(polled(), str), "the page has polled the group")
        assert holders(polled()["report"], topic) == {consumer.name: set(consumer.held)}


def types(followed: Followed, client: JavaClient) -> set[str]:
    """Return the types of the entries about a client."""
    return {one["type"] for one in followed.of("entry") if (one["client_id"] or "").endswith(client.name)}
