"""Unmodified clients through the gateway, with a real broker and the coordinator behind it."""

import asyncio
import gc
import random
import sys
import uuid
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from bench.load import kafka_groups
from embedded.broker import EmbeddedBroker
from gateway.apis import transactions
from gateway.limits import Limits
from gateway.net.server import GatewayOptions
from gateway.security.authentication import ListenerSecurity
from gateway.service import serving
from kafka_why.connections.address import Address
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.kafka.history import EntryType
from kafka_why.contract.messages import ErrorCode
from kafka_why.groups.gather import BrokerGroup, BrokerGroups
from kafka_why.topic_reader import GatewayAddress, layout_on
from tests.e2e.gateway_clients import (
    RECORDS,
    SESSION_MS,
    ConfluentMember,
    PythonMember,
    assert_coordinated,
    consume,
    consume_and_commit,
    new_group,
    produce,
    share,
)
from tests.e2e.harness import WAIT_TIMEOUT_S, create_topic, history_of, wait_until
from tests.harness.gateway import JOIN, SYNC, join_fields
from tests.harness.ports import free_address
from tests.harness.raw_client import connected
from tests.harness.shared import PREFIX, Coordinated
from tests.harness.transactions import TXN_COMMIT, Wire

pytestmark = pytest.mark.e2e


@pytest.mark.one_form
def test_coordinator_assigns_partitions_on_request(gateway: str, options: GatewayOptions, topic: str) -> None:
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
def test_gateway_imports_are_excluded_from_garbage_collection(options: GatewayOptions) -> None:
    with serving(options):
        assert gc.get_freeze_count() > len(sys.modules)


@pytest.mark.one_form
def test_member_continues_after_a_gateway_restart(
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


@pytest.mark.one_form
def test_authenticated_clients_get_large_records_over_tls(
    broker: EmbeddedBroker, options: GatewayOptions, topic: str, tmp_path: Path
) -> None:
    """Each record is larger than the gateway's buffer for a response, so it passes in many parts."""
    group_id, pem, size = new_group(), Path(__file__).parents[1] / "data" / "gateway.pem", 6 * 1024**2
    users = tmp_path / "users"
    users.write_text("ann:secret\n")
    in_python = {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "PLAIN",
        "ssl_cafile": str(pem),
        "sasl_plain_username": "ann",
        "sasl_plain_password": "secret",
    }
    in_confluent = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "ssl.ca.location": str(pem),
        "sasl.username": "ann",
        "sasl.password": "secret",
    }
    large = f"large-{group_id}"
    create_topic(broker.client_config, large, 1, {"max.message.bytes": str(2 * size)})
    sent = [random.Random(number).randbytes(size) for number in range(4)]
    with ExitStack() as stack:
        secured = replace(options, security=ListenerSecurity.read(pem, None, users))
        address = str(stack.enter_context(serving(secured)))
        one = stack.enter_context(closing(PythonMember(address, group_id, topic, settings=in_python)))
        other = stack.enter_context(closing(ConfluentMember(address, group_id, topic, settings=in_confluent)))
        share(one, other)
        consume_and_commit(broker.bootstrap_servers, topic, one, other)
        in_python["bootstrap_servers"] = address
        with closing(KafkaProducer(max_request_size=2 * size, **in_python)) as producer:
            for value in sent:
                producer.send(large, value).get(timeout=60)
        with closing(KafkaConsumer(**in_python)) as consumer:
            consumer.assign([TopicPartition(large, 0)])
            consumer.seek_to_beginning()
            got: list[bytes] = []
            while len(got) < len(sent):
                records = consumer.poll(timeout_ms=60_000)
                assert records
                got += [record.value for batch in records.values() for record in batch]
    assert got == sent


def test_answered_change_of_a_group_is_listed_at_every_gateway(options: GatewayOptions, topic: str) -> None:
    """The list is requested at once: an answer may be read before the rest of its batch is written."""
    # A gateway does not wait for long for a coordinator that stands still.
    limits = Limits(groups_behind_max_s=WAIT_TIMEOUT_S, member_held_s=WAIT_TIMEOUT_S)
    patient = replace(options, limits=limits)
    with ExitStack() as stack:
        addresses = [stack.enter_context(serving(patient)) for _ in range(2)]
        one, other = (stack.enter_context(Wire(str(address))) for address in addresses)
        loading = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        wait_until(lambda: other.ask(16, 5).error_code != loading, "the gateway has read the groups topic")
        for _ in range(8):
            group_id = new_group()
            assert one.ask(8, 9, **committed_offset(group_id, topic)).topics[0].partitions[0].error_code == 0
            assert listed(other).get(group_id) == "Empty"
            assert one.ask(42, 2, groups_names=[group_id]).results[0].error_code == 0
            assert group_id not in listed(other)
        for _ in range(3):
            group_id = new_group()
            assert one.ask(11, 1, **old_join(group_id)).generation_id == 1
            assert listed(other).get(group_id) == "CompletingRebalance"


@pytest.mark.one_form
def test_gateway_is_refused_as_the_coordinators_bootstrap_server(gateway: str) -> None:
    with pytest.raises(GatewayAddress, match="is a gateway"):
        layout_on(ClientConfig(gateway), PREFIX)


@pytest.mark.one_form
def test_long_transactional_id_is_answered_without_a_timeout(
    options: GatewayOptions, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What is tried again has its answer after this time, which is longer than `Wire` waits.
    monkeypatch.setattr(transactions, "BROKERS_TIMEOUT_S", 2 * WAIT_TIMEOUT_S)
    producer = {"transactional_id": "t" * 32_767, "producer_id": 1, "producer_epoch": 0}
    topics = committed_offset("", topic)["topics"]
    with serving(options) as address, Wire(str(address)) as wire:
        (answer,) = wire.ask(TXN_COMMIT, 4, group_id=new_group(), topics=topics, **producer).topics
    assert answer.partitions[0].error_code


def listed(wire: Wire) -> dict[str, str]:
    """Return the states of the listed groups."""
    return {group.group_id: group.group_state for group in wire.ask(16, 5).groups}


def committed_offset(group_id: str, topic: str) -> dict[str, Any]:
    """Return an OffsetCommit of a client that is no member."""
    partition = {"partition_index": 0, "committed_offset": 7}
    return {
        "group_id": group_id,
        "generation_id_or_member_epoch": -1,
        "topics": [{"name": topic, "partitions": [partition]}],
    }


def old_join(group_id: str) -> dict[str, Any]:
    """Return the fields of a JoinGroup of version 1."""
    return {
        "group_id": group_id,
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
    }


UNKNOWN_SERVER_ERROR, REBALANCE_IN_PROGRESS = -1, 27
BOUNDS_SESSION_MS = 30_000


async def codes_at(address: str, assignment: bytes, times: int) -> list[int]:
    """Return the errors of SyncGroups of the leader of a new group."""
    async with connected(address) as client:
        fields = join_fields(group_id=new_group(), session_timeout_ms=BOUNDS_SESSION_MS)
        member_id = (await client.ask(JOIN, 9, **fields)).member_id
        joined = await client.ask(JOIN, 9, **{**fields, "member_id": member_id})
        member = {"group_id": fields["group_id"], "generation_id": 1, "member_id": member_id}
        assert joined.error_code == 0
        named = {"protocol_type": "consumer", "protocol_name": "range"}
        assigned = [{"member_id": member_id, "assignment": assignment}]
        answers = [await client.ask(SYNC, 5, **member, **named, assignments=assigned) for _ in range(times)]
        assert {answer.assignment for answer in answers if not answer.error_code} <= {assignment}
        return [int(answer.error_code) for answer in answers]


@pytest.mark.parametrize(
    ("size", "codes"),
    [(1_700_000, [0]), (8_300_000, [0]), (9_600_000, [UNKNOWN_SERVER_ERROR, REBALANCE_IN_PROGRESS])],
)
def test_large_assignment_gets_the_same_errors_as_at_a_broker(
    broker: EmbeddedBroker, gateway: str, size: int, codes: list[int]
) -> None:
    """The broker's own limit is 8 MiB. Above both limits the error is final, and the next round begins."""
    for address in (broker.bootstrap_servers, gateway):
        assert asyncio.run(codes_at(address, bytes(size), len(codes))) == codes


@pytest.mark.one_form
def test_run_warns_once_about_a_group_at_the_brokers_own_coordinator(
    broker: EmbeddedBroker, coordinated: Coordinated, topic: str
) -> None:
    """Another group is beside it, whose members' bytes cannot be decoded as subscriptions."""
    group_id, strange_id = f"lost-{uuid.uuid4()}", f"strange-{uuid.uuid4()}"
    asyncio.run(kafka_groups.form(Address.parse(broker.bootstrap_servers), [strange_id]))
    found: list[BrokerGroup] = []
    watched = BrokerGroups(broker.client_config, found.append)
    through_gateway = f"here-{uuid.uuid4()}"
    with (
        closing(PythonMember(coordinated.gateway, through_gateway, topic)) as here,
        closing(
            PythonMember(broker.bootstrap_servers, group_id, topic, settings={"client_id": "c1"})
        ) as lost,
    ):
        share(here)
        share(lost)
        watched.start()
        try:
            wait_until(lambda: group_id in {group.group_id for group in watched.groups}, "the group")
            (group,) = [group for group in watched.groups if group.group_id == group_id]
            lost.close()
            wait_until(lambda: group_id not in {group.group_id for group in watched.groups}, "it has gone")
        finally:
            watched.stop()
    assert (group.protocol, group.state, group.clients) == ("classic", "Stable", ["c1 at /127.0.0.1"])
    names = [group.group_id for group in found]
    assert names.count(group_id) == names.count(strange_id) == 1
    assert through_gateway not in names
    assert [name for name in names if name.startswith(("spark", "group-coordinator"))] == []
