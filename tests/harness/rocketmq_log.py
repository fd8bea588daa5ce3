"""Random logs of RocketMQ's groups, mixed with requests of Kafka's groups.

A few clients on a few connections act like real clients, and sometimes unusually: two connections have one
client id, a connection changes its client id, topics differ, or a request is of the other protocol. They are
connected to two brokers through two gateways, which restart.
"""

from collections.abc import Callable
from itertools import count
from random import Random

from kafka_why.contract.codec import AnyRequest
from kafka_why.contract.kafka.requests import DescribeGroup, JoinGroup, OffsetCommit, Protocol
from kafka_why.contract.messages import ReleaseGroup
from kafka_why.contract.rocketmq.requests import (
    ConnectionClosed,
    GatewayStarted,
    GetConsumerListByGroup,
    LockBatchMq,
    MessageModel,
    MessageQueue,
    MessageRequestMode,
    QueryAssignment,
    RegisterConsumer,
    RegisterProducer,
    SetMessageRequestMode,
    SubscriptionData,
    SubscriptionGroupConfig,
    UnlockBatchMq,
    UnregisterConsumer,
    UnregisterProducer,
)
from state.timeline import Row
from tests.harness.common import Common
from tests.harness.random_log import GROUPS, PARTITION_OF, PARTITIONS

CONNECTIONS = ("c1", "c2", "c3", "c4")
CLIENT_IDS = ("A", "B", "C", "C")  # of the connections, as a rule
BROKERS = ("b/0", "b/1", "b/1", "b/1")  # of the connections
GATEWAYS = ("east", "west")
QUEUES = tuple(MessageQueue("t", "b", number) for number in range(4))
TOPICS = ("t", "u", "%RETRY%g")
# Around the scan interval and the lifetimes of locks and of silent connections.
PAUSES_MS = (0, 0, 1, 500, 9_999, 10_000, 20_001, 30_000, 60_000, 60_001, 119_999, 130_000)

Maker = Callable[[Random, dict[str, object]], AnyRequest]


def realise(seed: int, length: int) -> list[Row]:
    """Return a log in the order of append times. A longer one of a seed begins with the shorter one."""
    random = Random(seed)
    groups = random.choice((GROUPS[:1], GROUPS[:2], GROUPS))
    kafka_share = random.choice((0.0, 0.0, 0.1))  # of requests of Kafka's groups
    offsets = [count() for _ in range(PARTITIONS)]
    at_ms = 1_000_000
    rows = []
    for _ in range(length):
        at_ms += random.choice(PAUSES_MS)
        group_id = random.choice(groups)
        partition = PARTITION_OF[group_id]
        request_id = f"requests-{partition}-{next(offsets[partition])}"
        rows.append(Row(at_ms, request_id, _request(random, group_id, request_id, kafka_share)))
    return rows


def _request(random: Random, group_id: str, request_id: str, kafka_share: float) -> AnyRequest:
    if random.random() < kafka_share:
        return _kafka_request(random, group_id, request_id)
    if random.random() < 0.05:
        return ReleaseGroup(group_id=group_id, correlation_id=request_id, reply_partition=0, api_version=0)
    number = random.randrange(len(CONNECTIONS))
    client_id = random.choice(CLIENT_IDS) if random.random() < 0.1 else CLIENT_IDS[number]
    envelope: dict[str, object] = {
        "group_id": group_id,
        "connection": CONNECTIONS[number],
        "client_id": client_id,
        "correlation_id": request_id,
        "reply_partition": random.choice((number, number, 0)),
        "broker": BROKERS[number],
    }
    (make,) = random.choices(list(_MAKERS), weights=list(_MAKERS.values()))
    return make(random, envelope)


def _kafka_request(random: Random, group_id: str, request_id: str) -> AnyRequest:
    common: Common = {
        "group_id": group_id,
        "correlation_id": request_id,
        "reply_partition": 0,
        "api_version": 0,
        "client_id": "k",
    }
    match random.randrange(3):
        case 0:
            return JoinGroup(
                **common,
                session_timeout_ms=6_000,
                rebalance_timeout_ms=6_000,
                protocol_type="consumer",
                protocols=[Protocol("range")],
            )
        case 1:
            return OffsetCommit(**common, topics=[])
        case _:
            return DescribeGroup(**common)


def _register(random: Random, envelope: dict[str, object]) -> AnyRequest:
    topics = TOPICS[: random.choice((1, 1, 1, 2, 3))]
    return RegisterConsumer(
        **envelope,  # type: ignore[arg-type]
        gateway=random.choice(GATEWAYS),
        gateway_start=random.choice("12"),
        message_model=random.choices(list(MessageModel), weights=(1, 9))[0],
        subscription_data_set=tuple(SubscriptionData(t, "*", random.randrange(3)) for t in topics),
        heartbeat_fingerprint=random.choice((0, 0, 1, 2)),
        is_without_sub=random.random() < 0.2,
        group_config=random.choice((SubscriptionGroupConfig(), SubscriptionGroupConfig(False), None)),
    )


def _start_gateway(random: Random, envelope: dict[str, object]) -> AnyRequest:
    return GatewayStarted(
        group_id=str(envelope["group_id"]), gateway=random.choice(GATEWAYS), gateway_start=random.choice("12")
    )


def _query(random: Random, envelope: dict[str, object]) -> AnyRequest:
    return QueryAssignment(
        **envelope,  # type: ignore[arg-type]
        topic=random.choice(TOPICS),
        message_model=MessageModel.CLUSTERING,
        strategy_name=random.choice(("AVG", "AVG_BY_CIRCLE", "CONFIG")),
        topic_queues=random.choice((QUEUES, None)),
    )


def _lock(random: Random, envelope: dict[str, object]) -> AnyRequest:
    kind = LockBatchMq if random.random() < 0.7 else UnlockBatchMq
    return kind(**envelope, mq_set=tuple(random.sample(QUEUES, random.randint(0, 4))))  # type: ignore[arg-type]


def _set_mode(random: Random, envelope: dict[str, object]) -> AnyRequest:
    return SetMessageRequestMode(
        **envelope,  # type: ignore[arg-type]
        topic=random.choice(TOPICS),
        mode=random.choice(list(MessageRequestMode)),
        pop_share_queue_num=random.randrange(3),
    )


def _close(_: Random, envelope: dict[str, object]) -> AnyRequest:
    return ConnectionClosed(group_id=str(envelope["group_id"]), connection=str(envelope["connection"]))


def _plain(kind: Callable[..., AnyRequest]) -> Maker:
    return lambda _, envelope: kind(**envelope)


_MAKERS: dict[Maker, float] = {
    _register: 10,
    _plain(RegisterProducer): 2,
    _plain(UnregisterConsumer): 2,
    _plain(UnregisterProducer): 1,
    _close: 2,
    _start_gateway: 0.3,
    _plain(GetConsumerListByGroup): 2,
    _lock: 4,
    _query: 2,
    _set_mode: 0.2,
}
