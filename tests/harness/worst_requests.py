"""The most expensive records of the greatest size, for every type of request.

A record is built as bytes, so that it is as dense as JSON can be. Some records need a state that other
records create: the `before` of a case, each within the greatest size too.
"""

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from assignors.kafka.server_side import COORDINATOR_ASSIGNORS
from kafka_why.contract.protocols.subscriptions import (
    Claim,
    Subscription,
    TopicPartition,
    encode_sticky_user_data,
    encode_subscription,
)
from kafka_why.numbers import INT32_MAX
from state.config import GROUP_MAX_PARTITIONS

LONGEST_NAME = 32_767
TRANSACTION: dict[str, Any] = {"producer_id": 1, "producer_epoch": 0, "txn_partition": 0, "txn_position": 7}
MARKER: dict[str, Any] = {**TRANSACTION, "producer_epoch": 1, "first_position": 7, "committed": True}
TOPIC = "t"


@dataclass(frozen=True)
class Worst:
    """A record, its group, and the records before it, which are one second apart."""

    value: bytes
    before: list[bytes] = field(default_factory=list)
    group_id: str = "g"


def request(type_: str, group_id: str = "g", **fields: object) -> bytes:
    """Return a request with these fields."""
    common = {"type": type_, "group_id": group_id, "correlation_id": "c", "reply_partition": 0, "version": 1}
    return json.dumps(common | fields, separators=(",", ":")).encode()


def join(protocols: object, group_id: str = "g", **fields: object) -> bytes:
    usual: dict[str, Any] = {
        "api_version": 3,
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": protocols,
    }
    return request("JoinGroup", group_id, **usual | fields)


def protocol(name: str, metadata: bytes = b"") -> dict[str, str]:
    return {"name": name, "metadata": base64.b64encode(metadata).decode()}


def subscribing(*topics: str, **fields: object) -> bytes:
    return encode_subscription(Subscription(topics, **fields))  # type: ignore[arg-type]


def small_partition(n: int) -> str:
    return f'{{"partition_index":{n},"committed_offset":0}}'


def rocketmq(type_: str, client_id: str = "A", **fields: Any) -> bytes:
    return request(type_, connection=f"c-{client_id}", client_id=client_id, **fields)


def numbered_queue(n: int) -> str:
    return f'["","",{n}]'


class WorstRequests:
    """The most expensive records for a greatest size of a record."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes

    def all(self) -> dict[str, Worst]:
        """Return the cases by name. The name begins with the type of the request."""
        malformed = {
            "JoinGroup, nested too deeply": Worst(b'{"type":"JoinGroup","x":' + b"[" * (self.max_bytes - 24)),
            "Heartbeat, cut off": Worst(
                self.padded("Heartbeat", api_version=0, generation_id=1, member_id="m")[:-1]
            ),
        }
        return {
            **self._kafka_joins(),
            **self._kafka_members(),
            **self._kafka_offsets(),
            **self._rocketmq() | self._rocketmq_queues(),
            **malformed,
        }

    def _kafka_joins(self) -> dict[str, Worst]:
        most = GROUP_MAX_PARTITIONS
        claimed = tuple(TopicPartition(TOPIC, n) for n in range(self.max_bytes // 7))
        joins = {
            "many protocols": self.array(join("@"), lambda n: f'{{"name":"{n:x}"}}'),
            "one protocol many times": self.array(join("@"), lambda n: '{"name":"r"}'),
            "protocols of the coordinator": self.array(
                join("@"), lambda n: json.dumps(protocol("coordinator:range", subscribing()))
            ),
            "more topics than may be": self.array(
                join([protocol("range")], partitions_per_topic="@"), lambda n: f'"{n:x}":0', "{", "}"
            ),
            "topics of a long name": self.array(
                join([protocol("range")], partitions_per_topic="@"), lambda n: f'"{n:032000x}":1', "{", "}"
            ),
            "metadata of topics": join(
                [protocol("range", subscribing(*(f"{n:x}" for n in range(self.max_bytes // 11))))]
            ),
            "one topic many times": join(
                [protocol("coordinator:sticky", subscribing(*([TOPIC] * (self.max_bytes // 5))))],
                partitions_per_topic={TOPIC: most},
            ),
            "names as long as may be": join(
                [protocol("r" * LONGEST_NAME)],
                client_id="c" * LONGEST_NAME,
                client_host="h" * LONGEST_NAME,
                reason="r" * LONGEST_NAME,
            ),
        }
        for name in COORDINATOR_ASSIGNORS:
            joins[f"most partitions, {name}"] = join(
                [protocol(name, subscribing(TOPIC))], partitions_per_topic={TOPIC: most}
            )
            joins[f"2^31 partitions, {name}"] = join(
                [protocol(name, subscribing(TOPIC))], partitions_per_topic={TOPIC: INT32_MAX}
            )
        for name in ("coordinator:uniform", "coordinator:sticky"):
            joins[f"as many topics, {name}"] = join(
                [protocol(name, subscribing(*(f"{n:x}" for n in range(most))))],
                partitions_per_topic={f"{n:x}": 1 for n in range(most)},
            )
            joins[f"owned partitions, {name}"] = join(
                [protocol(name, subscribing(TOPIC, owned_partitions=claimed, generation_id=1))],
                partitions_per_topic={TOPIC: most},
            )
            joins[f"user data, {name}"] = join(
                [protocol(name, subscribing(TOPIC, user_data=encode_sticky_user_data(Claim(claimed, 1))))],
                partitions_per_topic={TOPIC: most},
            )
        return {f"JoinGroup, {what}": Worst(value) for what, value in joins.items()}

    def _kafka_members(self) -> dict[str, Worst]:
        leave = request("LeaveGroup", api_version=5, members="@")
        sync = request("SyncGroup", api_version=3, generation_id=1, member_id="m", assignments="@")
        group = [join([protocol("range")])]
        return {
            "LeaveGroup, members that are nobody": Worst(self.array(leave, lambda n: "{}"), group),
            "LeaveGroup, of no group": Worst(self.array(leave, lambda n: "{}")),
            "SyncGroup, of many": Worst(self.array(sync, lambda n: f'{{"member_id":"{n:x}"}}'), group),
            "Heartbeat": Worst(
                self.padded("Heartbeat", api_version=4, generation_id=1, member_id="m"), group
            ),
            "DescribeGroup": Worst(self.padded("DescribeGroup", api_version=0), group),
            "DeleteGroup, of many offsets": Worst(
                self.padded("DeleteGroup", api_version=0), [self.commit(small_partition)]
            ),
            "OversizedRequest": Worst(
                self.padded("OversizedRequest", api_version=0, kind="JoinGroup", size_bytes=1, max_bytes=0),
                group,
            ),
            "ReleaseGroup": Worst(self.padded("ReleaseGroup", api_version=0), group),
        }

    def _kafka_offsets(self) -> dict[str, Worst]:
        large = self.commit(small_partition)
        noted = self.commit(
            lambda n: f'{{"partition_index":{n},"committed_offset":0,"committed_metadata":"{"x" * 4_096}"}}'
        )
        long_id = "g" * LONGEST_NAME
        fetch = request("OffsetFetch", api_version=9, topics=[{"name": TOPIC, "partition_indexes": "@"}])
        delete = request("OffsetDelete", api_version=0, topics=[{"name": TOPIC, "partition_indexes": "@"}])
        subscribed = join([protocol("range", subscribing(*(f"{n:x}" for n in range(self.max_bytes // 11))))])
        return {
            "OffsetCommit, many partitions": Worst(large),
            "OffsetCommit, one partition many times": Worst(self.commit(lambda n: small_partition(0))),
            "OffsetCommit, to a topic of a long name": Worst(
                self.commit(small_partition, topic="t" * LONGEST_NAME)
            ),
            "OffsetCommit, to a group of a long id": Worst(
                self.commit(small_partition, long_id), [], long_id
            ),
            "OffsetCommit, much metadata": Worst(noted),
            "OffsetCommit, over many offsets": Worst(large, [large]),
            "TxnOffsetCommit, many partitions": Worst(self.txn_commit(), [self.txn_commit()]),
            "TransactionMarker, of many partitions": Worst(
                self.padded("TransactionMarker", api_version=0, **MARKER), [large, self.txn_commit()]
            ),
            "OffsetFetch, many partitions": Worst(self.array(fetch, str)),
            "OffsetFetch, many pending": Worst(
                self.array(fetch.replace(b'"topics"', b'"require_stable":true,"topics"'), str),
                [self.txn_commit(), self.txn_commit()],
            ),
            "OffsetFetch, one partition many times": Worst(self.array(fetch, lambda n: "0"), [noted]),
            "OffsetFetch, one topic many times": Worst(
                self.array(
                    request("OffsetFetch", api_version=9, topics="@"),
                    lambda n: '{"name":"t","partition_indexes":[0]}',
                ),
                [noted],
            ),
            "OffsetFetch, all": Worst(self.padded("OffsetFetch", api_version=9), [large]),
            "OffsetDelete, of many pending": Worst(self.array(delete, str), [large, self.txn_commit()]),
            "OffsetDelete, many partitions": Worst(self.array(delete, str), [large]),
            "OffsetDelete, one partition many times": Worst(self.array(delete, lambda n: "0"), [large]),
            "OffsetDelete, one topic many times": Worst(
                self.array(
                    request("OffsetDelete", api_version=0, topics="@"),
                    lambda n: f'{{"name":"t","partition_indexes":[{n}]}}',
                ),
                [large],
            ),
            "OffsetDelete, of many topics beside many that are subscribed to": Worst(
                self.array(
                    request("OffsetDelete", api_version=0, topics="@"),
                    lambda n: f'{{"name":"{n:x}","partition_indexes":[]}}',
                ),
                [subscribed],
            ),
            "TopicMetadata, many": Worst(
                self.topic_metadata(lambda n: f'"{n:x}":null'), [large, self.txn_commit()]
            ),
            "TopicMetadata, of many offsets": Worst(
                self.topic_metadata(lambda n: f'"{TOPIC}":null'), [large]
            ),
            "TopicMetadata, ids of many offsets": Worst(
                self.topic_metadata(lambda n: f'"{TOPIC}":{{"id":"{UUID(int=7)}","partitions":1}}'), [large]
            ),
        }

    def _rocketmq(self) -> dict[str, Worst]:
        heartbeat = "HEART_BEAT_CONSUMER"
        common: dict[str, Any] = {"message_model": "CLUSTERING"}
        topics = rocketmq(heartbeat, **common, subscription_data_set="@")
        other = rocketmq(heartbeat, "B", **common, subscription_data_set="@")
        many = self.array(topics, lambda n: f'{{"topic":"{n:x}"}}')
        return {
            f"{heartbeat}, many topics": Worst(many),
            f"{heartbeat}, other topics than before": Worst(
                self.array(other, lambda n: f'{{"topic":"_{n:x}"}}'), [many]
            ),
            f"{heartbeat}, one topic many times": Worst(self.array(topics, lambda n: '{"topic":"t"}')),
            f"{heartbeat}, many codes": Worst(
                self.array(
                    rocketmq(heartbeat, **common, subscription_data_set=[{"topic": TOPIC, "code_set": "@"}]),
                    str,
                )
            ),
            "HEART_BEAT_PRODUCER": Worst(self.padded("HEART_BEAT_PRODUCER", connection="c", client_id="A")),
            "UNREGISTER_CLIENT_CONSUMER": Worst(
                self.padded("UNREGISTER_CLIENT_CONSUMER", connection="c-A", client_id="A"), [many]
            ),
            "UNREGISTER_CLIENT_PRODUCER": Worst(
                self.padded("UNREGISTER_CLIENT_PRODUCER", connection="c", client_id="A")
            ),
            "GET_CONSUMER_LIST_BY_GROUP": Worst(
                self.padded("GET_CONSUMER_LIST_BY_GROUP", connection="c", client_id="A"), [many]
            ),
            "SET_MESSAGE_REQUEST_MODE": Worst(
                self.padded("SET_MESSAGE_REQUEST_MODE", connection="c", client_id="A", topic=TOPIC)
            ),
            "GATEWAY_STARTED": Worst(
                self.array(
                    json.dumps(
                        {
                            **{"type": "GATEWAY_STARTED", "group_id": "g", "unknown": "@"},
                            **{"gateway": "east", "gateway_start": "2"},
                        }
                    ).encode(),
                    lambda n: "[{}]",
                ),
                [many],
            ),
            "CONNECTION_CLOSED": Worst(
                self.array(
                    json.dumps(
                        {"type": "CONNECTION_CLOSED", "group_id": "g", "connection": "c-A", "unknown": "@"}
                    ).encode(),
                    lambda n: "[{}]",
                ),
                [many],
            ),
        }

    def _rocketmq_queues(self) -> dict[str, Worst]:
        heartbeat = "HEART_BEAT_CONSUMER"
        common: dict[str, Any] = {"message_model": "CLUSTERING"}
        locks = self.array(rocketmq("LOCK_BATCH_MQ", mq_set="@"), numbered_queue)
        others_locks = self.array(rocketmq("LOCK_BATCH_MQ", "B", mq_set="@"), numbered_queue)
        ask: dict[str, Any] = {**common, "topic": TOPIC}
        small = rocketmq(heartbeat, **common)
        mode = rocketmq("SET_MESSAGE_REQUEST_MODE", topic=TOPIC, mode="POP", pop_share_queue_num=INT32_MAX)
        share = rocketmq("SET_MESSAGE_REQUEST_MODE", topic=TOPIC, mode="POP", pop_share_queue_num=97)
        crowd = [rocketmq(heartbeat, f"c{n}", **common) for n in range(100)]
        long_queue = rocketmq(
            "LOCK_BATCH_MQ", mq_set=[["t" * LONGEST_NAME, "b" * LONGEST_NAME, n] for n in range(30)]
        )
        asks = {
            strategy: self.array(
                rocketmq("QUERY_ASSIGNMENT", **ask, strategy_name=strategy, topic_queues="@"), numbered_queue
            )
            for strategy in ("AVG", "AVG_BY_CIRCLE")
        }
        return {
            "LOCK_BATCH_MQ, many queues": Worst(locks),
            "LOCK_BATCH_MQ, refused": Worst(others_locks, [locks]),
            "LOCK_BATCH_MQ, queues of long names": Worst(long_queue),
            "UNLOCK_BATCH_MQ, many queues": Worst(
                self.array(rocketmq("UNLOCK_BATCH_MQ", mq_set="@"), numbered_queue), [locks]
            ),
            "QUERY_ASSIGNMENT, pulled": Worst(asks["AVG"], [small]),
            "QUERY_ASSIGNMENT, by circle": Worst(asks["AVG_BY_CIRCLE"], [small]),
            "QUERY_ASSIGNMENT, of all who share": Worst(asks["AVG"], [small, mode]),
            "QUERY_ASSIGNMENT, shared by many": Worst(asks["AVG"], [small, *crowd, share]),
            "QUERY_ASSIGNMENT, while broadcasting": Worst(
                self.array(
                    rocketmq(
                        "QUERY_ASSIGNMENT",
                        topic=TOPIC,
                        message_model="BROADCASTING",
                        strategy_name="AVG",
                        topic_queues="@",
                    ),
                    numbered_queue,
                )
            ),
        }

    def array(self, head: bytes, item: Callable[[int], str], start: str = "[", end: str = "]") -> bytes:
        """Return the request `head` with its `"@"` replaced by an array or object of as many items as fit."""
        mark = head.rindex(b'"@"')
        front, back = head[:mark] + start.encode(), end.encode() + head[mark + 3 :]
        capacity = self.max_bytes - len(front) - len(back)
        items: list[str] = []
        used = 0
        while used <= capacity:
            items.append(item(len(items)))
            used += len(items[-1].encode()) + 1
        return front + ",".join(items[:-1]).encode() + back

    def topic_metadata(self, item: Callable[[int], str]) -> bytes:
        """Return a record of the topic watcher, with as many topics as fit."""
        head = json.dumps({"type": "TopicMetadata", "group_id": "g", "topics": "@"}).encode()
        return self.array(head, item, "{", "}")

    def padded(self, type_: str, **fields: Any) -> bytes:
        """Return a small request, enlarged by an unknown field."""
        return self.array(request(type_, **fields, unknown="@"), lambda n: "[{}]")

    def txn_commit(self) -> bytes:
        head = request(
            "TxnOffsetCommit",
            api_version=5,
            **TRANSACTION,
            txn_version=2,
            transactional_id="t",
            topics=[{"name": TOPIC, "partitions": "@"}],
        )
        return self.array(head, small_partition)

    def commit(self, partition: Callable[[int], str], group_id: str = "g", topic: str = TOPIC) -> bytes:
        head = request("OffsetCommit", group_id, api_version=9, topics=[{"name": topic, "partitions": "@"}])
        return self.array(head, partition)
