"""Unmodified RocketMQ clients: the same stories end in the same way at a plain cluster and at the gateway."""

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from cli import main
from embedded.rocketmq import BrokerNode
from tests.harness.certificates import Authority
from tests.harness.commands import invoke
from tests.harness.rocketmq_clients import (
    ACLS,
    CREDENTIALS,
    QUEUES,
    JavaClient,
    JavaClientFailed,
    JavaClients,
    RocketMqCluster,
    address_of,
    embedded_rocketmq,
    new_group,
)
from tests.harness.rocketmq_go_clients import GoClients
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

EVERY_S = {"pollNameServerInterval": 1000}
"""A client finds a topic that is created later, such as a group's retry topic, within a second, not 30."""
PATIENCE_S = 120.0
"""A client that could not read the list of clients in time tries again after 20 s."""
BROADCASTING = {"messageModel": "BROADCASTING"}


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def wait_for_shares(shares: list[int], *consumers: JavaClient) -> None:
    """Wait until the consumers hold these numbers of queues, largest first, and no queue is held twice."""

    def are_settled() -> bool:
        held = [consumer.held for consumer in consumers]
        together = frozenset().union(*held)
        return sorted(map(len, held), reverse=True) == shares and len(together) == sum(shares)

    wait_until(are_settled, f"shares of {shares}", PATIENCE_S)


def wait_for_all(bodies: list[str], *consumers: JavaClient) -> None:
    """Wait until the consumers together have received these messages, and nothing else."""
    wait_until(
        lambda: {body for it in consumers for body in it.bodies} >= set(bodies), "all messages", PATIENCE_S
    )
    assert {body for it in consumers for body in it.bodies} == set(bodies)


class Story(NamedTuple):
    """A cluster, the name server that its clients use, and a producer and a topic there."""

    cluster: RocketMqCluster
    name_server: str
    producer: JavaClient
    topic: str
    group: str

    def push(self, **settings: Any) -> JavaClient:
        clients = self.cluster.clients
        return clients.push(self.group, self.topic, name_server=self.name_server, **settings)

    def send(self, bodies: list[str], **more: Any) -> list[str]:
        return self.producer.send(self.topic, bodies, **more)

    def mqadmin(self, command: str, *arguments: str) -> str:
        return self.cluster.clients.mqadmin(command, *arguments, name_server=self.name_server)


@pytest.fixture(scope="module")
def producer(rocketmq: RocketMqCluster, rocketmq_gateway: str) -> JavaClient:
    return rocketmq.clients.producer(name_server=rocketmq_gateway)


@pytest.fixture
def story(rocketmq: RocketMqCluster, rocketmq_gateway: str, producer: JavaClient) -> Story:
    return Story(rocketmq, rocketmq_gateway, producer, rocketmq.create_topic(), new_group())


@pytest.fixture
def other_jvm(rocketmq_gateway: str, tmp_path: Path) -> Iterator[Callable[..., JavaClients]]:
    """Yield a function that starts another JVM with clients."""
    started: list[JavaClients] = []

    def start(**options: Any) -> JavaClients:
        started.append(JavaClients(rocketmq_gateway, tmp_path / str(len(started)), **options))
        return started[-1]

    yield start
    for jvm in started:
        jvm.kill()
        jvm.close()


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="clustering"),
        pytest.param({"properties": {"useHeartbeatV2": True}}, id="short heartbeats"),
        pytest.param({"orderly": True}, id="orderly"),
    ],
)
def test_consumers_share_the_queues_as_they_join_and_leave(story: Story, settings: dict[str, Any]) -> None:
    first = story.push(**settings)
    wait_for_shares([7], first)
    second = story.push(**settings)
    wait_for_shares([4, 3], first, second)
    third = story.push(**settings)
    wait_for_shares([3, 2, 2], first, second, third)
    bodies = numbers(70)
    queues = story.send(bodies)
    wait_for_all(bodies, first, second, third)
    second.stop()
    wait_for_shares([4, 3], first, third)
    if settings.get("orderly"):
        everything = sorted(chain(first.received, second.received, third.received), key=lambda it: it.at_s)
        for queue in set(queues):
            offsets = [message.offset for message in everything if message.queue == queue]
            assert offsets == sorted(offsets)


TAGS = {"tags": "even || none"}
SQL92 = {"sql": "half = 'even' AND number < 100"}


@pytest.mark.parametrize("chosen", [TAGS, SQL92], ids=["tags", "SQL92"])
def test_filtered_messages_do_not_reach_consumers(story: Story, chosen: dict[str, str]) -> None:
    consumers = [story.push(**chosen) for _ in range(2)]
    wait_for_shares([4, 3], *consumers)
    for number in numbers(20):
        half = "odd" if int(number) % 2 else "even"
        story.send([number], tags=half, message_properties={"half": half, "number": number})
    wait_for_all(numbers(20)[::2], *consumers)


def test_every_broadcasting_consumer_receives_every_message(story: Story) -> None:
    consumers = [story.push(properties=BROADCASTING) for _ in range(2)]
    for consumer in consumers:
        wait_for_shares([7], consumer)
    story.send(numbers(30))
    for consumer in consumers:
        wait_for_all(numbers(30), consumer)


def test_popping_consumers_read_all_queues_together(story: Story) -> None:
    pops = ("-t", story.topic, "-g", story.group, "-m", "POP", "-q", "0")
    broker = story.producer.brokers_of(story.topic)["broker-a/0"]
    story.mqadmin("setConsumeMode", "-b", broker, *pops)
    consumers = [story.push(properties={"clientRebalance": False}) for _ in range(2)]
    wait_until(lambda: all(consumer.held for consumer in consumers), "both pop")
    story.send(numbers(70))
    wait_for_all(numbers(70), *consumers)


def test_failed_messages_are_redelivered_and_finally_dead_lettered(
    story: Story, other_jvm: Callable[..., JavaClients]
) -> None:
    # Clients look every 20 s for queues of topics that were created meanwhile: the group's retry topic here.
    jvm = other_jvm(java_options=["-Drocketmq.client.rebalance.waitInterval=1000"])
    consumer = jvm.push(story.group, story.topic, failures=2, properties={**EVERY_S, "maxReconsumeTimes": 1})
    wait_for_shares([7], consumer)
    story.send(["bad"])
    wait_until(lambda: [it.times for it in consumer.received] == [0, 1], "one more delivery")
    wait_for_all(["bad"], jvm.push(new_group(), f"%DLQ%{story.group}", properties=EVERY_S))


def test_rocketmq_request_gets_its_reply(story: Story) -> None:
    wait_for_shares([7], story.push(replies=True))
    assert story.producer.request(story.topic, "hello") == "re: hello"


def test_lite_pull_consumers_share_the_queues(story: Story) -> None:
    lite_pull = story.cluster.clients.lite_pull
    first, second = (lite_pull(story.group, story.topic, name_server=story.name_server) for _ in range(2))
    wait_for_shares([4, 3], first, second)
    story.send(numbers(70))
    wait_for_all(numbers(70), first, second)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"jars": "rocketmq_4_9"}, id="4.9"),
        pytest.param({"java_options": ["-Drocketmq.serialize.type=ROCKETMQ"]}, id="binary headers"),
    ],
)
def test_queues_of_a_killed_client_go_to_the_remaining_client(
    story: Story, other_jvm: Callable[..., JavaClients], options: dict[str, Any]
) -> None:
    jvm = other_jvm(**options)
    ours, other = story.push(), jvm.push(story.group, story.topic)
    wait_for_shares([4, 3], ours, other)
    story.send(numbers(70))
    wait_for_all(numbers(70), ours, other)
    jvm.kill()
    wait_for_shares([7], ours)


def test_mqadmin_shows_and_resets_a_group(story: Story) -> None:
    consumer = story.push(name="seen", properties={**EVERY_S, "persistConsumerOffsetInterval": 1000})
    wait_for_shares([7], consumer)
    story.send(numbers(7))
    wait_for_all(numbers(7), consumer)
    of_group = ("-g", story.group)
    wait_until(lambda: "Diff Total: 0" in story.mqadmin("consumerProgress", *of_group), "no lag")
    assert "@seen" in story.mqadmin("consumerConnection", *of_group)
    assert "Rebalance OK" in story.mqadmin("consumerStatus", *of_group)
    assert "create subscription group" in story.mqadmin("updateSubGroup", "-c", "DefaultCluster", *of_group)
    reset = story.mqadmin("resetOffsetByTime", *of_group, "-t", story.topic, "-s", "0")
    rows = [line.split() for line in reset.splitlines() if line.startswith("broker-a")]
    assert sorted(rows) == [["broker-a", str(queue), "0"] for queue in range(QUEUES)]
    (address,) = story.producer.brokers_of(story.topic).values()
    for shown in (story.mqadmin("clusterList"), story.mqadmin("topicRoute", "-t", story.topic)):
        assert address in shown


@pytest.mark.parametrize("is_orderly", [False, True], ids=["concurrently", "orderly"])
def test_go_and_java_clients_share_a_group(story: Story, is_orderly: bool) -> None:
    java = story.push(name=f"a-{story.group}", orderly=is_orderly)
    wait_for_shares([7], java)
    names, bodies = ["b-go", "c-go"], iter(numbers(100_000))
    sent: list[str] = []
    with GoClients(story.name_server, story.group, story.topic, names, is_orderly=is_orderly) as go:

        def received() -> set[str]:
            return {*java.bodies, *(it.body for it in go.received)}

        def are_settled() -> bool:
            """A Go client does not show what it holds, but what it receives."""
            if received() == set(sent):
                sent.extend(more := list(islice(bodies, QUEUES)))
                go.send(more)
            owners = {it.queue: it.consumer for it in go.received if it.queue not in java.held}
            return [len(java.held), *(list(owners.values()).count(name) for name in names)] == [3, 2, 2]

        wait_until(are_settled, "shares of 3 and 2 and 2", PATIENCE_S)
        wait_until(lambda: received() == set(sent), "all messages", PATIENCE_S)
    wait_for_shares([7], java)


class Secured(NamedTuple):
    """Two masters and a slave that authenticate clients, their name server, and options for a JVM of clients
    with TLS. The gateway uses TLS to the cluster. Clients may use it to the gateway.
    """

    cluster: RocketMqCluster
    name_server: str
    tls_options: list[str]
    tls: Path
    """The same for tools, in RocketMQ's own file."""


@pytest.fixture(scope="module")
def secured(
    rocketmq_gateway_at: Callable[..., str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    nodes = [BrokerNode(), BrokerNode("broker-a", 1), BrokerNode("broker-b")]
    folder = tmp_path_factory.mktemp("secured")
    authority = Authority(folder)
    server, client = authority.issue("server"), authority.issue("client")
    (folder / "acl.yml").write_text(
        "accessKey: {access_key}\nsecretKey: {secret_key}\n".format(**CREDENTIALS)
    )
    of_clients = {
        "tls.client.authServer": "true",
        "tls.client.trustCertPath": authority.certificate,
        "tls.client.certPath": client.chain,
        "tls.client.keyPath": client.key,
    }
    tls = folder / "tls.properties"
    tls.write_text("".join(f"{name}={it}\n" for name, it in of_clients.items()))
    of_servers = {
        "tls.server.mode": "permissive",
        "tls.server.certPath": server.chain,
        "tls.server.keyPath": server.key,
        "tls.server.authClient": "true",
        "tls.server.need.client.auth": "require",
        "tls.server.trustCertPath": authority.certificate,
    }
    arguments = {
        "--rocketmq-acl": folder / "acl.yml",
        "--rocketmq-tls": tls,
        "--tls-certificate": server.both,
        "--tls-mode": "permissive",
    }
    given = [str(word) for pair in arguments.items() for word in pair]
    with (
        embedded_rocketmq(
            folder / "rocketmq", nodes=nodes, overrides=ACLS, java_options=java_properties(of_servers)
        ) as servers,
        RocketMqCluster(address_of(servers), folder / "clients", **CREDENTIALS) as cluster,
    ):
        name_server = rocketmq_gateway_at("gateway-with-acls-and-tls", cluster.at, *given)
        yield Secured(cluster, name_server, java_properties({"tls.enable": "true", **of_clients}), tls)


def java_properties(given: dict[str, Any]) -> list[str]:
    """Return the options of a JVM with these settings of TLS."""
    return [f"-D{name}={value}" for name, value in {"tls.test.mode.enable": "false", **given}.items()]


def test_clients_without_valid_signatures_are_refused(secured: Secured) -> None:
    topic = secured.cluster.create_topic()
    for credentials in ({}, {"access_key": "operator", "secret_key": "wrong"}):
        producer = secured.cluster.clients.producer(name_server=secured.name_server, **credentials)
        broker = producer.brokers_of(topic)["broker-a/0"]
        with pytest.raises(JavaClientFailed) as of_send:
            producer.send(topic, ["refused"])
        with pytest.raises(JavaClientFailed) as of_list:
            producer.clients_of("group", broker)
        assert of_send.value.code == of_list.value.code == 16
        assert "CODE: 16" in str(of_list.value)


def test_why_connects_with_the_keys_and_tls_settings_of_rocketmqs_files(
    secured: Secured, tmp_path: Path
) -> None:
    keys, untrusted = tmp_path / "tools.yml", tmp_path / "untrusted.properties"
    stranger = Authority(tmp_path, "stranger").certificate
    trust = re.sub(r"(?m)^(tls\.client\.trustCertPath)=.*", rf"\1={stranger}", secured.tls.read_text())
    untrusted.write_text(trust)

    def why(secret_key: str, *options: str | Path) -> str:
        keys.write_text(f"accessKey: {CREDENTIALS['access_key']}\nsecretKey: {secret_key}\n")
        result = invoke(main, ["why", "g", "--namesrv", secured.cluster.name_server, *map(str, options)])
        assert result.exit_code == 1
        return result.output

    right = CREDENTIALS["secret_key"]
    for refused in (why(right), why("wrong", "--rocketmq-acl", keys)):
        assert "refuses access: " in refused
        assert "reading needs GET on the group" in refused
    opened, unverified = (
        why(right, "--rocketmq-acl", keys, "--rocketmq-tls", tls) for tls in (secured.tls, untrusted)
    )
    assert opened.strip() == "Error: no broker has a consumer or an offset of group g"
    assert "CERTIFICATE_VERIFY_FAILED" in unverified


def test_signed_consumers_with_and_without_tls_share_the_queues_of_two_brokers(
    secured: Secured, other_jvm: Callable[..., JavaClients]
) -> None:
    topic, group, clients = secured.cluster.create_topic(), new_group(), secured.cluster.clients
    settings = {"name_server": secured.name_server, **CREDENTIALS}
    producer = clients.producer(**settings)
    with_tls = other_jvm(java_options=secured.tls_options)
    consumers = [it.push(group, topic, **settings) for it in (clients, clients, with_tls)]
    wait_for_shares([5, 5, 4], *consumers)
    producer.send(topic, numbers(140))
    wait_for_all(numbers(140), *consumers)
    brokers = producer.brokers_of(topic)
    assert brokers.keys() == secured.cluster.at.brokers.keys()
    for name, address in brokers.items():

        def is_complete(address: str = address) -> bool:
            with suppress(JavaClientFailed):  # "no consumer for this group"
                ids = producer.clients_of(group, address)
                assert len(ids) == len(set(ids))
                return len(ids) == 3
            return False

        # A client's heartbeats reach the brokers one after the other, and the slave last.
        wait_until(is_complete, f"all clients at {name}", PATIENCE_S)


def test_only_messages_committed_by_a_transaction_check_are_delivered(secured: Secured) -> None:
    """It is the last test, because a thread of brokers 5.5 spins after a transaction
    (TransactionalOpBatchService).
    """
    topic, clients = secured.cluster.create_topic(), secured.cluster.clients
    settings = {"name_server": secured.name_server, **CREDENTIALS}
    consumer = clients.push(new_group(), topic, **settings)
    for checked in ("COMMIT_MESSAGE", "ROLLBACK_MESSAGE"):
        producer = clients.transactions(new_group(), checked, **settings)
        producer.send(topic, [checked], transaction="UNKNOW")
        wait_until(lambda producer=producer: bool(producer.checks), "the broker's check")  # type: ignore[misc]
    clients.producer(**settings).send(topic, ["after"])
    wait_for_all(["COMMIT_MESSAGE", "after"], consumer)
