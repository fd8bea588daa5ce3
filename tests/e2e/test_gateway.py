"""Unmodified clients through the gateway, with a real broker and the coordinator behind it."""

import random
import socket
import uuid
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka.admin import AdminClient as ConfluentAdmin
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.coordinator.assignors.range import RangePartitionAssignor

from gateway import codec
from gateway.framing import framed
from gateway.security import Security
from gateway.service import GatewayOptions, serving
from gateway.upstream import Address
from state.history import EventType
from streaming.broker import EmbeddedBroker
from streaming.client import CoordinatorClient
from streaming.coordinator import Options
from streaming.layout import Layout
from tests.e2e.harness import (
    QUICK_SPARK,
    Member,
    coordinating,
    create_topic,
    history_of,
    new_layout,
    stable_member,
    wait_until,
)

pytestmark = pytest.mark.e2e

PARTITIONS = 4
RECORDS = 40
SESSION_MS = 20_000


@pytest.fixture(scope="module")
def layout(broker: EmbeddedBroker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Layout]:
    """The topics of a coordinator that runs."""
    layout = new_layout()
    options = Options(
        bootstrap_servers=broker.bootstrap_servers,
        folder=tmp_path_factory.mktemp("coordinator"),
        layout=layout,
        settings={"group.initial.rebalance.delay.ms": "500"},
        spark=QUICK_SPARK,
    )
    with coordinating(options):
        yield layout


@pytest.fixture
def options(broker: EmbeddedBroker, layout: Layout) -> GatewayOptions:
    return GatewayOptions(broker.bootstrap_servers, layout, Address("127.0.0.1", 0))


@pytest.fixture
def gateway(options: GatewayOptions) -> Iterator[str]:
    """What clients take for bootstrap.servers."""
    with serving(options) as address:
        yield str(address)


@pytest.fixture
def topic(broker: EmbeddedBroker) -> str:
    name = f"orders-{uuid.uuid4()}"
    create_topic(broker.bootstrap_servers, name, PARTITIONS, {})
    return name


def new_group() -> str:
    return f"group-{uuid.uuid4()}"


def produce(servers: str, topic: str, values: range) -> None:
    with closing(KafkaProducer(bootstrap_servers=servers)) as producer:
        sent = [producer.send(topic, str(v).encode(), partition=v % PARTITIONS) for v in values]
        for future in sent:
            future.get(30)


class PythonMember:
    """kafka-python's consumer."""

    def __init__(self, servers: str, group_id: str, topic: str, **security: Any) -> None:
        self.consumer = KafkaConsumer(
            topic,
            bootstrap_servers=servers,
            group_id=group_id,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=1_000,
            partition_assignment_strategy=[RangePartitionAssignor],
            **security,
        )

    def poll(self) -> list[int]:
        polled = self.consumer.poll(timeout_ms=100)
        return [int(record.value) for records in polled.values() for record in records]

    def partitions(self) -> set[int]:
        return {p.partition for p in self.consumer.assignment()}

    def commit(self) -> None:
        self.consumer.commit()

    def brokers(self) -> set[tuple[str, int]]:
        """Every address it has learned."""
        return {(broker.host, broker.port) for broker in self.consumer._client.cluster.brokers()}

    def close(self) -> None:
        self.consumer.close()


class ConfluentMember:
    """librdkafka's consumer."""

    def __init__(
        self, servers: str, group_id: str, topic: str, security: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self.consumer = ConfluentConsumer(
            {
                "bootstrap.servers": servers,
                "group.id": group_id,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": 1_000,
                "partition.assignment.strategy": "range",
                **security,
            }
        )
        self.consumer.subscribe([topic])

    def poll(self) -> list[int]:
        record = self.consumer.poll(0.1)
        if record is None:
            return []
        assert record.error() is None, record.error()
        return [int(record.value() or b"")]

    def partitions(self) -> set[int]:
        return {p.partition for p in self.consumer.assignment()}

    def commit(self) -> None:
        self.consumer.commit(asynchronous=False)

    def brokers(self) -> set[tuple[str, int]]:
        listed = self.consumer.list_topics(timeout=10).brokers.values()
        return {(broker.host, broker.port) for broker in listed}

    def close(self) -> None:
        self.consumer.close()


def share(*members: Any) -> None:
    """Poll until the members share the topic, each with a part of its own."""

    def shared() -> bool:
        for member in members:
            member.poll()
        held = [member.partitions() for member in members]
        return all(held) and sum(map(len, held)) == PARTITIONS == len(set().union(*held))

    wait_until(shared, f"{len(members)} members with a part each")


def test_clients_of_two_libraries_in_one_group(
    broker: EmbeddedBroker, gateway: str, layout: Layout, topic: str
) -> None:
    group_id = new_group()
    produce(gateway, topic, range(RECORDS))
    with ExitStack() as stack:
        first = stack.enter_context(closing(PythonMember(gateway, group_id, topic)))
        share(first)
        second = ConfluentMember(gateway, group_id, topic)
        share(first, second)
        for member in (first, second):
            assert broker.bootstrap_servers not in {f"{host}:{port}" for host, port in member.brokers()}
        consume_and_commit(gateway, topic, first, second)
        second.close()
        share(first)
        ends = dict.fromkeys(range(PARTITIONS), RECORDS * 2 // PARTITIONS)
        assert committed(first, topic) == ends
    # Somebody who was never there goes on where they stopped.
    third = ConfluentMember(gateway, group_id, topic)
    produce(gateway, topic, range(1_000, 1_004))
    assert consume(4, third) == [1_000, 1_001, 1_002, 1_003]
    third.close()
    with closing(KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)) as admin:
        assert group_id not in str(admin.list_groups())
    assert members_added(broker, layout, group_id) == 3


def consume_and_commit(servers: str, topic: str, *members: Any) -> None:
    """Records that come while members share a topic are seen once, by whoever holds the partition."""
    produce(servers, topic, range(100, 100 + RECORDS))
    assert consume(RECORDS, *members, since=100) == list(range(100, 100 + RECORDS))
    for member in members:
        member.commit()


def consume(records: int, *members: Any, since: int = 0) -> list[int]:
    """The next records from that value on the members are given, at least so many, in order."""
    seen: list[int] = []

    def have_enough() -> bool:
        for member in members:
            seen.extend(value for value in member.poll() if value >= since)
        return len(seen) >= records

    wait_until(have_enough, f"{records} records")
    return sorted(seen)


def committed(member: PythonMember, topic: str) -> dict[int, int]:
    return {p: member.consumer.committed(TopicPartition(topic, p)) for p in range(PARTITIONS)}


def test_admin_clients(gateway: str, topic: str) -> None:
    group_id = new_group()
    with closing(PythonMember(gateway, group_id, topic)) as member:
        share(member)
        member.commit()
        with closing(KafkaAdminClient(bootstrap_servers=gateway)) as admin:
            described = admin.describe_groups([group_id])[group_id]
            assert described["group_state"] == "Stable"
            assert len(described["members"]) == 1
    admin = ConfluentAdmin({"bootstrap.servers": gateway})

    def states() -> dict[str, str]:
        listed = admin.list_consumer_groups(request_timeout=10).result().valid
        return {group.group_id: group.state.name for group in listed}

    wait_until(lambda: states().get(group_id) == "EMPTY", "the group is listed as empty")
    assert list(admin.delete_consumer_groups([group_id])) == [group_id]
    wait_until(lambda: group_id not in states(), "the group is not listed any more")


def test_a_gateway_that_restarts_takes_over(
    broker: EmbeddedBroker, layout: Layout, options: GatewayOptions, topic: str
) -> None:
    group_id = new_group()
    fixed = GatewayOptions(options.bootstrap_servers, layout, free_address(), reply_partition=3)
    with ExitStack() as stack:
        with serving(fixed) as address:
            member = stack.enter_context(closing(PythonMember(str(address), group_id, topic)))
            share(member)
        with serving(fixed):
            produce(broker.bootstrap_servers, topic, range(RECORDS))
            assert consume(RECORDS, member) == list(range(RECORDS))
            member.commit()
            member.close()
    # It went on as the member it was: nobody else ever joined.
    assert members_added(broker, layout, group_id) == 1


def test_gateways_may_share_a_reply_partition(options: GatewayOptions, layout: Layout, topic: str) -> None:
    group_id = new_group()
    same = GatewayOptions(options.bootstrap_servers, layout, options.listen, reply_partition=2)
    with ExitStack() as stack:
        addresses = [str(stack.enter_context(serving(same))) for _ in range(2)]
        one = stack.enter_context(closing(PythonMember(addresses[0], group_id, topic)))
        other = stack.enter_context(closing(ConfluentMember(addresses[1], group_id, topic)))
        share(one, other)
        consume_and_commit(addresses[0], topic, one, other)


def test_what_was_parked_at_the_gateway_before_harms_nobody(
    broker: EmbeddedBroker, layout: Layout, options: GatewayOptions
) -> None:
    group_id = new_group()
    mine = GatewayOptions(options.bootstrap_servers, layout, options.listen, reply_partition=3)
    with CoordinatorClient(broker.bootstrap_servers, layout, client_id="other") as other:
        leader = stable_member(other, group_id)
        with serving(mine) as address, connected(address) as connection:
            # The first version 1 JoinGroup parks, for the leader has to join again.
            connection.sendall(join_frame(group_id, leader))
            wait_until(lambda: members_added(broker, layout, group_id) == 2, "the join at the coordinator")
        with serving(mine) as address:
            assert leader.join().result().generation_id == 2
            # The other's answer is on the reply partition now, before this one's.
            with connected(address) as connection:
                connection.sendall(framed(codec.encode_request(15, 6, 1, "here", {"groups": [group_id]})))
                answer = connection.makefile("rb")
                size = int.from_bytes(answer.read(4), "big")
                (described,) = codec.decode_response(15, 6, answer.read(size)).groups
        assert described.group_state == "CompletingRebalance"
        assert {member.client_id for member in described.members} == {"other", "gone"}


def test_clients_name_themselves_over_tls(
    broker: EmbeddedBroker, options: GatewayOptions, topic: str, tmp_path: Path
) -> None:
    group_id, pem = new_group(), Path(__file__).parents[1] / "data" / "gateway.pem"
    users = tmp_path / "users"
    users.write_text("ann:secret\n")
    with ExitStack() as stack:
        secured = replace(options, security=Security.read(pem, None, users))
        address = str(stack.enter_context(serving(secured)))
        in_python = {"ssl_cafile": str(pem), "sasl_plain_username": "ann", "sasl_plain_password": "secret"}
        security = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", **in_python}
        one = stack.enter_context(closing(PythonMember(address, group_id, topic, **security)))
        in_confluent = {"ssl.ca.location": str(pem), "sasl.username": "ann", "sasl.password": "secret"}
        settings = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", **in_confluent}
        other = stack.enter_context(closing(ConfluentMember(address, group_id, topic, settings)))
        share(one, other)
        consume_and_commit(broker.bootstrap_servers, topic, one, other)


def connected(address: Address) -> closing[socket.socket]:
    return closing(socket.create_connection((address.host, address.port)))


def join_frame(group_id: str, like: Member) -> bytes:
    """A JoinGroup as an old client sends it, which is a member at once."""
    body = {
        "group_id": group_id,
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": like.member_id.encode()}],
    }
    return framed(codec.encode_request(11, 1, 1, "gone", body))


def members_added(broker: EmbeddedBroker, layout: Layout, group_id: str) -> int:
    """How many members the coordinator ever took into the group."""
    history = history_of(broker.bootstrap_servers, layout, group_id)
    return sum(event.type == EventType.MEMBER_ADDED for event in history)


def free_address() -> Address:
    """An address whose port, and the broker's above it, are free."""
    while True:
        port = random.randrange(20_000, 32_000)
        with ExitStack() as stack:
            try:
                for wanted in (port, port + 2):
                    stack.enter_context(closing(socket.socket())).bind(("127.0.0.1", wanted))
            except OSError:
                continue
            return Address("127.0.0.1", port)
