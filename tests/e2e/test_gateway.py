"""Unmodified clients through the gateway, with a real broker and the coordinator behind it."""

import gc
import random
import socket
import sys
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError as ConfluentError
from confluent_kafka import KafkaException
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka import TopicPartition as ConfluentPartition
from confluent_kafka.admin import AdminClient as ConfluentAdmin
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.cimpl import NewPartitions
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from clients.coordinator_client import CoordinatorClient, TopicsMissing, layout_on
from connections import kafka_clients
from connections.client_config import ClientConfig
from embedded.broker import EmbeddedBroker
from gateway.limits import Limits
from gateway.net.options import GatewayOptions
from gateway.security.authentication import Security
from gateway.service import serving
from gateway.upstream.connections import Address
from gateway.wire import codec
from gateway.wire.framing import framed
from state.errors import ErrorCode
from state.kafka.history import EntryType
from tests.e2e.gateway_clients import (
    PARTITIONS,
    RECORDS,
    SESSION_MS,
    ConfluentMember,
    PythonMember,
    assert_coordinated,
    consume,
    consume_and_commit,
    members_added,
    new_group,
    produce,
    share,
)
from tests.e2e.harness import (
    WAIT_TIMEOUT_S,
    Member,
    create_topic,
    history_of,
    stable_member,
    wait_until,
)

pytestmark = pytest.mark.e2e


def test_a_group_may_leave_its_assignment_to_the_coordinator(
    gateway: str, options: GatewayOptions, topic: str
) -> None:
    group_id, assignor = new_group(), "coordinator:uniform"
    produce(gateway, topic, range(RECORDS))
    with closing(PythonMember(gateway, group_id, topic, assignor=assignor)) as first:
        share(first)
        assert consume(RECORDS, first) == list(range(RECORDS))
        before = first.partitions()
        with closing(PythonMember(gateway, group_id, topic, assignor=assignor)) as second:
            share(first, second)
            assert first.partitions() < before
        share(first)
    assert_coordinated(options, group_id, joins=2)
    history = history_of(options.client_config, options.layout, group_id)
    stable = [entry for entry in history if entry.type is EntryType.STABLE]
    assert {(entry.rule, entry.protocol_name) for entry in stable} == {("M4", assignor)}


@pytest.mark.one_form
def test_garbage_collections_leave_out_what_a_gateway_has_imported(options: GatewayOptions) -> None:
    with serving(options):
        assert gc.get_freeze_count() > len(sys.modules)


def test_admin_clients(gateway: str, topic: str) -> None:
    group_id = new_group()
    with closing(PythonMember(gateway, group_id, topic)) as member:
        share(member)
        member.commit()
        with closing(kafka_clients.admin(ClientConfig(gateway))) as admin:
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
    broker: EmbeddedBroker, options: GatewayOptions, topic: str
) -> None:
    group_id = new_group()
    fixed = replace(options, listen=free_address(), reply_partition=3)
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
    assert_coordinated(options, group_id, joins=1)


def test_clients_of_two_libraries_at_gateways_that_share_a_reply_partition(
    broker: EmbeddedBroker, options: GatewayOptions, topic: str
) -> None:
    group_id = new_group()
    same = replace(options, reply_partition=2)
    with ExitStack() as stack:
        addresses = [str(stack.enter_context(serving(same))) for _ in range(2)]
        one = stack.enter_context(closing(PythonMember(addresses[0], group_id, topic)))
        other = stack.enter_context(closing(ConfluentMember(addresses[1], group_id, topic)))
        share(one, other)
        for member in (one, other):
            assert broker.bootstrap_servers not in {f"{host}:{port}" for host, port in member.brokers()}
        consume_and_commit(addresses[0], topic, one, other)
        other.close()
        share(one)
        assert one.committed(topic) == dict.fromkeys(range(PARTITIONS), RECORDS // PARTITIONS)
        one.close()
        # A member that was never there goes on where they stopped.
        third = stack.enter_context(closing(ConfluentMember(addresses[1], group_id, topic)))
        produce(addresses[0], topic, range(1_000, 1_004))
        assert consume(4, third) == [1_000, 1_001, 1_002, 1_003]
    assert_coordinated(options, group_id, joins=3)


def test_what_was_parked_at_the_gateway_before_harms_nobody(
    options: GatewayOptions,
) -> None:
    group_id = new_group()
    mine = replace(options, reply_partition=3)
    with CoordinatorClient(options.client_config, options.layout, client_id="other") as other:
        leader = stable_member(other, group_id)
        with serving(mine) as address, connected(address) as connection:
            # The first version 1 JoinGroup parks, for the leader has to join again.
            connection.sendall(join_frame(group_id, leader))
            wait_until(lambda: members_added(options, group_id) == 2, "the join at the coordinator")
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


@pytest.mark.one_form
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
        one = stack.enter_context(closing(PythonMember(address, group_id, topic, settings=security)))
        in_confluent = {"ssl.ca.location": str(pem), "sasl.username": "ann", "sasl.password": "secret"}
        settings = {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", **in_confluent}
        other = stack.enter_context(closing(ConfluentMember(address, group_id, topic, settings=settings)))
        share(one, other)
        consume_and_commit(broker.bootstrap_servers, topic, one, other)


def test_large_records_come_whole_over_tls(broker: EmbeddedBroker, options: GatewayOptions) -> None:
    """Each is more than the gateway holds of a response, so it passes in many parts."""
    pem, topic, size = Path(__file__).parents[1] / "data" / "gateway.pem", f"large-{new_group()}", 6 * 1024**2
    create_topic(broker.client_config, topic, 1, {"max.message.bytes": str(2 * size)})
    sent = [random.Random(number).randbytes(size) for number in range(4)]
    secured = replace(options, security=Security.read(pem, None, None))
    with serving(secured) as address:
        in_python = {"security_protocol": "SSL", "ssl_cafile": str(pem), "bootstrap_servers": str(address)}
        with closing(KafkaProducer(max_request_size=2 * size, **in_python)) as producer:
            for value in sent:
                producer.send(topic, value).get(timeout=60)
        with closing(KafkaConsumer(**in_python)) as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            consumer.seek_to_beginning()
            got: list[bytes] = []
            while len(got) < len(sent):
                records = consumer.poll(timeout_ms=60_000)
                assert records
                got += [record.value for batch in records.values() for record in batch]
    assert got == sent


def test_a_group_is_listed_at_any_gateway_as_soon_as_its_client_was_answered(
    options: GatewayOptions, topic: str
) -> None:
    """By connections that ask at once: an answer may be read before the rest of its batch is written."""
    # A gateway does not wait for long for a coordinator that stands still.
    limits = Limits(groups_behind_max_s=WAIT_TIMEOUT_S, member_held_s=WAIT_TIMEOUT_S)
    patient = replace(options, limits=limits)
    with ExitStack() as stack:
        addresses = [stack.enter_context(serving(patient)) for _ in range(2)]
        one, other = (Asking(stack.enter_context(connected(address))) for address in addresses)
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        wait_until(lambda: other.ask(16, 5).error_code != loading, "the gateway has read the groups topic")
        for _ in range(8):
            group_id = new_group()
            assert one.ask(8, 9, **committed_offset(group_id, topic)).topics[0].partitions[0].error_code == 0
            assert other.groups().get(group_id) == "Empty"
            assert one.ask(42, 2, groups_names=[group_id]).results[0].error_code == 0
            assert group_id not in other.groups()
        for _ in range(3):
            group_id = new_group()
            assert one.ask(11, 1, **old_join(group_id)).generation_id == 1
            assert other.groups().get(group_id) == "CompletingRebalance"


@pytest.mark.one_form
def test_the_coordinators_own_topics_are_internal_and_not_to_be_changed(
    options: GatewayOptions, gateway: str, topic: str
) -> None:
    own = options.layout.requests_topic
    with closing(KafkaConsumer(bootstrap_servers=gateway, group_id=new_group())) as consumer:
        consumer.subscribe(pattern=".*")
        consumer.poll(timeout_ms=0)
        wait_until(lambda: topic in subscribed(consumer), "the pattern finds the test's topic")
        assert not subscribed(consumer) & set(options.layout.topics)
    with closing(KafkaProducer(bootstrap_servers=gateway)) as producer:
        with pytest.raises(ValueError, match="did not assign a partition"):
            producer.send(own, b"{}")
        producer.send(topic, b"mine").get(timeout=30)
    with pytest.raises(TopicsMissing, match="is a gateway"):
        layout_on(ClientConfig(gateway), own.removesuffix("-requests"))
    refused: list[ConfluentError] = []
    settings = {"bootstrap.servers": gateway, "on_delivery": lambda error, _: refused.append(error)}
    confluent = ConfluentProducer(settings)
    confluent.produce(own, b"{}")
    assert confluent.flush(30) == 0
    assert [error.code() for error in refused] == [ConfluentError.TOPIC_EXCEPTION]
    admin = ConfluentAdmin({"bootstrap.servers": gateway})
    for name, changed in (
        ("delete", admin.delete_topics([own])[own]),
        ("partitions", admin.create_partitions([NewPartitions(own, 9)])[own]),
        ("records", next(iter(admin.delete_records([ConfluentPartition(own, 0, -1)]).values()))),
        ("configs", next(iter(admin.incremental_alter_configs([short_retention(own)]).values()))),
    ):
        with pytest.raises(KafkaException) as error:
            changed.result(30)
        assert error.value.args[0].code() == ConfluentError.TOPIC_EXCEPTION, name
    assert admin.delete_topics([topic])[topic].result(30) is None


@pytest.mark.one_form
def test_internal_topics_may_be_exposed(options: GatewayOptions) -> None:
    dead_letters = options.layout.dead_letters_topic
    with (
        serving(replace(options, expose_internal_topics=True)) as address,
        closing(KafkaProducer(bootstrap_servers=str(address))) as producer,
    ):
        assert producer.send(dead_letters, b"{}").get(timeout=30).topic == dead_letters


def subscribed(consumer: KafkaConsumer) -> set[str]:
    """The topics that a consumer of a pattern has found."""
    consumer.poll(timeout_ms=100)
    return set(consumer.subscription() or ())


def short_retention(topic: str) -> ConfigResource:
    entry = ConfigEntry("retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
    return ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])


class Asking:
    """A connection that waits for each answer, and not a moment longer."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._answers = connection.makefile("rb")

    def ask(self, api_key: int, version: int, **body: Any) -> Any:
        self._connection.sendall(framed(codec.encode_request(api_key, version, 1, "here", body)))
        size = int.from_bytes(self._answers.read(4), "big")
        return codec.decode_response(api_key, version, self._answers.read(size))

    def groups(self) -> dict[str, str]:
        """The states of the groups that are listed."""
        listed = self.ask(16, 5)
        assert listed.error_code == 0
        return {group.group_id: group.group_state for group in listed.groups}


def committed_offset(group_id: str, topic: str) -> dict[str, Any]:
    """An OffsetCommit by no member."""
    partition = {"partition_index": 0, "committed_offset": 7}
    return {
        "group_id": group_id,
        "generation_id_or_member_epoch": -1,
        "topics": [{"name": topic, "partitions": [partition]}],
    }


def connected(address: Address) -> closing[socket.socket]:
    return closing(socket.create_connection((address.host, address.port)))


def join_frame(group_id: str, like: Member) -> bytes:
    """A JoinGroup as an old client sends it, which is a member at once."""
    return framed(codec.encode_request(11, 1, 1, "gone", old_join(group_id, like.member_id)))


def old_join(group_id: str, metadata: str = "") -> dict[str, Any]:
    """The fields of a JoinGroup of version 1."""
    return {
        "group_id": group_id,
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": metadata.encode()}],
    }


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
