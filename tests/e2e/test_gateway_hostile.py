"""Clients that send what no client of Kafka sends, to a gateway with a file of ACLs, before a real broker and
the coordinator.
"""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import pytest
from kafka.protocol.api_key import ApiKey

from embedded.broker import EmbeddedBroker
from gateway.apis import transactions
from gateway.authorization.sources import AclOptions
from gateway.limits import Limits
from gateway.net.server import GatewayOptions
from gateway.service import serving
from gateway.upstream.connections import Address
from gateway.wire.framing import framed
from tests.e2e.gateway_clients import PARTITIONS, produce
from tests.e2e.harness import WAIT_TIMEOUT_S, create_topic
from tests.harness.hostile_frames import FETCH, fetch_with_hidden_topic
from tests.harness.raw_client import connected

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

COMMIT, TXN_COMMIT = 8, 28
VERSION = 17
SECRET_VALUE = 987_654_321 * PARTITIONS  # in partition 0
DENIED = 29
# Without the bound, a request about a transaction would be tried again for this long.
RETRIES_S = 60.0


@pytest.fixture(scope="module")
def topics(broker: EmbeddedBroker) -> tuple[str, str]:
    """Return a topic that clients may read, and one that they may not even describe. Both have a record."""
    allowed, secret = (f"{kind}-{uuid4()}" for kind in ("allowed", "secret"))
    for topic, value in ((allowed, 0), (secret, SECRET_VALUE)):
        create_topic(broker.client_config, topic, PARTITIONS, {})
        produce(broker.bootstrap_servers, topic, [value])
    return allowed, secret


@pytest.fixture(scope="module")
def address(
    options: GatewayOptions, topics: tuple[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Address]:
    """Yield a gateway, by whose ACLs everyone may read one of the topics, and use all groups and
    transactions.
    """
    rights = [("TOPIC", topics[0], "READ"), ("GROUP", "*", "READ"), ("TRANSACTIONAL_ID", "*", "WRITE")]
    acls = [
        {"principal": "User:ANONYMOUS", "resource_type": kind, "name": name, "operations": [operation]}
        for kind, name, operation in rights
    ]
    path = tmp_path_factory.mktemp("hostile") / "acls.json"
    path.write_text(json.dumps({"acls": acls}))
    # It waits for a coordinator that stands still.
    limits = Limits(member_held_s=WAIT_TIMEOUT_S)
    with serving(replace(options, acls=AclOptions(file=path), limits=limits)) as address:
        yield address


def ids_of(broker: EmbeddedBroker, names: tuple[str, ...]) -> list[UUID]:
    async def ask() -> list[UUID]:
        async with connected(Address.parse(broker.bootstrap_servers)) as client:
            wanted = [{"name": name} for name in names]
            answer = await client.ask(ApiKey.Metadata, 12, topics=wanted, allow_auto_topic_creation=False)
            found = {topic.name: topic.topic_id for topic in answer.topics}
            return [found[name] for name in names]

    return asyncio.run(ask())


async def answer_to(address: Address, frame: bytes) -> bytes:
    """Return the answer's bytes, none if the connection is closed instead."""
    async with connected(address) as client:
        await client.send_bytes(framed(frame))
        try:
            return await client.receive_bytes()
        except (asyncio.IncompleteReadError, ConnectionError):
            return b""


def fetch(topic_id: UUID) -> dict[str, Any]:
    partitions = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000}]
    limits = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1_000, "session_id": 0, "session_epoch": -1}
    return {**limits, "topics": [{"topic_id": topic_id, "partitions": partitions}]}


def test_hidden_fetch_field_cannot_read_a_denied_topic(
    broker: EmbeddedBroker, address: Address, topics: tuple[str, str]
) -> None:
    allowed, secret = ids_of(broker, topics)
    record = str(SECRET_VALUE).encode()

    async def play() -> None:
        async with connected(address) as client:
            plain = await client.ask(FETCH, VERSION, **fetch(secret))
            assert plain.responses[0].partitions[0].error_code == DENIED
            assert (await client.ask(FETCH, VERSION, **fetch(allowed))).responses[0].partitions[0].records
        frame = fetch_with_hidden_topic(allowed, secret)
        assert record in await answer_to(Address.parse(broker.bootstrap_servers), frame)  # so Kafka reads it
        assert await answer_to(address, frame) == b""

    asyncio.run(play())


def commit(topic: str) -> dict[str, Any]:
    partition = {"partition_index": 0, "committed_offset": 1, "committed_metadata": ""}
    fields = {"group_id": f"g-{uuid4()}", "generation_id_or_member_epoch": -1, "member_id": ""}
    return {**fields, "topics": [{"name": topic, "partitions": [partition]}]}


def txn_commit(transactional_id: str, topic: str) -> dict[str, Any]:
    producer = {"transactional_id": transactional_id, "producer_id": 1, "producer_epoch": 0}
    return {"group_id": "g", "topics": commit(topic)["topics"], **producer}


@pytest.mark.parametrize(("id_bytes", "closes"), [(32_767, False), (32_768, True)])
def test_a_long_transactional_id_is_answered_at_once(
    address: Address, topics: tuple[str, str], id_bytes: int, closes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "BROKERS_TIMEOUT_S", RETRIES_S)

    async def play() -> None:
        async with connected(address) as client, asyncio.timeout(RETRIES_S / 2):
            await client.send(TXN_COMMIT, 4, **txn_commit("t" * id_bytes, topics[0]))
            if closes:
                assert await client.is_closed()
            else:
                _, answer = await client.receive()
                assert answer.topics[0].partitions[0].error_code

    asyncio.run(play())
