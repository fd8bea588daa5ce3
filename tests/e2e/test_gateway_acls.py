"""Requests that pass to the brokers, by users with ACLs: at a real broker with StandardAuthorizer, and at a
gateway that reaches the broker as a super user and checks the same ACLs for its clients.

The conformance scripts compare the APIs of groups (`tests/conformance/scripts/acls.txt`).
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pytest
from kafka.protocol.api_key import ApiKey
from kafka.record import MemoryRecordsBuilder

from embedded.broker import EmbeddedBroker
from gateway.authorization.acls import Operation, PatternType, Permission, ResourceType
from gateway.authorization.sources import AclOptions, CurrentAcls
from gateway.net.server import Gateway, GatewayOptions
from gateway.security.authentication import ListenerSecurity
from gateway.upstream.cluster import Cluster
from gateway.upstream.connections import Address
from gateway.wire import codec
from kafka_why.connections.client_config import ClientConfig
from kafka_why.contract.layout import TopicLayout
from tests.conformance.connection import Connection
from tests.e2e.harness import create_topic, wait_until
from tests.harness.gateway import HOST, CoreBackend, RawClient
from tests.harness.users_listener import users_file, users_listener

pytestmark = [pytest.mark.e2e, pytest.mark.one_form]

PASSWORD = "not-secret"
ANN, BOB, ROOT = "ann", "bob", "root"
USERS = dict.fromkeys((ANN, BOB, ROOT), PASSWORD)
SUPER = f"User:{ROOT}"
TOPICS = ("seen", "read", "written", "hidden")
TOPIC, CLUSTER, TRANSACTION = ResourceType.TOPIC, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID

# What ann may do. Bob may do nothing.
ANNS = (
    (Operation.DESCRIBE, TOPIC, "seen"),
    (Operation.READ, TOPIC, "read"),
    (Operation.WRITE, TOPIC, "written"),
    (Operation.CREATE, TOPIC, "new"),
    (Operation.DELETE, TOPIC, "gone"),
    (Operation.DESCRIBE_CONFIGS, TOPIC, "seen"),
    (Operation.WRITE, TRANSACTION, "mine"),
)
ALL_USERS = (ANN, BOB, ROOT)
NO_ID = UUID(int=7)
TRANSACTIONAL_ID_NOT_FOUND = 105

# What two answers cannot have in common: addresses, words, what the broker counts up, times.
OWN_FIELDS = frozenset(
    {
        "host",
        "port",
        "error_message",
        "throttle_time_ms",
        "producer_id",
        "producer_epoch",
        "log_append_time_ms",
        "cluster_id",
    }
)
FROM_OFFSETS = frozenset(
    {"base_offset", "high_watermark", "last_stable_offset", "records", "offset", "end_offset"}
)


@dataclass(frozen=True)
class Case:
    """One request of one version, sent by each of `users`."""

    api_key: int
    version: int
    label: str
    body: Mapping[str, Any]
    users: Sequence[str] = ALL_USERS

    def __str__(self) -> str:
        return f"{codec.REQUESTS[self.api_key].name}-{self.version}-{self.label}"


def each(
    api_key: int, label: str, versions: range | None = None, users: Sequence[str] = ALL_USERS, **body: Any
) -> Iterator[Case]:
    for version in versions or codec.versions(api_key):
        yield Case(api_key, version, label, body, users)


def records(**of_producer: Any) -> bytes:
    builder = MemoryRecordsBuilder(2, 0, 1_000, **of_producer)
    builder.append(timestamp=1, key=None, value=b"x")
    builder.close()
    return bytes(builder.buffer())


def named(*topics: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"name": topic, **fields} for topic in topics]


def cases() -> Iterator[Case]:
    for make in (seeing, reading, writing, changing_topics, in_transactions, of_the_cluster):
        yield from make()


def seeing() -> Iterator[Case]:
    for operations in (False, True):
        flags: dict[str, Any] = {
            "include_topic_authorized_operations": operations,
            "include_cluster_authorized_operations": operations,
            "allow_auto_topic_creation": False,
        }
        label = "with-operations" if operations else "plain"
        names = named("seen", "hidden", "nowhere", "written")
        yield from each(ApiKey.Metadata, f"named-{label}", topics=names, **flags)
        yield from each(ApiKey.Metadata, f"all-{label}", range(1, 14), topics=None, **flags)
    ids = [{"topic_id": topic, "name": None} for topic in ("<id of seen>", "<id of hidden>", NO_ID)]
    yield from each(ApiKey.Metadata, "by-id", range(12, 14), topics=ids, allow_auto_topic_creation=False)
    yield from each(ApiKey.Metadata, "all-of-the-oldest", range(1), topics=[])
    yield from each(
        ApiKey.Metadata,
        "creating",
        topics=named("nowhere", "new", "seen", "hidden"),
        allow_auto_topic_creation=True,
    )
    partitions = [{"partition_index": 0, "timestamp": -1}]
    listed = named("seen", "hidden", "nowhere", partitions=partitions)
    yield from each(ApiKey.ListOffsets, "latest", replica_id=-1, topics=listed)
    epochs = [
        {"topic": name, "partitions": [{"partition": 0, "leader_epoch": 0}]} for name in ("seen", "hidden")
    ]
    yield from each(ApiKey.OffsetForLeaderEpoch, "epochs", replica_id=-1, topics=epochs)
    configs = [{"resource_type": 2, "resource_name": name} for name in ("seen", "read")]
    keyed = [{**one, "configuration_keys": ["retention.ms"]} for one in configs]
    broker = {"resource_type": 4, "resource_name": "1", "configuration_keys": ["log.dirs"]}
    yield from each(ApiKey.DescribeConfigs, "configs", resources=[*keyed, broker])
    producers = named("read", "seen", partition_indexes=[0])
    yield from each(ApiKey.DescribeProducers, "producers", topics=producers)


def reading() -> Iterator[Case]:
    limits: dict[str, Any] = {"max_wait_ms": 0, "min_bytes": 0, "max_bytes": 1_000, "replica_id": -1}
    whole: dict[str, Any] = {"session_id": 0, "session_epoch": -1}
    wanted = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1_000}]
    topics = [{"topic": name, "partitions": wanted} for name in ("read", "seen", "nowhere", "hidden")]
    yield from each(ApiKey.Fetch, "by-name", range(4, 13), topics=topics, **limits, **whole)
    ids = [{"topic_id": f"<id of {name}>", "partitions": wanted} for name in ("read", "seen", "hidden")]
    yield from each(ApiKey.Fetch, "by-id", range(13, 19), topics=ids, **limits, **whole)
    for more in (1, 12, 18):
        if more >= 7:
            unknown: dict[str, Any] = {"session_id": 77, "session_epoch": 3, "topics": []}
            yield Case(ApiKey.Fetch, more, "of-no-session", {**limits, **unknown})


def writing() -> Iterator[Case]:
    data = [{"index": 0, "records": records()}]
    topics = named("written", "read", "hidden", partition_data=data)
    yield from each(ApiKey.Produce, "by-name", range(3, 13), acks=-1, timeout_ms=5_000, topic_data=topics)
    ids = [{"topic_id": f"<id of {name}>", "partition_data": data} for name in ("written", "read", "hidden")]
    yield from each(ApiKey.Produce, "by-id", range(13, 14), acks=-1, timeout_ms=5_000, topic_data=ids)
    transactional = records(transactional=True, producer_id=1, producer_epoch=0, base_sequence=0)
    data = [{"index": 0, "records": transactional}]
    topics = named("written", "read", "hidden", partition_data=data)
    others: dict[str, Any] = {
        "transactional_id": "others",
        "acks": -1,
        "timeout_ms": 5_000,
        "topic_data": topics,
    }
    yield from each(ApiKey.Produce, "of-anothers-transaction", range(3, 13), (ANN, BOB), **others)
    at = [{"partition_index": 0, "offset": 0}]
    yield from each(
        ApiKey.DeleteRecords, "records", users=(ANN, BOB), topics=named("read", "hidden", partitions=at)
    )


def changing_topics() -> Iterator[Case]:
    made = [{"name": name, "num_partitions": 1, "replication_factor": 1} for name in ("new", "other")]
    yield from each(ApiKey.CreateTopics, "validated", topics=made, validate_only=True, timeout_ms=5_000)
    names = ["gone", "hidden", "seen"]
    yield from each(
        ApiKey.DeleteTopics, "by-name", range(1, 6), (ANN, BOB), topic_names=names, timeout_ms=5_000
    )
    topics = [{"name": name, "topic_id": UUID(int=0)} for name in names]
    yield from each(ApiKey.DeleteTopics, "by-name", range(6, 7), (ANN, BOB), topics=topics, timeout_ms=5_000)
    yield from each(
        ApiKey.CreatePartitions,
        "partitions",
        users=(ANN, BOB),
        topics=[{"name": name, "count": 5} for name in ("read", "hidden")],
        validate_only=True,
        timeout_ms=5_000,
    )
    for api_key, entry in (
        (ApiKey.AlterConfigs, {"name": "retention.ms", "value": "1"}),
        (ApiKey.IncrementalAlterConfigs, {"name": "retention.ms", "value": "1", "config_operation": 0}),
    ):
        resources = [
            {"resource_type": kind, "resource_name": name, "configs": [entry]}
            for kind, name in ((2, "read"), (2, "hidden"), (4, "1"), (32, "g"))
        ]
        yield from each(api_key, "configs", users=(ANN, BOB), resources=resources, validate_only=True)


def in_transactions() -> Iterator[Case]:
    started: dict[str, Any] = {"transaction_timeout_ms": 60_000, "producer_id": -1, "producer_epoch": -1}
    yield from each(ApiKey.InitProducerId, "idempotent", range(6), transactional_id=None, **started)
    yield from each(
        ApiKey.InitProducerId, "of-another", range(6), (ANN, BOB), transactional_id="others", **started
    )
    ended: dict[str, Any] = {
        "transactional_id": "others",
        "producer_id": 1,
        "producer_epoch": 1,
        "committed": True,
    }
    yield from each(ApiKey.EndTxn, "of-another", users=(ANN, BOB), **ended)
    for name in ("mine", "others"):
        yield from each(
            ApiKey.AddPartitionsToTxn,
            f"of-{name}",
            range(4),
            (ANN, BOB),
            v3_and_below_transactional_id=name,
            v3_and_below_producer_id=1,
            v3_and_below_producer_epoch=1,
            v3_and_below_topics=named("written", "read", partitions=[0]),
        )
        yield from each(ApiKey.FindCoordinator, f"of-{name}", range(1, 4), (ANN, BOB), key=name, key_type=1)
    yield from each(
        ApiKey.FindCoordinator, "several", range(4, 7), coordinator_keys=["mine", "others"], key_type=1
    )
    yield from each(ApiKey.DescribeTransactions, "several", transactional_ids=["mine", "others"])
    filters: dict[str, Any] = {"state_filters": [], "producer_id_filters": []}
    yield from each(ApiKey.ListTransactions, "all", **filters)


def of_the_cluster() -> Iterator[Case]:
    for operations in (False, True):
        label = "with-operations" if operations else "plain"
        yield from each(
            ApiKey.DescribeCluster, label, include_cluster_authorized_operations=operations, endpoint_type=1
        )
    filters: dict[str, Any] = {
        "resource_type_filter": 1,
        "resource_name_filter": None,
        "pattern_type_filter": 1,
        "principal_filter": None,
        "host_filter": None,
        "operation": 1,
        "permission_type": 1,
    }
    yield from each(ApiKey.DescribeAcls, "all", **filters)
    yield from each(ApiKey.DeleteAcls, "all", users=(ANN, BOB), filters=[filters])
    yield from each(ApiKey.CreateAcls, "one", users=(ANN, BOB), creations=[creation(*ANNS[0])])


def creation(operation: Operation, kind: ResourceType, name: str) -> dict[str, Any]:
    return {
        "resource_type": kind,
        "resource_name": name,
        "resource_pattern_type": PatternType.LITERAL,
        "principal": f"User:{ANN}",
        "host": "*",
        "operation": operation,
        "permission_type": Permission.ALLOW,
    }


def renamed(value: Any, ids: Mapping[str, UUID]) -> Any:
    if isinstance(value, Mapping):
        return {key: renamed(item, ids) for key, item in value.items()}
    if isinstance(value, list):
        return [renamed(item, ids) for item in value]
    return ids.get(value, value) if isinstance(value, str) else value


def comparable(value: Any, hides: frozenset[str]) -> Any:
    """Return the answer without the fields that differ between servers, with its lists in one order. Offsets
    count only if there is an error, because both servers write to the same topics.
    """
    if isinstance(value, Mapping):
        hidden = hides if value.get("error_code") else hides | FROM_OFFSETS
        return {key: comparable(item, hides) for key, item in value.items() if key not in hidden}
    if isinstance(value, list):
        return sorted((comparable(item, hides) for item in value), key=repr)
    return sorted(value) if isinstance(value, set | frozenset) else value


class Users:
    """The connections of users to one server. Each is used until the server closes it."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._connections: dict[str, Connection] = {}

    async def ask(self, user: str, api_key: int, version: int, body: Mapping[str, Any]) -> Any:
        """Return an answer as nested dicts, or None if the server closes the connection instead."""
        if user not in self._connections:
            opened = await asyncio.open_connection(self._address.host, self._address.port)
            self._connections[user] = Connection(*opened)
            await self._connections[user].authenticate(user, PASSWORD)
        raw = await self._connections[user].ask(api_key, version, user, body)
        if raw is None:
            await self._connections.pop(user).close()
            return None
        return codec.decode_response(api_key, version, raw).to_dict(json=False)

    async def close(self) -> None:
        for connection in self._connections.values():
            await connection.close()


@dataclass(frozen=True)
class Pair:
    """The broker's listener for users, and the gateway."""

    runner: asyncio.Runner
    broker: Users
    gateway: Users
    ids: Mapping[str, UUID]
    acls: CurrentAcls

    def ask(self, user: str, case: Case) -> tuple[Any, Any]:
        """Return the broker's answer, and the gateway's."""
        body = renamed(case.body, self.ids)
        request = user, case.api_key, case.version, body
        kafkas, ours = (self.runner.run(users.ask(*request)) for users in (self.broker, self.gateway))
        return kafkas, ours


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("acls")
    ports, secured, settings = users_listener(USERS, [SUPER])
    with (
        EmbeddedBroker(folder / "broker", ports=ports, overrides=settings) as broker,
        asyncio.Runner() as runner,
    ):
        for topic in TOPICS:
            create_topic(broker.client_config, topic, 1, {})
        admin = Address.parse(broker.bootstrap_servers)
        ids = runner.run(prepared(admin))
        users_only = ListenerSecurity.read(None, None, users_file(folder, USERS))
        layout, listen = TopicLayout.named(), Address(HOST, 0)
        options = GatewayOptions(ClientConfig(str(admin)), layout, listen, security=users_only)
        cluster, core = Cluster([admin], options.limits), CoreBackend()
        acls = CurrentAcls.of(AclOptions(super_users=frozenset({SUPER}), interval_s=0.1), cluster)
        gateway = Gateway(options, cluster, core, core, authorizer=acls.authorizer)
        runner.run(gateway.start())
        wait_until(lambda: acls_are_there(runner, acls), "the ACLs")
        pair = Pair(runner, Users(secured), Users(gateway.address), ids, acls)
        wait_until(lambda: has_transactions(pair), "the coordinator of transactions")
        yield pair
        for users in (pair.broker, pair.gateway):
            runner.run(users.close())
        runner.run(gateway.close())


async def prepared(admin: Address) -> dict[str, UUID]:
    """Create the ACLs. Return the topics' ids by their placeholders in the cases."""
    client = RawClient(*await asyncio.open_connection(admin.host, admin.port))
    created = await client.ask(ApiKey.CreateAcls, 3, creations=[creation(*one) for one in ANNS])
    assert not any(result.error_code for result in created.results)
    metadata = await client.ask(ApiKey.Metadata, 12, topics=named(*TOPICS), allow_auto_topic_creation=False)
    client.writer.close()
    return {f"<id of {topic.name}>": topic.topic_id for topic in metadata.topics}


def has_transactions(pair: Pair) -> bool:
    """Return True if the broker has loaded its topic of transactions for both, and has producer ids."""
    find = Case(ApiKey.FindCoordinator, 4, "", {"coordinator_keys": ["mine"], "key_type": 1})
    is_made = not pair.ask(ROOT, find)[0]["coordinators"][0]["error_code"]
    ids = {"transactional_ids": ["mine", "others"]}
    described, _ = pair.ask(ROOT, Case(ApiKey.DescribeTransactions, 0, "", ids))
    start = {"transactional_id": None, "transaction_timeout_ms": 60_000}
    producer, _ = pair.ask(ROOT, Case(ApiKey.InitProducerId, 0, "", start))
    errors = {one["error_code"] for one in described["transaction_states"]}
    return is_made and errors == {TRANSACTIONAL_ID_NOT_FOUND} and not producer["error_code"]


def acls_are_there(runner: asyncio.Runner, acls: CurrentAcls) -> bool:
    runner.run(acls.refresh())
    return len(acls.authorizer) == len(ANNS)


@pytest.mark.parametrize("case", list(cases()), ids=str)
def test_the_gateway_answers_each_user_as_the_broker_does(pair: Pair, case: Case) -> None:
    for user in case.users:
        kafkas, ours = pair.ask(user, case)
        # A topic that is only validated has an id drawn for it.
        hides = OWN_FIELDS | {"topic_id"} if case.api_key == ApiKey.CreateTopics else OWN_FIELDS
        assert comparable(ours, hides) == comparable(kafkas, hides), user
